//! Whether a volume that is kept for one claim still may be: its namespace may be gone, and the next one of that name may be
//! another tenant's.
//!
//! | what is seen                                              | decision                        |
//! |-----------------------------------------------------------|---------------------------------|
//! | the volume is not one that we keep for a claim's name     | leave: `NotReserved`            |
//! | its claim was in a namespace that we do not look after    | leave: `OtherNamespace`         |
//! | the volume is being deleted                               | leave: `VolumeBeingDeleted`     |
//! | it was given to a claim, at which nobody has looked yet   | look: `NotLookedYet`            |
//! | it was given to a claim that has another volume by now    | restore: `ClaimServedElsewhere` |
//! | the namespace is gone                                     | restore: `NamespaceGone`        |
//! | the namespace is being deleted                            | restore: `NamespaceTerminating` |
//! | the namespace is younger than the claim's end             | restore: `NamespaceRecreated`   |
//! | otherwise                                                 | leave: `Reserved`               |

use std::sync::Arc;

use cluster::{
    ObjectKey, Volume,
    decision::{Chain, Check, Decision},
    volume::VolumePhase,
};

use crate::{
    previous::{GivenTo, PreviousClaim},
    seen::NamespaceSeen,
};

/// All that the rules look at.
#[derive(Debug, Clone)]
pub struct Observation {
    /// The volume.
    pub volume: Arc<Volume>,
    /// The namespace of the claim that it is kept for.
    pub namespace: NamespaceSeen,
    /// Whether the very claim that it was given to has another volume; none until somebody has looked.
    pub served_elsewhere: Option<bool>,
    /// The only namespace that we look after; none if it is all of them.
    pub looked_after: Option<Arc<str>>,
}

/// What is done about one volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// There is nothing to do.
    Leave,
    /// Read live whether the claim that it was given to has another volume, and decide again.
    Look,
    /// Give it the previous claim's uid back, so that it is Released again.
    Restore,
}

impl Action {
    /// The action as a metric label.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Leave => "leave",
            Self::Look => "look",
            Self::Restore => "restore",
        }
    }
}

/// The rules.
pub const KEEP: Chain<Observation, Action> = Chain {
    checks: &[
        Check { holds: "the volume is kept for the next claim of its previous claim's name", run: not_reserved },
        Check { holds: "its claim was in a namespace that is looked after", run: other_namespace },
        Check { holds: "the volume is not being deleted", run: volume_going_away },
        Check { holds: "the claim that it was given to was read live", run: not_looked_yet },
        Check { holds: "that claim has no other volume", run: claim_served_elsewhere },
        Check { holds: "its namespace is still the one that it was", run: namespace_lost },
    ],
    otherwise: |_| {
        Decision::new(Action::Leave, "Reserved", "the volume waits for a claim of its previous claim's name")
    },
};

/// The claim that a volume is kept for by us, as it was.
pub(crate) fn reserved_for(volume: &Volume) -> Option<PreviousClaim> {
    let claim = volume.claim.as_ref().filter(|claim| claim.uid.is_none())?;
    let previous = PreviousClaim::of(volume).filter(|previous| !previous.taken_back)?;
    let name = previous.given_to.as_ref().map_or(&previous.name, |given_to| &given_to.name);
    // An administrator may have given it to somebody else since.
    let ours = claim.key == ObjectKey::new(&previous.namespace, name);
    (volume.phase == VolumePhase::Available && ours).then_some(previous)
}

fn not_reserved(seen: &Observation) -> Option<Decision<Action>> {
    let message = "the volume is not kept for the claim of a name";
    reserved_for(&seen.volume).is_none().then(|| Decision::new(Action::Leave, "NotReserved", message))
}

fn other_namespace(seen: &Observation) -> Option<Decision<Action>> {
    let only = seen.looked_after.as_ref()?;
    let other = reserved_for(&seen.volume).is_some_and(|previous| *previous.namespace != **only);
    let message = "its claim was in a namespace that this releaser does not look after";
    other.then(|| Decision::new(Action::Leave, "OtherNamespace", message))
}

fn volume_going_away(seen: &Observation) -> Option<Decision<Action>> {
    let message = "the volume is being deleted";
    seen.volume.being_deleted.then(|| Decision::new(Action::Leave, "VolumeBeingDeleted", message))
}

fn not_looked_yet(seen: &Observation) -> Option<Decision<Action>> {
    reserved_for(&seen.volume)?.given_to?;
    let message = "the claim that the volume was given to is read live";
    seen.served_elsewhere.is_none().then(|| Decision::new(Action::Look, "NotLookedYet", message))
}

// Kubernetes bound the claim before it saw that we had given it this volume. It then drops the uid, takes the name for an
// administrator's word, and keeps the volume for it for good. If that claim is gone, or another one has its name, the name may
// as well be an administrator's word, and holds.
fn claim_served_elsewhere(seen: &Observation) -> Option<Decision<Action>> {
    let GivenTo { name, .. } = reserved_for(&seen.volume)?.given_to?;
    let message = format!("claim {name}, to which the volume was given, has another volume; it is Released again");
    (seen.served_elsewhere == Some(true)).then(|| Decision::new(Action::Restore, "ClaimServedElsewhere", message))
}

fn namespace_lost(seen: &Observation) -> Option<Decision<Action>> {
    let gone_since = reserved_for(&seen.volume).and_then(|previous| previous.gone_since);
    let lost = seen.namespace.lost_since(gone_since.or(seen.volume.phase_since))?;
    let message = format!("{}, so the volume is kept for nobody any more: it is Released again", lost.sentence());
    Some(Decision::new(Action::Restore, lost.reason(), message))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{policy::PREVIOUS_CLAIM, sample::volume_with};

    fn kept(change: &Value) -> Arc<Volume> {
        let previous = json!({"namespace": "ci", "name": "build", "uid": "c1"}).to_string();
        let mut all = json!({
            "metadata": {"annotations": {PREVIOUS_CLAIM: previous}},
            "spec": {"claimRef": {"uid": null}},
            "status": {"phase": "Available"},
        });
        json_patch::merge(&mut all, change);
        all["spec"]["claimRef"]["uid"] = Value::Null;
        Arc::new(volume_with(&all))
    }

    fn reason(volume: Arc<Volume>, namespace: NamespaceSeen) -> (Action, &'static str) {
        looked(volume, namespace, None)
    }

    fn looked(volume: Arc<Volume>, namespace: NamespaceSeen, served_elsewhere: Option<bool>) -> (Action, &'static str) {
        let seen = Observation { volume, namespace, served_elsewhere, looked_after: Some("ci".into()) };
        let decision = KEEP.decide(&seen);
        (decision.action, decision.reason)
    }

    fn there(time: &str) -> NamespaceSeen {
        NamespaceSeen::There(time.parse().unwrap())
    }

    #[test]
    fn a_volume_is_taken_back_when_its_namespace_is_lost() {
        let volume = || kept(&json!({}));
        assert_eq!(reason(volume(), there("2025-01-01T00:00:00Z")), (Action::Leave, "Reserved"));
        assert_eq!(reason(volume(), there("2026-02-01T00:00:00Z")), (Action::Restore, "NamespaceRecreated"));
        assert_eq!(reason(volume(), NamespaceSeen::Terminating), (Action::Restore, "NamespaceTerminating"));
        assert_eq!(reason(volume(), NamespaceSeen::Gone), (Action::Restore, "NamespaceGone"));
    }

    #[test]
    fn what_is_kept_for_another_namespace_is_somebody_elses() {
        let seen = |only: &str| Observation {
            volume: kept(&json!({})),
            namespace: NamespaceSeen::Gone,
            served_elsewhere: None,
            looked_after: Some(only.into()),
        };
        assert_eq!(KEEP.decide(&seen("ci")).reason, "NamespaceGone");
        assert_eq!(KEEP.decide(&seen("shop")).reason, "OtherNamespace");
    }

    #[test]
    fn the_time_that_counts_is_that_of_the_claims_end() {
        let previous =
            json!({"namespace": "ci", "name": "build", "uid": "c1", "goneSince": "2025-12-01T00:00:00Z"}).to_string();
        let volume = || kept(&json!({"metadata": {"annotations": {PREVIOUS_CLAIM: previous}}}));
        assert_eq!(reason(volume(), there("2025-11-01T00:00:00Z")), (Action::Leave, "Reserved"));
        assert_eq!(reason(volume(), there("2025-12-15T00:00:00Z")), (Action::Restore, "NamespaceRecreated"));
    }

    #[test]
    fn a_volume_that_came_too_late_for_its_claim_is_taken_back() {
        for name in ["other", "build"] {
            let given_to = json!({"name": name, "uid": "c2"});
            let previous = json!({"namespace": "ci", "name": "build", "uid": "c1", "givenTo": given_to}).to_string();
            let late = json!({
                "metadata": {"annotations": {PREVIOUS_CLAIM: previous}}, "spec": {"claimRef": {"name": name}},
            });
            let since = there("2025-01-01T00:00:00Z");
            assert_eq!(reason(kept(&late), since), (Action::Look, "NotLookedYet"));
            assert_eq!(looked(kept(&late), since, Some(true)), (Action::Restore, "ClaimServedElsewhere"));
            assert_eq!(looked(kept(&late), since, Some(false)), (Action::Leave, "Reserved"), "by an administrator");
            assert_eq!(looked(kept(&late), NamespaceSeen::Gone, Some(false)), (Action::Restore, "NamespaceGone"));
            let mut by_hand = late;
            by_hand["spec"]["claimRef"]["name"] = json!("third");
            let by_hand = kept(&by_hand);
            assert_eq!(reason(by_hand, since), (Action::Leave, "NotReserved"));
        }
    }

    #[test]
    fn what_an_administrator_gave_away_is_not_taken_back() {
        let elsewhere = kept(&json!({"spec": {"claimRef": {"name": "other"}}}));
        assert_eq!(reason(elsewhere, NamespaceSeen::Gone), (Action::Leave, "NotReserved"));
        let nobody_of_ours = kept(&json!({"metadata": {"annotations": {PREVIOUS_CLAIM: "{}"}}}));
        assert_eq!(reason(nobody_of_ours, NamespaceSeen::Gone), (Action::Leave, "NotReserved"));
        let bound = kept(&json!({"status": {"phase": "Bound"}}));
        assert_eq!(reason(bound, NamespaceSeen::Gone), (Action::Leave, "NotReserved"));
        let previous = json!({"namespace": "ci", "name": "build", "uid": "c1", "takenBack": true}).to_string();
        let after_all = kept(&json!({"metadata": {"annotations": {PREVIOUS_CLAIM: previous}}}));
        assert_eq!(reason(after_all, NamespaceSeen::Gone), (Action::Leave, "NotReserved"), "once is enough");
    }
}
