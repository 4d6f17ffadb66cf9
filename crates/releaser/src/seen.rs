//! What is seen of that which is around a volume: its claim, the namespace of that, nodes, and claims that wait.

use cluster::{Namespace, ObjectKey};
use k8s_openapi::jiff::Timestamp;

/// What is read live, right before the write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Live {
    /// What stands under the name of the claim that the volume refers to.
    pub claim: ClaimSeen,
    /// The namespace of that claim; nobody looks at it if the volume goes to the pool.
    pub namespace: Option<NamespaceSeen>,
    /// Whether the volume is attached to a node.
    pub attached: Attached,
    /// A claim of the namespace that it fits.
    pub candidate: Option<Candidate>,
}

/// What stands under the name of the claim that a volume refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ClaimSeen {
    /// Nothing.
    Gone,
    /// The very claim.
    Same,
    /// Another claim, which waits for a volume.
    Waiting,
    /// Another claim, which has a volume, or gets one that is being made for it.
    Served,
}

/// A namespace, as far as it matters whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamespaceSeen {
    /// There is none of this name.
    Gone,
    /// It is being deleted.
    Terminating,
    /// It is there since.
    There(Timestamp),
}

/// Why a namespace is not the one any more that it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// It is gone.
    Gone,
    /// It will be.
    Terminating,
    /// It was, and another one has its name.
    Recreated,
}

impl NamespaceSeen {
    /// What is seen of a namespace that is there.
    #[must_use]
    pub fn of(namespace: &Namespace) -> Self {
        if namespace.being_deleted { Self::Terminating } else { Self::There(namespace.created) }
    }

    /// Whether it may be another one than at this time.
    #[must_use]
    pub fn lost_since(self, time: Option<Timestamp>) -> Option<Lost> {
        match self {
            Self::Gone => Some(Lost::Gone),
            Self::Terminating => Some(Lost::Terminating),
            // Times are told in whole seconds, so the same second is not before.
            Self::There(created) => time.is_none_or(|time| created >= time).then_some(Lost::Recreated),
        }
    }
}

impl Lost {
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Gone => "NamespaceGone",
            Self::Terminating => "NamespaceTerminating",
            Self::Recreated => "NamespaceRecreated",
        }
    }

    pub(crate) fn sentence(self) -> &'static str {
        match self {
            Self::Gone => "the namespace of its previous claim is gone",
            Self::Terminating => "the namespace of its previous claim is being deleted",
            Self::Recreated => "the namespace of its previous claim was made anew and may be another tenant's",
        }
    }
}

/// Whether a volume is attached to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Attached {
    /// It is, or is on its way there or back.
    Yes,
    /// It is not, as far as Kubernetes knows.
    No,
    /// We have no right to know, and were told to go on without.
    NotAsked,
}

/// A claim that a volume may be given to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Candidate {
    /// Where it is.
    pub key: ObjectKey,
    /// Which one it is.
    pub uid: Box<str>,
}
