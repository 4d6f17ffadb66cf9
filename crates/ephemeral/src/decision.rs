//! Whether the claim of one ephemeral volume is made.
//!
//! | the pod            | the claim of that name          | decision                          |
//! |--------------------|---------------------------------|-----------------------------------|
//! | is being deleted   | –                               | leave: `PodBeingDeleted`          |
//! | has ended          | –                               | leave: `PodEnded`                 |
//! | lives              | is being deleted                | wait: `ClaimBeingDeleted`         |
//! | lives              | exists, owned by the pod        | leave: `ClaimExists`              |
//! | lives, in a namespace that denies ephemeral volumes | any other, or none | refuse: `EphemeralVolumesDenied`, an event |
//! | is younger than a minute | belongs to a pod that is gone | wait: `ClaimOfEarlierPod`     |
//! | lives              | exists, not owned by the pod    | refuse: `FailedBinding`, an event |
//! | lives              | does not exist                  | create: `ClaimMissing`            |

use cluster::{
    Claim, Namespace, Pod,
    decision::{Chain, Check, Decision},
    namespace::{DENY, EPHEMERAL_VOLUMES},
    pod::Phase,
};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use std::sync::Arc;

/// All that the rules look at.
#[derive(Debug, Clone)]
pub struct Observation {
    /// The pod that has the volume.
    pub pod: Arc<Pod>,
    /// The volume's name.
    pub volume: Box<str>,
    /// What stands under the claim's name.
    pub claim: Option<Arc<Claim>>,
    /// Whether the claim's owner is a pod that we know to live.
    pub owner_lives: bool,
    /// The pod's namespace, if it is known.
    pub namespace: Option<Arc<Namespace>>,
    /// When we look.
    pub now: Timestamp,
}

/// What is done about one volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Make the claim.
    Create,
    /// All is as it should be.
    Leave,
    /// Not yet: what is in the way is on its way out. Its end wakes us.
    Wait,
    /// It must not be made: tell the pod's owner.
    Refuse,
}

impl Action {
    /// The action as a metric label.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Leave => "leave",
            Self::Wait => "wait",
            Self::Refuse => "refuse",
        }
    }
}

/// The reason of every event about a claim that could not be made: the one that the controller in Kubernetes uses.
pub const FAILED_BINDING: &str = "FailedBinding";

/// The reason of every event about a claim that is not made because an administrator does not want it.
pub const DENIED: &str = "EphemeralVolumesDenied";

/// How long the garbage collector is trusted to find the claim of a pod that is gone; usually it takes less than a second.
pub const PATIENCE: SignedDuration = SignedDuration::from_mins(1);

/// The rules.
pub const MAKE_CLAIM: Chain<Observation, Action> = Chain {
    checks: &[
        Check { holds: "the pod is not being deleted", run: pod_going_away },
        Check { holds: "the pod has not ended", run: pod_ended },
        Check { holds: "no claim of this name is being deleted", run: claim_going_away },
        Check { holds: "no claim of this name belongs to the pod yet", run: claim_exists },
        Check { holds: "the namespace does not deny ephemeral volumes", run: namespace_denies },
        Check { holds: "no claim of this name is left over from an earlier pod", run: claim_of_earlier_pod },
        Check { holds: "no claim of this name belongs to somebody else", run: name_taken },
    ],
    otherwise: |_| Decision::new(Action::Create, "ClaimMissing", "the claim is made from the volume's template"),
};

// The garbage collector deletes the claims of a deleted pod: a new one would only have to follow them.
fn pod_going_away(seen: &Observation) -> Option<Decision<Action>> {
    let message = "the pod is being deleted and needs no claim any more";
    seen.pod.being_deleted.then(|| Decision::new(Action::Leave, "PodBeingDeleted", message))
}

// A pod never leaves these phases: a volume made now would hold storage for nobody.
fn pod_ended(seen: &Observation) -> Option<Decision<Action>> {
    let message = "the pod has ended and needs no claim any more";
    (seen.pod.phase != Phase::Active).then(|| Decision::new(Action::Leave, "PodEnded", message))
}

// Usually the claim of an earlier pod of the same name, kept for a moment by its finalizer. Not worth an alarm.
fn claim_going_away(seen: &Observation) -> Option<Decision<Action>> {
    let claim = seen.claim.as_ref().filter(|claim| claim.being_deleted)?;
    let message = format!("claim {} is being deleted; it is made anew as soon as it is gone", claim.key);
    Some(Decision::new(Action::Wait, "ClaimBeingDeleted", message))
}

fn claim_exists(seen: &Observation) -> Option<Decision<Action>> {
    let claim = seen.claim.as_ref().filter(|claim| claim.owner.as_ref() == Some(&seen.pod.uid))?;
    Some(Decision::new(Action::Leave, "ClaimExists", format!("claim {} belongs to the pod", claim.key)))
}

// Claims that were made before the label came stay: they may hold data of a running pod.
fn namespace_denies(seen: &Observation) -> Option<Decision<Action>> {
    let namespace = seen.namespace.as_ref().filter(|namespace| namespace.denies_ephemeral_volumes)?;
    let message = format!(
        "ephemeral volume {}: namespace {} does not allow generic ephemeral volumes; use another kind of volume, or ask \
         an administrator to remove the label {EPHEMERAL_VOLUMES}={DENY} from the namespace",
        seen.volume, namespace.key
    );
    Some(Decision::new(Action::Refuse, DENIED, message))
}

// A pod of a StatefulSet comes back under its name before the garbage collector gets to the claim of the one before. That it
// does so every time is no reason for an alarm every time.
fn claim_of_earlier_pod(seen: &Observation) -> Option<Decision<Action>> {
    let claim = seen.claim.as_ref().filter(|claim| claim.owned_by_pod && !seen.owner_lives)?;
    let young = seen.now.duration_since(seen.pod.created) < PATIENCE;
    let message =
        format!("claim {} belongs to a pod that is gone; it is made anew as soon as it is deleted", claim.key);
    young.then(|| Decision::new(Action::Wait, "ClaimOfEarlierPod", message))
}

// The words are those of the controller in Kubernetes: people search for them.
fn name_taken(seen: &Observation) -> Option<Decision<Action>> {
    let claim = seen.claim.as_ref()?;
    let message = format!(
        "ephemeral volume {}: PVC {} was not created for pod {} (pod is not owner)",
        seen.volume, claim.key, seen.pod.key
    );
    Some(Decision::new(Action::Refuse, FAILED_BINDING, message))
}

#[cfg(test)]
mod tests {
    use cluster::ObjectKey;

    use super::*;

    fn pod(being_deleted: bool, phase: Phase) -> Arc<Pod> {
        let key = ObjectKey::new("ci", "build");
        Arc::new(Pod {
            key,
            uid: "uid-1".into(),
            created: Timestamp::UNIX_EPOCH,
            being_deleted,
            phase,
            running: false,
            ephemeral_volumes: Box::default(),
            used_claims: Box::default(),
            node: None,
            waits_for_home: false,
            claim_requests: None,
        })
    }

    fn seen(claim: Option<(Option<&str>, bool)>) -> Observation {
        let claim = claim.map(|(owner, being_deleted)| {
            let key = ObjectKey::new("ci", "build-scratch");
            Arc::new(Claim {
                key,
                owner: owner.map(Into::into),
                owned_by_pod: owner.is_some(),
                being_deleted,
                volume: None,
                blank_recreations: None,
                release_labels: None,
            })
        });
        Observation {
            pod: pod(false, Phase::Active),
            volume: "scratch".into(),
            claim,
            owner_lives: false,
            namespace: Some(namespace(false)),
            now: Timestamp::UNIX_EPOCH + PATIENCE,
        }
    }

    /// Seen within the pod's first minute.
    fn early(claim: Option<(Option<&str>, bool)>) -> Observation {
        Observation { now: Timestamp::UNIX_EPOCH, ..seen(claim) }
    }

    fn namespace(denies_ephemeral_volumes: bool) -> Arc<Namespace> {
        Arc::new(Namespace {
            key: ObjectKey::new("", "ci"),
            denies_ephemeral_volumes,
            enforcement: None,
            created: Timestamp::UNIX_EPOCH,
            being_deleted: false,
        })
    }

    fn denied(claim: Option<(Option<&str>, bool)>) -> Observation {
        Observation { namespace: Some(namespace(true)), ..seen(claim) }
    }

    #[test]
    fn every_row_of_the_table_is_decided_as_written() {
        let ours = Some((Some("uid-1"), false));
        for (observation, action, reason) in [
            (seen(None), Action::Create, "ClaimMissing"),
            (seen(ours), Action::Leave, "ClaimExists"),
            (seen(Some((Some("uid-0"), false))), Action::Refuse, FAILED_BINDING),
            (seen(Some((None, false))), Action::Refuse, FAILED_BINDING),
            (seen(Some((Some("uid-1"), true))), Action::Wait, "ClaimBeingDeleted"),
            (seen(Some((Some("uid-0"), true))), Action::Wait, "ClaimBeingDeleted"),
            (seen(Some((None, true))), Action::Wait, "ClaimBeingDeleted"),
            (Observation { pod: pod(true, Phase::Active), ..seen(None) }, Action::Leave, "PodBeingDeleted"),
            (
                Observation { pod: pod(true, Phase::Active), ..seen(Some((None, false))) },
                Action::Leave,
                "PodBeingDeleted",
            ),
            (early(Some((Some("uid-0"), false))), Action::Wait, "ClaimOfEarlierPod"),
            (Observation { owner_lives: true, ..early(Some((Some("uid-0"), false))) }, Action::Refuse, FAILED_BINDING),
            (early(Some((None, false))), Action::Refuse, FAILED_BINDING),
            (early(ours), Action::Leave, "ClaimExists"),
            (early(None), Action::Create, "ClaimMissing"),
            (denied(None), Action::Refuse, DENIED),
            (denied(Some((None, false))), Action::Refuse, DENIED),
            (denied(ours), Action::Leave, "ClaimExists"),
            (denied(Some((None, true))), Action::Wait, "ClaimBeingDeleted"),
            (Observation { pod: pod(true, Phase::Active), ..denied(None) }, Action::Leave, "PodBeingDeleted"),
            (Observation { namespace: None, ..seen(None) }, Action::Create, "ClaimMissing"),
            (Observation { pod: pod(false, Phase::Succeeded), ..seen(None) }, Action::Leave, "PodEnded"),
            (Observation { pod: pod(false, Phase::Failed), ..seen(None) }, Action::Leave, "PodEnded"),
        ] {
            let decision = MAKE_CLAIM.decide(&observation);
            assert_eq!((decision.action, decision.reason), (action, reason), "{observation:?}");
        }
    }

    #[test]
    fn a_taken_name_is_told_in_the_words_that_people_search_for() {
        assert_eq!(
            MAKE_CLAIM.decide(&seen(Some((None, false)))).message,
            "ephemeral volume scratch: PVC ci/build-scratch was not created for pod ci/build (pod is not owner)"
        );
    }

    #[test]
    fn a_denial_tells_what_to_do() {
        assert_eq!(
            MAKE_CLAIM.decide(&denied(None)).message,
            "ephemeral volume scratch: namespace ci does not allow generic ephemeral volumes; use another kind of volume, or \
             ask an administrator to remove the label claimkeeper.dev/ephemeral-volumes=deny from the namespace"
        );
    }

    #[test]
    fn the_explanation_tells_what_held_what_decided_and_what_nobody_asked() {
        let why = MAKE_CLAIM.explain(&seen(Some((None, true))));
        assert_eq!(why.held, ["the pod is not being deleted", "the pod has not ended"]);
        assert_eq!(why.failed, Some("no claim of this name is being deleted"));
        assert_eq!(why.not_reached.len(), 4);
        assert_eq!(why.decision.reason, "ClaimBeingDeleted");
    }
}
