//! Gathers what the rules look at and carries out what they decide.

use std::{sync::Arc, time::Duration};

use cluster::{
    Claim, ObjectKey, Pod, Store,
    decision::Decision,
    pod::{self, EphemeralVolume, Phase},
    store::{Change, Index, Slim, Subscription},
};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Api, Client};
use platform::{
    client::FencedClient,
    events::{Event, EventKind, Recorder},
    metrics::{Counter, Family, Registry},
    queue::{self, Outcome, Queue},
};
use tokio_util::sync::CancellationToken;

use crate::{
    claim::{self, CreateError},
    decision::{Action, FAILED_BINDING, MAKE_CLAIM, Observation},
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

/// The feature.
pub struct Ephemeral {
    pods: Store<Pod>,
    claims: Store<Claim>,
    client: FencedClient,
    events: Recorder,
    queue: Queue<ObjectKey>,
    metrics: Metrics,
    concurrency: usize,
}

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
    /// The feature on top of stores that somebody else feeds.
    #[must_use]
    pub fn new(
        pods: Store<Pod>,
        claims: Store<Claim>,
        client: FencedClient,
        events: Recorder,
        registry: &Registry,
        concurrency: usize,
    ) -> Self {
        let queue = Queue::new("ephemeral_volume", registry);
        Self { pods, claims, client, events, queue, metrics: Metrics::register(registry), concurrency }
    }

    /// Acts until `stop` is cancelled (then it finishes what it has begun) or the future is dropped (then it ends at once).
    pub async fn run(&self, stop: CancellationToken) {
        let synced = async {
            self.pods.synced().await;
            self.claims.synced().await;
        };
        if stop.run_until_cancelled(synced).await.is_none() {
            return;
        }
        let _subscriptions = self.subscribe();
        queue::run(&self.queue, self.concurrency, stop, |pod| self.handle(pod)).await;
    }

    /// Puts a pod into the queue whenever a decision about it could change.
    fn subscribe(&self) -> (Subscription<Pod>, Subscription<Claim>) {
        let queue = self.queue.clone();
        // A pod's volumes never change. What does change, its end, only ever spares us work.
        let pods = self.pods.subscribe(move |change| {
            if let Change::Applied { old, new } = change
                && !new.being_deleted
                && new.phase == Phase::Active
                && old.is_none_or(|old| old.uid != new.uid)
            {
                queue.add(new.key.clone());
            }
        });
        let (queue, pods_of_claims) = (self.queue.clone(), self.pods.clone());
        let claims = self.claims.subscribe(move |change| {
            let changed = match change {
                // New claims are ours, or they are found when their name is needed.
                Change::Applied { old, new } => old.filter(|old| *old != new),
                Change::Deleted { old } => Some(old),
            };
            let waiting = changed.map(|claim| pods_of_claims.find(&pod::BY_EPHEMERAL_CLAIM, claim.key.as_str()));
            for pod in waiting.into_iter().flatten() {
                queue.add(pod.key.clone());
            }
        });
        (pods, claims)
    }

    async fn handle(&self, pod: ObjectKey) -> Outcome {
        let Some(pod) = self.pods.get(&pod) else { return Outcome::Done };
        let mut outcome = Outcome::Done;
        // One volume that fails does not keep the pod's others from getting their claims.
        for volume in &pod.ephemeral_volumes {
            outcome = most_urgent(outcome, self.handle_volume(&pod, volume).await);
        }
        outcome
    }

    async fn handle_volume(&self, pod: &Arc<Pod>, volume: &EphemeralVolume) -> Outcome {
        let key = pod.claim_key(volume);
        let decision = self.decide(pod, volume, self.claims.get(&key));
        if decision.action != Action::Create {
            return self.conclude(pod, &key, &decision);
        }
        self.metrics.creates.increment();
        match claim::create(&self.client, pod, volume, &key).await {
            Ok(()) => self.conclude(pod, &key, &decision),
            Err(CreateError::Refused(status)) if status.is_already_exists() => self.meet(pod, volume, &key).await,
            Err(error) => self.failed(pod, volume, &key, &error),
        }
    }

    /// Something already has the name although the cache does not know it: look at it live and decide again.
    async fn meet(&self, pod: &Arc<Pod>, volume: &EphemeralVolume, key: &ObjectKey) -> Outcome {
        let api: Api<<Claim as Slim>::Wire> = Api::namespaced(Client::clone(&self.client), key.namespace());
        match api.get_opt(key.name()).await {
            Ok(live) => {
                let decision = self.decide(pod, volume, live.and_then(Claim::from_wire).map(Arc::new));
                match decision.action {
                    // Gone again in between. The next look may well find the cache caught up.
                    Action::Create => Outcome::Retry,
                    // The cache has not seen what is there. If that ends within a gap of the watch, no change will ever
                    // tell us, so we look once more by ourselves.
                    _ => most_urgent(self.conclude(pod, key, &decision), Outcome::After(REMINDER)),
                }
            }
            Err(error) => self.failed(pod, volume, key, &CreateError::from(error)),
        }
    }

    fn decide(&self, pod: &Arc<Pod>, volume: &EphemeralVolume, claim: Option<Arc<Claim>>) -> Decision<Action> {
        let seen = Observation { pod: Arc::clone(pod), volume: volume.name.clone(), claim };
        let decision = MAKE_CLAIM.decide(&seen);
        self.metrics.decisions.with(&[decision.action.name(), decision.reason]).increment();
        decision
    }

    /// Tells whoever should know what was decided and done.
    fn conclude(&self, pod: &Pod, claim: &ObjectKey, decision: &Decision<Action>) -> Outcome {
        let Decision { action, reason, message } = decision;
        match action {
            Action::Create => {
                tracing::info!(feature = "ephemeral", %claim, pod = %pod.key, reason, "created the claim: {message}");
                Outcome::Done
            }
            Action::Leave | Action::Wait => {
                tracing::debug!(feature = "ephemeral", %claim, pod = %pod.key, reason, "{message}");
                Outcome::Done
            }
            Action::Refuse => {
                tracing::warn!(feature = "ephemeral", %claim, pod = %pod.key, reason, "{message}");
                self.warn_pod(pod, message.clone().into_owned());
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
        self.warn_pod(pod, message);
        Outcome::Retry
    }

    fn warn_pod(&self, pod: &Pod, note: String) {
        let regarding = ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Pod".into()),
            namespace: Some(pod.key.namespace().to_owned()),
            name: Some(pod.key.name().to_owned()),
            uid: Some(pod.uid.to_string()),
            ..ObjectReference::default()
        };
        self.events.publish(Event {
            regarding,
            kind: EventKind::Warning,
            reason: FAILED_BINDING,
            action: "CreateClaim",
            note,
        });
    }
}

/// What a pod with several volumes needs: a failure is retried before a reminder is due.
fn most_urgent(one: Outcome, other: Outcome) -> Outcome {
    match (one, other) {
        (Outcome::Retry, _) | (_, Outcome::Retry) => Outcome::Retry,
        (Outcome::After(one), Outcome::After(other)) => Outcome::After(one.min(other)),
        (Outcome::Done, other) => other,
        (one, Outcome::Done) => one,
    }
}
