//! Gathers what the rules look at and carries out what they decide.

use std::{collections::HashSet, sync::Arc, time::Duration};

use cluster::{
    ObjectKey, Pod,
    decision::{Account, Decision},
    pod::HOME_NODE_GATE,
    store::Slim,
};
use k8s_openapi::{api::core::v1::Pod as FullPod, jiff::Timestamp};
use kube::{Client, Resource, api::GetParams, core::Request};
use parking_lot::Mutex;
use platform::{
    events::EventKind,
    queue::{self, Outcome, Queue},
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{
    decision::{self, GATE, Terms},
    stranded::{self, STRANDED},
};
use crate::{
    Context,
    act::{Told, preconditioned},
    followed::{self, node},
    home::Home,
    terms::{self, Requirement},
};

/// The part of the feature that lets pods go.
pub struct Gate {
    pub(super) context: Context,
    pub(super) queue: Queue<ObjectKey>,
    /// The pods that have no node yet.
    pub(super) unscheduled: Arc<Mutex<HashSet<ObjectKey>>>,
    pub(super) told: Arc<Told>,
}

/// A pod as the server has it: what decisions read, and all of it.
struct LivePod {
    slim: Pod,
    whole: Value,
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

    /// What would be decided about a pod that has no node yet, and why. Everything is read live, nothing is done.
    pub async fn explain(&self, key: &ObjectKey) -> kube::Result<Option<Account>> {
        let Some(pod) = self.read(key).await? else { return Ok(None) };
        if pod.slim.waits_for_home {
            let about = format!("gate of pod {key}");
            let seen = self.observe_live(&pod.slim).await?;
            return Ok(Some(GATE.explain(&seen).tell("placement", about, decision::Action::name)));
        }
        let mut seen = self.first_sight(&pod.slim);
        (seen.volumes, seen.live) = self.look(&pod).await?;
        let about = format!("wait of pod {key}");
        Ok(Some(STRANDED.explain(&seen).tell("placement", about, stranded::Action::name)))
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
        let Context { caches, settings, counts, .. } = &self.context;
        let mut seen = observation(pod, followed::cached(caches, settings, pod), false);
        let mut live = None;
        if GATE.decide(&seen).action == decision::Action::Look {
            let now = self.read(&pod.key).await?.filter(|now| now.slim.uid == pod.uid && now.slim.waits_for_home);
            let Some(now) = now else { return Ok(Outcome::Done) };
            seen = self.observe_live(&now.slim).await?;
            live = Some(now);
        }
        let decision = GATE.decide(&seen);
        counts.count(&decision, decision.action.name());
        let Decision { action, reason, message } = decision;
        match (action, live) {
            (decision::Action::Lift(terms), Some(live)) => {
                self.context.patch::<FullPod>(&pod.key, lifted(&live, &terms)).await?;
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
        let mut seen = self.first_sight(pod);
        if STRANDED.decide(&seen).action == stranded::Action::Look {
            let now = self.read(&pod.key).await?.filter(|now| now.slim.uid == pod.uid && is_unscheduled(&now.slim));
            let Some(now) = now else { return Ok(Outcome::Done) };
            (seen.volumes, seen.live) = self.look(&now).await?;
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

    fn first_sight(&self, pod: &Pod) -> stranded::Observation {
        let Context { caches, settings, .. } = &self.context;
        stranded::Observation {
            pod: pod.key.clone(),
            is_waiting: is_unscheduled(pod),
            volumes: followed::cached(caches, settings, pod),
            live: None,
        }
    }

    async fn observe_live(&self, pod: &Pod) -> kube::Result<decision::Observation> {
        let volumes = followed::live(&self.context.client, &self.context.settings, pod).await?;
        Ok(observation(pod, volumes, true))
    }

    async fn look(&self, pod: &LivePod) -> kube::Result<(Vec<followed::Followed>, Option<stranded::Live>)> {
        let volumes = followed::live(&self.context.client, &self.context.settings, &pod.slim).await?;
        let owners = pod.whole["metadata"]["ownerReferences"].as_array();
        let live = stranded::Live {
            is_gated: pod.slim.waits_for_home,
            is_tied: self.insists_on_gone(&pod.whole["spec"]["affinity"]).await?,
            has_controller: owners.into_iter().flatten().any(|owner| owner["controller"] == true),
        };
        Ok((volumes, Some(live)))
    }

    /// Whether each term insists on a node that is gone. What the hostname of that node was nobody knows any more, so it is the
    /// other way round: no node that is there meets it.
    async fn insists_on_gone(&self, affinity: &Value) -> kube::Result<bool> {
        let terms = terms::required(affinity);
        for term in &terms {
            let mut gone = false;
            for requirement in term {
                gone = gone || node(&self.context.client, &home(requirement)).await?.is_none();
            }
            if !gone {
                return Ok(false);
            }
        }
        Ok(!terms.is_empty())
    }

    async fn read(&self, key: &ObjectKey) -> kube::Result<Option<LivePod>> {
        let path = FullPod::url_path(&(), Some(key.namespace()));
        let request = Request::new(path).get(key.name(), &GetParams::default()).map_err(kube::Error::BuildRequest)?;
        let text = match Client::clone(&self.context.client).request_text(request).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(None),
            text => text?,
        };
        let slim = serde_json::from_str(&text).map_err(kube::Error::SerdeError)?;
        let whole = serde_json::from_str(&text).map_err(kube::Error::SerdeError)?;
        Ok(Pod::from_wire(slim).map(|slim| LivePod { slim, whole }))
    }
}

fn observation(pod: &Pod, volumes: Vec<followed::Followed>, live: bool) -> decision::Observation {
    let is_ending = pod.being_deleted || pod.has_ended();
    decision::Observation { is_ending, since: pod.created, volumes, live, now: Timestamp::now() }
}

fn home(requirement: &Requirement) -> Home {
    match requirement {
        Requirement::Hostname(hostname) => Home::Label(cluster::node::HOSTNAME.into(), hostname.clone()),
        Requirement::Name(name) => Home::Name(name.clone()),
    }
}

/// The terms in, the gate off: Kubernetes takes both only together.
fn lifted(pod: &LivePod, terms: &Terms) -> Value {
    let spec = &pod.whole["spec"];
    let gates = spec["schedulingGates"].as_array().into_iter().flatten();
    let others: Vec<&Value> = gates.filter(|gate| gate["name"] != HOME_NODE_GATE).collect();
    let mut change = json!({"schedulingGates": others});
    let mut affinity = spec["affinity"].clone();
    for requirement in &terms.required {
        terms::require(&mut affinity, requirement);
    }
    for (requirement, weight) in &terms.preferred {
        terms::prefer(&mut affinity, requirement, *weight);
    }
    if affinity != spec["affinity"] {
        change["affinity"] = affinity;
    }
    let version = pod.whole["metadata"]["resourceVersion"].as_str();
    preconditioned(&pod.slim.uid, version, json!({"spec": change}))
}
