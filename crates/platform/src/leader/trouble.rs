//! Says what is wrong once, not every two seconds, and what to do about it.

use tracing::{info, warn};

use super::LeaderConfig;
use crate::trouble::{Trouble, causes};

/// What is wrong with the lease, if something is.
#[derive(Default)]
pub(super) struct LeaseTrouble(Trouble);

impl LeaseTrouble {
    /// Logs that the lease could not be `done`, unless that was logged last. Without an error, no answer came in time.
    pub(super) fn report(&mut self, config: &LeaderConfig, done: &str, error: Option<&kube::Error>) {
        let problem = explain(config, done, error);
        if self.0.begins(&problem) {
            warn!("{problem}");
        }
    }

    /// Logs the end of the trouble, if there was any.
    pub(super) fn over(&mut self, config: &LeaderConfig) {
        if self.0.ends() {
            info!("the lease {}/{} can be reached again", config.namespace, config.name);
        }
    }
}

fn explain(config: &LeaderConfig, done: &str, error: Option<&kube::Error>) -> String {
    let LeaderConfig { name, namespace, .. } = config;
    let reason = match error {
        None => format!("no answer came within {:?}", config.call_timeout()),
        Some(kube::Error::Api(status)) if status.is_forbidden() => format!(
            "{}; grant get, create, update and watch on leases.coordination.k8s.io in the namespace {namespace}",
            status.message
        ),
        Some(kube::Error::Api(status)) => status.message.clone(),
        Some(error) => causes(error),
    };
    format!("the lease {namespace}/{name} cannot be {done}: {reason}")
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn a_missing_permission_is_explained_with_the_permission_to_grant() {
        let config = LeaderConfig::new("claimkeeper", "storage", "me");
        let forbidden = Status { reason: "Forbidden".into(), code: 403, ..Status::failure("no way", "Forbidden") };
        let text = explain(&config, "taken", Some(&kube::Error::Api(forbidden.boxed())));
        assert_eq!(
            text,
            "the lease storage/claimkeeper cannot be taken: no way; grant get, create, update and watch on \
             leases.coordination.k8s.io in the namespace storage"
        );
        let text = explain(&config, "renewed", None);
        assert_eq!(text, "the lease storage/claimkeeper cannot be renewed: no answer came within 5s");
    }
}
