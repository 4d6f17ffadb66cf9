//! Gathers what the rules look at and carries out what they decide.

use std::sync::Arc;

use cluster::{
    Claim, Node, ObjectKey, Pod, Volume,
    decision::{Account, Decision},
    pod::{BY_EPHEMERAL_CLAIM, BY_USED_CLAIM},
    store::{Change, Slim, Subscription},
    volume::ClaimReference,
};
use k8s_openapi::{
    api::core::v1::{PersistentVolume, PersistentVolumeClaim},
    jiff::Timestamp,
};
use kube::{Api, Client, api::ListParams};
use platform::{
    events::EventKind,
    queue::{self, Outcome, Queue},
};
use tokio_util::sync::CancellationToken;

use super::{
    decision::{Action, FAILOVER, Move, Observation, User},
    note::{BLANK_RECREATIONS, Note},
};
use crate::{
    Context,
    act::{annotations, claim_reference, preconditioned},
    followed::{claims_of, get, have_each_other},
    home::Home,
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

    /// What would be decided about a volume, and why; none if it is none of ours. Nothing is done about it.
    #[must_use]
    pub fn explain(&self, volume: &Volume) -> Option<Account> {
        let driver = self.context.settings.driver(&volume.driver)?;
        let about = format!("failover of volume {}", volume.key);
        Some(FAILOVER.explain(&self.observe(volume, driver)).tell("placement", about, Action::name))
    }

    fn subscribe(&self) -> Subscriptions {
        (self.follow_volumes(), self.follow_claims(), self.follow_pods())
    }

    fn follow_volumes(&self) -> Subscription<Volume> {
        let (queue, settings) = (self.queue.clone(), Arc::clone(&self.context.settings));
        self.context.caches.volumes.subscribe(move |change| match change {
            Change::Applied { old, new }
                if old.is_none_or(|old| old.version != new.version) && settings.driver(&new.driver).is_some() =>
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
            if let Some(volume) = volume.filter(|volume| settings.driver(&volume.driver).is_some()) {
                queue.add(volume.key.clone());
            }
        }
    }

    async fn handle(&self, key: ObjectKey) -> Outcome {
        let Some(volume) = self.context.caches.volumes.get(&key) else { return Outcome::Done };
        let Some(driver) = self.context.settings.driver(&volume.driver) else { return Outcome::Done };
        let done = self.look_after(&volume, driver).await;
        done.map_or_else(|error| Context::failed(&key, "noting where a volume is", &error), |()| Outcome::Done)
    }

    async fn look_after(&self, volume: &Volume, driver: &Driver) -> kube::Result<()> {
        let mut seen = self.observe(volume, driver);
        if FAILOVER.decide(&seen).action == Action::Look {
            seen.users = self.live_users(volume, &seen).await?;
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

    fn observe(&self, volume: &Volume, driver: &Driver) -> Observation {
        let settings = &self.context.settings;
        let noted = volume.annotations.get(&driver.selected_node_annotation).filter(|node| !node.is_empty());
        let made = || volume.attributes.get(driver.initial_node_attribute.as_ref()?).filter(|node| !node.is_empty());
        let home = || Home::of(volume, driver, settings).map(|home| self.name_of(&home));
        let before = || match made() {
            Some(node) if !driver.record_failover => Some(node.as_str().into()),
            _ if driver.record_failover => home(),
            _ => Home::tied(volume, settings).map(|home| self.name_of(&home)),
        };
        let known = Note::of(volume).map(|note| note.to.into_boxed_str()).or_else(before);
        Observation {
            volume: volume.key.name().into(),
            being_deleted: volume.being_deleted,
            records: driver.record_failover,
            known,
            noted: if driver.record_failover { home() } else { noted.map(|node| node.as_str().into()) },
            users: self.users(volume),
            live: false,
        }
    }

    /// The name of the node that is meant, or what comes closest to it.
    fn name_of(&self, home: &Home) -> Box<str> {
        home.find(&self.context.caches.nodes).map_or_else(|| home.name().into(), |node| node.key.name().into())
    }

    /// The pods that use the volume, the oldest first.
    fn users(&self, volume: &Volume) -> Vec<User> {
        let caches = &self.context.caches;
        let claim = volume.claim.as_ref().and_then(|reference| caches.claims.get(&reference.key));
        let Some(claim) = claim.filter(|claim| have_each_other(claim, volume)) else { return Vec::new() };
        let pods = [&BY_USED_CLAIM, &BY_EPHEMERAL_CLAIM].map(|index| caches.pods.find(index, claim.key.as_str()));
        self.among(&claim, pods.into_iter().flatten())
    }

    /// Those that decide, read live: what a cache shows may have run, and gone, long ago.
    async fn live_users(&self, volume: &Volume, seen: &Observation) -> kube::Result<Vec<User>> {
        let Some(key) = volume.claim.as_ref().map(|reference| &reference.key) else { return Ok(Vec::new()) };
        let client = Client::clone(&self.context.client);
        let claims: Api<<Claim as Slim>::Wire> = Api::namespaced(client.clone(), key.namespace());
        let claim = claims.get_opt(key.name()).await?.and_then(Claim::from_wire);
        let Some(claim) = claim.filter(|claim| have_each_other(claim, volume)) else { return Ok(Vec::new()) };
        let api: Api<<Pod as Slim>::Wire> = Api::namespaced(client, key.namespace());
        let mut pods = Vec::new();
        for user in seen.users.iter().filter(|user| Some(&user.node) != seen.known.as_ref()) {
            pods.extend(api.get_opt(user.pod.name()).await?.and_then(Pod::from_wire));
        }
        // Where the node is gone nobody can be left there.
        if let Some(known) = seen.known.as_ref().filter(|known| self.has_node(known)) {
            let there = ListParams::default().fields(&format!("spec.nodeName={known}"));
            pods.extend(api.list(&there).await?.items.into_iter().filter_map(Pod::from_wire));
        }
        let mut users = self.among(&claim, pods.into_iter().map(Arc::new));
        for user in users.iter_mut().filter(|user| user.lost) {
            user.lost = get::<Node>(&self.context.client, &user.node).await?.is_none();
        }
        Ok(users)
    }

    fn has_node(&self, name: &str) -> bool {
        self.context.caches.nodes.get(&ObjectKey::new("", name)).is_some()
    }

    fn among(&self, claim: &Claim, pods: impl Iterator<Item = Arc<Pod>>) -> Vec<User> {
        let is_one = |pod: &Pod| {
            let owner = claims_of(pod).find(|(key, _)| *key == claim.key);
            owner.is_some_and(|(_, owner)| owner.is_none() || claim.owner.as_deref() == owner)
        };
        let mut pods: Vec<Arc<Pod>> = pods.filter(|pod| !pod.has_ended() && is_one(pod)).collect();
        pods.sort_by(|one, other| (one.created, &one.key).cmp(&(other.created, &other.key)));
        let user = |pod: &Arc<Pod>| {
            let node = pod.node.clone()?;
            let lost = !self.has_node(&node);
            Some(User { pod: pod.key.clone(), node, running: pod.running, leaving: pod.being_deleted, lost })
        };
        pods.iter().filter_map(user).collect()
    }
}
