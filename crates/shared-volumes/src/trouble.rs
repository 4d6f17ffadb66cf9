//! Why a volume is not as it should be, and what is said about it.

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

impl From<SourceError> for Failure {
    fn from(error: SourceError) -> Self {
        Self::Source(error)
    }
}

impl SharedVolumes {
    pub(crate) fn tell_failure(&self, view: &View, failure: &Failure) {
        let (at, error) = match failure {
            Failure::Overtaken | Failure::NotLeader | Failure::NotYet => {
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
