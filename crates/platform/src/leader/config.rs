//! The numbers of an election and what makes them safe.

use std::{env, fs, time::Duration};

/// How much later than planned client-go lets a renewal happen; kept so that the same numbers are valid for both.
const JITTER_FACTOR: f64 = 1.2;

/// Which lease, who asks for it, and how patient everybody is.
#[derive(Clone, Debug)]
pub struct LeaderConfig {
    /// The Lease's name.
    pub name: String,
    /// The Lease's namespace.
    pub namespace: String,
    /// Who this candidate is; must differ between processes, also between two that follow each other in the same pod.
    pub identity: String,
    /// How long others wait after the last sign of life of a holder. Written as whole seconds, rounded up.
    pub lease_duration: Duration,
    /// How long a holder goes on without a successful renewal.
    pub renew_deadline: Duration,
    /// The time between two renewals, or between two tries.
    pub retry_period: Duration,
}

/// Why an election with these numbers would not be safe.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("leader election is misconfigured: {0}")]
pub struct LeaderConfigError(String);

impl LeaderConfig {
    /// An election with the durations that Kubernetes' own components use: 15, 10 and 2 seconds.
    #[must_use]
    pub fn new(name: impl Into<String>, namespace: impl Into<String>, identity: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            namespace: namespace.into(),
            identity: identity.into(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }

    /// Says which rule is broken, if one is.
    pub fn validate(&self) -> Result<(), LeaderConfigError> {
        let Self { name, namespace, identity, lease_duration, renew_deadline, retry_period } = self;
        let wrong = |sentence: String| Err(LeaderConfigError(sentence));
        for (key, value) in [("name", name), ("namespace", namespace), ("identity", identity)] {
            if value.is_empty() {
                return wrong(format!("{key} must not be empty"));
            }
        }
        let durations =
            [("leaseDuration", lease_duration), ("renewDeadline", renew_deadline), ("retryPeriod", retry_period)];
        for (key, value) in durations {
            if value.is_zero() {
                return wrong(format!("{key} must be greater than zero"));
            }
        }
        if i32::try_from(self.lease_seconds()).is_err() {
            return wrong(format!("leaseDuration ({lease_duration:?}) does not fit into a Lease"));
        }
        if lease_duration <= renew_deadline {
            return wrong(format!(
                "leaseDuration ({lease_duration:?}) must be greater than renewDeadline ({renew_deadline:?}), \
                 so that a holder stops before another may start"
            ));
        }
        if *renew_deadline <= retry_period.mul_f64(JITTER_FACTOR) {
            return wrong(format!(
                "renewDeadline ({renew_deadline:?}) must be greater than {JITTER_FACTOR} times retryPeriod \
                 ({retry_period:?}), so that one failed renewal is not the end"
            ));
        }
        Ok(())
    }

    /// What the Lease says: a Lease counts in whole seconds, and to promise more than is kept is the safe side.
    pub(super) fn lease_seconds(&self) -> u64 {
        self.lease_duration.as_secs() + u64::from(self.lease_duration.subsec_nanos() > 0)
    }

    /// Bounds one call, so that a second one fits into the deadline.
    pub(super) fn call_timeout(&self) -> Duration {
        self.renew_deadline / 2
    }

    /// The pause after a failed try, spread so that candidates do not knock in step.
    pub(super) fn jittered_retry(&self) -> Duration {
        self.retry_period.mul_f64(1.0 + JITTER_FACTOR * rand::random::<f64>())
    }
}

/// A name for this process that no other has: the host's, which in a pod is the pod's, and something random.
#[must_use]
pub fn unique_identity() -> String {
    let host = env::var("HOSTNAME").or_else(|_| fs::read_to_string("/etc/hostname")).unwrap_or_default();
    let host = Some(host.trim()).filter(|host| !host.is_empty()).unwrap_or("claimkeeper");
    format!("{host}_{:016x}", rand::random::<u64>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_numbers_are_refused_with_the_rule_they_break() {
        let config = |lease: u64, renew: u64, retry: u64| LeaderConfig {
            lease_duration: Duration::from_millis(lease),
            renew_deadline: Duration::from_millis(renew),
            retry_period: Duration::from_millis(retry),
            ..LeaderConfig::new("name", "namespace", "identity")
        };
        assert_eq!(LeaderConfig::new("name", "namespace", "identity").validate(), Ok(()));
        assert_eq!(config(3_000, 2_000, 500).validate(), Ok(()));
        for (config, words) in [
            (config(10_000, 10_000, 2_000), "leaseDuration (10s) must be greater than renewDeadline (10s)"),
            (config(15_000, 2_400, 2_000), "renewDeadline (2.4s) must be greater than 1.2 times retryPeriod (2s)"),
            (config(0, 10_000, 2_000), "leaseDuration must be greater than zero"),
            (config(15_000, 0, 2_000), "renewDeadline must be greater than zero"),
            (config(15_000, 10_000, 0), "retryPeriod must be greater than zero"),
            (LeaderConfig::new("name", "namespace", ""), "identity must not be empty"),
            (LeaderConfig::new("", "namespace", "identity"), "name must not be empty"),
        ] {
            let text = config.validate().unwrap_err().to_string();
            assert!(text.contains(words), "{words:?} is missing in {text:?}");
        }
    }

    #[test]
    fn a_lease_promises_at_least_what_was_configured() {
        let config = |milliseconds| LeaderConfig {
            lease_duration: Duration::from_millis(milliseconds),
            ..LeaderConfig::new("name", "namespace", "identity")
        };
        assert_eq!([1, 1_000, 1_001, 15_000].map(|milliseconds| config(milliseconds).lease_seconds()), [1, 1, 2, 15]);
    }

    #[test]
    fn identities_of_two_processes_on_one_host_differ() {
        assert_ne!(unique_identity(), unique_identity());
    }
}
