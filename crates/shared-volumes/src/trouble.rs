//! Why a volume is not as it should be, and what is said about it.

use cluster::{ObjectKey, decision::Decision};
use platform::{client::RequestError, trouble::causes};

use crate::{controller::SharedVolumes, source::SourceError, state::View};

/// Why the work on a volume did not get to its end.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Something was written or told in between: everything is looked at again.
    Overtaken,
    /// This replica does not lead any more.
    NotLeader,
    /// The API server did not do what it was asked.
    Kubernetes(kube::Error),
    /// The source did not.
    Source(SourceError),
    /// Somebody else has a slice of the name that ours needs.
    SliceTaken(ObjectKey),
    /// It is not so yet, for a reason that was told already.
    NotYet,
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        match &error {
            kube::Error::Api(status) if matches!(status.code, 404 | 409) => Self::Overtaken,
            error if RequestError::is_not_leader(error) => Self::NotLeader,
            _ => Self::Kubernetes(error),
        }
    }
}

impl Failure {
    /// Whether somebody answered that it was not done, so that it will not be done later either.
    pub(crate) fn is_refusal(&self) -> bool {
        match self {
            Self::Overtaken | Self::SliceTaken(_) => true,
            Self::Kubernetes(kube::Error::Api(status)) => status.code < 500,
            _ => false,
        }
    }

    /// What people can do something about; a server that is away or busy tells nothing.
    pub(crate) fn told(&self) -> Option<Decision<()>> {
        match self {
            Self::Kubernetes(kube::Error::Api(status)) if status.code < 500 && status.code != 429 => {
                let message = format!("the API server refuses what the volume needs: {}", status.message);
                Some(Decision::new((), "Refused", message))
            }
            Self::SliceTaken(key) => {
                let message = format!(
                    "EndpointSlice {key} has the name that the volume's slice needs, but is not ours; delete it"
                );
                Some(Decision::new((), "SliceNameTaken", message))
            }
            _ => None,
        }
    }
}

impl From<SourceError> for Failure {
    fn from(error: SourceError) -> Self {
        Self::Source(error)
    }
}

impl SharedVolumes {
    pub(crate) fn tell_failure(&self, view: &View, failure: &Failure) {
        let (at, error) = match failure {
            Failure::Overtaken | Failure::NotLeader | Failure::NotYet | Failure::SliceTaken(_) => {
                tracing::debug!(feature = "shared-volumes", volume = %view.volume.id, "looked at again: {failure:?}");
                return;
            }
            Failure::Kubernetes(error) => ("kubernetes", causes(error)),
            Failure::Source(error) => ("source", error.to_string()),
        };
        self.metrics.failures.with(&[at]).increment();
        let is_news = self.state.lock().entry(&view.volume.id).is_some_and(|entry| entry.trouble.begins(&error));
        if !is_news {
            return;
        }
        let claim = view.volume.claim.as_ref().map(tracing::field::display);
        tracing::warn!(feature = "shared-volumes", volume = %view.volume.id, claim, at, "cannot go on, and tries again: {error}");
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn told(code: u16) -> Option<&'static str> {
        let status = Status::failure("no", "No").with_code(code);
        Failure::from(kube::Error::Api(status.boxed())).told().map(|decision| decision.reason)
    }

    #[test]
    fn only_what_people_can_do_something_about_is_told() {
        for code in [400, 403, 413, 422] {
            assert_eq!(told(code), Some("Refused"), "{code}");
        }
        for code in [404, 409, 429, 500, 503] {
            assert_eq!(told(code), None, "{code}");
        }
        assert!(Failure::SliceTaken(ObjectKey::new("ci", "files-nfs-ipv4")).told().is_some());
        assert!(Failure::NotYet.told().is_none());
    }

    #[test]
    fn only_what_was_answered_is_known_not_to_happen() {
        let refused = |code: u16| {
            let status = Status::failure("no", "No").with_code(code);
            Failure::from(kube::Error::Api(status.boxed())).is_refusal()
        };
        assert!(refused(404) && refused(409) && refused(422) && refused(429));
        assert!(!refused(500) && !refused(504) && !Failure::NotLeader.is_refusal() && !Failure::NotYet.is_refusal());
    }
}
