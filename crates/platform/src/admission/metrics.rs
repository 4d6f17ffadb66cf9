//! What is counted of the server itself. Decisions are counted by the features, which know their reasons.

use crate::metrics::{Counter, Family, Gauge, Histogram, Registry};

/// From what the caches answer at once to what a live read takes, and beyond to the time limit.
const BUCKETS: [f64; 14] =
    [0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 2.5];

pub(super) struct ServerMetrics {
    pub(super) in_flight: Gauge,
    pub(super) connections: Gauge,
    pub(super) handshake_failures: Counter,
    pub(super) panics: Counter,
    rejected: Family<Counter>,
    durations: Family<Histogram>,
}

/// What was too much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Limit {
    Body,
    Connections,
    InFlight,
    Time,
}

impl Limit {
    fn name(self) -> &'static str {
        match self {
            Self::Body => "body",
            Self::Connections => "connections",
            Self::InFlight => "in_flight",
            Self::Time => "time",
        }
    }
}

impl ServerMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        let metrics = Self {
            in_flight: registry
                .gauge("claimkeeper_admission_in_flight", "Admission requests that are being answered now."),
            connections: registry
                .gauge("claimkeeper_admission_connections", "Connections to the admission server now."),
            handshake_failures: registry.counter(
                "claimkeeper_admission_handshake_failures_total",
                "TLS handshakes with the admission server that failed; a caBundle that does not fit looks like this.",
            ),
            panics: registry.counter(
                "claimkeeper_admission_panics_total",
                "Admission requests over which a webhook panicked; each was answered with 500.",
            ),
            rejected: registry.counters(
                "claimkeeper_admission_rejected_total",
                "Admission requests and connections that were turned away because of a limit.",
                &["limit"],
            ),
            durations: registry.histograms(
                "claimkeeper_admission_duration_seconds",
                "How long admission requests took, from their header to their answer.",
                &["webhook"],
                &BUCKETS,
            ),
        };
        // An alert on a series that does not exist yet never fires.
        for limit in [Limit::Body, Limit::Connections, Limit::InFlight, Limit::Time] {
            let _ = metrics.rejected.with(&[limit.name()]);
        }
        metrics
    }

    pub(super) fn rejects(&self, limit: Limit) {
        self.rejected.with(&[limit.name()]).increment();
    }

    pub(super) fn durations_of(&self, path: &'static str) -> Histogram {
        self.durations.with(&[path.trim_start_matches('/')])
    }
}
