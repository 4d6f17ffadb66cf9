//! What is counted, beside what enforcement counts of its own.

use cluster::decision::Decision;
use platform::metrics::{Counter, Family, Registry};

use super::decision::Verdict;

/// As the other metrics of admission call it.
const WEBHOOK: &str = "mutate-pod";

pub(crate) struct Metrics {
    decisions: Family<Counter>,
}

impl Metrics {
    pub(crate) fn new(registry: &Registry) -> Self {
        let decisions = registry.counters(
            "claimkeeper_admission_requests_total",
            "Admission requests by what was decided and why.",
            &["webhook", "decision", "reason"],
        );
        Self { decisions }
    }

    pub(crate) fn count(&self, decision: &Decision<Verdict>) {
        self.decisions.with(&[WEBHOOK, decision.action.name(), decision.reason]).increment();
    }
}
