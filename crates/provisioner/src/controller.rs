//! Gathers what the rules look at and carries out what they decide.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use cluster::{
    Claim, ObjectKey, Pod, Store,
    creation::{self, CreateError},
    decision::Decision,
    pod::BY_USED_CLAIM,
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
    authorization::{Authorizer, account},
    claim,
    decision::{Action, Authorization, MAKE_CLAIM, Observation, PATIENCE, PROVISION_FAILED},
    request::{Enabling, Request, Target, requests},
    template::{Rules, Template},
    told::{REMINDER, Told},
};

/// How often it is asked again whether an account may create claims: nobody tells when it may, and somebody waits for it.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// The indexes that the store of pods must have for this feature.
pub const INDEXES_OF_PODS: [Index<Pod>; 1] = [BY_USED_CLAIM];

/// The pods that this feature could ever act on; others need not be kept.
#[must_use]
pub fn interesting(pod: &Pod) -> bool {
    pod.claim_requests.is_some()
}

/// What is configured.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The value of the label by which the releaser finds our claims.
    pub controller_id: String,
    /// What may stand in a template.
    pub rules: Rules,
    /// When the original's annotation counts.
    pub enabling: Enabling,
    /// Whether the pod's `ServiceAccount` must be allowed to create claims.
    pub authorize: bool,
    /// How many pods are worked on at once.
    pub concurrency: usize,
}

/// What the feature knows of the cluster; somebody else feeds it.
#[derive(Clone)]
pub struct Caches {
    /// At least the [`interesting`] pods, with [`INDEXES_OF_PODS`].
    pub pods: Store<Pod>,
    /// All claims.
    pub claims: Store<Claim>,
}

/// The feature.
pub struct Provisioner {
    caches: Caches,
    client: FencedClient,
    /// Asks without a fence: a review changes nothing.
    reader: Client,
    events: Recorder,
    queue: Queue<ObjectKey>,
    decisions: Family<Counter>,
    authorizer: Authorizer,
    told: Arc<Told>,
    /// Cleared once the API server has said that we lack the right.
    may_block_owner_deletion: AtomicBool,
    settings: Settings,
}

impl Provisioner {
    /// The feature on top of caches that somebody else feeds.
    #[must_use]
    pub fn new(
        caches: Caches,
        client: FencedClient,
        reader: Client,
        events: Recorder,
        registry: &Registry,
        settings: Settings,
    ) -> Self {
        let decisions = registry.counters(
            "claimkeeper_provisioner_decisions_total",
            "Decisions about claims that pods ask for, by what was decided and why.",
            &["decision", "reason"],
        );
        Self {
            caches,
            client,
            reader,
            events,
            queue: Queue::new("provisioner", registry),
            decisions,
            authorizer: Authorizer::default(),
            told: Arc::default(),
            may_block_owner_deletion: AtomicBool::new(true),
            settings,
        }
    }

    /// Acts until `stop` is cancelled (then it finishes what it has begun) or the future is dropped (then it ends at once).
    pub async fn run(&self, stop: CancellationToken) {
        let synced = async { tokio::join!(self.caches.pods.synced(), self.caches.claims.synced()) };
        if stop.run_until_cancelled(synced).await.is_none() {
            return;
        }
        let _subscriptions = (self.follow_pods(), self.follow_claims());
        queue::run(&self.queue, self.settings.concurrency, stop, |pod| self.handle(pod)).await;
    }

    fn follow_pods(&self) -> Subscription<Pod> {
        let (queue, told) = (self.queue.clone(), self.told.clone());
        self.caches.pods.subscribe(move |change| match change {
            Change::Applied { old, new } if waits_for_claims(new) => {
                // Annotations may be added to a pod that is there already.
                if old.is_none_or(|old| old.uid != new.uid || old.claim_requests != new.claim_requests) {
                    queue.add(new.key.clone());
                }
            }
            Change::Applied { new: over, .. } | Change::Deleted { old: over } => told.forget(&over.key),
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
            let users = changed.map(|claim| pods.find(&BY_USED_CLAIM, claim.key.as_str()));
            for pod in users.into_iter().flatten().filter(|pod| interesting(pod)) {
                queue.add(pod.key.clone());
            }
        })
    }

    async fn handle(&self, pod: ObjectKey) -> Outcome {
        let Some(pod) = self.caches.pods.get(&pod) else { return Outcome::Done };
        let asked = pod.claim_requests.as_ref().map(|asked| requests(asked, self.settings.enabling));
        let mut outcome = Outcome::Done;
        // One request that fails does not keep the pod's others from being met.
        for request in asked.into_iter().flatten() {
            outcome = outcome.or_sooner(self.handle_request(&pod, request).await);
        }
        outcome
    }

    async fn handle_request(&self, pod: &Arc<Pod>, request: Request) -> Outcome {
        let Target::Claim(name) = &request.target else {
            let seen = self.observe(pod, request, None);
            return self.conclude(&seen, &self.decide(&seen));
        };
        let key = ObjectKey::new(pod.key.namespace(), name);
        let mut seen = self.observe(pod, request, self.caches.claims.get(&key));
        let mut decision = self.decide(&seen);
        if decision.action == Action::Ask {
            match self.authorizer.ask(&self.reader, &account(pod)).await {
                Ok(answer) => seen.authorization = answer,
                Err(error) => return self.failed(&seen, &CreateError::from(error)),
            }
            decision = self.decide(&seen);
        }
        match (decision.action, &seen.template) {
            (Action::Create, Some(Ok(template))) => match self.create(pod, &key, template).await {
                Err(error) if error.is_already_exists() => self.meet(seen, &key).await,
                Err(error) => self.failed(&seen, &error),
                Ok(()) => self.conclude(&seen, &decision),
            },
            _ => self.conclude(&seen, &decision),
        }
    }

    fn observe(&self, pod: &Arc<Pod>, request: Request, claim: Option<Arc<Claim>>) -> Observation {
        let parse = |text: &str| Template::parse(text, pod.key.namespace(), &self.settings.rules);
        Observation {
            pod: Arc::clone(pod),
            // What stands in the template does not matter to a claim that is there.
            template: request.template.as_deref().filter(|_| claim.is_none()).map(parse),
            request,
            owner_lives: claim.as_ref().is_some_and(|claim| self.owner_lives(claim)),
            claim,
            authorization: if self.settings.authorize {
                self.authorizer.known(&account(pod))
            } else {
                Authorization::NotNeeded
            },
            now: Timestamp::now(),
        }
    }

    /// Whether a pod that we know owns the claim. One that uses it is known; any other has time to be found out.
    fn owner_lives(&self, claim: &Claim) -> bool {
        let pods = self.caches.pods.find(&BY_USED_CLAIM, claim.key.as_str());
        pods.iter().any(|pod| Some(&pod.uid) == claim.owner.as_ref())
    }

    async fn create(&self, pod: &Pod, key: &ObjectKey, template: &Template) -> Result<(), CreateError> {
        let id = &self.settings.controller_id;
        if self.may_block_owner_deletion.load(Ordering::Relaxed) {
            match creation::create(&self.client, key, claim::new(pod, key.name(), template, id, true)).await {
                Err(error) if error.is_about_block_owner_deletion() => {
                    // Several may find out at the same time; it is said once.
                    if self.may_block_owner_deletion.swap(false, Ordering::Relaxed) {
                        tracing::warn!(
                            feature = "provisioner",
                            "claims are made without blockOwnerDeletion from now on, because the right to update \
                             pods/finalizers is missing: {error}"
                        );
                    }
                }
                outcome => return outcome,
            }
        }
        creation::create(&self.client, key, claim::new(pod, key.name(), template, id, false)).await
    }

    /// Something already has the name although the cache does not know it: look at it live and decide again.
    async fn meet(&self, seen: Observation, key: &ObjectKey) -> Outcome {
        let api: Api<<Claim as Slim>::Wire> = Api::namespaced(Client::clone(&self.client), key.namespace());
        match api.get_opt(key.name()).await {
            Ok(live) => {
                let live = live.and_then(Claim::from_wire).map(Arc::new);
                let seen = self.observe(&seen.pod, seen.request, live);
                let decision = self.decide(&seen);
                match decision.action {
                    // Gone again in between. The next look may well find the cache caught up.
                    Action::Create | Action::Ask => Outcome::Retry,
                    // The cache has not seen what is there. If that ends within a gap of the watch, no change will ever
                    // tell us, so we look once more by ourselves.
                    _ => self.conclude(&seen, &decision).or_sooner(Outcome::After(REMINDER)),
                }
            }
            Err(error) => self.failed(&seen, &CreateError::from(error)),
        }
    }

    fn decide(&self, seen: &Observation) -> Decision<Action> {
        let decision = MAKE_CLAIM.decide(seen);
        self.decisions.with(&[decision.action.name(), decision.reason]).increment();
        decision
    }

    /// Tells whoever should know what was decided and done.
    fn conclude(&self, seen: &Observation, decision: &Decision<Action>) -> Outcome {
        let Decision { action, reason, message } = decision;
        let (pod, volume) = (&seen.pod.key, &seen.request.volume);
        match action {
            Action::Create => {
                tracing::info!(feature = "provisioner", %pod, volume, reason, "{message}");
                self.tell_pod(&seen.pod, EventKind::Normal, reason, message.clone().into_owned());
                Outcome::Done
            }
            Action::Leave | Action::Ask => {
                tracing::debug!(feature = "provisioner", %pod, volume, reason, "{message}");
                Outcome::Done
            }
            Action::Wait => {
                tracing::debug!(feature = "provisioner", %pod, volume, reason, "{message}");
                Outcome::After(PATIENCE.unsigned_abs())
            }
            Action::Refuse => {
                self.warn(seen, reason, message);
                let denied = seen.authorization == Authorization::Denied;
                Outcome::After(if denied { ASK_AGAIN } else { REMINDER })
            }
        }
    }

    fn failed(&self, seen: &Observation, error: &CreateError) -> Outcome {
        if matches!(error, CreateError::NotLeader) {
            // Whoever leads now does it; there is nothing to tell and nothing failed.
            return Outcome::Done;
        }
        // The original's words, and behind them what it kept to itself: why.
        self.warn(seen, PROVISION_FAILED, &format!("PVC failed to create: {error}"));
        Outcome::Retry
    }

    /// Tells of a trouble, and again only when it has lasted for a while.
    fn warn(&self, seen: &Observation, reason: &'static str, message: &str) {
        let (pod, volume) = (&seen.pod.key, &seen.request.volume);
        if self.told.is_due(&seen.pod, volume, message) {
            tracing::warn!(feature = "provisioner", %pod, volume, reason, "{message}");
            self.tell_pod(&seen.pod, EventKind::Warning, reason, message.to_owned());
        } else {
            tracing::debug!(feature = "provisioner", %pod, volume, reason, "{message}");
        }
    }

    fn tell_pod(&self, pod: &Pod, kind: EventKind, reason: &'static str, note: String) {
        self.events.publish(Event { regarding: pod.reference(), kind, reason, action: "CreateClaim", note });
    }
}

/// Whether a pod has not started yet, and still may.
fn waits_for_claims(pod: &Pod) -> bool {
    !pod.being_deleted && pod.claim_requests.as_ref().is_some_and(|requests| requests.pending)
}
