//! Making a claim, and what can come of it.

use http::{HeaderValue, header::CONTENT_TYPE};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{
    Client, Resource,
    api::PostParams,
    core::{Request, Status},
};
use platform::{
    client::{self, RequestError, binary::BINARY},
    trouble::causes,
};

use crate::ObjectKey;

/// Why a claim could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// What it is made from cannot be read, although somebody checked it before us.
    #[error("the template cannot be read: {0}")]
    Template(String),
    /// The API server said no; these are its words.
    #[error("{}", .0.message)]
    Refused(Box<Status>),
    /// This replica lost the lease while it was at it.
    #[error("this replica does not lead any more")]
    NotLeader,
    /// Nobody knows whether the claim was made.
    #[error("{0}")]
    Unanswered(String),
}

impl CreateError {
    /// Whether the name is taken.
    #[must_use]
    pub fn is_already_exists(&self) -> bool {
        matches!(self, Self::Refused(status) if status.is_already_exists())
    }

    /// Whether the claim did not fit into a quota, or a quota could not tell: what changes in the quota may change the answer.
    #[must_use]
    pub fn is_about_quota(&self) -> bool {
        // There is no code for it. These are the beginnings of all that quota admission ever says.
        const WORDS: [&str; 4] =
            ["exceeded quota:", "failed quota:", "status unknown for quota:", "insufficient quota to"];
        self.is_forbidden_because(&WORDS)
    }

    /// Whether we lack the right to make a claim that its pod's deletion waits for.
    #[must_use]
    pub fn is_about_block_owner_deletion(&self) -> bool {
        self.is_forbidden_because(&["cannot set blockOwnerDeletion"])
    }

    fn is_forbidden_because(&self, words: &[&str]) -> bool {
        matches!(self, Self::Refused(status)
            if status.code == 403 && words.iter().any(|words| status.message.contains(words)))
    }
}

impl From<kube::Error> for CreateError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::Refused(status),
            error if RequestError::is_not_leader(&error) => Self::NotLeader,
            error => Self::Unanswered(causes(&error)),
        }
    }
}

/// A claim that is to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NewClaim {
    /// As text.
    Json(Vec<u8>),
    /// In the binary format, its envelope included.
    Binary(Vec<u8>),
}

/// Asks the API server for a claim. That its name is ours to compute is the precondition: a second request for the same claim
/// is refused, whoever sends it.
pub async fn create(client: &Client, claim: &ObjectKey, new: NewClaim) -> Result<(), CreateError> {
    let path = PersistentVolumeClaim::url_path(&(), Some(claim.namespace()));
    let (body, format) = match new {
        NewClaim::Json(body) => (body, HeaderValue::from_static("application/json")),
        NewClaim::Binary(body) => (body, HeaderValue::from_static(BINARY)),
    };
    let request = Request::new(path).create(&PostParams::default(), body);
    let mut request = request.map_err(|error| CreateError::Unanswered(error.to_string()))?;
    request.headers_mut().insert(CONTENT_TYPE, format);
    Ok(client::send_unread(client, request).await?)
}
