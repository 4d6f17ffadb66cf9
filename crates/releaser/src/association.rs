//! Whether a volume gets the label by which it is released later. Once its claim is gone, nothing else tells that the claim
//! asked for it.
//!
//! | what is seen                                              | decision                        |
//! |-----------------------------------------------------------|---------------------------------|
//! | association is switched off                               | leave: `AssociationOff`         |
//! | the volume is being deleted                               | leave: `VolumeBeingDeleted`     |
//! | its class carries `claimkeeper.dev/release`               | leave: `ClassDecides`           |
//! | it has an association, with whomever                      | leave: `AlreadyAssociated`      |
//! | the claim that it refers to, by uid, is not there         | leave: `ClaimUnknown`           |
//! | that claim does not name it as its volume, or not yet     | leave: `ClaimNotBound`          |
//! | no label of the claim names us                            | leave: `NotManaged`             |
//! | one of them names somebody else                           | leave: `ManagedByOther`         |
//! | otherwise                                                 | associate: `Associated`         |

use std::sync::Arc;

use cluster::{
    Claim, Class, Volume,
    decision::{Chain, Check, Decision},
};

use crate::policy::{MANAGED_BY, MANAGED_BY_IN_CODE, NoTerms, PROVISIONED_BY, RELEASE, is_associated, one_of_us};

/// All that the rules look at.
#[derive(Debug, Clone)]
pub struct Observation {
    /// The volume.
    pub volume: Arc<Volume>,
    /// Its class, if there is such an object.
    pub class: Option<Arc<Class>>,
    /// What stands under the name of the claim that it refers to.
    pub claim: Option<Arc<Claim>>,
    /// Who we are.
    pub controller_id: Arc<str>,
    /// Whether it is for us to do at all.
    pub automatic: bool,
}

/// What is done about one volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// There is nothing to do.
    Leave,
    /// Give it the label.
    Associate,
}

impl Action {
    /// The action as a metric label.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Leave => "leave",
            Self::Associate => "associate",
        }
    }
}

/// The rules.
pub const ASSOCIATE: Chain<Observation, Action> = Chain {
    checks: &[
        Check { holds: "volumes are associated automatically", run: switched_off },
        Check { holds: "the volume is not being deleted", run: volume_going_away },
        Check { holds: "its class leaves it to labels", run: class_decides },
        Check { holds: "it has no association yet", run: already_associated },
        Check { holds: "its claim is there", run: claim_unknown },
        Check { holds: "its claim has it", run: claim_not_bound },
        Check { holds: "the labels of its claim name this releaser", run: claim_not_ours },
    ],
    // The words are the original's.
    otherwise: |_| Decision::new(Action::Associate, "Associated", "PV associated successfully"),
};

fn switched_off(seen: &Observation) -> Option<Decision<Action>> {
    let message = "releaser.automaticAssociation is off";
    (!seen.automatic).then(|| Decision::new(Action::Leave, "AssociationOff", message))
}

fn volume_going_away(seen: &Observation) -> Option<Decision<Action>> {
    let message = "the volume is being deleted";
    seen.volume.being_deleted.then(|| Decision::new(Action::Leave, "VolumeBeingDeleted", message))
}

fn class_decides(seen: &Observation) -> Option<Decision<Action>> {
    let class = seen.class.as_ref().filter(|class| class.annotations.contains_key(RELEASE))?;
    let message = format!("class {} says by its annotation {RELEASE} what becomes of its volumes", class.key);
    Some(Decision::new(Action::Leave, "ClassDecides", message))
}

fn already_associated(seen: &Observation) -> Option<Decision<Action>> {
    let message = "the volume has an association, which is never overwritten";
    is_associated(&seen.volume).then(|| Decision::new(Action::Leave, "AlreadyAssociated", message))
}

fn claim_unknown(seen: &Observation) -> Option<Decision<Action>> {
    let wanted = seen.volume.claim.as_ref().and_then(|claim| claim.uid.as_ref());
    let found = seen.claim.as_ref().and_then(|claim| claim.release_labels.as_ref()).map(|labels| &labels.uid);
    // A claim without any such label is not worth telling apart from none.
    let message = "the claim that the volume refers to is not there, or it has no label that asks for its release";
    (wanted.is_none() || wanted != found).then(|| Decision::new(Action::Leave, "ClaimUnknown", message))
}

// Kubernetes binds in several writes, and may give the claim another volume in between: its label would stay on this one.
fn claim_not_bound(seen: &Observation) -> Option<Decision<Action>> {
    let found = seen.claim.as_ref()?.volume.as_deref();
    let message = "the claim that the volume refers to does not have it, or not yet";
    (found != Some(seen.volume.key.name())).then(|| Decision::new(Action::Leave, "ClaimNotBound", message))
}

fn claim_not_ours(seen: &Observation) -> Option<Decision<Action>> {
    let labels = seen.claim.as_ref().and_then(|claim| claim.release_labels.as_ref()).map(|claim| &claim.labels)?;
    let ids = [PROVISIONED_BY, MANAGED_BY, MANAGED_BY_IN_CODE].into_iter().filter_map(|key| labels.get(key));
    match one_of_us(ids, &seen.controller_id) {
        Ok(()) => None,
        Err(error @ NoTerms::ManagedByOther(_)) => {
            Some(Decision::new(Action::Leave, "ManagedByOther", format!("by a label of its claim {error}")))
        }
        Err(_) => Some(Decision::new(Action::Leave, "NotManaged", "no label of its claim asks for its release")),
    }
}

#[cfg(test)]
mod tests {
    use cluster::store::Slim;
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        policy::CONTROLLER_ID,
        sample::{class, volume_with},
    };

    fn claim(uid: &str, labels: &Value) -> Option<Arc<Claim>> {
        claim_of("pv-1", uid, labels)
    }

    fn claim_of(volume: &str, uid: &str, labels: &Value) -> Option<Arc<Claim>> {
        let metadata = json!({"namespace": "ci", "name": "build", "uid": uid, "labels": labels});
        let json = json!({"metadata": metadata, "spec": {"volumeName": volume}});
        Claim::from_wire(serde_json::from_value(json).unwrap()).map(Arc::new)
    }

    fn seen() -> Observation {
        Observation {
            volume: Arc::new(volume_with(&json!({"status": {"phase": "Bound"}}))),
            class: class(&[(CONTROLLER_ID, "claimkeeper")]),
            claim: claim("c1", &json!({PROVISIONED_BY: "claimkeeper"})),
            controller_id: "claimkeeper".into(),
            automatic: true,
        }
    }

    fn reason(seen: &Observation) -> &'static str {
        ASSOCIATE.decide(seen).reason
    }

    #[test]
    fn a_label_of_the_claim_associates_its_volume() {
        assert_eq!(reason(&seen()), "Associated");
        for (labels, expected) in [
            (json!({MANAGED_BY: "claimkeeper"}), "Associated"),
            (json!({MANAGED_BY_IN_CODE: "claimkeeper"}), "Associated"),
            (json!({PROVISIONED_BY: "claimkeeper", MANAGED_BY: "claimkeeper"}), "Associated"),
            (json!({PROVISIONED_BY: "claimkeeper", MANAGED_BY: "other"}), "ManagedByOther"),
            (json!({PROVISIONED_BY: "other"}), "ManagedByOther"),
            (json!({"dynamic-pvc-provisioner.kubernetes.io/other": "claimkeeper"}), "NotManaged"),
            (json!({"team": "claimkeeper"}), "ClaimUnknown"),
        ] {
            assert_eq!(reason(&Observation { claim: claim("c1", &labels), ..seen() }), expected, "{labels}");
        }
    }

    #[test]
    fn a_claim_that_only_has_the_name_does_not_count() {
        let labels = json!({PROVISIONED_BY: "claimkeeper"});
        assert_eq!(reason(&Observation { claim: claim("c2", &labels), ..seen() }), "ClaimUnknown");
        assert_eq!(reason(&Observation { claim: None, ..seen() }), "ClaimUnknown");
        let unbound = volume_with(&json!({"spec": {"claimRef": null}}));
        assert_eq!(reason(&Observation { volume: Arc::new(unbound), ..seen() }), "ClaimUnknown");
        let by_name = volume_with(&json!({"spec": {"claimRef": {"uid": null}}}));
        assert_eq!(reason(&Observation { volume: Arc::new(by_name), ..seen() }), "ClaimUnknown");
    }

    #[test]
    fn a_claim_that_has_not_got_the_volume_may_still_get_another() {
        for (volume, expected) in [("pv-1", "Associated"), ("", "ClaimNotBound"), ("pv-2", "ClaimNotBound")] {
            let claim = claim_of(volume, "c1", &json!({PROVISIONED_BY: "claimkeeper"}));
            assert_eq!(reason(&Observation { claim, ..seen() }), expected, "{volume}");
        }
    }

    #[test]
    fn nobody_is_overruled() {
        for (key, id) in [(MANAGED_BY, "other"), (MANAGED_BY, "claimkeeper"), (MANAGED_BY_IN_CODE, "other")] {
            let volume = Arc::new(volume_with(&json!({"metadata": {"labels": {key: id}}})));
            assert_eq!(reason(&Observation { volume, ..seen() }), "AlreadyAssociated", "{key} {id}");
        }
        assert_eq!(reason(&Observation { class: class(&[(RELEASE, "never")]), ..seen() }), "ClassDecides");
        assert_eq!(reason(&Observation { automatic: false, ..seen() }), "AssociationOff");
        let leaving = volume_with(&json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
        assert_eq!(reason(&Observation { volume: Arc::new(leaving), ..seen() }), "VolumeBeingDeleted");
    }
}
