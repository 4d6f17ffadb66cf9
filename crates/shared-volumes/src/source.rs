//! Where shared volumes come from. A source tells which ones there are and is told their addresses; nothing else in this crate knows
//! whose servers they are.

use std::sync::Arc;

use cluster::ObjectKey;
use futures::future::BoxFuture;
use tokio::time::Instant;

/// Which volume, in the words of its source. It never changes, and no other volume ever has it.
pub type VolumeId = Arc<str>;

/// A volume, as its source tells of it. What is empty there is absent here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedVolume {
    /// Which one it is.
    pub id: VolumeId,
    /// Where the source keeps it, in its own words: what is listed together, and fails together.
    pub home: Arc<str>,
    /// The name of its volume in Kubernetes.
    pub volume: Option<Box<str>>,
    /// Namespace and name of its claim.
    pub claim: Option<ObjectKey>,
    /// Where its server answers, as it was told.
    pub endpoint: Option<Box<str>>,
    /// The address that was published for it last.
    pub published: Option<Box<str>>,
}

/// The volumes of one home.
#[derive(Debug)]
pub struct Home {
    /// Its name.
    pub name: Arc<str>,
    /// When it was asked for them: what it tells may be as old as that.
    pub asked: Instant,
    /// What could be read of it.
    pub volumes: Result<Listed, SourceError>,
}

/// What a list showed.
#[derive(Debug, Default)]
pub struct Listed {
    /// The volumes.
    pub volumes: Vec<SharedVolume>,
    /// How many more there were, of which nobody can make sense.
    pub unreadable: usize,
}

/// A source of shared volumes.
pub trait Source: Send + Sync + 'static {
    /// Tells of all volumes, home by home as each is read: one that is slow or cannot be read hides no other. Returns where there
    /// are any, also of homes that somebody else is still reading.
    fn list<'a>(&'a self, tell: &'a (dyn Fn(Home) + Send + Sync)) -> BoxFuture<'a, Result<Vec<Arc<str>>, SourceError>>;

    /// The volume as it is now; none only if the source knows for sure that it is gone.
    fn look<'a>(&'a self, volume: &'a SharedVolume) -> BoxFuture<'a, Result<Option<SharedVolume>, SourceError>>;

    /// Publishes the address of a volume, unless it is published already.
    fn publish<'a>(&'a self, volume: &'a SharedVolume, address: &'a str) -> BoxFuture<'a, Result<(), SourceError>>;
}

/// Why a source has no answer.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct SourceError {
    /// The class of the error: a metric label, one of few.
    pub class: ErrorClass,
    /// What happened, for a person.
    pub message: String,
}

/// The classes of errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorClass {
    /// The user name and password cannot be read.
    Credentials,
    /// 401.
    Authentication,
    /// 403.
    Unauthorised,
    /// 404.
    NotFound,
    /// 409: in use, or there already.
    Conflict,
    /// 412: somebody else wrote in between.
    StaleWrite,
    /// Any other refusal.
    Refused,
    /// 500, and all above it but 503.
    Server,
    /// 503: the store behind the API is away.
    Store,
    /// No answer in time.
    Timeout,
    /// No connection, or one that broke.
    Transport,
    /// An answer that means nothing.
    Response,
    /// Nobody asked, because nobody has answered for a while.
    Open,
}

impl ErrorClass {
    /// As a metric label.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Credentials => "credentials",
            Self::Authentication => "authentication",
            Self::Unauthorised => "unauthorised",
            Self::NotFound => "not_found",
            Self::Conflict => "conflict",
            Self::StaleWrite => "stale_write",
            Self::Refused => "refused",
            Self::Server => "server",
            Self::Store => "store",
            Self::Timeout => "timeout",
            Self::Transport => "transport",
            Self::Response => "bad_response",
            Self::Open => "circuit_open",
        }
    }

    /// Whether it tells that the whole source is in trouble, rather than one request.
    #[must_use]
    pub fn is_outage(self) -> bool {
        matches!(self, Self::Server | Self::Store | Self::Timeout | Self::Transport)
    }
}

impl SourceError {
    /// An error.
    pub fn new(class: ErrorClass, message: impl Into<String>) -> Self {
        Self { class, message: message.into() }
    }
}
