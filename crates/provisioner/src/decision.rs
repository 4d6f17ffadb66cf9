//! Whether the claim that a pod asks for is made.
//!
//! | what is seen                                             | decision                          |
//! |----------------------------------------------------------|-----------------------------------|
//! | the pod is being deleted                                 | leave: `PodBeingDeleted`          |
//! | the pod is not Pending any more                          | leave: `PodNotPending`            |
//! | both kinds of annotation ask for the volume              | refuse: `ErrInvalidPVC`           |
//! | there is no template                                     | refuse: `ErrMissingPVC`           |
//! | the pod has no such volume                               | refuse: `ErrMissingVolume`        |
//! | the volume does not use a claim                          | refuse: `ErrInvalidPVC`           |
//! | a claim of that name is being deleted                    | wait: `ClaimBeingDeleted`         |
//! | a claim of that name belongs to the pod                  | leave: `ClaimExists`              |
//! | a claim of that name belongs to a pod that is gone, and the pod is younger than a minute | wait: `ClaimOfEarlierPod` |
//! | a claim of that name belongs to somebody else            | refuse: `ErrForeignPVC`           |
//! | the template cannot be used                              | refuse: `ErrInvalidPVC`           |
//! | nobody has asked yet whether the pod's account may       | ask: `AuthorizationUnknown`       |
//! | the pod's account may not create claims                  | refuse: `ErrNotAuthorized`        |
//! | otherwise                                                | create: `PVCProvisioned`          |

use std::sync::Arc;

use cluster::{
    Claim, Pod,
    decision::{Chain, Check, Decision},
};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::{
    request::{Request, Target},
    template::{Template, TemplateError},
};

/// All that the rules look at.
#[derive(Debug, Clone)]
pub struct Observation {
    /// The pod that asks.
    pub pod: Arc<Pod>,
    /// What it asks for.
    pub request: Request,
    /// The template, as it was read.
    pub template: Option<Result<Template, TemplateError>>,
    /// What stands under the claim's name.
    pub claim: Option<Arc<Claim>>,
    /// Whether the claim's owner is a pod that we know to live.
    pub owner_lives: bool,
    /// Whether the pod's `ServiceAccount` may create claims.
    pub authorization: Authorization,
    /// When we look.
    pub now: Timestamp,
}

/// What is known about the right of a pod's `ServiceAccount` to create claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Authorization {
    /// Nobody is to ask.
    NotNeeded,
    /// Nobody has asked.
    Unknown,
    /// It may.
    Allowed,
    /// It may not.
    Denied,
}

/// What is done about one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Make the claim.
    Create,
    /// There is nothing to do.
    Leave,
    /// Not yet: what is in the way is on its way out. Its end wakes us.
    Wait,
    /// Ask the API server whether the pod's account may, and decide again.
    Ask,
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
            Self::Ask => "ask",
            Self::Refuse => "refuse",
        }
    }
}

/// The reason of the event about a claim that was made, as in the original.
pub const PROVISIONED: &str = "PVCProvisioned";
/// The reason of the event about a claim that the API server refuses, as in the original.
pub const PROVISION_FAILED: &str = "ErrPVCProvisionFailed";

/// How long the garbage collector is trusted to find the claim of a pod that is gone; usually it takes less than a second.
pub const PATIENCE: SignedDuration = SignedDuration::from_mins(1);

/// The rules.
pub const MAKE_CLAIM: Chain<Observation, Action> = Chain {
    checks: &[
        Check { holds: "the pod is not being deleted", run: pod_going_away },
        Check { holds: "the pod is Pending", run: pod_not_pending },
        Check { holds: "only one annotation asks for the volume", run: asked_twice },
        Check { holds: "the annotation with the template is there", run: template_missing },
        Check { holds: "the pod has the volume", run: volume_missing },
        Check { holds: "the volume uses a claim", run: volume_without_claim },
        Check { holds: "no claim of this name is being deleted", run: claim_going_away },
        Check { holds: "no claim of this name belongs to the pod yet", run: claim_exists },
        Check { holds: "no claim of this name is left over from an earlier pod", run: claim_of_earlier_pod },
        Check { holds: "no claim of this name belongs to somebody else", run: name_taken },
        Check { holds: "the template can be used", run: template_invalid },
        Check { holds: "it is known whether the pod's ServiceAccount may create claims", run: authorization_unknown },
        Check { holds: "the pod's ServiceAccount may create claims", run: not_authorized },
    ],
    // The words are the original's.
    otherwise: |_| Decision::new(Action::Create, PROVISIONED, "PVC created successfully"),
};

fn pod_going_away(seen: &Observation) -> Option<Decision<Action>> {
    let message = "the pod is being deleted and needs no claim any more";
    seen.pod.being_deleted.then(|| Decision::new(Action::Leave, "PodBeingDeleted", message))
}

// A pod that runs has all the claims that it needs.
fn pod_not_pending(seen: &Observation) -> Option<Decision<Action>> {
    let message = "the pod is not Pending, so it has the claims that it needs";
    let pending = seen.pod.claim_requests.as_ref().is_some_and(|requests| requests.pending);
    (!pending).then(|| Decision::new(Action::Leave, "PodNotPending", message))
}

fn asked_twice(seen: &Observation) -> Option<Decision<Action>> {
    let wrong = "the original's annotation asks for the same volume; keep one of them";
    seen.request.asked_twice.then(|| invalid(seen, wrong))
}

fn template_missing(seen: &Observation) -> Option<Decision<Action>> {
    let message = || format!("'{}' missing PVC", seen.request.annotation);
    seen.request.template.is_none().then(|| Decision::new(Action::Refuse, "ErrMissingPVC", message()))
}

fn volume_missing(seen: &Observation) -> Option<Decision<Action>> {
    let message = || format!("Pod was missing volume '{}'", seen.request.volume);
    (seen.request.target == Target::Missing).then(|| Decision::new(Action::Refuse, "ErrMissingVolume", message()))
}

fn volume_without_claim(seen: &Observation) -> Option<Decision<Action>> {
    let wrong = "consumer volume for requested pvc wasn't a persistentVolumeClaim type";
    (seen.request.target == Target::NoClaim).then(|| invalid(seen, wrong))
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

// A pod that is started again under its name meets the claim of the one before until the garbage collector gets to it.
fn claim_of_earlier_pod(seen: &Observation) -> Option<Decision<Action>> {
    let claim = seen.claim.as_ref().filter(|claim| claim.owned_by_pod && !seen.owner_lives)?;
    let young = seen.now.duration_since(seen.pod.created) < PATIENCE;
    let message =
        format!("claim {} belongs to a pod that is gone; it is made anew as soon as it is deleted", claim.key);
    young.then(|| Decision::new(Action::Wait, "ClaimOfEarlierPod", message))
}

// The pod will use it all the same, because its spec says so. That somebody else's claim is not deleted with this pod, and
// that its data is not the pod's own, is for the pod's owner to know.
fn name_taken(seen: &Observation) -> Option<Decision<Action>> {
    let claim = seen.claim.as_ref()?;
    let message = format!(
        "PVC {} exists and was not created for pod {} (pod is not owner); it is left as it is, and so is its data: use another \
         claimName, or remove the annotation '{}' if the pod is meant to use it",
        claim.key, seen.pod.key, seen.request.annotation
    );
    Some(Decision::new(Action::Refuse, "ErrForeignPVC", message))
}

fn template_invalid(seen: &Observation) -> Option<Decision<Action>> {
    match &seen.template {
        Some(Err(error)) => Some(invalid(seen, &error.to_string())),
        _ => None,
    }
}

fn authorization_unknown(seen: &Observation) -> Option<Decision<Action>> {
    let message = "the API server is asked whether the pod's ServiceAccount may create claims";
    (seen.authorization == Authorization::Unknown).then(|| Decision::new(Action::Ask, "AuthorizationUnknown", message))
}

fn not_authorized(seen: &Observation) -> Option<Decision<Action>> {
    if seen.authorization != Authorization::Denied {
        return None;
    }
    let (namespace, account) = (seen.pod.key.namespace(), account(&seen.pod));
    let message = format!(
        "ServiceAccount {namespace}/{account} may not create persistentvolumeclaims, so none is made for volume '{}'; an \
         administrator can allow it: kubectl --namespace {namespace} create role create-claims --verb=create \
         --resource=persistentvolumeclaims; kubectl --namespace {namespace} create rolebinding {account}-create-claims \
         --role=create-claims --serviceaccount={namespace}:{account}",
        seen.request.volume
    );
    Some(Decision::new(Action::Refuse, "ErrNotAuthorized", message))
}

fn account(pod: &Pod) -> &str {
    pod.claim_requests.as_ref().map_or("default", |requests| &requests.service_account)
}

fn invalid(seen: &Observation, wrong: &str) -> Decision<Action> {
    let message = format!("'{}' invalid PVC: {wrong}", seen.request.annotation);
    Decision::new(Action::Refuse, "ErrInvalidPVC", message)
}
