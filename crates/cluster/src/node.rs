//! Nodes, as far as a decision reads them.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Node as FullNode, ObjectReference},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
    jiff::Timestamp,
};
use kube::Resource;
use serde::Deserialize;

use crate::{ObjectKey, meta, store::Slim};

/// The label that the kubelet gives its node; its value need not be the node's name.
pub const HOSTNAME: &str = "kubernetes.io/hostname";

/// A node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub key: ObjectKey,
    /// Which Node object it is: one that was deleted and made anew has another one, also if it is the same machine.
    pub uid: Box<str>,
    /// When the API server took that object in.
    pub created: Timestamp,
    /// Which machine it is.
    pub machine: Machine,
    /// Its labels, as far as some decision reads them.
    pub labels: BTreeMap<String, String>,
    /// Whether new pods are kept away from it.
    pub unschedulable: bool,
    /// Whether somebody asked for its end.
    pub being_deleted: bool,
}

/// What tells machines apart, however their nodes are called. Empty is what the kubelet did not say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machine {
    /// What the firmware calls it.
    pub system_uuid: Box<str>,
    /// What its operating system calls itself.
    pub machine_id: Box<str>,
    /// What its cloud calls it.
    pub provider_id: Box<str>,
}

impl Node {
    /// The value of its [`HOSTNAME`] label.
    #[must_use]
    pub fn hostname(&self) -> Option<&str> {
        self.labels.get(HOSTNAME).map(String::as_str)
    }

    /// Forgets the labels that the configuration has no word for.
    pub fn keep_only(&mut self, wants: impl Fn(&str) -> bool) {
        self.labels.retain(|key, _| key == HOSTNAME || wants(key));
    }

    /// The node as what an event is about.
    #[must_use]
    pub fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Node".into()),
            name: Some(self.key.name().to_owned()),
            uid: Some(self.uid.to_string()),
            ..ObjectReference::default()
        }
    }
}

impl Slim for Node {
    type Wire = Wire;
    const KIND: &'static str = "nodes";

    fn from_wire(Wire { metadata, spec, status }: Wire) -> Option<Self> {
        let info = status.node_info;
        Some(Self {
            key: ObjectKey::new("", &metadata.name?),
            uid: metadata.uid?.into_boxed_str(),
            created: metadata.creation_timestamp.map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            machine: Machine {
                system_uuid: info.system_uuid.into(),
                machine_id: info.machine_id.into(),
                provider_id: spec.provider_id.unwrap_or_default().into(),
            },
            labels: metadata.labels.unwrap_or_default(),
            unschedulable: spec.unschedulable,
            being_deleted: metadata.deletion_timestamp.is_some(),
        })
    }

    fn key(&self) -> &ObjectKey {
        &self.key
    }
}

/// A node on its way from the API server.
#[derive(Debug, Clone, Deserialize, Resource)]
#[resource(inherit = FullNode)]
pub struct Wire {
    #[serde(deserialize_with = "meta::slim_with_labels")]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: WireSpec,
    #[serde(default)]
    status: WireStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireSpec {
    // Kubernetes spells it this way.
    #[serde(rename = "providerID")]
    provider_id: Option<String>,
    #[serde(default)]
    unschedulable: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireStatus {
    #[serde(default)]
    node_info: WireInfo,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct WireInfo {
    #[serde(default, rename = "systemUUID")]
    system_uuid: String,
    #[serde(default, rename = "machineID")]
    machine_id: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_behind_a_node_is_known_and_so_are_the_labels_that_are_wanted() {
        let mut node = Node::from_wire(
            serde_json::from_str(
                r#"{"metadata":{"name":"node-1","uid":"u1","resourceVersion":"7",
                                "labels":{"kubernetes.io/hostname":"host-1","example.dev/node":"node-1","zone":"a"}},
                    "spec":{"providerID":"cloud://7","unschedulable":true},
                    "status":{"nodeInfo":{"systemUUID":"s","machineID":"m","kernelVersion":"6"},"images":[{"names":["x"]}]}}"#,
            )
            .unwrap(),
        )
        .unwrap();
        let machine = Machine { system_uuid: "s".into(), machine_id: "m".into(), provider_id: "cloud://7".into() };
        assert_eq!((&node.machine, node.hostname(), node.unschedulable), (&machine, Some("host-1"), true));
        node.keep_only(|key| key == "example.dev/node");
        assert_eq!(node.labels.keys().collect::<Vec<_>>(), ["example.dev/node", HOSTNAME]);
    }

    #[test]
    fn a_node_that_says_nothing_of_itself_is_a_node() {
        let node =
            Node::from_wire(serde_json::from_str(r#"{"metadata":{"name":"node-1","uid":"u1"}}"#).unwrap()).unwrap();
        assert_eq!((node.machine, node.unschedulable), (Machine::default(), false));
    }
}
