//! Finds the claims of ended pods, gathers what the rules ask for, and tells what they decided.

use std::{sync::Arc, time::Duration};

use cluster::{
    Attachment, Claim, Class, Driver, ObjectKey, Pod, Store,
    attachment::BY_VOLUME,
    decision::{Account, Decision},
    pod::{BY_USED_CLAIM, EphemeralVolume},
    store::{Index, Slim},
};
use kube::{Api, Client, api::ListParams};
use platform::{
    client::FencedClient,
    events::{Event, EventKind, Recorder},
    metrics::{Counter, Family, Registry},
    queue::{self, Outcome, Queue},
};
use tokio_util::sync::CancellationToken;

use super::{
    decision::{Action, ClaimSeen, Fact, Observation, RECLAIM, RECLAIMABLE, UNMOUNT_NOT_PROVABLE, Users},
    facts::{self, ClaimWire, LiveClaim, Node, NodeWire, Volume, VolumeWire},
    memory::Memory,
    mode::{Mode, ReclaimCompleted},
};

/// A kubelet tells of its volumes every ten seconds or so; one that is away may be so for long.
const FIRST_POLL: Duration = Duration::from_secs(1);
const LONGEST_POLL: Duration = Duration::from_mins(5);

/// When the node of a claim that must stay goes, Kubernetes soon removes its pods, and their claims with them. So we need not
/// look often.
const RECHECK: Duration = Duration::from_mins(30);

/// How many pods a page of the live list has: at several KB each, a page is a few MB on its way through memory.
const PAGE_SIZE: u32 = 500;

/// Pods that may still start, run or stop.
const NOT_ENDED: &str = "status.phase!=Succeeded,status.phase!=Failed";

/// The indexes that the store of pods must have for reclaim, besides those of the rest of the feature.
pub const INDEXES_OF_PODS: [Index<Pod>; 1] = [BY_USED_CLAIM];

/// Pods that must be kept for reclaim, besides those with ephemeral volumes.
#[must_use]
pub fn uses_claims(pod: &Pod) -> bool {
    !pod.used_claims.is_empty()
}

/// What is configured.
#[derive(Debug, Clone)]
pub struct Settings {
    /// What becomes of claims whose class says nothing.
    pub reclaim_completed: ReclaimCompleted,
    /// CSI drivers and plugins in Kubernetes whose volumes are known to be unmounted when their pod has ended.
    pub without_attach: Vec<String>,
    /// How many pods are worked on at once.
    pub concurrency: usize,
}

/// The stores, fed by somebody else.
#[derive(Clone)]
pub struct Caches {
    /// Pods with ephemeral volumes, and those that [`uses_claims`] wants.
    pub pods: Store<Pod>,
    /// All claims.
    pub claims: Store<Claim>,
    /// All classes.
    pub classes: Store<Class>,
    /// All CSI drivers.
    pub drivers: Store<Driver>,
    /// All attachments.
    pub attachments: Store<Attachment>,
}

impl Caches {
    /// Those of reclaim alone, besides the ones that it shares with others.
    #[must_use]
    pub fn beside(pods: &Store<Pod>, claims: &Store<Claim>, classes: &Store<Class>) -> Self {
        Self {
            pods: pods.clone(),
            claims: claims.clone(),
            classes: classes.clone(),
            drivers: Store::new(vec![|_| true], vec![]),
            attachments: Store::new(vec![|_| true], vec![BY_VOLUME]),
        }
    }
}

/// The part of the feature that frees claims.
pub struct Reclaim {
    pub(super) client: FencedClient,
    pub(super) memory: Arc<Memory>,
    pub(super) caches: Caches,
    pub(super) events: Recorder,
    pub(super) queue: Queue<ObjectKey>,
    settings: Settings,
    decisions: Family<Counter>,
}

/// One claim of an ended pod.
pub(super) struct Case {
    pub(super) pod: Arc<Pod>,
    pub(super) claim: ObjectKey,
}

impl Reclaim {
    /// The feature on top of stores that somebody else feeds.
    #[must_use]
    pub fn new(
        caches: Caches,
        client: FencedClient,
        events: Recorder,
        registry: &Registry,
        settings: Settings,
    ) -> Self {
        let decisions = registry.counters(
            "claimkeeper_ephemeral_decisions_total",
            "Decisions about ephemeral volumes, by what was decided and why.",
            &["decision", "reason"],
        );
        let queue = Queue::new("ephemeral_reclaim", registry);
        Self { client, memory: Arc::default(), caches, settings, events, queue, decisions }
    }

    /// The stores that it looks at.
    #[must_use]
    pub fn caches(&self) -> &Caches {
        &self.caches
    }

    /// Acts until `stop` is cancelled (then it finishes what it has begun) or the future is dropped (then it ends at once).
    pub async fn run(&self, stop: CancellationToken) {
        let synced = async {
            let Caches { pods, claims, classes, drivers, attachments } = &self.caches;
            tokio::join!(pods.synced(), claims.synced(), classes.synced(), drivers.synced(), attachments.synced());
        };
        if stop.run_until_cancelled(synced).await.is_none() {
            return;
        }
        let _subscriptions = self.subscribe();
        queue::run(&self.queue, self.settings.concurrency, stop, |pod| self.handle(pod)).await;
    }

    async fn handle(&self, pod: ObjectKey) -> Outcome {
        let Some(pod) = self.caches.pods.get(&pod).filter(|pod| pod.has_ended()) else { return Outcome::Done };
        let mut outcome = Outcome::Done;
        for volume in &pod.ephemeral_volumes {
            outcome = outcome.or_sooner(self.handle_volume(&pod, volume).await);
        }
        // It may have gone meanwhile, and its end is told only once.
        if self.caches.pods.get(&pod.key).is_none_or(|now| now.uid != pod.uid) {
            self.memory.forget(&pod);
        }
        outcome
    }

    /// What would be decided about the claims of an ended pod, and why. Nothing is done about it.
    pub(crate) async fn explain(&self, pod: &Arc<Pod>) -> kube::Result<Vec<Account>> {
        let mut accounts = Vec::new();
        for volume in &pod.ephemeral_volumes {
            let case = Case { pod: Arc::clone(pod), claim: pod.claim_key(volume) };
            let mut seen = self.first_sight(&case, volume);
            while let Action::Look(fact) = RECLAIM.decide(&seen).action {
                self.look(&case, &mut seen, fact).await?;
            }
            let about = format!("reclaim of claim {} of ended pod {}", case.claim, pod.key);
            accounts.push(RECLAIM.explain(&seen).tell("ephemeral", about, |action: &Action| action.name()));
        }
        Ok(accounts)
    }

    async fn handle_volume(&self, pod: &Arc<Pod>, volume: &EphemeralVolume) -> Outcome {
        let case = Case { pod: Arc::clone(pod), claim: pod.claim_key(volume) };
        let mut seen = self.first_sight(&case, volume);
        // Every look adds a fact that was missing, so there are no more rounds than facts.
        loop {
            let decision = RECLAIM.decide(&seen);
            let Action::Look(fact) = decision.action else {
                self.decisions.with(&[decision.action.name(), decision.reason]).increment();
                return self.carry_out(&case, &seen, &decision).await;
            };
            if let Err(error) = self.look(&case, &mut seen, fact).await {
                return self.failed(&case, &error);
            }
        }
    }

    /// What the caches know.
    fn first_sight(&self, case: &Case, volume: &EphemeralVolume) -> Observation {
        let class = facts::class_of_template(volume);
        Observation {
            pod: Arc::clone(&case.pod),
            claim: self.caches.claims.get(&case.claim).map_or(ClaimSeen::Nothing, ClaimSeen::Cached),
            mode: class.map(|class| self.mode_of(Some(&class))),
            freed: None,
            users: Users { pods: self.known_users(&case.claim), live: false },
            attached: false,
            volume: None,
            node: None,
        }
    }

    /// Reads one fact live.
    async fn look(&self, case: &Case, seen: &mut Observation, fact: Fact) -> Result<(), kube::Error> {
        let client = || Client::clone(&self.client);
        let volume = if let ClaimSeen::Live(claim) = &seen.claim { claim.volume.clone() } else { None };
        match fact {
            Fact::Claim => {
                let api: Api<ClaimWire> = Api::namespaced(client(), case.claim.namespace());
                let live = api.get_opt(case.claim.name()).await?.and_then(LiveClaim::from_wire).map(Arc::new);
                if let Some(claim) = &live {
                    seen.mode = Some(self.mode_of(claim.class.as_deref()));
                    seen.freed = self.memory.freed(&case.pod, &case.claim);
                    seen.attached = claim.volume.as_ref().is_some_and(|volume| self.is_attached(volume, &case.pod));
                }
                seen.claim = live.map_or(ClaimSeen::Nothing, ClaimSeen::Live);
            }
            Fact::Volume => {
                let live = match &volume {
                    Some(name) => Api::<VolumeWire>::all(client()).get_opt(name).await?,
                    None => None,
                };
                let attach_required = |driver: &str| {
                    self.memory.note_driver(&case.pod, &case.claim, driver);
                    self.caches.drivers.get(&ObjectKey::new("", driver)).map(|driver| driver.attach_required)
                };
                seen.volume = Some(Volume::from_wire(live, attach_required, &self.settings.without_attach));
            }
            Fact::Node => {
                let live = match &case.pod.node {
                    Some(name) => Api::<NodeWire>::all(client()).get_opt(name).await?,
                    None => None,
                };
                seen.node = Some(Node::from_wire(live));
            }
            Fact::Users => {
                let mut pods = self.live_users(case).await?;
                // The other reads took their time, too.
                pods.extend(self.known_users(&case.claim));
                seen.users = Users { pods, live: true };
                seen.attached = volume.is_some_and(|volume| self.is_attached(&volume, &case.pod));
            }
        }
        Ok(())
    }

    fn mode_of(&self, class: Option<&str>) -> Mode {
        self.settings.reclaim_completed.mode_of(class, &self.caches.classes)
    }

    fn known_users(&self, claim: &ObjectKey) -> Vec<ObjectKey> {
        self.caches.pods.find(&BY_USED_CLAIM, claim.as_str()).iter().map(|pod| pod.key.clone()).collect()
    }

    /// Pods that have not ended and call the claim by name; the claim's own pod, should it turn out to live after all.
    async fn live_users(&self, case: &Case) -> Result<Vec<ObjectKey>, kube::Error> {
        let Case { pod, claim } = case;
        let api: Api<<Pod as Slim>::Wire> = Api::namespaced(Client::clone(&self.client), claim.namespace());
        let mut page = ListParams::default().fields(NOT_ENDED).limit(PAGE_SIZE);
        loop {
            let list = api.list(&page).await?;
            let mut found: Vec<Pod> = list.items.into_iter().filter_map(Pod::from_wire).collect();
            found.retain(|other| other.uid == pod.uid || other.used_claims.iter().any(|used| **used == *claim.name()));
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) if found.is_empty() => page.continue_token = Some(token),
                _ => return Ok(found.into_iter().map(|other| other.key).collect()),
            }
        }
    }

    /// If it is, its end wakes the pod.
    fn is_attached(&self, volume: &str, pod: &Pod) -> bool {
        self.memory.wait_for(volume, &pod.key);
        let attached = !self.caches.attachments.find(&BY_VOLUME, volume).is_empty();
        if !attached {
            self.memory.take_waiting(volume);
        }
        attached
    }

    async fn carry_out(&self, case: &Case, seen: &Observation, decision: &Decision<Action>) -> Outcome {
        let Decision { action, reason, message } = decision;
        let Case { pod, claim } = case;
        match (action, &seen.claim) {
            (Action::Delete | Action::Disown, ClaimSeen::Live(live)) => {
                let freed = match action {
                    Action::Delete => self.delete(case, live).await,
                    _ => self.disown(case, live).await,
                };
                if let Err(error) = freed {
                    return self.failed(case, &error);
                }
                self.memory.note_freed(pod, claim, &live.uid);
                tracing::info!(feature = "ephemeral", %claim, pod = %pod.key, reason, "{message}");
                self.tell_pod(pod, EventKind::Normal, reason, message.clone().into_owned());
                Outcome::Done
            }
            (Action::Report, ClaimSeen::Live(live)) => {
                if self.memory.is_news(pod, claim, &live.uid, reason) {
                    tracing::info!(feature = "ephemeral", %claim, pod = %pod.key, reason, "{message}");
                    let kind = if *reason == RECLAIMABLE { EventKind::Normal } else { EventKind::Warning };
                    self.tell_pod(pod, kind, reason, message.clone().into_owned());
                }
                if *reason == UNMOUNT_NOT_PROVABLE { Outcome::After(RECHECK) } else { Outcome::Done }
            }
            _ => {
                tracing::debug!(feature = "ephemeral", %claim, pod = %pod.key, reason, "{message}");
                match action {
                    Action::Poll => Outcome::After(poll_delay(self.memory.count_poll(pod, claim))),
                    _ => Outcome::Done,
                }
            }
        }
    }

    pub(super) fn tell_pod(&self, pod: &Pod, kind: EventKind, reason: &'static str, note: String) {
        let regarding = pod.reference();
        self.events.publish(Event { regarding, kind, reason, action: "ReclaimClaim", note });
    }
}

fn poll_delay(polls: u32) -> Duration {
    1_u32.checked_shl(polls).and_then(|factor| FIRST_POLL.checked_mul(factor)).unwrap_or(LONGEST_POLL).min(LONGEST_POLL)
}
