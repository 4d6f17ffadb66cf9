//! The two writes that free a claim, and what becomes of those that fail.

use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
    core::Status,
};
use platform::{client::RequestError, events::EventKind, queue::Outcome, trouble::causes};
use serde_json::json;

use super::{
    controller::{Case, Reclaim},
    facts::{ClaimWire, LiveClaim},
};

impl Reclaim {
    /// Deletes the claim that was read, in the version that was read, and takes the pod out of its owners.
    pub(super) async fn delete(&self, case: &Case, claim: &LiveClaim) -> Result<(), kube::Error> {
        let preconditions =
            Preconditions { uid: Some(claim.uid.to_string()), resource_version: Some(claim.version.to_string()) };
        let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        let deleted = self.claims_of(case).delete(case.claim.name(), &parameters).await?;
        // Without a finalizer it is gone at once.
        match deleted.left().and_then(LiveClaim::from_wire) {
            Some(claim) => self.disown(case, &claim).await,
            None => Ok(()),
        }
    }

    /// Takes the pod out of the owners of a claim that is being deleted. Nobody can stop that any more, so all that changes is
    /// that the protection controller does not count the pod.
    pub(super) async fn disown(&self, case: &Case, claim: &LiveClaim) -> Result<(), kube::Error> {
        let (Some((place, owner)), Some(deleted_at)) = (&claim.owner, &claim.deleted_at) else { return Ok(()) };
        let place = format!("/metadata/ownerReferences/{place}");
        let patch = serde_json::from_value(json!([
            {"op": "test", "path": "/metadata/uid", "value": claim.uid},
            {"op": "test", "path": "/metadata/deletionTimestamp", "value": deleted_at},
            {"op": "test", "path": format!("{place}/uid"), "value": owner},
            {"op": "remove", "path": place},
        ]));
        let patch: Patch<()> = Patch::Json(patch.map_err(kube::Error::SerdeError)?);
        match self.claims_of(case).patch(case.claim.name(), &PatchParams::default(), &patch).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            outcome => outcome.map(drop),
        }
    }

    pub(super) fn failed(&self, case: &Case, error: &kube::Error) -> Outcome {
        let Case { pod, claim } = case;
        match error {
            kube::Error::Api(status) if is_lost_race(status) => {
                tracing::debug!(feature = "ephemeral", %claim, pod = %pod.key, "the claim has changed; decided again");
            }
            // Whoever leads now does it; there is nothing to tell and nothing failed.
            error if RequestError::is_not_leader(error) => return Outcome::Done,
            error => {
                let reason = "ReclaimFailed";
                let message = format!("claim {claim} could not be freed: {}", causes(error));
                tracing::warn!(feature = "ephemeral", %claim, pod = %pod.key, reason, "{message}");
                // A server that says no has something to tell; one that is away has not, least of all to every pod.
                if matches!(error, kube::Error::Api(status) if status.code < 500) {
                    self.tell_pod(pod, EventKind::Warning, reason, message);
                }
            }
        }
        Outcome::Retry
    }

    fn claims_of(&self, case: &Case) -> Api<ClaimWire> {
        Api::namespaced(Client::clone(&self.client), case.claim.namespace())
    }
}

// A claim that is gone, of another uid or of another version; a JSON patch whose test failed.
fn is_lost_race(status: &Status) -> bool {
    matches!(status.code, 404 | 409 | 422)
}

#[cfg(test)]
mod tests;
