//! Gathers what the rules look at and carries out what they decide.

use std::{borrow::Cow, collections::HashMap, sync::Arc};

use cluster::{
    Claim, Class, Namespace, ObjectKey, Store, Volume,
    decision::Decision,
    store::Index,
    volume::{BY_CLAIM, FREE_BY_CLASS, RELEASED_BY_CLASS, UNUSED_BY_NAMESPACE, VolumePhase},
};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{
    Client, Resource,
    api::{Patch, PatchParams},
    core::Request,
};
use parking_lot::Mutex;
use platform::{
    client::{self, FencedClient, RequestError},
    events::{Event, EventKind, Recorder},
    metrics::{Counter, Family, Registry},
    queue::{self, Outcome, Queue},
    trouble::causes,
};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::{
    association::{self, ASSOCIATE},
    backlog,
    live::{MissingRight, Reader, Rights},
    pending::{FREED_BY_CLASS, Pending},
    previous::PreviousClaim,
    reservation::{self, KEEP, reserved_for},
    scrub::{Scrub, UNDERWAY_BY_CLASS},
    seen::NamespaceSeen,
    write,
};

/// The indexes that the store of volumes must have for this feature.
pub const INDEXES_OF_VOLUMES: [Index<Volume>; 6] =
    [BY_CLAIM, UNUSED_BY_NAMESPACE, RELEASED_BY_CLASS, FREE_BY_CLASS, FREED_BY_CLASS, UNDERWAY_BY_CLASS];

/// What is configured.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Who we are, in labels and annotations.
    pub controller_id: Arc<str>,
    /// The only namespace whose volumes are looked after; none if it is all of them.
    pub namespace: Option<Arc<str>>,
    /// Whether volumes get our label while their claim is there.
    pub automatic_association: bool,
    /// Whether nothing is released, only told.
    pub dry_run: bool,
    /// The label that associated volumes get; on others both spellings count.
    pub association_label: &'static str,
    /// What it may be expected to be allowed to do.
    pub rights: Rights,
    /// How many volumes are worked on at once.
    pub concurrency: usize,
}

/// What the feature knows of the cluster; somebody else feeds it.
#[derive(Clone)]
pub struct Caches {
    /// All volumes, with [`INDEXES_OF_VOLUMES`].
    pub volumes: Store<Volume>,
    /// All claims.
    pub claims: Store<Claim>,
    /// All classes.
    pub classes: Store<Class>,
    /// All namespaces.
    pub namespaces: Store<Namespace>,
}

/// The feature.
pub struct Releaser {
    pub(crate) caches: Caches,
    pub(crate) queue: Queue<ObjectKey>,
    pub(crate) pending: Arc<Pending>,
    pub(crate) told: Arc<Told>,
    pub(crate) client: FencedClient,
    /// None if nothing may be scrubbed.
    pub(crate) scrub: Option<Scrub>,
    pub(crate) reader: Reader,
    events: Recorder,
    decisions: Family<Counter>,
    pub(crate) unguarded: Counter,
    pub(crate) settings: Settings,
}

/// What was told about each volume last, so that it is told once.
pub(crate) type Told = Mutex<HashMap<ObjectKey, (Box<str>, &'static str)>>;

impl Releaser {
    /// The feature on top of caches that somebody else feeds.
    #[must_use]
    pub fn new(
        caches: Caches,
        client: FencedClient,
        events: Recorder,
        registry: &Registry,
        settings: Settings,
    ) -> Self {
        let decisions = registry.counters(
            "claimkeeper_releaser_decisions_total",
            "Decisions about retained volumes, by what was decided and why.",
            &["decision", "reason"],
        );
        let unguarded = registry.counter(
            "claimkeeper_releaser_unguarded_total",
            "Decisions about Released volumes without knowing whether they are attached, because that may not be read.",
        );
        backlog::observe(&caches.volumes, registry);
        Self {
            reader: Reader::new(Client::clone(&client), settings.rights),
            caches,
            client,
            scrub: None,
            queue: Queue::new("releaser", registry),
            pending: Arc::default(),
            told: Arc::default(),
            events,
            decisions,
            unguarded,
            settings,
        }
    }

    /// The same, which may also clean volumes on their way to the pool.
    #[must_use]
    pub fn with_scrub(mut self, scrub: Scrub) -> Self {
        self.scrub = Some(scrub);
        self
    }

    /// What is known where volumes are scrubbed; none if nothing may be.
    #[must_use]
    pub fn scrubs(&self) -> Option<&Scrub> {
        self.scrub.as_ref()
    }

    /// Whether everything may be read that keeps volumes from being released too early.
    pub async fn check_rights(&self) -> Result<(), MissingRight> {
        self.reader.check_rights().await
    }

    /// Whether somebody must feed the store of namespaces.
    #[must_use]
    pub fn watches_namespaces(&self) -> bool {
        self.settings.rights == Rights::Ours
    }

    /// What it looks at.
    #[must_use]
    pub fn caches(&self) -> &Caches {
        &self.caches
    }

    /// Acts until `stop` is cancelled (then it finishes what it has begun) or the future is dropped (then it ends at once).
    pub async fn run(&self, stop: CancellationToken) {
        let Caches { volumes, claims, classes, namespaces } = &self.caches;
        let synced = async {
            tokio::join!(volumes.synced(), claims.synced(), classes.synced());
            if self.watches_namespaces() {
                namespaces.synced().await;
            }
            if let Some(scrub) = &self.scrub {
                scrub.jobs().synced().await;
            }
        };
        if stop.run_until_cancelled(synced).await.is_none() {
            return;
        }
        let _subscriptions = self.subscribe();
        self.scrub.iter().for_each(|scrub| self.queue.add(scrub.sweep()));
        queue::run(&self.queue, self.settings.concurrency, stop, |volume| self.handle(volume)).await;
    }

    async fn handle(&self, key: ObjectKey) -> Outcome {
        // Volumes have no namespace.
        if !key.namespace().is_empty() {
            return self.sweep().await;
        }
        let Some(volume) = self.caches.volumes.get(&key) else { return Outcome::Done };
        if self.scrub.as_ref().is_some_and(|scrub| scrub.has(&volume)) {
            self.go_on_scrubbing(&volume).await
        } else if volume.phase == VolumePhase::Released {
            self.release(&volume).await
        } else {
            self.told.lock().remove(&volume.key);
            match reserved_for(&volume) {
                Some(previous) if self.settings.rights == Rights::Ours => self.keep(&volume, &previous).await,
                Some(_) => Outcome::Done,
                None => self.associate(&volume).await,
            }
        }
    }

    pub(crate) fn class_of(&self, volume: &Volume) -> Option<Arc<Class>> {
        self.caches.classes.get(&ObjectKey::new("", &volume.class))
    }

    async fn associate(&self, volume: &Arc<Volume>) -> Outcome {
        let claim = volume.claim.as_ref().and_then(|claim| self.caches.claims.get(&claim.key));
        let seen = association::Observation {
            volume: Arc::clone(volume),
            class: self.class_of(volume),
            claim,
            controller_id: Arc::clone(&self.settings.controller_id),
            automatic: self.settings.automatic_association,
        };
        let Decision { action, reason, message } = self.count(ASSOCIATE.decide(&seen), |action| action.name());
        if action == association::Action::Leave {
            tracing::debug!(feature = "releaser", volume = %volume.key, reason, "{message}");
            return Outcome::Done;
        }
        let Settings { association_label, controller_id, .. } = &self.settings;
        if let Err(error) = self.write(volume, write::associate(volume, association_label, controller_id)).await {
            return self.failed(volume, "ErrAssociatePV", "associating", &error);
        }
        tracing::info!(feature = "releaser", volume = %volume.key, reason, "{message}");
        self.tell(volume, EventKind::Normal, "Associate", reason, message);
        Outcome::Done
    }

    /// Looks after a volume that is kept for the next claim of a name.
    async fn keep(&self, volume: &Arc<Volume>, previous: &PreviousClaim) -> Outcome {
        let decision = match self.is_still_kept(volume, previous).await {
            Ok(decision) => decision,
            Err(error) => return self.failed(volume, "ErrReleasePV", "restoring", &error),
        };
        let Decision { action, reason, message } = self.count(decision, |action| action.name());
        if action != reservation::Action::Restore {
            tracing::debug!(feature = "releaser", volume = %volume.key, reason, "{message}");
            return Outcome::Done;
        }
        if let Err(error) = self.write(volume, write::restore(volume, previous)).await {
            return self.failed(volume, "ErrReleasePV", "restoring", &error);
        }
        tracing::warn!(feature = "releaser", volume = %volume.key, reason, "{message}");
        self.tell(volume, EventKind::Warning, "Restore", reason, message);
        Outcome::Done
    }

    /// Decides by the cache, and once more by what is read live before anything is taken back.
    async fn is_still_kept(
        &self,
        volume: &Arc<Volume>,
        previous: &PreviousClaim,
    ) -> kube::Result<Decision<reservation::Action>> {
        let cached = self.caches.namespaces.get(&ObjectKey::new("", &previous.namespace));
        let mut seen = reservation::Observation {
            volume: Arc::clone(volume),
            namespace: cached.map_or(NamespaceSeen::Gone, |namespace| NamespaceSeen::of(&namespace)),
            served_elsewhere: None,
            looked_after: self.settings.namespace.clone(),
        };
        if KEEP.decide(&seen).action == reservation::Action::Look {
            seen.served_elsewhere = Some(self.reader.is_served_elsewhere(volume, previous).await?);
        }
        if KEEP.decide(&seen).action == reservation::Action::Restore {
            seen.namespace = self.reader.namespace(&previous.namespace).await?;
        }
        Ok(KEEP.decide(&seen))
    }

    pub(crate) fn count<A>(&self, decision: Decision<A>, name: impl Fn(&A) -> &'static str) -> Decision<A> {
        self.decisions.with(&[name(&decision.action), decision.reason]).increment();
        decision
    }

    pub(crate) async fn write(&self, volume: &Volume, change: Value) -> kube::Result<()> {
        let path = PersistentVolume::url_path(&(), None);
        let request = Request::new(path).patch(volume.key.name(), &PatchParams::default(), &Patch::Merge(change));
        client::send_unread(&self.client, request.map_err(kube::Error::BuildRequest)?).await
    }

    pub(crate) fn is_news(&self, volume: &Volume, reason: &'static str) -> bool {
        let told = (volume.uid.clone(), reason);
        self.told.lock().insert(volume.key.clone(), told.clone()) != Some(told)
    }

    pub(crate) fn failed(&self, volume: &Volume, reason: &'static str, doing: &str, error: &kube::Error) -> Outcome {
        let key = &volume.key;
        match error {
            kube::Error::Api(status) if matches!(status.code, 404 | 409) => {
                tracing::debug!(feature = "releaser", volume = %key, "the volume has changed; decided again");
            }
            // Whoever leads now does it; there is nothing to tell and nothing failed.
            error if RequestError::is_not_leader(error) => return Outcome::Done,
            error => {
                let message = format!("error {doing} PV {key}: {}", causes(error));
                tracing::warn!(feature = "releaser", volume = %key, reason, "{message}");
                // A server that says no has something to tell; one that is away has not, least of all about every volume.
                if matches!(error, kube::Error::Api(status) if status.code < 500) {
                    self.tell(volume, EventKind::Warning, "Release", reason, message.into());
                }
            }
        }
        Outcome::Retry
    }

    pub(crate) fn tell(
        &self,
        volume: &Volume,
        kind: EventKind,
        action: &'static str,
        reason: &'static str,
        note: Cow<'static, str>,
    ) {
        self.events.publish(Event { regarding: volume.reference(), kind, reason, action, note: note.into_owned() });
    }
}
