//! The writes: each says which version of the volume it was decided for, and is refused if there is a newer one.

use cluster::{ObjectKey, Volume, volume::BOUND_BY_CONTROLLER};
use serde_json::{Value, json};

use crate::{
    decision::To,
    policy::{MANAGED_BY, MANAGED_BY_IN_CODE, PREVIOUS_CLAIM},
    previous::{GivenTo, PreviousClaim},
    scrub::SCRUB,
    seen::Candidate,
};

/// Gives a volume the label by which it is released later.
pub(crate) fn associate(volume: &Volume, label: &str, controller_id: &str) -> Value {
    merged(volume, json!({"metadata": {"labels": {label: controller_id}}}))
}

/// Releases a volume. The next claim may be managed by somebody else, so the association goes; and if an administrator binds
/// the volume later, Kubernetes must not take that for its own doing.
pub(crate) fn release(volume: &Volume, to: &To) -> Value {
    let (claim, given_to) = match to {
        To::Pool => (Value::Null, None),
        To::SameName => (json!({"uid": null, "resourceVersion": null}), None),
        To::Claim(Candidate { key, uid }) => {
            (reference(key, uid), Some(GivenTo { name: key.name().to_owned(), uid: uid.to_string() }))
        }
    };
    let mut change = given(volume, &claim, given_to);
    change["metadata"]["annotations"][SCRUB] = Value::Null;
    change["metadata"]["labels"] = json!({MANAGED_BY: null, MANAGED_BY_IN_CODE: null});
    change
}

/// Lets a volume refer to a claim that nobody can use but us. It is not released by that: all that tells whose it was, and who
/// releases it, stays.
pub(crate) fn give(volume: &Volume, claim: &ObjectKey, uid: &str) -> Value {
    let mut change = given(volume, &reference(claim, uid), None);
    if volume.claim.as_ref().is_some_and(|known| known.key == *claim) {
        // It was ours before, even if somebody has removed the note that says so: who had the data is the one before.
        change["metadata"]["annotations"].as_object_mut().map(|annotations| annotations.remove(PREVIOUS_CLAIM));
    }
    change
}

fn reference(claim: &ObjectKey, uid: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": claim.namespace(),
        "name": claim.name(),
        "uid": uid,
        "resourceVersion": null,
    })
}

/// Changes to whom a volume belongs, and remembers to whom it did.
fn given(volume: &Volume, claim: &Value, given_to: Option<GivenTo>) -> Value {
    let mut annotations = json!({BOUND_BY_CONTROLLER: null});
    if let Some(previous) = PreviousClaim::to_remember(volume, given_to) {
        annotations[PREVIOUS_CLAIM] = json!(previous).to_string().into();
    }
    merged(volume, json!({"metadata": {"annotations": annotations}, "spec": {"claimRef": claim}}))
}

/// Lets a volume that is kept for a claim's name refer to the claim that it had: Kubernetes finds it gone, and the volume is
/// Released. Whoever keeps it for that name afterwards is an administrator, and is not to be overruled.
pub(crate) fn restore(volume: &Volume, previous: &PreviousClaim) -> Value {
    let taken_back = PreviousClaim { taken_back: true, ..previous.clone() };
    merged(
        volume,
        json!({
            "metadata": {"annotations": {PREVIOUS_CLAIM: json!(taken_back).to_string()}},
            "spec": {"claimRef": {"name": previous.name, "uid": previous.uid}},
        }),
    )
}

/// The change, for this very version of this very volume.
pub(crate) fn merged(volume: &Volume, mut change: Value) -> Value {
    change["metadata"]["uid"] = (*volume.uid).into();
    change["metadata"]["resourceVersion"] = (*volume.version).into();
    change
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::volume_with;

    #[test]
    fn a_volume_that_is_given_to_its_scrub_claim_again_remembers_the_tenant() {
        let scrub = ObjectKey::new("ops", "scrub-v1");
        let previous = |claim: Value| {
            let volume = volume_with(&json!({"spec": {"claimRef": claim}}));
            let patch = give(&volume, &scrub, "k2");
            patch["metadata"]["annotations"][PREVIOUS_CLAIM].as_str().map(str::to_owned)
        };
        let tenant = previous(json!({"namespace": "ci", "name": "build", "uid": "c1"}));
        assert!(tenant.is_some_and(|tenant| tenant.contains(r#""uid":"c1""#)));
        assert_eq!(
            previous(json!({"namespace": "ops", "name": "scrub-v1", "uid": "k1"})),
            None,
            "the note was removed"
        );
    }
}
