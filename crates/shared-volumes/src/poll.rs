//! Asks the source, again and again, and lets the queues know what has changed.

use std::{collections::HashSet, sync::Arc, time::Duration};

use futures::{
    StreamExt,
    stream::{self, FuturesUnordered},
};
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::{Api, Client, api::ListParams};
use parking_lot::Mutex;
use platform::trouble::Trouble;
use rand::seq::SliceRandom;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::{
    controller::SharedVolumes,
    endpoint::Range,
    round::Round,
    source::{Home, SharedVolume, VolumeId},
    state::VolumeKey,
};

/// How many polls may be under way: a namespace that does not answer must not keep the others from being read.
const POLLS_AT_ONCE: usize = 3;

/// How many volumes that are missing are asked for at once.
const LOOKS_AT_ONCE: usize = 8;

/// How many volumes that are missing are asked for in one poll; the rest is for the next.
const MOST_LOOKS: usize = 256;

/// What was said about the source and its homes.
#[derive(Default)]
struct Said {
    source: Trouble,
    homes: std::collections::HashMap<Arc<str>, Trouble>,
}

impl SharedVolumes {
    /// Polls until it is to stop.
    pub(crate) async fn keep_polling(&self, stop: CancellationToken) {
        let said = Mutex::new(Said::default());
        let mut ticks = tokio::time::interval(self.settings.poll_interval.max(Duration::from_millis(10)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut polls = FuturesUnordered::new();
        let mut ranges = Instant::now();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                Some(()) = polls.next(), if !polls.is_empty() => {}
                _ = ticks.tick() => {
                    let ranges_are_due = ranges <= Instant::now();
                    if ranges_are_due {
                        ranges = Instant::now() + self.settings.cache_expiry;
                    }
                    if polls.len() < POLLS_AT_ONCE {
                        polls.push(self.poll(&said, ranges_are_due));
                    }
                }
            }
        }
    }

    async fn poll(&self, said: &Mutex<Said>, ranges_are_due: bool) {
        if ranges_are_due {
            self.read_service_ranges().await;
        }
        let round = Arc::new(Round::begin(&self.metrics.reconciles));
        // Which homes told everything, and of which volumes.
        let heard = Mutex::new(Vec::<(Arc<str>, HashSet<VolumeId>)>::new());
        let listed = self.source.list(&|home| self.hear(home, &round, &heard, said)).await;
        match listed {
            Err(error) => {
                if said.lock().source.begins(&error.message) {
                    tracing::warn!(
                        feature = "shared-volumes",
                        class = error.class.name(),
                        "volumes cannot be listed: {error}"
                    );
                }
            }
            Ok(homes) => {
                if said.lock().source.ends() {
                    tracing::info!(feature = "shared-volumes", "volumes can be listed again");
                }
                said.lock().homes.retain(|home, _| homes.contains(home));
                self.look_for_missing(&homes, heard.into_inner(), &round).await;
            }
        }
        let expired = {
            let mut state = self.state.lock();
            state.leads.too_late(Instant::now());
            state.expired(Instant::now())
        };
        self.enqueue(expired, &round);
    }

    /// Takes in what a home told.
    fn hear(
        &self,
        Home { name, asked, volumes }: Home,
        round: &Arc<Round>,
        heard: &Mutex<Vec<(Arc<str>, HashSet<VolumeId>)>>,
        said: &Mutex<Said>,
    ) {
        let mut said = said.lock();
        let trouble = said.homes.entry(Arc::clone(&name)).or_default();
        let listed = match volumes {
            Ok(listed) => listed,
            Err(error) => {
                if trouble.begins(&error.message) {
                    tracing::warn!(
                        feature = "shared-volumes",
                        home = &*name,
                        class = error.class.name(),
                        "the volumes of one namespace cannot be listed, and are left as they are: {error}"
                    );
                }
                return;
            }
        };
        if listed.unreadable > 0 {
            let problem = format!("{} of the volumes mean nothing", listed.unreadable);
            if trouble.begins(&problem) {
                tracing::warn!(feature = "shared-volumes", home = &*name, "{problem}, and are left as they are");
            }
        } else {
            if trouble.ends() {
                tracing::info!(
                    feature = "shared-volumes",
                    home = &*name,
                    "the volumes of the namespace can be listed again"
                );
            }
            heard.lock().push((name, listed.volumes.iter().map(|volume| Arc::clone(&volume.id)).collect()));
        }
        drop(said);
        let mut changed = Vec::new();
        for volume in listed.volumes {
            changed.extend(self.state.lock().told(volume, asked, Instant::now()));
        }
        self.enqueue(changed, round);
    }

    /// Missing is not gone: each is asked for.
    async fn look_for_missing(
        &self,
        homes: &[Arc<str>],
        heard: Vec<(Arc<str>, HashSet<VolumeId>)>,
        round: &Arc<Round>,
    ) {
        let mut missing: Vec<Arc<SharedVolume>> = Vec::new();
        {
            let state = self.state.lock();
            for (home, present) in &heard {
                missing.extend(state.missing(home, present));
            }
            for home in state.homes().iter().filter(|home| !homes.contains(home)) {
                missing.extend(state.missing(home, &HashSet::new()));
            }
        }
        // Not always the same ones.
        missing.shuffle(&mut rand::rng());
        missing.truncate(MOST_LOOKS);
        let looks = missing.into_iter().map(|volume| async move {
            let asked = Instant::now();
            match self.source.look(&volume).await {
                Ok(Some(found)) => self.state.lock().told(found, asked, Instant::now()),
                Ok(None) => self.state.lock().gone(&volume.id, asked, Instant::now()),
                Err(error) => {
                    tracing::debug!(feature = "shared-volumes", volume = %volume.id, "missing, but maybe not gone: {error}");
                    Vec::new()
                }
            }
        });
        let mut looks = stream::iter(looks.collect::<Vec<_>>()).buffer_unordered(LOOKS_AT_ONCE);
        while let Some(changed) = looks.next().await {
            self.enqueue(changed, round);
        }
    }

    fn enqueue(&self, keys: Vec<VolumeKey>, round: &Arc<Round>) {
        for key in keys {
            self.state.lock().wait_for(&key, round);
            self.lines.add(key);
        }
    }

    /// What cannot be read is not known, and then only the API server keeps endpoints out of it.
    async fn read_service_ranges(&self) {
        match service_ranges(&self.client).await {
            Ok(known) => *self.service_ranges.write() = known.into(),
            Err(error) => {
                tracing::debug!(feature = "shared-volumes", "the ranges of Services cannot be read: {error}");
            }
        }
    }
}

/// Where Services are.
pub(crate) async fn service_ranges(client: &Client) -> kube::Result<Vec<Range>> {
    let ranges: Api<ServiceCIDR> = Api::all(client.clone());
    let found = ranges.list(&ListParams::default()).await?;
    let texts = found.items.iter().filter_map(|range| range.spec.as_ref()).flat_map(|spec| spec.cidrs.iter().flatten());
    Ok(texts.filter_map(|text| text.parse().ok()).collect())
}
