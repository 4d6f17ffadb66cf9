//! Whether the claim of an ended pod is freed before the pod itself goes.
//!
//! | the pod   | its claim                                           | decision                           |
//! |-----------|-----------------------------------------------------|------------------------------------|
//! | has not ended | –                                               | leave: `PodLives`                  |
//! | has ended | does not exist                                      | leave: `ClaimGone`                 |
//! | has ended | is not owned by the pod                             | leave: `ClaimNotOwned`             |
//! | has ended | is of a class that is left alone                    | leave: `ReclaimOff`                |
//! | has ended | is used by another pod, even by an ended one        | wait: `ClaimInUse`                 |
//! | has ended | was freed before, and somebody made it again        | report: `ClaimCameBack`            |
//! | has ended | has a volume that is attached to any node           | wait: `StillAttached`              |
//! | has ended | has a volume that the pod's node uses               | wait: `StillInUse`                 |
//! | has ended | has a volume of which nobody tells when it is unmounted, and the pod's node is there | report: `UnmountNotProvable` |
//! | has ended | is of a class that is only reported                 | report: `Reclaimable`              |
//! | has ended | is being deleted already                            | disown: `ClaimReclaimed`           |
//! | has ended | none of these                                       | delete, then disown: `ClaimReclaimed` |
//!
//! A claim without a volume, and a pod that never had a node, pass the checks of the volume: nothing was ever mounted.
//!
//! What is deleted stays deleted, so it is decided on facts that were read live. Reads cost, so the chain asks for one fact
//! at a time ([`Action::Look`]) and only for those that can still change the decision; whoever decides adds the fact and
//! decides again. No chain ends with a deletion before all of them were read.

use std::sync::Arc;

use cluster::{
    Claim, ObjectKey, Pod,
    decision::{Chain, Check, Decision},
};

use super::{
    facts::{LiveClaim, Node, Volume},
    mode::Mode,
};

/// All that the rules look at.
#[derive(Debug, Clone)]
pub struct Observation {
    /// The pod that has the volume. That it ended is final, so the cache is good enough.
    pub pod: Arc<Pod>,
    /// What stands under the claim's name.
    pub claim: ClaimSeen,
    /// What the claim's class wants; none as long as nobody knows the class.
    pub mode: Option<Mode>,
    /// The uid of the claim of this name that was freed for this pod before.
    pub freed: Option<Box<str>>,
    /// Who else uses the claim.
    pub users: Users,
    /// Whether the claim's volume is attached to any node.
    pub attached: bool,
    /// The claim's volume, once it was looked at.
    pub volume: Option<Volume>,
    /// The pod's node, once it was looked at.
    pub node: Option<Node>,
}

/// What is known of the claim.
#[derive(Debug, Clone)]
pub enum ClaimSeen {
    /// There is none.
    Nothing,
    /// The cache has it.
    Cached(Arc<Claim>),
    /// It was read just now.
    Live(Arc<LiveClaim>),
}

/// Other pods that use the claim.
#[derive(Debug, Clone, Default)]
pub struct Users {
    /// Where they are found.
    pub pods: Vec<ObjectKey>,
    /// Whether the API server was asked just now.
    pub live: bool,
}

/// What is done about one claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// It is as it should be, or not ours.
    Leave,
    /// Read this live and decide again.
    Look(Fact),
    /// Not yet, and the end of what is in the way wakes us.
    Wait,
    /// Not yet, and nobody tells when: look again later.
    Poll,
    /// Tell the pod's owner, and do nothing.
    Report,
    /// Delete it and disown it.
    Delete,
    /// It is being deleted: take the pod out of its owners, so that it can go.
    Disown,
}

/// What can be read live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fact {
    /// The claim.
    Claim,
    /// The claim's volume.
    Volume,
    /// The pod's node.
    Node,
    /// The pods of the namespace that have not ended.
    Users,
}

impl Action {
    /// The action as a metric label.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Leave => "leave",
            Self::Look(_) => "look",
            Self::Wait | Self::Poll => "wait",
            Self::Report => "report",
            Self::Delete | Self::Disown => "reclaim",
        }
    }
}

/// The reason of the event that tells of a freed claim.
pub const CLAIM_RECLAIMED: &str = "ClaimReclaimed";

/// The reason of the event that tells of a claim that could be freed.
pub const RECLAIMABLE: &str = "Reclaimable";

/// The reason of the event that tells of a claim that stays because its volume may be mounted for all that anybody knows.
pub const UNMOUNT_NOT_PROVABLE: &str = "UnmountNotProvable";

/// The rules.
pub const RECLAIM: Chain<Observation, Action> = Chain {
    checks: &[
        Check { holds: "the pod has ended", run: pod_lives },
        Check { holds: "the claim exists", run: claim_gone },
        Check { holds: "the claim belongs to the pod", run: claim_not_owned },
        Check { holds: "claims of this class are reclaimed", run: reclaim_off },
        Check { holds: "no other pod uses the claim", run: claim_in_use },
        Check { holds: "the claim was read live", run: look_at_claim },
        Check { holds: "the claim was not freed and made again", run: claim_came_back },
        Check { holds: "the volume is attached to no node", run: still_attached },
        Check { holds: "the volume was read live", run: look_at_volume },
        Check { holds: "the node was read live", run: look_at_node },
        Check { holds: "the node does not use the volume", run: still_in_use },
        Check { holds: "it can be known that the volume is unmounted", run: unmount_not_provable },
        Check { holds: "claims of this class are deleted, not only reported", run: only_reported },
        Check { holds: "the other pods were read live", run: look_at_users },
    ],
    otherwise: free,
};

impl Observation {
    fn live_claim(&self) -> Option<&LiveClaim> {
        if let ClaimSeen::Live(claim) = &self.claim { Some(claim) } else { None }
    }

    /// The claim's volume and the pod's node, if that volume may ever have been mounted there.
    fn place(&self) -> Option<(&str, &str)> {
        Some((self.live_claim()?.volume.as_deref()?, self.pod.node.as_deref()?))
    }

    fn look(fact: Fact) -> Decision<Action> {
        Decision::new(Action::Look(fact), "NotReadYet", "what cannot be undone is decided on what is read live")
    }
}

impl ClaimSeen {
    fn owner(&self) -> Option<&str> {
        match self {
            Self::Nothing => None,
            Self::Cached(claim) => claim.owner.as_deref(),
            Self::Live(claim) => claim.owner.as_ref().map(|(_, uid)| &**uid),
        }
    }
}

fn pod_lives(seen: &Observation) -> Option<Decision<Action>> {
    let message = "the pod has not ended and may still need its claim";
    (!seen.pod.has_ended()).then(|| Decision::new(Action::Leave, "PodLives", message))
}

fn claim_gone(seen: &Observation) -> Option<Decision<Action>> {
    let message = "there is no claim to reclaim";
    matches!(seen.claim, ClaimSeen::Nothing).then(|| Decision::new(Action::Leave, "ClaimGone", message))
}

fn claim_not_owned(seen: &Observation) -> Option<Decision<Action>> {
    let message = "the claim does not belong to the pod and is not touched";
    let owned = seen.claim.owner() == Some(&seen.pod.uid);
    (!owned).then(|| Decision::new(Action::Leave, "ClaimNotOwned", message))
}

fn reclaim_off(seen: &Observation) -> Option<Decision<Action>> {
    let message = "claims of this class stay as long as their pods";
    (seen.mode == Some(Mode::Off)).then(|| Decision::new(Action::Leave, "ReclaimOff", message))
}

fn look_at_claim(seen: &Observation) -> Option<Decision<Action>> {
    seen.live_claim().is_none().then(|| Observation::look(Fact::Claim))
}

// Two controllers that undo each other's work would go on for ever; we stop. If somebody deletes it, that is their decision.
fn claim_came_back(seen: &Observation) -> Option<Decision<Action>> {
    let freed = seen.freed.as_deref()?;
    let claim = seen.live_claim().filter(|claim| *claim.uid != *freed && claim.deleted_at.is_none())?;
    let message = format!(
        "claim {} was freed after the pod ended, and somebody made it again, as the controller in Kubernetes does; it is \
         not freed a second time. Switch that controller off: kube-controller-manager \
         --controllers=*,-ephemeral-volume-controller",
        claim.key
    );
    Some(Decision::new(Action::Report, "ClaimCameBack", message))
}

// Pods that call the claim by name count until they are gone, whatever their phase: so they do for the protection controller.
fn claim_in_use(seen: &Observation) -> Option<Decision<Action>> {
    let user = seen.users.pods.first()?;
    // The cache may never learn of a pod that only a live list showed.
    let action = if seen.users.live { Action::Poll } else { Action::Wait };
    Some(Decision::new(action, "ClaimInUse", format!("the claim is still used by pod {user}")))
}

fn still_attached(seen: &Observation) -> Option<Decision<Action>> {
    let volume = seen.live_claim().and_then(|claim| claim.volume.as_deref()).filter(|_| seen.attached)?;
    let message = format!("volume {volume} is still attached to a node");
    Some(Decision::new(Action::Wait, "StillAttached", message))
}

fn look_at_volume(seen: &Observation) -> Option<Decision<Action>> {
    seen.place().filter(|_| seen.volume.is_none()).map(|_| Observation::look(Fact::Volume))
}

// Of volumes that the configuration vouches for it does not matter what the node says.
fn look_at_node(seen: &Observation) -> Option<Decision<Action>> {
    seen.place().filter(|_| seen.node.is_none())?;
    let vouched_for = matches!(seen.volume, Some(Volume::WithoutAttach { vouched_for: true, .. }));
    (!vouched_for).then(|| Observation::look(Fact::Node))
}

// A kubelet lists a volume before it mounts it and until it has unmounted it. No node, no kubelet, no mount.
fn still_in_use(seen: &Observation) -> Option<Decision<Action>> {
    let (volume, node) = seen.place()?;
    let (Some(Volume::Attachable { listed_as }), Some(Node::There { volumes_in_use })) = (&seen.volume, &seen.node)
    else {
        return None;
    };
    let message = format!("node {node} still uses volume {volume}");
    volumes_in_use.contains(listed_as).then(|| Decision::new(Action::Poll, "StillInUse", message))
}

fn unmount_not_provable(seen: &Observation) -> Option<Decision<Action>> {
    let (volume, node) = seen.place()?;
    let message = match (&seen.volume, &seen.node) {
        (Some(Volume::WithoutAttach { plugin, vouched_for: false }), Some(Node::There { .. })) => format!(
            "the claim is kept as long as the pod: volume {volume} is one of {plugin}, which is mounted without being \
             attached, so nobody tells when node {node} has unmounted it. If you know that it always has, list the plugin in \
             ephemeral.reclaimWithoutAttach"
        ),
        (Some(Volume::Missing), Some(Node::There { .. })) => format!(
            "the claim is kept as long as the pod: its volume {volume} does not exist any more, so nobody tells whether \
             node {node} has unmounted it"
        ),
        _ => return None,
    };
    Some(Decision::new(Action::Report, UNMOUNT_NOT_PROVABLE, message))
}

fn only_reported(seen: &Observation) -> Option<Decision<Action>> {
    let claim = seen.live_claim().filter(|_| seen.mode != Some(Mode::Delete))?;
    let message = format!("claim {} could be freed: the pod has ended and nothing can still be mounted", claim.key);
    Some(Decision::new(Action::Report, RECLAIMABLE, message))
}

fn look_at_users(seen: &Observation) -> Option<Decision<Action>> {
    (!seen.users.live).then(|| Observation::look(Fact::Users))
}

fn free(seen: &Observation) -> Decision<Action> {
    let claim = seen.live_claim();
    let (action, doing) = match claim.and_then(|claim| claim.deleted_at.as_ref()) {
        Some(_) => (Action::Disown, "let go, as it is being deleted"),
        None => (Action::Delete, "deleted"),
    };
    let name = claim.map(|claim| claim.key.to_string()).unwrap_or_default();
    let volume = claim.and_then(|claim| claim.volume.as_deref());
    let volume = volume.map_or_else(String::new, |volume| format!(" with volume {volume}"));
    let message = format!("claim {name}{volume} is {doing}: the pod has ended and nothing can still be mounted");
    Decision::new(action, CLAIM_RECLAIMED, message)
}

#[cfg(test)]
mod tests;
