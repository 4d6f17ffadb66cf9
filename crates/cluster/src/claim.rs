//! Claims, as far as a decision reads them.

use std::collections::BTreeMap;

use bytes::Bytes;
use k8s_openapi::{api::core::v1::PersistentVolumeClaim, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{Api, Client, Resource, api::ListParams};
use prost::{DecodeError, Message};
use serde::Deserialize;

use crate::{
    ObjectKey, Pod,
    binary::{Meta, not_empty},
    meta,
    store::{FromBinary, Slim},
};

/// The annotation of volumes and claims that tells how often the data was lost, because a pod ran on another node.
pub const BLANK_RECREATIONS: &str = "claimkeeper.dev/blank-recreations";

/// A claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Where it is found.
    pub key: ObjectKey,
    /// The uid of its controlling owner. Ownership means this, never the name.
    pub owner: Option<Box<str>>,
    /// Whether that owner is a pod.
    pub owned_by_pod: bool,
    /// Whether somebody asked for its end.
    pub being_deleted: bool,
    /// The name of the volume that it has, if it has one.
    pub volume: Option<Box<str>>,
    /// The value of its annotation [`BLANK_RECREATIONS`], word for word.
    pub blank_recreations: Option<Box<str>>,
    /// What it wants to become of its volume; most claims want nothing.
    pub release_labels: Option<Box<ReleaseLabels>>,
}

/// What a claim's labels say about who releases its volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReleaseLabels {
    /// Which claim it is.
    pub uid: Box<str>,
    /// The labels in the domains of the provisioner and of the releaser.
    pub labels: BTreeMap<String, String>,
}

impl Claim {
    /// Reads live whether a pod that is there owns it.
    pub async fn owner_lives(&self, client: &Client) -> kube::Result<bool> {
        let pods: Api<<Pod as Slim>::Wire> = Api::namespaced(client.clone(), self.key.namespace());
        let pods = pods.list(&ListParams::default()).await?;
        Ok(pods.items.into_iter().filter_map(Pod::from_wire).any(|pod| Some(&pod.uid) == self.owner.as_ref()))
    }
}

impl Slim for Claim {
    type Wire = Wire;
    const KIND: &'static str = "persistentvolumeclaims";
    const FROM_BINARY: Option<FromBinary<Wire>> = Some(from_binary);

    fn from_wire(Wire { mut metadata, spec }: Wire) -> Option<Self> {
        let owner = meta::controller(&mut metadata);
        let blank_recreations = metadata.annotations.as_mut().and_then(|entries| entries.remove(BLANK_RECREATIONS));
        let release_labels = metadata.labels.take().zip(metadata.uid.take());
        Some(Self {
            key: ObjectKey::new(&metadata.namespace?, &metadata.name?),
            owned_by_pod: owner.as_ref().is_some_and(|owner| owner.kind == "Pod" && owner.api_version == "v1"),
            owner: owner.map(|owner| owner.uid.into_boxed_str()),
            being_deleted: metadata.deletion_timestamp.is_some(),
            volume: spec.volume_name.filter(|name| !name.is_empty()).map(String::into_boxed_str),
            blank_recreations: blank_recreations.map(String::into_boxed_str),
            release_labels: release_labels.map(|(labels, uid)| Box::new(ReleaseLabels { uid: uid.into(), labels })),
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
    #[serde(default)]
    spec: WireSpec,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireSpec {
    volume_name: Option<String>,
}

fn from_binary(claim: Bytes) -> Result<Wire, DecodeError> {
    let Binary { metadata, spec } = Binary::decode(claim)?;
    let volume_name = not_empty(spec.unwrap_or_default().volume_name);
    Ok(Wire { metadata: metadata.unwrap_or_default().slim(), spec: WireSpec { volume_name } })
}

/// `k8s.io/api/core/v1.PersistentVolumeClaim`, as far as some decision reads it.
#[derive(Clone, PartialEq, Message)]
struct Binary {
    #[prost(message, tag = "1")]
    metadata: Option<Meta>,
    #[prost(message, tag = "2")]
    spec: Option<BinarySpec>,
}

#[derive(Clone, PartialEq, Message)]
struct BinarySpec {
    #[prost(string, tag = "3")]
    volume_name: String,
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
        assert_eq!((claim(true).owner.as_deref(), claim(true).owned_by_pod), (Some("u1"), true));
        assert_eq!((claim(false).owner, claim(false).owned_by_pod), (None, false));
    }
}
