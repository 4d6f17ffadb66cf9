//! What a new pod is told about where its volumes are.
//!
//! | what is seen                                                        | decision                              |
//! |---------------------------------------------------------------------|---------------------------------------|
//! | no pod is made                                                      | leave: `Unhandled`                    |
//! | the pod cannot be read                                              | error: `PodUnreadable`                |
//! | somebody has chosen its node                                        | leave: `NodeChosen`                   |
//! | a kubelet has it already                                            | leave: `MirrorPod`                    |
//! | its author wants it to be left alone                                | leave: `Ignored`                      |
//! | it has no claims                                                    | leave: `NoClaims`                     |
//! | a claim or volume cannot be read                                    | error: `VolumeUnreadable`             |
//! | volumes that must not be left are on different nodes                | steer: `HomesContradict`              |
//! | the home node of a volume that must not be left is away             | steer: `WaitsForHome`, behind a gate  |
//! | no volume is on a node that is there                                | leave: what is wrong with the volumes |
//! | otherwise                                                           | steer: `AtHome`                       |
//!
//! All volumes count, whatever is wrong with another one: an error steers, too, by those that could be read, unless
//! `placement.onError` says otherwise and one of the others may be one that must not be left. Volumes that must not be left
//! ([`FailoverMode::Durability`]) require their node, all others prefer theirs.

use std::fmt::Write;

use cluster::{
    decision::{Chain, Check, Decision},
    pod::HOME_NODE_GATE,
};

use crate::{
    home::FailoverMode,
    patch::{Additions, Place},
    settings::OnError,
    steer::observation::{Asked, Observation, Outcome, SeenVolume, Traits},
};

/// How many volumes are told about in one sentence.
const MOST_TOLD: usize = 10;

/// What is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The pod stays as it is.
    Leave,
    /// This is added to it.
    Steer(Additions),
    /// This is added to it, but there may be more.
    SteerOnError(Additions),
    /// It is not made, because nobody knows whether a volume would be lost.
    DenyOnError,
    /// Look live for what the caches do not have, and ask again.
    Read,
}

impl Verdict {
    /// The verdict as a metric label.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Leave => "allow",
            Self::Steer(_) => "steer",
            Self::SteerOnError(_) | Self::DenyOnError => "error",
            Self::Read => "read",
        }
    }

    /// What is added to the pod.
    #[must_use]
    pub fn additions(&self) -> Option<&Additions> {
        match self {
            Self::Steer(additions) | Self::SteerOnError(additions) => Some(additions),
            Self::Leave | Self::DenyOnError | Self::Read => None,
        }
    }
}

/// The rules.
pub const STEER_POD: Chain<Observation, Verdict> = Chain {
    checks: &[
        Check { holds: "a pod is made", run: unhandled },
        Check { holds: "the pod can be read", run: pod_unreadable },
        Check { holds: "nobody has chosen its node", run: node_chosen },
        Check { holds: "no kubelet has it already", run: mirror_pod },
        Check { holds: "its author does not want it to be left alone", run: ignored },
        Check { holds: "it has claims", run: no_claims },
        Check { holds: "what the caches do not have was looked for", run: not_cached },
        Check { holds: "its claims and volumes can be read", run: volume_unreadable },
        Check { holds: "volumes that must not be left are on one node", run: homes_contradict },
        Check { holds: "no volume that must not be left is on a node that is away", run: waits_for_home },
        Check { holds: "a volume is on a node that is there", run: nowhere_to_go },
    ],
    otherwise: |seen| Decision::new(Verdict::Steer(additions(seen)), "AtHome", sentence(seen)),
};

type Answer = Option<Decision<Verdict>>;

fn leave(reason: &'static str, message: &'static str) -> Decision<Verdict> {
    Decision::new(Verdict::Leave, reason, message)
}

fn unhandled(seen: &Observation) -> Answer {
    matches!(seen.asked, Asked::Other).then(|| leave("Unhandled", "unhandled request allowed"))
}

fn pod_unreadable(seen: &Observation) -> Answer {
    let Asked::Unreadable(error) = &seen.asked else { return None };
    let message = format!("the pod cannot be read, so nobody knows where its volumes are: {error}");
    Some(errored(seen, "PodUnreadable", message, true))
}

fn leave_if(seen: &Observation, is: fn(&Traits) -> bool, reason: &'static str, message: &'static str) -> Answer {
    matches!(&seen.asked, Asked::Pod(traits) if is(traits)).then(|| leave(reason, message))
}

fn node_chosen(seen: &Observation) -> Answer {
    leave_if(seen, |pod| pod.has_node, "NodeChosen", "the pod has spec.nodeName, so nobody looks for a node any more")
}

fn mirror_pod(seen: &Observation) -> Answer {
    leave_if(seen, |pod| pod.is_mirror, "MirrorPod", "a kubelet has the pod from its own files and only shows it")
}

fn ignored(seen: &Observation) -> Answer {
    leave_if(seen, |pod| pod.is_ignored, "Ignored", "the pod has the annotation claimkeeper.dev/placement: ignore")
}

fn no_claims(seen: &Observation) -> Answer {
    seen.volumes.is_empty().then(|| leave("NoClaims", "the pod has neither claims nor ephemeral volumes"))
}

fn not_cached(seen: &Observation) -> Answer {
    let unknown = |outcome: &Outcome| matches!(outcome, Outcome::ClaimNotCached | Outcome::VolumeNotCached(_));
    let message = "what the cache does not have is read live";
    outcomes(seen).any(unknown).then(|| Decision::new(Verdict::Read, "NotCached", message))
}

fn volume_unreadable(seen: &Observation) -> Answer {
    let mut failed = outcomes(seen).filter_map(|outcome| match outcome {
        Outcome::Failed { may_be_durable } => Some(*may_be_durable),
        _ => None,
    });
    let first = failed.next()?;
    Some(errored(seen, "VolumeUnreadable", sentence(seen), first || failed.any(|may_be_durable| may_be_durable)))
}

fn homes_contradict(seen: &Observation) -> Answer {
    let mut homes = outcomes(seen).filter_map(Outcome::durable_home);
    let first = homes.next()?;
    homes.any(|home| home != first).then(|| {
        let message = format!("{}; {}", contradiction(seen), sentence(seen));
        Decision::new(Verdict::Steer(additions(seen)), "HomesContradict", message)
    })
}

fn waits_for_home(seen: &Observation) -> Answer {
    outcomes(seen)
        .any(is_waited_for)
        .then(|| Decision::new(Verdict::Steer(additions(seen)), "WaitsForHome", sentence(seen)))
}

// Also without a home there may be something to add: a node without the driver is never the right one.
fn nowhere_to_go(seen: &Observation) -> Answer {
    if outcomes(seen).any(|outcome| matches!(outcome, Outcome::AtHome { .. })) {
        return None;
    }
    let (_, reason) = outcomes(seen).map(rank).max()?;
    let additions = additions(seen);
    let verdict = if additions == Additions::default() { Verdict::Leave } else { Verdict::Steer(additions) };
    Some(Decision::new(verdict, reason, sentence(seen)))
}

/// Of several volumes without a home the one counts that came closest to one.
fn rank(outcome: &Outcome) -> (u8, &'static str) {
    match outcome {
        Outcome::NoName => (0, "NoName"),
        Outcome::EphemeralNotYetMade => (1, "EphemeralNotYetMade"),
        Outcome::ClaimMissing | Outcome::ClaimNotCached => (2, "ClaimMissing"),
        Outcome::Foreign => (3, "NotLocal"),
        Outcome::VolumeMissing(_) | Outcome::VolumeNotCached(_) => (4, "VolumeMissing"),
        Outcome::Unbound => (5, "NotBound"),
        Outcome::HomeUnknown { .. } => (6, "HomeUnknown"),
        Outcome::HomeGone { .. } | Outcome::AtHome { .. } | Outcome::Failed { .. } => (7, "HomeGone"),
    }
}

fn outcomes(seen: &Observation) -> impl Iterator<Item = &Outcome> {
    seen.volumes.iter().map(|volume| &volume.outcome)
}

fn is_waited_for(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::HomeGone { mode: FailoverMode::Durability, .. })
}

fn errored(seen: &Observation, reason: &'static str, message: String, may_be_durable: bool) -> Decision<Verdict> {
    let verdict = match seen.settings.on_error {
        OnError::Deny if may_be_durable => Verdict::DenyOnError,
        OnError::Deny | OnError::Admit => Verdict::SteerOnError(additions(seen)),
    };
    Decision::new(verdict, reason, message)
}

/// What is added to the pod: the same, in whatever order its volumes are.
fn additions(seen: &Observation) -> Additions {
    let mut additions = Additions::towards(outcomes(seen).filter_map(|outcome| match outcome {
        Outcome::AtHome { node, mode, .. } => Some((&**node, *mode)),
        _ => None,
    }));
    additions.required.extend(seen.driver_labels.iter().cloned().map(Place::Labelled));
    additions.gate = outcomes(seen).any(is_waited_for).then_some(HOME_NODE_GATE);
    additions
}

fn contradiction(seen: &Observation) -> String {
    let homes = seen.volumes.iter().filter_map(|volume| Some((volume.outcome.durable_home()?, volume)));
    let mut text = "volumes that must not be left are on different nodes, so that the pod runs nowhere: ".to_owned();
    for (place, (home, volume)) in homes.take(MOST_TOLD).enumerate() {
        let comma = if place == 0 { "" } else { ", " };
        // Writing to a string cannot fail.
        let _ = write!(text, "{comma}{} on {home}", volume.name);
    }
    text + "; give each its own pod, or let all but one be left (failover mode availability)"
}

/// What was found out about each volume.
fn sentence(seen: &Observation) -> String {
    let mut text = String::with_capacity(128);
    for (place, volume) in seen.volumes.iter().take(MOST_TOLD).enumerate() {
        if place > 0 {
            text.push_str("; ");
        }
        tell(&mut text, volume);
    }
    if let Some(more @ 1..) = seen.volumes.len().checked_sub(MOST_TOLD) {
        let _ = write!(text, "; and {more} more");
    }
    text
}

fn tell(text: &mut String, SeenVolume { name, claim, outcome }: &SeenVolume) {
    let claim = claim.as_ref().map_or("", |claim| claim.name());
    let _ = write!(text, "volume {name}: ");
    let _ = match outcome {
        Outcome::NoName => write!(text, "its claim is made once the pod has a name"),
        Outcome::EphemeralNotYetMade => write!(text, "its claim is made after the pod"),
        Outcome::ClaimNotCached | Outcome::VolumeNotCached(_) => write!(text, "claim {claim} was not looked for"),
        Outcome::ClaimMissing => write!(text, "there is no claim {claim} yet"),
        Outcome::VolumeMissing(volume) => write!(text, "claim {claim} has lost its volume {volume}"),
        Outcome::Unbound => write!(text, "claim {claim} has no volume yet"),
        Outcome::Foreign => write!(text, "claim {claim} has a volume that pods are not steered to"),
        Outcome::HomeUnknown { volume } => write!(text, "{} does not say on which node it is", volume.key),
        Outcome::AtHome { volume, node, mode } => {
            let word = if *mode == FailoverMode::Durability { "must" } else { "should" };
            write!(text, "{} is on node {}, where the pod {word} run", volume.key, node.key)
        }
        Outcome::HomeGone { volume, home, mode: FailoverMode::Availability } => {
            let (volume, home) = (&volume.key, home.name());
            write!(text, "{volume} was on node {home}, which is gone: the pod runs anywhere, and may find it empty")
        }
        Outcome::HomeGone { volume, home, mode: FailoverMode::Durability } => {
            let (volume, home) = (&volume.key, home.name());
            write!(text, "{volume} must not be left, and its node {home} is away: the pod waits for it")
        }
        Outcome::Failed { .. } => {
            write!(text, "claim {claim} or its volume cannot be read, so that the pod is not kept with it")
        }
    };
}

/// What the author of the pod is warned of, each in a sentence of its own: the API server may cut off what is longer than 256
/// characters.
#[must_use]
pub fn warnings(seen: &Observation, decision: &Decision<Verdict>) -> Vec<String> {
    let mut warnings = Vec::new();
    match decision.reason {
        "PodUnreadable" => warnings.push(decision.message.to_string()),
        "HomesContradict" => warnings.push(contradiction(seen)),
        _ => {}
    }
    for volume in seen.volumes.iter().take(MOST_TOLD) {
        match &volume.outcome {
            Outcome::HomeGone { .. } | Outcome::Failed { .. } => {
                let mut text = String::new();
                tell(&mut text, volume);
                warnings.push(text);
            }
            Outcome::AtHome { volume: found, node, .. } if node.unschedulable => {
                let (name, found, node) = (&volume.name, &found.key, &node.key);
                warnings.push(format!("volume {name}: {found} is on node {node}, which takes no new pods (cordoned)"));
            }
            _ => {}
        }
    }
    warnings
}
