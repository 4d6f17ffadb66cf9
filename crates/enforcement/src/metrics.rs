//! What is counted: what the original documents, to the letter, and our reasons.

use std::time::Duration;

use cluster::decision::Decision;
use platform::{
    admission::Operation,
    metrics::{Counter, DEFAULT_BUCKETS, Family, Histogram, Registry},
};

use crate::decision::Verdict;

/// As the other metrics of admission call it.
const WEBHOOK: &str = "validate-pvc";

pub(crate) struct Metrics {
    requests: Family<Counter>,
    durations: Histogram,
    decisions: Family<Counter>,
}

impl Metrics {
    pub(crate) fn new(registry: &Registry) -> Self {
        let metrics = Self {
            requests: registry.counters(
                "pvc_total",
                "Number of processed pvc requests, partitioned by operation and whether it was allowed.",
                &["operation", "allowed"],
            ),
            durations: registry.histogram(
                "pvc_duration_seconds",
                "Distribution of the length of time to handle pvc requests.",
                &DEFAULT_BUCKETS,
            ),
            decisions: registry.counters(
                "claimkeeper_admission_requests_total",
                "Admission requests by what was decided and why.",
                &["webhook", "decision", "reason"],
            ),
        };
        // An alert on a series that does not exist yet never fires.
        for allowed in ["true", "false"] {
            let _ = metrics.requests.with(&["create", allowed]);
        }
        metrics
    }

    pub(crate) fn count(&self, operation: Operation, decision: &Decision<Verdict>, took: Duration) {
        let operation = match operation {
            Operation::Create => "create",
            Operation::Update => "update",
            Operation::Delete | Operation::Connect => "unknown",
        };
        // Errors count as the original's, also if nobody is refused for them.
        let allowed = decision.action.allows() && decision.action != Verdict::AllowOnError;
        self.requests.with(&[operation, if allowed { "true" } else { "false" }]).increment();
        self.durations.observe(took.as_secs_f64());
        self.decisions.with(&[WEBHOOK, decision.action.name(), decision.reason]).increment();
    }
}
