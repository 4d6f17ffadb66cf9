//! Answers the API server: gathers what the rules look at, lets them decide, and tells everybody.

use std::{sync::Arc, time::Instant};

use cluster::decision::Decision;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::{Api, Client, api::PostParams};
use parking_lot::RwLock;
use platform::{
    admission::{Answer, Answering, Request, Webhook},
    events::Recorder,
    metrics::Registry,
    trouble::causes,
};

use crate::{
    decision::{ADMIT_CLAIM, Scope, Verdict, scope},
    live::Reader,
    message::SEPARATOR,
    metrics::Metrics,
    observation::Observation,
    observe::{Caches, asked},
    settings::Settings,
    tell::tell,
};

/// As the original's.
const PATH: &str = "/validate-pvc";

/// More is never wanted: class, volume, owner and namespace, each once.
const MOST_READS: usize = 4;

/// The feature.
pub struct Enforcement {
    caches: Caches,
    settings: RwLock<Arc<Settings>>,
    client: Client,
    recorder: Recorder,
    metrics: Metrics,
}

impl Enforcement {
    /// `client` reads what the caches do not have; it must have been built on the runtime on which requests are answered.
    #[must_use]
    pub fn new(caches: Caches, settings: Settings, client: Client, recorder: Recorder, registry: &Registry) -> Self {
        let settings = RwLock::new(Arc::new(settings));
        Self { caches, settings, client, recorder, metrics: Metrics::new(registry) }
    }

    /// From now on the claims that this process makes for pods are believed like those of Kubernetes itself. If it cannot
    /// learn who it is, they are looked at like everybody's.
    pub async fn introduce(&self, client: &Client) {
        let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
        match reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await {
            Ok(review) => {
                let user = review.status.and_then(|status| status.user_info).and_then(|user| user.username);
                Arc::make_mut(&mut self.settings.write()).trusted_creators.extend(user);
            }
            Err(error) => tracing::warn!(error = %causes(&error), "the API server does not tell who this process is"),
        }
    }

    async fn answer(&self, request: &Request<'_>) -> Answer {
        let began = Instant::now();
        let settings = Arc::clone(&self.settings.read());
        let mut seen = self.caches.observe(&settings, asked(request));
        let decision = self.decide(&mut seen).await;
        self.metrics.count(request.operation, &decision, began.elapsed());
        log(request, &decision);
        if !request.dry_run {
            tell(&seen, &decision, &self.recorder);
        }
        answer(decision)
    }

    /// Decides by what the caches have, and reads what they lack.
    async fn decide(&self, seen: &mut Observation) -> Decision<Verdict> {
        let mut decision = ADMIT_CLAIM.decide(seen);
        if let Verdict::Read(_) = decision.action {
            let reader = Reader::new(&self.client, &self.caches);
            for _ in 0..MOST_READS {
                let Verdict::Read(wanted) = decision.action else { break };
                reader.look(seen, wanted).await;
                decision = ADMIT_CLAIM.decide(seen);
            }
        }
        decision
    }
}

impl Webhook for Enforcement {
    fn path(&self) -> &'static str {
        PATH
    }

    fn review<'a>(&'a self, request: &'a Request<'a>) -> Answering<'a> {
        Box::pin(self.answer(request))
    }
}

fn log(request: &Request<'_>, decision: &Decision<Verdict>) {
    let (claim, user) = (format_args!("{}/{}", request.namespace, request.name), &request.user_info.username);
    let Decision { action, reason, message } = decision;
    if *action == Verdict::Allow {
        tracing::debug!(feature = "enforcement", %claim, %user, decision = action.name(), reason, "{message}");
    } else {
        tracing::info!(feature = "enforcement", %claim, %user, decision = action.name(), reason, "{message}");
    }
}

fn answer(decision: Decision<Verdict>) -> Answer {
    // What does not concern the rule would only fill the audit log.
    let audit = match scope(&decision) {
        Scope::Governed => {
            vec![("decision", decision.action.name().to_owned()), ("reason", decision.reason.to_owned())]
        }
        Scope::Exempt | Scope::NotJudged => Vec::new(),
    };
    let Decision { action, reason, message } = decision;
    let answer = match action {
        Verdict::Deny => Answer::deny(reason, message),
        Verdict::DenyOnError => Answer { code: 500, ..Answer::deny(reason, message) },
        Verdict::Warn => {
            let warnings = message.split(SEPARATOR).map(str::to_owned).collect();
            Answer { warnings, ..Answer::allow(reason, message) }
        }
        // Nothing is left to be read by now.
        Verdict::Allow | Verdict::AllowOnError | Verdict::Audit | Verdict::Read(_) => Answer::allow(reason, message),
    };
    Answer { audit, ..answer }
}
