//! Claims, as far as a decision reads them.

use k8s_openapi::{api::core::v1::PersistentVolumeClaim, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::Resource;
use serde::Deserialize;

use crate::{ObjectKey, meta, store::Slim};

/// A claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Where it is found.
    pub key: ObjectKey,
    /// The uid of its controlling owner. Ownership means this, never the name.
    pub owner: Option<Box<str>>,
    /// Whether somebody asked for its end.
    pub being_deleted: bool,
}

impl Slim for Claim {
    type Wire = Wire;
    const KIND: &'static str = "persistentvolumeclaims";

    fn from_wire(Wire { mut metadata }: Wire) -> Option<Self> {
        let owner = meta::controller_uid(&mut metadata);
        Some(Self {
            key: ObjectKey::new(&metadata.namespace?, &metadata.name?),
            owner,
            being_deleted: metadata.deletion_timestamp.is_some(),
        })
    }

    fn key(&self) -> &ObjectKey {
        &self.key
    }
}

/// A claim on its way from the API server.
#[derive(Debug, Clone, Deserialize, Resource)]
#[resource(inherit = PersistentVolumeClaim)]
pub struct Wire {
    #[serde(deserialize_with = "meta::slim")]
    metadata: ObjectMeta,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_controlling_owner_counts() {
        let claim = |controller: bool| {
            let json = serde_json::json!({"metadata": {"namespace": "ci", "name": "build-scratch", "ownerReferences": [
                {"apiVersion": "v1", "kind": "ConfigMap", "name": "bystander", "uid": "u0"},
                {"apiVersion": "v1", "kind": "Pod", "name": "build", "uid": "u1", "controller": controller}]}});
            Claim::from_wire(serde_json::from_value(json).unwrap()).unwrap()
        };
        assert_eq!(claim(true).owner.as_deref(), Some("u1"));
        assert_eq!(claim(false).owner, None);
    }
}
