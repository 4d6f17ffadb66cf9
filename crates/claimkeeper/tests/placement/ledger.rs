//! Which volume was where when the operator did something about it.

use std::{
    collections::BTreeMap,
    pin::pin,
    sync::{Arc, Mutex},
};

use anyhow::{Context, Result, ensure};
use futures::TryStreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{
    Api, ResourceExt,
    runtime::{WatchStreamExt, watcher},
};
use tokio::task::JoinHandle;

use crate::stage::{Stage, tied_to};

/// Names and times of what the operator has changed, first things first.
pub(crate) fn changes(stage: &Stage, verb: &str, resource: &str) -> Result<Vec<(String, Timestamp)>> {
    let log = stage.cluster.audit_log().user(&stage.replica.user).verb(verb).resource(resource);
    let done = log.requests()?.into_iter().filter(|request| request.code().is_some_and(|code| code < 300));
    let named = done.filter_map(|request| Some((request.object_ref?.name, request.request_received_timestamp)));
    let mut changes: Vec<_> = named.collect();
    changes.sort();
    Ok(changes)
}

/// All volumes that there ever were, and all nodes that were lost.
pub(crate) struct Ledger {
    volumes: Arc<Mutex<BTreeMap<String, Known>>>,
    lost: BTreeMap<String, Timestamp>,
    watch: JoinHandle<()>,
}

#[derive(Debug)]
struct Known {
    claim: String,
    since: Timestamp,
    /// The one node that it cannot leave.
    tied_to: Option<String>,
}

impl Drop for Ledger {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

impl Ledger {
    pub(crate) fn open(volumes: Api<PersistentVolume>) -> Self {
        let known: Arc<Mutex<BTreeMap<String, Known>>> = Arc::default();
        let notes = Arc::clone(&known);
        let watch = tokio::spawn(async move {
            let mut seen = pin!(watcher(volumes, watcher::Config::default()).default_backoff().applied_objects());
            loop {
                if let Ok(Some(volume)) = seen.try_next().await {
                    note(&mut notes.lock().unwrap(), &volume);
                }
            }
        });
        Self { volumes: known, lost: BTreeMap::new(), watch }
    }

    /// Called before a node is taken away: whatever was done earlier was done to a living one.
    pub(crate) fn lose(&mut self, node: &str) {
        self.lost.insert(node.to_owned(), Timestamp::now());
    }

    /// What the operator deleted was tied to a node that was gone then.
    pub(crate) fn check(&self, stage: &Stage) -> Result<usize> {
        let volumes = self.volumes.lock().unwrap();
        let mut count = 0;
        for (claim, when) in changes(stage, "delete", "persistentvolumeclaims")? {
            let of_claim = volumes.iter().filter(|(_, known)| known.claim == claim && known.since <= when);
            let volume = of_claim.max_by_key(|(_, known)| known.since);
            let (volume, known) = volume.with_context(|| format!("claim {claim} was deleted, which had no volume"))?;
            self.expect_lost(volume, known, when).with_context(|| format!("claim {claim} was deleted"))?;
            count += 1;
        }
        for (volume, when) in changes(stage, "delete", "persistentvolumes")? {
            let known = volumes.get(&volume).with_context(|| format!("nobody knew volume {volume}"))?;
            self.expect_lost(&volume, known, when).context("a volume was deleted")?;
        }
        Ok(count)
    }

    fn expect_lost(&self, volume: &str, known: &Known, when: Timestamp) -> Result<()> {
        let node = known.tied_to.as_ref().with_context(|| format!("volume {volume} can be used anywhere"))?;
        let lost = self.lost.get(node).with_context(|| format!("volume {volume} is on {node}, which lives"))?;
        ensure!(*lost <= when, "volume {volume} is on {node}, which lived until {lost}, and it was {when}");
        Ok(())
    }
}

fn note(volumes: &mut BTreeMap<String, Known>, volume: &PersistentVolume) {
    let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()).and_then(|claim| claim.name.clone());
    let since = volumes.get(&volume.name_any()).map_or_else(Timestamp::now, |known| known.since);
    let known = Known { claim: claim.unwrap_or_default(), since, tied_to: tied_to(volume) };
    volumes.insert(volume.name_any(), known);
}
