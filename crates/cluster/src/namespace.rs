//! Namespaces, as far as a decision reads them.

use k8s_openapi::{
    api::core::v1::Namespace as FullNamespace, apimachinery::pkg::apis::meta::v1::ObjectMeta, jiff::Timestamp,
};
use kube::Resource;
use serde::Deserialize;

use crate::{ObjectKey, meta, store::Slim};

/// The label by which an administrator keeps generic ephemeral volumes out of a namespace.
pub const EPHEMERAL_VOLUMES: &str = "claimkeeper.dev/ephemeral-volumes";

/// The only value of [`EPHEMERAL_VOLUMES`] that means anything.
pub const DENY: &str = "deny";

/// The label by which an administrator says what becomes of claims that break the rule for local storage.
pub const ENFORCEMENT: &str = "claimkeeper.dev/enforcement";

/// A namespace.
#[derive(Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Its name.
    pub key: ObjectKey,
    /// Whether its label [`EPHEMERAL_VOLUMES`] says [`DENY`].
    pub denies_ephemeral_volumes: bool,
    /// What its label [`ENFORCEMENT`] says, word for word.
    pub enforcement: Option<Box<str>>,
    /// When it was made: one of the same name that is newer may be another tenant's.
    pub created: Timestamp,
    /// Whether somebody asked for its end.
    pub being_deleted: bool,
}

impl Slim for Namespace {
    type Wire = Wire;
    const KIND: &'static str = "namespaces";

    fn from_wire(Wire { metadata }: Wire) -> Option<Self> {
        let mut labels = metadata.labels.unwrap_or_default();
        let denies_ephemeral_volumes = labels.get(EPHEMERAL_VOLUMES).is_some_and(|value| value == DENY);
        Some(Self {
            key: ObjectKey::new("", &metadata.name?),
            denies_ephemeral_volumes,
            enforcement: labels.remove(ENFORCEMENT).map(String::into_boxed_str),
            created: metadata.creation_timestamp.map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            being_deleted: metadata.deletion_timestamp.is_some(),
        })
    }

    fn key(&self) -> &ObjectKey {
        &self.key
    }
}

/// A namespace on its way from the API server.
#[derive(Debug, Clone, Deserialize, Resource)]
#[resource(inherit = FullNamespace)]
pub struct Wire {
    #[serde(deserialize_with = "meta::slim")]
    metadata: ObjectMeta,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_word_deny_denies() {
        for (labels, denies) in [
            (r#"{"claimkeeper.dev/ephemeral-volumes":"deny"}"#, true),
            (r#"{"claimkeeper.dev/ephemeral-volumes":"allow"}"#, false),
            (r#"{"claimkeeper.dev/ephemeral-volumes":""}"#, false),
            ("{}", false),
            ("null", false),
        ] {
            let json = format!(r#"{{"metadata":{{"name":"ci","labels":{labels}}}}}"#);
            let namespace = Namespace::from_wire(serde_json::from_str(&json).unwrap()).unwrap();
            assert_eq!(namespace.denies_ephemeral_volumes, denies, "{labels}");
        }
    }
}
