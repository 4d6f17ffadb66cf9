//! What becomes of a volume whose node is gone. Everything that is deleted here is deleted once and for all, so each rule that
//! lets it pass has been read live.
//!
//! | the volume | and | then |
//! |---|---|---|
//! | is not tied to one node | | leave: `NotTied` |
//! | its claim is in a namespace that is not looked after | | leave: `OtherNamespace` |
//! | its class says `off` | | leave: `Off` |
//! | was never claimed | | leave: `Unclaimed` |
//! | its machine is there | that is not noted, or was noted as gone | note: `HomeNoted`, `NodeBack` |
//! | its machine is there | | leave: `NodeThere` |
//! | its node is gone, or another machine | since when is not noted | mark: `NodeMissing` |
//! | | for too short a time | wait: `NodeMissing` |
//! | | nobody knows which machine it was | report: `IdentityUnknown` |
//! | | its class says `report` | report: `NodeGone` |
//! | | its policy is Retain | report: `Retained` |
//! | | too many others are gone | report: `TooManyNodesGone` |
//! | | too much was deleted just now | wait: `TakesTurns` |
//! | Bound | its claim goes, but pods that can never start keep it | end them: `PodsKeepClaim` |
//! | Bound | its claim is not there, or goes already | wait: `ClaimEnding` |
//! | Bound | a pod on a node that is there uses it | report: `InUse` |
//! | Bound | its claim belongs to a pod | leave: `GoesWithPod` |
//! | Bound | nobody makes the claim again | report: `NobodyRecreates` |
//! | Bound | | delete the claim: `ClaimDeleted` |
//! | Released | its claim is there after all | wait: `ClaimEnding` |
//! | Released | attached to a node that is there | report: `StillAttached` |
//! | Released | only others keep it | report: `HeldByOthers` |
//! | Released | | delete the volume: `VolumeDeleted` |

use std::{sync::Arc, time::Duration};

use cluster::{
    Volume,
    decision::{Chain, Check, Decision},
    volume::VolumePhase,
};
use k8s_openapi::jiff::Timestamp;

use super::{
    brake::{Fleet, remaining},
    identity::{Note, Presence},
    policy::Terms,
};
use crate::{
    home::Home,
    settings::{NodeGone, Percent},
};

/// Since when a volume's node is known to be gone, on the volume: nobody else records it.
pub const NODE_GONE_SINCE: &str = "claimkeeper.dev/node-gone-since";

/// By which provisioners keep a volume until they have cleaned its disk. With the disk gone, they never have.
pub const PROVISIONER_FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";

/// The reason while a claim goes, or cannot be judged by.
pub(super) const CLAIM_ENDING: &str = "ClaimEnding";

/// By which Kubernetes keeps a volume that has a claim; it takes it off by itself.
const PROTECTION: &str = "kubernetes.io/pv-protection";

/// When to look again at what only others can change and no watch shows.
const RECHECK: Duration = Duration::from_mins(5);

/// The same for what ends by itself soon.
const RECHECK_SOON: Duration = Duration::from_mins(1);

/// What the rules look at.
#[derive(Debug, Clone)]
pub struct Observation {
    /// The volume.
    pub volume: Arc<Volume>,
    /// The node that it is tied to, and whether that is there; none if it is not tied.
    pub home: Option<(Home, Presence)>,
    /// Whether that was read live.
    pub looked: bool,
    /// Whether its claim is in a namespace that is looked after.
    pub looked_after: bool,
    /// What its class says.
    pub terms: Terms,
    /// How many nodes vanished together with its own.
    pub fleet: Fleet,
    /// How many of them may.
    pub brake: Percent,
    /// How long to wait until it may be deleted; none if that is now.
    pub turn: Option<Duration>,
    /// What else was read live; none if nobody has looked.
    pub live: Option<Live>,
    /// The time.
    pub now: Timestamp,
}

/// What is read live before anything is deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Live {
    /// The claim that the volume refers to.
    pub claim: ClaimSeen,
    /// Pods that use it, on nodes that are there: `pod NAME on node NAME`.
    pub users: Vec<String>,
    /// Pods that were given to the machine that has taken the node's name, where their volume is not. They never start, somebody
    /// makes them again, and until they end they keep the claim.
    pub stuck: Vec<StuckPod>,
    /// The node that the volume is attached to, if that is there.
    pub attached: Option<Box<str>>,
    /// What keeps the volume from ending.
    pub finalizers: Vec<String>,
}

/// A pod that waits on the wrong machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StuckPod {
    /// Its name.
    pub name: String,
    /// Which pod it is.
    pub uid: String,
}

/// What stands at the place of a volume's claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimSeen {
    /// Nothing, or another claim of the same name.
    Gone,
    /// The very claim.
    There(LiveClaim),
}

/// A claim, read live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveClaim {
    /// Whether somebody asked for its end.
    pub being_deleted: bool,
    /// Whether it says that it has this volume.
    pub has_volume: bool,
    /// Whether it goes with a pod.
    pub of_pod: bool,
    /// Who makes it again; none if nobody does.
    pub maker: Option<Maker>,
}

/// Who makes a claim again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Maker {
    /// The controller of this `StatefulSet`.
    StatefulSet(Box<str>),
    /// We do, because the claim asks for it.
    Us,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    Leave,
    /// Read live whether the node is there, and decide again.
    LookAtNode,
    /// Read everything live, and decide again.
    LookAtAll,
    /// Note the machine, if it is not noted yet, and that it is there.
    Note(Option<Box<Note>>),
    /// Note since when it is gone.
    Mark,
    /// Nothing, until this time is over.
    Wait(Duration),
    /// Tell it, and look again when this time is over.
    Report(Option<Duration>),
    /// Delete the claim, which is then made again.
    DeleteClaim(Maker),
    /// Delete the pods that keep the claim from ending.
    EndPods,
    /// Delete the volume, and do not wait for its provisioner.
    DeleteVolume,
}

impl Action {
    /// What it is called in metrics and explanations.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Leave => "leave",
            Self::LookAtNode | Self::LookAtAll => "look",
            Self::Note(_) => "note",
            Self::Mark => "mark",
            Self::Wait(_) => "wait",
            Self::Report(_) => "report",
            Self::DeleteClaim(_) => "delete-claim",
            Self::EndPods => "end-pods",
            Self::DeleteVolume => "delete-volume",
        }
    }
}

/// The rules.
pub const CLEAN_UP: Chain<Observation, Action> = Chain {
    checks: &[
        Check { holds: "its node affinity ties the volume to one node", run: tied },
        Check { holds: "its claim is in a namespace that is looked after", run: looked_after },
        Check { holds: "its class wants to know when that node is gone", run: wanted },
        Check { holds: "it has a claim, or had one", run: claimed },
        Check { holds: "no such machine is in the cluster", run: node_is_gone },
        Check { holds: "that was noted", run: noted },
        Check { holds: "that is so for long enough", run: long_enough },
        Check { holds: "it is known which machine it was", run: known },
        Check { holds: "its class says that it may be deleted", run: may_be_deleted },
        Check { holds: "its reclaim policy is Delete", run: not_retained },
        Check { holds: "not too many nodes are gone", run: believable },
        Check { holds: "not too much was deleted just now", run: has_its_turn },
        Check { holds: "all of this was read live", run: looked_at },
        Check { holds: "its claim is as its phase says", run: claim_stands },
        Check { holds: "no pod on a node that is there uses it", run: unused },
        Check { holds: "its claim does not go with a pod", run: not_of_pod },
        Check { holds: "somebody makes its claim again", run: made_again },
        Check { holds: "it is not attached to a node that is there", run: detached },
        Check { holds: "nobody else keeps it", run: kept_by_nobody_else },
    ],
    otherwise: delete,
};

type Decided = Option<Decision<Action>>;

#[expect(clippy::unnecessary_wraps, reason = "as every check has it")]
fn decided(action: Action, reason: &'static str, message: impl Into<std::borrow::Cow<'static, str>>) -> Decided {
    Some(Decision::new(action, reason, message))
}

impl Observation {
    /// Since when the node is known to be gone.
    #[must_use]
    pub fn since(&self) -> Option<Timestamp> {
        since(&self.volume)
    }

    fn is_bound(&self) -> bool {
        self.volume.phase == VolumePhase::Bound
    }

    fn node(&self) -> &str {
        self.home.as_ref().map_or("", |(home, _)| home.name())
    }

    fn claim_name(&self) -> &str {
        self.volume.claim.as_ref().map_or("", |claim| claim.key.as_str())
    }

    fn live_claim(&self) -> Option<&LiveClaim> {
        match self.live.as_ref().map(|live| &live.claim) {
            Some(ClaimSeen::There(claim)) => Some(claim),
            _ => None,
        }
    }

    /// What became of the node, since when, as the begin of a sentence.
    fn loss(&self) -> String {
        let what = match &self.home {
            Some((home, Presence::Replaced { by })) => {
                format!("node {} is gone, and node {by} is another machine", home.name())
            }
            Some((home, _)) => format!("node {} is gone", home.name()),
            None => String::new(),
        };
        let since = self.since().map(|since| format!(" since {since:.0}")).unwrap_or_default();
        format!("{what}{since}")
    }
}

/// Since when a volume's node is noted to be gone.
#[must_use]
pub fn since(volume: &Volume) -> Option<Timestamp> {
    volume.annotations.get(NODE_GONE_SINCE)?.parse().ok()
}

fn tied(seen: &Observation) -> Decided {
    let reason = "its node affinity does not tie it to one node";
    if seen.home.is_none() { decided(Action::Leave, "NotTied", reason) } else { None }
}

fn looked_after(seen: &Observation) -> Decided {
    let message = "its claim is in a namespace that is not looked after";
    if seen.looked_after { None } else { decided(Action::Leave, "OtherNamespace", message) }
}

fn wanted(seen: &Observation) -> Decided {
    let off = seen.terms.mode == NodeGone::Off;
    if off { decided(Action::Leave, "Off", "its class, or the configuration, says off") } else { None }
}

fn claimed(seen: &Observation) -> Decided {
    match seen.volume.phase {
        VolumePhase::Bound | VolumePhase::Released | VolumePhase::Failed => None,
        VolumePhase::Pending | VolumePhase::Available => {
            decided(Action::Leave, "Unclaimed", "no claim has it, so that nothing waits for it")
        }
    }
}

fn node_is_gone(seen: &Observation) -> Decided {
    let Some((_, Presence::There { node, note })) = &seen.home else {
        let look = decided(Action::LookAtNode, "NodeMissing", "its node is not among those that are known");
        return look.filter(|_| !seen.looked);
    };
    // Whoever had it before may be the machine that is gone: only what is in use now is surely there.
    let note = note.clone().filter(|_| seen.is_bound());
    let back = seen.volume.annotations.contains_key(NODE_GONE_SINCE);
    if note.is_none() && !back {
        return decided(Action::Leave, "NodeThere", format!("node {node} is there"));
    }
    if !seen.looked {
        return decided(
            Action::LookAtNode,
            "NodeThere",
            format!("node {node} seems to be there, and that is not noted"),
        );
    }
    let (reason, message) = if back {
        ("NodeBack", format!("node {node} is there again, and it is the same machine"))
    } else {
        ("HomeNoted", format!("its data is on node {node}; which machine that is was noted"))
    };
    decided(Action::Note(note), reason, message)
}

fn noted(seen: &Observation) -> Decided {
    if seen.since().is_some() {
        return None;
    }
    decided(Action::Mark, "NodeMissing", format!("{}, and that is noted from now on", seen.loss()))
}

fn long_enough(seen: &Observation) -> Decided {
    let left = remaining(seen.since()?, seen.terms.after, seen.now);
    if left.is_zero() {
        return None;
    }
    let message = format!("{}; if it is not back within {:?} it is given up", seen.loss(), seen.terms.after);
    decided(Action::Wait(left), "NodeMissing", message)
}

fn known(seen: &Observation) -> Decided {
    let Some((home, Presence::Unclear(why))) = &seen.home else { return None };
    let (node, claim) = (home.name(), seen.claim_name());
    let message = format!(
        "node {node}, which had the data, seems to be gone, but {why}; if the data is lost delete claim {claim} by hand, and \
         whoever uses it finds a new and empty volume"
    );
    decided(Action::Report(None), "IdentityUnknown", message)
}

fn may_be_deleted(seen: &Observation) -> Decided {
    if seen.terms.mode == NodeGone::Delete {
        return None;
    }
    let message = format!(
        "{}, and the data with it; bring the machine back, or delete claim {}, and whoever uses it finds a new and empty volume",
        seen.loss(),
        seen.claim_name()
    );
    decided(Action::Report(None), "NodeGone", message)
}

fn not_retained(seen: &Observation) -> Decided {
    let message = || {
        format!(
            "{}, but the volume's reclaim policy is Retain, so that neither it nor claim {} is deleted; delete them by hand if \
             the data is given up",
            seen.loss(),
            seen.claim_name()
        )
    };
    if seen.volume.retained { decided(Action::Report(None), "Retained", message()) } else { None }
}

fn believable(seen: &Observation) -> Decided {
    let Fleet { lost, all } = seen.fleet;
    if !seen.fleet.brakes(seen.brake) {
        return None;
    }
    let message = format!(
        "{}, but with it {lost} of {all} nodes, which is more than {} %: nothing is deleted; if they are really lost set \
         placement.nodeGoneBrake to 100%, or delete claim {} by hand",
        seen.loss(),
        seen.brake.0,
        seen.claim_name()
    );
    decided(Action::Report(Some(RECHECK)), "TooManyNodesGone", message)
}

fn has_its_turn(seen: &Observation) -> Decided {
    let wait = seen.turn?;
    decided(Action::Wait(wait), "TakesTurns", "much was deleted just now; it is looked at again in a moment")
}

fn looked_at(seen: &Observation) -> Decided {
    let message = "everything that speaks for it is read once more";
    if seen.live.is_none() { decided(Action::LookAtAll, "NodeGone", message) } else { None }
}

fn claim_stands(seen: &Observation) -> Decided {
    let stuck = seen.live.as_ref()?.stuck.first();
    if let Some(pod) = stuck.filter(|_| seen.is_bound() && seen.live_claim().is_some_and(|claim| claim.being_deleted)) {
        let message = format!(
            "{}: pod {} waits there in vain, and keeps claim {} from ending",
            seen.loss(),
            pod.name,
            seen.claim_name()
        );
        return decided(Action::EndPods, "PodsKeepClaim", message);
    }
    let going = match seen.live_claim() {
        Some(claim) if seen.is_bound() => claim.being_deleted || !claim.has_volume,
        claim => claim.is_some() || seen.is_bound(),
    };
    let message =
        || format!("{}, and claim {} goes already, or is not what its volume says", seen.loss(), seen.claim_name());
    if going { decided(Action::Wait(RECHECK_SOON), CLAIM_ENDING, message()) } else { None }
}

fn unused(seen: &Observation) -> Decided {
    let users = &seen.live.as_ref()?.users;
    let first = users.first()?;
    let message = format!(
        "{}, but {first} uses claim {}, so that the data may be there; end the pod if it is not",
        seen.loss(),
        seen.claim_name()
    );
    decided(Action::Report(Some(RECHECK_SOON)), "InUse", message)
}

fn not_of_pod(seen: &Observation) -> Decided {
    seen.live_claim().filter(|claim| claim.of_pod)?;
    decided(Action::Leave, "GoesWithPod", format!("claim {} belongs to a pod and goes with it", seen.claim_name()))
}

fn made_again(seen: &Observation) -> Decided {
    seen.live_claim().filter(|claim| claim.maker.is_none())?;
    let claim = seen.claim_name();
    let message = format!(
        "{}, but nobody would make claim {claim} again: it is none that a StatefulSet makes for a pod which it runs; delete it by \
         hand, or annotate it with {}: \"true\" if it may be deleted and made again",
        seen.loss(),
        super::recreate::RECREATE
    );
    decided(Action::Report(Some(RECHECK)), "NobodyRecreates", message)
}

fn detached(seen: &Observation) -> Decided {
    let node = seen.live.as_ref()?.attached.as_ref()?;
    let message = format!("{}, but the volume is attached to node {node}, which is there", seen.loss());
    decided(Action::Report(Some(RECHECK_SOON)), "StillAttached", message)
}

fn kept_by_nobody_else(seen: &Observation) -> Decided {
    let finalizers = &seen.live.as_ref()?.finalizers;
    let ours_to_remove = finalizers.iter().any(|finalizer| finalizer == PROVISIONER_FINALIZER);
    if seen.is_bound() || !seen.volume.being_deleted || ours_to_remove {
        return None;
    }
    let others: Vec<&str> = finalizers.iter().map(String::as_str).filter(|name| *name != PROTECTION).collect();
    if others.is_empty() {
        return decided(Action::Leave, "VolumeEnding", "the volume goes already");
    }
    let message =
        format!("{}, but the volume is kept by {}, and that is not ours to remove", seen.loss(), others.join(", "));
    decided(Action::Report(Some(RECHECK)), "HeldByOthers", message)
}

fn delete(seen: &Observation) -> Decision<Action> {
    let (loss, claim, node) = (seen.loss(), seen.claim_name(), seen.node());
    match seen.live_claim().and_then(|claim| claim.maker.clone()) {
        Some(maker) if seen.is_bound() => {
            let by = match &maker {
                Maker::StatefulSet(name) => format!("StatefulSet {name} makes it again"),
                Maker::Us => "it is made again, as it asks for".to_owned(),
            };
            let message =
                format!("{loss}, and the data with it: claim {claim} is deleted, and {by} with an empty volume");
            Decision::new(Action::DeleteClaim(maker), "ClaimDeleted", message)
        }
        _ => {
            let message = format!(
                "{loss}, and its claim, {claim}, as well: the volume is deleted without waiting for its provisioner, which cannot \
                 clean a disk of node {node} any more"
            );
            Decision::new(Action::DeleteVolume, "VolumeDeleted", message)
        }
    }
}

#[cfg(test)]
mod tests;
