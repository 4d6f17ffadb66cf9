//! Answers the API server: gathers what the rules look at, lets them decide, and tells everybody.

use std::sync::Arc;

use cluster::decision::Decision;
use kube::Client;
use platform::{
    admission::{Answer, Answering, Request, Webhook},
    events::Recorder,
    metrics::Registry,
};

use crate::{
    Caches, Settings,
    patch::patch,
    pod::AskedPod,
    steer::{
        Reader,
        decision::{STEER_POD, Verdict, warnings},
        metrics::Metrics,
        observation::{Asked, Observation},
        observe::makes_pod,
        tell::tell,
    },
};

/// As the original's.
const PATH: &str = "/mutate-pod";

/// The part of the feature that API servers ask.
pub struct Steering {
    caches: Caches,
    settings: Arc<Settings>,
    client: Client,
    recorder: Recorder,
    metrics: Metrics,
}

impl Steering {
    /// `client` reads what the caches do not have; it must have been built on the runtime on which requests are answered.
    #[must_use]
    pub fn new(
        caches: Caches,
        settings: Arc<Settings>,
        client: Client,
        recorder: Recorder,
        registry: &Registry,
    ) -> Self {
        Self { caches, settings, client, recorder, metrics: Metrics::new(registry) }
    }

    async fn answer(&self, request: &Request<'_>) -> Answer {
        let json = request.object.map_or("null", |object| object.get());
        let pod = makes_pod(request).then(|| AskedPod::read(json));
        let mut seen = match &pod {
            None => Observation::without_pod(&self.settings, Asked::Other),
            Some(Ok(pod)) => self.caches.observe(&self.settings, &request.namespace, pod),
            Some(Err(error)) => Observation::without_pod(&self.settings, Asked::Unreadable(error.to_string())),
        };
        let mut decision = STEER_POD.decide(&seen);
        if decision.action == Verdict::Read {
            Reader::new(&self.client, &self.caches).look(&mut seen).await;
            decision = STEER_POD.decide(&seen);
        }
        let pod = pod.and_then(Result::ok);
        let name = pod.as_ref().map_or(&*request.name, AskedPod::called);
        self.metrics.count(&decision);
        log(request, name, &decision);
        if !request.dry_run {
            tell(&request.namespace, name, &decision, &self.recorder);
        }
        let patch = pod.as_ref().zip(decision.action.additions()).and_then(|(pod, additions)| patch(pod, additions));
        Answer { patch, ..answer(&seen, decision) }
    }
}

impl Webhook for Steering {
    fn path(&self) -> &'static str {
        PATH
    }

    fn review<'a>(&'a self, request: &'a Request<'a>) -> Answering<'a> {
        Box::pin(self.answer(request))
    }
}

fn log(request: &Request<'_>, pod: &str, decision: &Decision<Verdict>) {
    let pod = format_args!("{}/{pod}", request.namespace);
    let Decision { action, reason, message } = decision;
    // What nobody has to do anything about.
    if *action == Verdict::Leave || *reason == "AtHome" {
        tracing::debug!(feature = "placement", %pod, decision = action.name(), reason, "{message}");
    } else {
        tracing::info!(feature = "placement", %pod, decision = action.name(), reason, "{message}");
    }
}

fn answer(seen: &Observation, decision: Decision<Verdict>) -> Answer {
    let warnings = warnings(seen, &decision);
    // What does not concern us would only fill the audit log.
    let audit = match decision.action {
        Verdict::Leave => Vec::new(),
        _ => vec![("decision", decision.action.name().to_owned()), ("reason", decision.reason.to_owned())],
    };
    let Decision { action, reason, message } = decision;
    let answer = match action {
        Verdict::DenyOnError => {
            let message = format!(
                "{message}; the pod is refused because a volume that must not be left could be lost (placement.onError: deny); \
                 try again"
            );
            Answer { code: 500, ..Answer::deny(reason, message) }
        }
        // Nothing is left to be read by now.
        Verdict::Leave | Verdict::Steer(_) | Verdict::SteerOnError(_) | Verdict::Read => Answer::allow(reason, message),
    };
    Answer { warnings, audit, ..answer }
}
