//! What can be alerted on: when certificates expire, how often they were renewed, and what failed.

use jiff::Timestamp;

use crate::metrics::{Counter, Family, Gauge, Registry};

#[derive(Clone)]
pub(super) struct Metrics {
    expiry: Family<Gauge>,
    pub(super) leaves: Counter,
    pub(super) authorities: Counter,
    errors: Family<Counter>,
}

impl Metrics {
    pub(super) fn new(registry: &Registry) -> Self {
        let expiry = "When what this replica serves expires, and the authority behind it, in seconds since 1970.";
        let rotations = registry.counters(
            "claimkeeper_certificate_rotations_total",
            "Certificates that this replica has made and stored, by what they are, the first ones included.",
            &["certificate"],
        );
        let errors = "What failed: to read or write the Secret or a webhook configuration (keep), to watch them (watch), or to \
                      load the files (load).";
        Self {
            expiry: registry.gauges("claimkeeper_certificate_expiry_timestamp_seconds", expiry, &["certificate"]),
            leaves: rotations.with(&["leaf"]),
            authorities: rotations.with(&["ca"]),
            errors: registry.counters("claimkeeper_certificate_errors_total", errors, &["operation"]),
        }
    }

    pub(super) fn tell_expiry(&self, leaf: Timestamp, authority: Option<Timestamp>) {
        self.expiry.with(&["leaf"]).set(leaf.as_second() as f64);
        if let Some(authority) = authority {
            self.expiry.with(&["ca"]).set(authority.as_second() as f64);
        }
    }

    pub(super) fn failed(&self, operation: &'static str) {
        self.errors.with(&[operation]).increment();
    }
}
