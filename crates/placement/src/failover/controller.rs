//! Gathers what the rules look at and carries out what they decide.

use std::sync::Arc;

use cluster::{
    Claim, ObjectKey, Pod, Volume,
    decision::Decision,
    store::{Change, Subscription},
    volume::ClaimReference,
};
use k8s_openapi::{
    api::core::v1::{PersistentVolume, PersistentVolumeClaim},
    jiff::Timestamp,
};
use platform::{
    events::EventKind,
    queue::{self, Outcome, Queue},
};
use tokio_util::sync::CancellationToken;

use super::{
    decision::{Action, FAILOVER, Move, Observation},
    note::{BLANK_RECREATIONS, Note},
    observe::{Eyes, driver_of},
};
use crate::{
    Context,
    act::{annotations, claim_reference, preconditioned},
    followed::{claims_of, have_each_other},
    settings::Driver,
};

/// The part of the feature that notes where volumes went.
pub struct Failover {
    context: Context,
    queue: Queue<ObjectKey>,
}

/// As long as they live, changes wake the part.
type Subscriptions = (Subscription<Volume>, Subscription<Claim>, Subscription<Pod>);

impl Failover {
    /// The part on top of caches that somebody else feeds.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self { context: context.clone(), queue: Queue::new("placement-failover", &context.registry) }
    }

    /// Acts until `stop` is cancelled (then it finishes what it has begun) or the future is dropped (then it ends at once).
    pub async fn run(&self, stop: CancellationToken) {
        let _subscriptions = self.subscribe();
        queue::run(&self.queue, self.context.settings.concurrency, stop, |volume| self.handle(volume)).await;
    }

    fn subscribe(&self) -> Subscriptions {
        (self.follow_volumes(), self.follow_claims(), self.follow_pods())
    }

    fn follow_volumes(&self) -> Subscription<Volume> {
        let (queue, settings) = (self.queue.clone(), Arc::clone(&self.context.settings));
        self.context.caches.volumes.subscribe(move |change| match change {
            Change::Applied { old, new }
                if old.is_none_or(|old| old.version != new.version) && driver_of(new, &settings).is_some() =>
            {
                queue.add(new.key.clone());
            }
            _ => {}
        })
    }

    fn follow_claims(&self) -> Subscription<Claim> {
        let wake = self.bell();
        self.context.caches.claims.subscribe(move |change| match change {
            Change::Applied { old, new } if old != Some(new) => wake(new),
            _ => {}
        })
    }

    /// A pod that runs may show that its volume moved; one that goes may have been what kept it where it was.
    fn follow_pods(&self) -> Subscription<Pod> {
        let (claims, wake) = (self.context.caches.claims.clone(), self.bell());
        let place = |pod: &Pod| (pod.uid.clone(), pod.node.clone(), pod.running, pod.being_deleted);
        self.context.caches.pods.subscribe(move |change| {
            let pod = match change {
                Change::Applied { old, new } if old.is_none_or(|old| place(old) != place(new)) => new,
                Change::Applied { .. } => return,
                Change::Deleted { old } => old,
            };
            if pod.node.is_some() {
                claims_of(pod).filter_map(|(claim, _)| claims.get(&claim)).for_each(|claim| wake(&claim));
            }
        })
    }

    fn bell(&self) -> impl Fn(&Claim) + Send + Sync + 'static {
        let (queue, volumes) = (self.queue.clone(), self.context.caches.volumes.clone());
        let settings = Arc::clone(&self.context.settings);
        move |claim| {
            let volume = claim.volume.as_deref().and_then(|name| volumes.get(&ObjectKey::new("", name)));
            if let Some(volume) = volume.filter(|volume| driver_of(volume, &settings).is_some()) {
                queue.add(volume.key.clone());
            }
        }
    }

    async fn handle(&self, key: ObjectKey) -> Outcome {
        let Some(volume) = self.context.caches.volumes.get(&key) else { return Outcome::Done };
        let Some(driver) = driver_of(&volume, &self.context.settings) else { return Outcome::Done };
        let done = self.look_after(&volume, driver).await;
        done.map_or_else(|error| Context::failed(&key, "noting where a volume is", &error), |()| Outcome::Done)
    }

    async fn look_after(&self, volume: &Volume, driver: &Driver) -> kube::Result<()> {
        let eyes = Eyes { caches: &self.context.caches, settings: &self.context.settings };
        let mut seen = eyes.observe(volume, driver);
        if FAILOVER.decide(&seen).action == Action::Look {
            seen.users = eyes.live_users(&self.context.client, volume, &seen).await?;
            seen.live = true;
        }
        let decision = FAILOVER.decide(&seen);
        self.context.counts.count(&decision, decision.action.name());
        let Decision { action, reason, message } = decision;
        let note = Note::of(volume);
        let note = match action {
            Action::Leave | Action::Look => {
                tracing::debug!(feature = "placement", volume = %volume.key, reason, "{message}");
                note
            }
            Action::Remember(home) => {
                let first = if driver.record_failover { None } else { Some(Note::first(&home, Timestamp::now())) };
                self.write(volume, driver, &home, first.as_ref()).await?;
                tracing::info!(feature = "placement", volume = %volume.key, reason, "{message}");
                note
            }
            Action::Count(moved) => {
                let next = self.count(volume, driver, note.as_ref(), &moved).await?;
                tracing::warn!(feature = "placement", volume = %volume.key, reason, "{message}");
                self.tell(volume, &seen, &moved, reason, &message);
                Some(next)
            }
        };
        self.copy_to_claim(volume, note.as_ref()).await
    }

    async fn count(&self, volume: &Volume, driver: &Driver, note: Option<&Note>, moved: &Move) -> kube::Result<Note> {
        let claim = volume.claim.as_ref().and_then(|claim| claim.uid.as_deref());
        let next = Note::next(note, &moved.from, &moved.to, claim, Timestamp::now());
        self.write(volume, driver, &moved.to, Some(&next)).await?;
        Ok(next)
    }

    /// All that is written about a move, at once and for this version of the volume: that is why it counts once.
    async fn write(&self, volume: &Volume, driver: &Driver, home: &str, note: Option<&Note>) -> kube::Result<()> {
        let home = driver.record_failover.then(|| (driver.selected_node_annotation.as_str(), home.to_owned()));
        let note = note.map(|note| (BLANK_RECREATIONS, note.on_volume()));
        let change = preconditioned(&volume.uid, Some(&volume.version), annotations(home.into_iter().chain(note)));
        self.context.patch::<PersistentVolume>(&volume.key, change).await
    }

    /// The claim gets what stands on its volume, unless it was another claim's data, or the claim knows more than we do.
    async fn copy_to_claim(&self, volume: &Volume, note: Option<&Note>) -> kube::Result<()> {
        let Some((note, reference)) = note.filter(|note| note.count > 0).zip(volume.claim.as_ref()) else {
            return Ok(());
        };
        let Some(uid) = reference.uid.as_deref().filter(|uid| note.claim.as_deref() == Some(uid)) else {
            return Ok(());
        };
        let Some(claim) = self.context.caches.claims.get(&reference.key) else { return Ok(()) };
        let known = claim.blank_recreations.as_deref().and_then(Note::read).map_or(0, |known| known.count);
        if known >= note.count || !have_each_other(&claim, volume) {
            return Ok(());
        }
        let change = preconditioned(uid, None, annotations([(BLANK_RECREATIONS, note.on_claim())]));
        match self.context.patch::<PersistentVolumeClaim>(&reference.key, change).await {
            // It is another claim, or none: this one's data is nobody's any more.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            written => written,
        }
    }

    fn tell(&self, volume: &Volume, seen: &Observation, moved: &Move, reason: &'static str, message: &str) {
        let tell = |regarding| self.context.tell(regarding, EventKind::Warning, "NoteFailover", reason, message);
        if let Some(ClaimReference { key, uid: Some(uid) }) = &volume.claim {
            tell(claim_reference(key, uid));
        }
        let pod = seen.witness(&moved.to).and_then(|user| self.context.caches.pods.get(&user.pod));
        if let Some(pod) = pod {
            tell(pod.reference());
        }
    }
}
