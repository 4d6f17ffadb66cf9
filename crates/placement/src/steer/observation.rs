//! What the rules look at.

use std::sync::Arc;

use cluster::{Node, ObjectKey, Volume};

use crate::{
    home::{FailoverMode, Home},
    settings::Settings,
};

/// All that the rules look at.
#[derive(Debug, Clone)]
pub struct Observation {
    /// What the administrator says.
    pub settings: Arc<Settings>,
    /// What is asked.
    pub asked: Asked,
    /// The pod's claims, in whatever order.
    pub volumes: Vec<SeenVolume>,
    /// Labels that the pod's node must have, so that the drivers of its volumes run there; some node has them.
    pub driver_labels: Vec<Box<str>>,
}

/// What is asked.
#[derive(Debug, Clone)]
pub enum Asked {
    /// Nothing that concerns us.
    Other,
    /// A pod is made that makes no sense to us.
    Unreadable(String),
    /// A pod is made.
    Pod(Traits),
}

/// What keeps us away from a pod.
#[derive(Debug, Clone, Copy, Default)]
pub struct Traits {
    /// Somebody has chosen its node.
    pub has_node: bool,
    /// A kubelet has it already.
    pub is_mirror: bool,
    /// Its author said so.
    pub is_ignored: bool,
}

/// A volume of the pod that has, or will have, a claim.
#[derive(Debug, Clone)]
pub struct SeenVolume {
    /// Its name within the pod.
    pub name: Box<str>,
    /// Its claim; none if that cannot have a name yet.
    pub claim: Option<ObjectKey>,
    /// What was found.
    pub outcome: Outcome,
}

/// What was found out about one volume.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// Its claim is made for the pod, which has no name yet.
    NoName,
    /// Its claim is made for the pod, after it.
    EphemeralNotYetMade,
    /// The cache does not have the claim, and nobody has looked further.
    ClaimNotCached,
    /// The cache does not have the volume of this name, which the claim has, and nobody has looked further.
    VolumeNotCached(ObjectKey),
    /// There is no such claim.
    ClaimMissing,
    /// The claim has a volume that does not exist.
    VolumeMissing(ObjectKey),
    /// The claim has no volume yet.
    Unbound,
    /// The volume is none that pods are steered to.
    Foreign,
    /// The volume does not say where it is.
    HomeUnknown {
        /// The volume.
        volume: Arc<Volume>,
    },
    /// The volume is on a node that is there.
    AtHome {
        /// The volume.
        volume: Arc<Volume>,
        /// The node.
        node: Arc<Node>,
        /// Whether it may be left.
        mode: FailoverMode,
    },
    /// The volume is on a node that is not there.
    HomeGone {
        /// The volume.
        volume: Arc<Volume>,
        /// The node.
        home: Home,
        /// Whether it may be left.
        mode: FailoverMode,
    },
    /// The API server could not be asked.
    Failed {
        /// Whether it may be a volume that must not be left.
        may_be_durable: bool,
    },
}

impl Outcome {
    /// The volume, if it is one that pods are steered to.
    #[must_use]
    pub fn local(&self) -> Option<&Arc<Volume>> {
        match self {
            Self::HomeUnknown { volume } | Self::AtHome { volume, .. } | Self::HomeGone { volume, .. } => Some(volume),
            _ => None,
        }
    }

    /// The name of the home node, if the volume must not be left.
    #[must_use]
    pub fn durable_home(&self) -> Option<&str> {
        match self {
            Self::AtHome { node, mode: FailoverMode::Durability, .. } => Some(node.key.name()),
            Self::HomeGone { home, mode: FailoverMode::Durability, .. } => Some(home.name()),
            _ => None,
        }
    }
}
