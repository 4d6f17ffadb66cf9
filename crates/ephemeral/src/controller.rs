//! Gathers what the rules look at and carries out what they decide.

use std::{sync::Arc, time::Duration};

use cluster::{
    Claim, Namespace, ObjectKey, Pod, Quota, Store,
    creation::{self, CreateError},
    decision::Decision,
    pod::{self, EphemeralVolume, Phase},
    store::{Change, Index, Slim, Subscription},
};
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client};
use platform::{
    client::FencedClient,
    events::{Event, EventKind, Recorder},
    metrics::{Counter, Family, Registry},
    queue::{self, Outcome, Queue},
};
use tokio_util::sync::CancellationToken;

use crate::{
    claim,
    decision::{Action, FAILED_BINDING, MAKE_CLAIM, Observation, PATIENCE},
    quota_line::QuotaLine,
};

/// How often a pod whose claim's name is taken is told again: events fade after an hour, the trouble does not. The end of the
/// claim that is in the way wakes us at once.
const REMINDER: Duration = Duration::from_mins(5);

/// The indexes that the store of pods must have for this feature.
pub const INDEXES_OF_PODS: [Index<Pod>; 1] = [pod::BY_EPHEMERAL_CLAIM];

/// The pods that this feature could ever act on; others need not be kept.
#[must_use]
pub fn interesting(pod: &Pod) -> bool {
    !pod.ephemeral_volumes.is_empty()
}

/// What the feature knows of the cluster; somebody else feeds it.
#[derive(Clone)]
pub struct Caches {
    /// At least the [`interesting`] pods, with [`INDEXES_OF_PODS`].
    pub pods: Store<Pod>,
    /// All claims.
    pub claims: Store<Claim>,
    /// All namespaces that are looked at.
    pub namespaces: Store<Namespace>,
    /// All quotas.
    pub quotas: Store<Quota>,
}

impl Caches {
    /// Those of the feature alone, besides the ones that it shares with others.
    #[must_use]
    pub fn beside(pods: &Store<Pod>, claims: &Store<Claim>, namespaces: &Store<Namespace>) -> Self {
        let quotas = Store::new(vec![|_| true], vec![]);
        Self { pods: pods.clone(), claims: claims.clone(), namespaces: namespaces.clone(), quotas }
    }

    async fn synced(&self) {
        self.pods.synced().await;
        self.claims.synced().await;
        self.namespaces.synced().await;
        self.quotas.synced().await;
    }
}

/// The feature.
pub struct Ephemeral {
    caches: Caches,
    client: FencedClient,
    events: Recorder,
    queue: Queue<ObjectKey>,
    quota_line: Arc<QuotaLine>,
    metrics: Metrics,
    concurrency: usize,
}

/// As long as these live, the queue is told of every change that could change a decision.
type Subscriptions = (Subscription<Pod>, Subscription<Claim>, Subscription<Namespace>, Subscription<Quota>);

struct Metrics {
    creates: Counter,
    failures: Counter,
    decisions: Family<Counter>,
}

impl Metrics {
    fn register(registry: &Registry) -> Self {
        // The controller in Kubernetes has this one text for both.
        let help = "Number of PersistentVolumeClaim creation requests";
        Self {
            creates: registry.counter("ephemeral_volume_controller_create_total", help),
            failures: registry.counter("ephemeral_volume_controller_create_failures_total", help),
            decisions: registry.counters(
                "claimkeeper_ephemeral_decisions_total",
                "Decisions about ephemeral volumes, by what was decided and why.",
                &["decision", "reason"],
            ),
        }
    }
}

impl Ephemeral {
    /// The feature on top of caches that somebody else feeds.
    #[must_use]
    pub fn new(
        caches: Caches,
        client: FencedClient,
        events: Recorder,
        registry: &Registry,
        concurrency: usize,
    ) -> Self {
        let queue = Queue::new("ephemeral_volume", registry);
        let (quota_line, metrics) = (Arc::default(), Metrics::register(registry));
        Self { caches, client, events, queue, quota_line, metrics, concurrency }
    }

    /// What it looks at.
    #[must_use]
    pub fn caches(&self) -> &Caches {
        &self.caches
    }

    /// Acts until `stop` is cancelled (then it finishes what it has begun) or the future is dropped (then it ends at once).
    pub async fn run(&self, stop: CancellationToken) {
        if stop.run_until_cancelled(self.caches.synced()).await.is_none() {
            return;
        }
        let _subscriptions = self.subscribe();
        queue::run(&self.queue, self.concurrency, stop, |pod| self.handle(pod)).await;
    }

    /// Puts a pod into the queue whenever a decision about it could change.
    fn subscribe(&self) -> Subscriptions {
        (self.follow_pods(), self.follow_claims(), self.follow_namespaces(), self.follow_quotas())
    }

    fn follow_pods(&self) -> Subscription<Pod> {
        let (queue, quota_line) = (self.queue.clone(), Arc::clone(&self.quota_line));
        // A pod's volumes never change. What does change, its end, only ever spares us work.
        self.caches.pods.subscribe(move |change| match change {
            Change::Applied { old, new } => {
                let lives = !new.being_deleted && new.phase == Phase::Active;
                if lives && old.is_none_or(|old| old.uid != new.uid) {
                    queue.add(new.key.clone());
                }
            }
            Change::Deleted { old } => quota_line.leave(&old.key),
        })
    }

    fn follow_claims(&self) -> Subscription<Claim> {
        let (queue, pods) = (self.queue.clone(), self.caches.pods.clone());
        self.caches.claims.subscribe(move |change| {
            let changed = match change {
                // New claims are ours, or they are found when their name is needed.
                Change::Applied { old, new } => old.filter(|old| *old != new),
                Change::Deleted { old } => Some(old),
            };
            let waiting = changed.map(|claim| pods.find(&pod::BY_EPHEMERAL_CLAIM, claim.key.as_str()));
            for pod in waiting.into_iter().flatten() {
                queue.add(pod.key.clone());
            }
        })
    }

    fn follow_namespaces(&self) -> Subscription<Namespace> {
        let (queue, pods) = (self.queue.clone(), self.caches.pods.clone());
        self.caches.namespaces.subscribe(move |change| {
            // Only who starts to allow what it denied gives us something to do.
            if let Change::Applied { old: Some(old), new } = change
                && old.denies_ephemeral_volumes
                && !new.denies_ephemeral_volumes
            {
                for pod in pods.filter(|pod| pod.key.namespace() == new.key.name()) {
                    queue.add(pod.key.clone());
                }
            }
        })
    }

    fn follow_quotas(&self) -> Subscription<Quota> {
        let (queue, quota_line, concurrency) = (self.queue.clone(), Arc::clone(&self.quota_line), self.concurrency);
        self.caches.quotas.subscribe(move |change| {
            let (quota, room) = match change {
                Change::Applied { old, new } => (new, old.is_none_or(|old| new.leaves_more_room_than(old))),
                Change::Deleted { old } => (old, true),
            };
            if room {
                call(&queue, &quota_line, quota.key.namespace(), concurrency);
            }
        })
    }

    async fn handle(&self, key: ObjectKey) -> Outcome {
        let Some(pod) = self.caches.pods.get(&key) else {
            // Its end may have been told while its claim was still being refused, before it stood in line.
            self.quota_line.leave(&key);
            return Outcome::Done;
        };
        let mut outcome = Outcome::Done;
        // One volume that fails does not keep the pod's others from getting their claims.
        for volume in &pod.ephemeral_volumes {
            outcome = outcome.or_sooner(self.handle_volume(&pod, volume).await);
        }
        outcome
    }

    async fn handle_volume(&self, pod: &Arc<Pod>, volume: &EphemeralVolume) -> Outcome {
        let key = pod.claim_key(volume);
        let (claim, namespace) = (self.caches.claims.get(&key), self.known_namespace(pod));
        let mut decision = self.decide(pod, volume, claim, namespace.clone());
        if decision.action == Action::Create && namespace.is_none() {
            // The watch of namespaces is behind that of pods, and what it has yet to tell may forbid the claim.
            let live = match self.live_namespace(pod).await {
                Ok(live) => live,
                Err(error) => return self.failed(pod, volume, &key, &error),
            };
            decision = self.decide(pod, volume, self.caches.claims.get(&key), live);
        }
        if decision.action != Action::Create {
            return self.conclude(pod, &key, &decision);
        }
        self.metrics.creates.increment();
        match self.create(pod, volume, &key).await {
            Ok(()) => {
                // It fitted into the quota: whoever waits for room may fit too.
                call(&self.queue, &self.quota_line, key.namespace(), 1);
                self.conclude(pod, &key, &decision)
            }
            Err(error) if error.is_already_exists() => self.meet(pod, volume, &key).await,
            Err(error) => self.failed(pod, volume, &key, &error),
        }
    }

    async fn create(&self, pod: &Pod, volume: &EphemeralVolume, key: &ObjectKey) -> Result<(), CreateError> {
        let new = claim::new(pod, volume, key).map_err(CreateError::Template)?;
        creation::create(&self.client, key, new).await
    }

    fn known_namespace(&self, pod: &Pod) -> Option<Arc<Namespace>> {
        self.caches.namespaces.get(&ObjectKey::new("", pod.key.namespace()))
    }

    async fn live_namespace(&self, pod: &Pod) -> Result<Option<Arc<Namespace>>, CreateError> {
        let api: Api<<Namespace as Slim>::Wire> = Api::all(Client::clone(&self.client));
        let live = api.get_opt(pod.key.namespace()).await?;
        Ok(live.and_then(Namespace::from_wire).map(Arc::new))
    }

    /// Something already has the name although the cache does not know it: look at it live and decide again.
    async fn meet(&self, pod: &Arc<Pod>, volume: &EphemeralVolume, key: &ObjectKey) -> Outcome {
        let api: Api<<Claim as Slim>::Wire> = Api::namespaced(Client::clone(&self.client), key.namespace());
        match api.get_opt(key.name()).await {
            Ok(live) => {
                let claim = live.and_then(Claim::from_wire).map(Arc::new);
                let decision = self.decide(pod, volume, claim, self.known_namespace(pod));
                match decision.action {
                    // Gone again in between. The next look may well find the cache caught up.
                    Action::Create => Outcome::Retry,
                    // The cache has not seen what is there. If that ends within a gap of the watch, no change will ever
                    // tell us, so we look once more by ourselves.
                    _ => self.conclude(pod, key, &decision).or_sooner(Outcome::After(REMINDER)),
                }
            }
            Err(error) => self.failed(pod, volume, key, &CreateError::from(error)),
        }
    }

    fn decide(
        &self,
        pod: &Arc<Pod>,
        volume: &EphemeralVolume,
        claim: Option<Arc<Claim>>,
        namespace: Option<Arc<Namespace>>,
    ) -> Decision<Action> {
        let seen = Observation {
            pod: Arc::clone(pod),
            volume: volume.name.clone(),
            owner_lives: claim.as_ref().is_some_and(|claim| self.owner_lives(claim)),
            claim,
            namespace,
            now: Timestamp::now(),
        };
        let decision = MAKE_CLAIM.decide(&seen);
        self.metrics.decisions.with(&[decision.action.name(), decision.reason]).increment();
        decision
    }

    /// Whether a pod that we know owns the claim. One that has such a volume is known; any other has time to be found out.
    fn owner_lives(&self, claim: &Claim) -> bool {
        let pods = self.caches.pods.find(&pod::BY_EPHEMERAL_CLAIM, claim.key.as_str());
        pods.iter().any(|pod| Some(&pod.uid) == claim.owner.as_ref())
    }

    /// Tells whoever should know what was decided and done.
    fn conclude(&self, pod: &Pod, claim: &ObjectKey, decision: &Decision<Action>) -> Outcome {
        let Decision { action, reason, message } = decision;
        match action {
            Action::Create => {
                tracing::info!(feature = "ephemeral", %claim, pod = %pod.key, reason, "created the claim: {message}");
                Outcome::Done
            }
            Action::Leave => {
                tracing::debug!(feature = "ephemeral", %claim, pod = %pod.key, reason, "{message}");
                Outcome::Done
            }
            Action::Wait => {
                tracing::debug!(feature = "ephemeral", %claim, pod = %pod.key, reason, "{message}");
                Outcome::After(PATIENCE.unsigned_abs())
            }
            Action::Refuse => {
                tracing::warn!(feature = "ephemeral", %claim, pod = %pod.key, reason, "{message}");
                self.warn_pod(pod, reason, message.clone().into_owned());
                Outcome::After(REMINDER)
            }
        }
    }

    fn failed(&self, pod: &Pod, volume: &EphemeralVolume, claim: &ObjectKey, error: &CreateError) -> Outcome {
        if matches!(error, CreateError::NotLeader) {
            // Whoever leads now does it; there is nothing to tell and nothing failed.
            return Outcome::Done;
        }
        self.metrics.failures.increment();
        // The same words as the controller in Kubernetes, with the API server's own reason at the end.
        let message = format!("ephemeral volume {}: create PVC {}: {error}", volume.name, claim.name());
        tracing::warn!(feature = "ephemeral", %claim, pod = %pod.key, reason = FAILED_BINDING, "{message}");
        self.warn_pod(pod, FAILED_BINDING, message);
        if error.is_about_quota() {
            // A quota that changed before we stood in line would not call us, but then the first retry comes at once.
            self.quota_line.join(&pod.key);
        }
        Outcome::Retry
    }

    fn warn_pod(&self, pod: &Pod, reason: &'static str, note: String) {
        let regarding = pod.reference();
        self.events.publish(Event { regarding, kind: EventKind::Warning, reason, action: "CreateClaim", note });
    }
}

/// Lets the first few of those who wait for room in the namespace's quota try again, as if for the first time.
fn call(queue: &Queue<ObjectKey>, quota_line: &QuotaLine, namespace: &str, count: usize) {
    for pod in quota_line.call(namespace, count) {
        queue.forget(&pod);
        queue.add(pod);
    }
}
