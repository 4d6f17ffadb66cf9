//! What the rules look at.

use std::sync::Arc;

use cluster::{Class, Namespace, ObjectKey, Pod, Volume};

use crate::{claim::AskedClaim, settings::Settings};

/// All that the rules look at.
#[derive(Debug, Clone)]
pub struct Observation {
    /// What the administrator says.
    pub settings: Arc<Settings>,
    /// What is asked.
    pub asked: Asked,
    /// The class of the claim.
    pub class: Look<Class>,
    /// The volume that the claim names.
    pub named_volume: Look<Offered>,
    /// The volumes that are kept for the claim, and those that are free and fit.
    pub volumes: Vec<Offered>,
    /// The pod that the claim calls its only owner.
    pub owner: Look<Pod>,
    /// The claim's namespace.
    pub namespace: Look<Namespace>,
}

impl Observation {
    /// What is written, if it is a claim.
    #[must_use]
    pub fn write(&self) -> Option<&Write> {
        match &self.asked {
            Asked::Claim(write) => Some(write),
            Asked::Other | Asked::Unreadable { .. } => None,
        }
    }
}

/// A volume that the claim could have.
#[derive(Debug, Clone)]
pub struct Offered {
    /// The volume.
    pub volume: Arc<Volume>,
    /// Its class, which need not be the claim's; none if it has none that exists.
    pub class: Option<Arc<Class>>,
}

/// What is asked.
#[derive(Debug, Clone)]
pub enum Asked {
    /// Nothing that the rule is about.
    Other,
    /// Something about a claim that makes no sense to us.
    Unreadable {
        /// Which claim.
        key: ObjectKey,
        /// What makes no sense.
        error: String,
    },
    /// A claim is made or changed.
    Claim(Box<Write>),
}

/// A claim that is made or changed.
#[derive(Debug, Clone)]
pub struct Write {
    /// The claim as it is to be.
    pub claim: AskedClaim,
    /// The claim as it was; none if it is new.
    pub old: Option<AskedClaim>,
    /// Who asks.
    pub user: String,
}

/// What is known of something that the claim refers to.
#[derive(Debug)]
pub enum Look<T> {
    /// The claim refers to nothing.
    NotNamed,
    /// The cache does not have it, and nobody has looked further.
    NotCached,
    /// It is there.
    Known(Arc<T>),
    /// It is not there.
    Missing,
    /// The API server could not be asked.
    Failed,
}

impl<T> Clone for Look<T> {
    fn clone(&self) -> Self {
        match self {
            Self::NotNamed => Self::NotNamed,
            Self::NotCached => Self::NotCached,
            Self::Known(known) => Self::Known(Arc::clone(known)),
            Self::Missing => Self::Missing,
            Self::Failed => Self::Failed,
        }
    }
}

impl<T> Look<T> {
    /// It, if it is there.
    #[must_use]
    pub fn known(&self) -> Option<&Arc<T>> {
        match self {
            Self::Known(known) => Some(known),
            _ => None,
        }
    }
}
