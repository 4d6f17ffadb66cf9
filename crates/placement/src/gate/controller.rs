//! Gathers what the rules look at and carries out what they decide.

use std::{collections::HashSet, sync::Arc, time::Duration};

use cluster::{ObjectKey, Pod, decision::Decision, pod::HOME_NODE_GATE};
use k8s_openapi::api::core::v1::Pod as FullPod;
use parking_lot::Mutex;
use platform::{
    events::EventKind,
    queue::{self, Outcome, Queue},
};
use tokio_util::sync::CancellationToken;

use super::{
    decision::{self, GATE},
    live,
    stranded::{self, STRANDED},
};
use crate::{Context, act::Told, followed, patch};

/// The part of the feature that lets pods go.
pub struct Gate {
    pub(super) context: Context,
    pub(super) queue: Queue<ObjectKey>,
    /// The pods that have no node yet.
    pub(super) unscheduled: Arc<Mutex<HashSet<ObjectKey>>>,
    pub(super) told: Arc<Told>,
}

/// Whether somebody still looks for a node for it.
pub(super) fn is_unscheduled(pod: &Pod) -> bool {
    pod.node.is_none() && !pod.has_ended() && !pod.being_deleted
}

impl Gate {
    /// The part on top of caches that somebody else feeds.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        let queue = Queue::new("placement-gate", &context.registry);
        Self { context: context.clone(), queue, unscheduled: Arc::default(), told: Arc::default() }
    }

    /// Acts until `stop` is cancelled (then it finishes what it has begun) or the future is dropped (then it ends at once).
    pub async fn run(&self, stop: CancellationToken) {
        let _subscriptions = self.subscribe();
        queue::run(&self.queue, self.context.settings.concurrency, stop, |pod| self.handle(pod)).await;
    }

    async fn handle(&self, key: ObjectKey) -> Outcome {
        let pod = self.context.caches.pods.get(&key).filter(|pod| is_unscheduled(pod));
        let Some(pod) = pod else { return Outcome::Done };
        let done = if pod.waits_for_home { self.lift(&pod).await } else { self.report(&pod).await };
        // It may have gone meanwhile, and its end is told only once.
        if !self.unscheduled.lock().contains(&key) {
            self.told.forget(&key);
        }
        done.unwrap_or_else(|error| Context::failed(&key, "looking after a pod that waits", &error))
    }

    /// Looks after a pod behind the gate.
    async fn lift(&self, pod: &Pod) -> kube::Result<Outcome> {
        let Context { caches, settings, client, counts, .. } = &self.context;
        let mut seen = live::observation(pod, followed::cached(caches, settings, pod), false);
        let mut live = None;
        if GATE.decide(&seen).action == decision::Action::Look {
            let now =
                live::read(client, &pod.key).await?.filter(|now| now.slim.uid == pod.uid && now.slim.waits_for_home);
            let Some(now) = now else { return Ok(Outcome::Done) };
            seen = live::observe(client, settings, &now.slim).await?;
            live = Some(now);
        }
        let decision = GATE.decide(&seen);
        counts.count(&decision, decision.action.name());
        let Decision { action, reason, message } = decision;
        match (action, live) {
            (decision::Action::Lift(additions), Some(live)) => {
                // Kubernetes takes affinity only as long as there is a gate, so what is added comes with its end.
                let Some(patch) = patch::lift(&live.asked()?, &additions, HOME_NODE_GATE) else {
                    return Ok(Outcome::Done);
                };
                self.context.apply::<FullPod>(&pod.key, patch).await?;
                tracing::info!(feature = "placement", pod = %pod.key, reason, "{message}");
                let trouble = matches!(reason, "HomeNodeGivenUp" | "HomesContradict");
                let kind = if trouble { EventKind::Warning } else { EventKind::Normal };
                self.context.tell(pod.reference(), kind, "LiftGate", reason, &message);
                Ok(Outcome::Done)
            }
            (decision::Action::Wait(until), _) => {
                if self.told.is_news(&pod.key, &pod.uid, reason, &message) {
                    tracing::info!(feature = "placement", pod = %pod.key, reason, "{message}");
                    self.context.tell(pod.reference(), EventKind::Warning, "Wait", reason, &message);
                }
                let rest = until.and_then(|until| Duration::try_from(until.duration_since(seen.now)).ok());
                Ok(rest.map_or(Outcome::Done, Outcome::After))
            }
            _ => {
                tracing::debug!(feature = "placement", pod = %pod.key, reason, "{message}");
                Ok(Outcome::Done)
            }
        }
    }

    /// Looks after a pod without the gate.
    async fn report(&self, pod: &Pod) -> kube::Result<Outcome> {
        let Context { caches, settings, client, .. } = &self.context;
        let mut seen = live::first_sight(pod, followed::cached(caches, settings, pod));
        if STRANDED.decide(&seen).action == stranded::Action::Look {
            let now =
                live::read(client, &pod.key).await?.filter(|now| now.slim.uid == pod.uid && is_unscheduled(&now.slim));
            let Some(now) = now else { return Ok(Outcome::Done) };
            (seen.volumes, seen.live) = live::look(client, settings, &now).await?;
        }
        let decision = STRANDED.decide(&seen);
        let Decision { action, reason, message } = &decision;
        // Of the others, which are nearly all, nobody wants to know how often they were looked at.
        if seen.live.is_some() {
            self.context.counts.count(&decision, action.name());
        }
        if *action != stranded::Action::Report {
            tracing::debug!(feature = "placement", pod = %pod.key, reason, "{message}");
            return Ok(Outcome::Done);
        }
        if self.told.is_news(&pod.key, &pod.uid, reason, message) {
            tracing::warn!(feature = "placement", pod = %pod.key, reason, "{message}");
            self.context.tell(pod.reference(), EventKind::Warning, "Wait", reason, message);
        }
        Ok(Outcome::Done)
    }
}
