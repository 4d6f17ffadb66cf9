//! Services, as far as a decision reads them.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use k8s_openapi::{
    api::core::v1::Service as KubernetesService,
    apimachinery::pkg::{
        apis::meta::v1::{ObjectMeta, OwnerReference},
        util::intstr::IntOrString,
    },
};
use kube::Resource;
use serde::Deserialize;

use crate::{ObjectKey, meta, store::Slim};

/// A Service.
#[derive(Debug, Clone, PartialEq)]
pub struct Service {
    /// Where it is found.
    pub key: ObjectKey,
    /// Which Service it is.
    pub uid: Box<str>,
    /// Which version of it.
    pub version: Box<str>,
    /// All of its labels.
    pub labels: BTreeMap<String, String>,
    /// All of its owners.
    pub owners: Vec<OwnerReference>,
    /// Whether somebody asked for its end.
    pub being_deleted: bool,
    /// `ClusterIP`, or what else.
    pub kind: Box<str>,
    /// What clients connect to.
    pub address: ClusterAddress,
    /// Whether Kubernetes looks for its targets by itself.
    pub has_selector: bool,
    /// Whether only targets on the client's own node are used.
    pub node_local: bool,
    /// On which ports it answers.
    pub ports: Vec<ServicePort>,
}

/// The address of a Service, of its first family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ClusterAddress {
    /// None was given to it yet, or its kind has none.
    None,
    /// It is not to have one: its name stands for its targets.
    Headless,
    /// This one.
    Ip(IpAddr),
}

/// A port of a Service.
#[derive(Debug, Clone, PartialEq)]
pub struct ServicePort {
    /// By which its targets' port is found.
    pub name: Box<str>,
    /// What clients connect to.
    pub port: i32,
    /// `TCP`, or what else.
    pub protocol: Box<str>,
    /// Where it leads to, if Kubernetes looks for its targets.
    pub target: Option<IntOrString>,
}

impl Service {
    /// The address that clients connect to on this port.
    #[must_use]
    pub fn socket(&self, port: u16) -> Option<SocketAddr> {
        match self.address {
            ClusterAddress::Ip(ip) => Some(SocketAddr::new(ip, port)),
            ClusterAddress::None | ClusterAddress::Headless => None,
        }
    }
}

impl Slim for Service {
    type Wire = Wire;
    const KIND: &'static str = "services";

    fn from_wire(Wire { metadata, spec }: Wire) -> Option<Self> {
        let address = match spec.cluster_ip.as_deref() {
            Some("None") => ClusterAddress::Headless,
            Some(text) => text.parse().map_or(ClusterAddress::None, ClusterAddress::Ip),
            None => ClusterAddress::None,
        };
        Some(Self {
            key: ObjectKey::new(&metadata.namespace?, &metadata.name?),
            uid: metadata.uid?.into_boxed_str(),
            version: metadata.resource_version?.into_boxed_str(),
            labels: metadata.labels.unwrap_or_default(),
            owners: metadata.owner_references.unwrap_or_default(),
            being_deleted: metadata.deletion_timestamp.is_some(),
            kind: spec.kind.unwrap_or_else(|| "ClusterIP".to_owned()).into_boxed_str(),
            address,
            has_selector: spec.selector.is_some_and(|selector| !selector.is_empty()),
            node_local: spec.internal_traffic_policy.as_deref() == Some("Local"),
            ports: spec.ports.unwrap_or_default().into_iter().map(ServicePort::from).collect(),
        })
    }

    fn key(&self) -> &ObjectKey {
        &self.key
    }
}

impl From<WirePort> for ServicePort {
    fn from(WirePort { name, port, protocol, target_port }: WirePort) -> Self {
        Self {
            name: name.unwrap_or_default().into_boxed_str(),
            port,
            protocol: protocol.unwrap_or_else(|| "TCP".to_owned()).into_boxed_str(),
            target: target_port,
        }
    }
}

/// A Service on its way from the API server.
#[derive(Debug, Clone, Deserialize, Resource)]
#[resource(inherit = KubernetesService)]
pub struct Wire {
    #[serde(deserialize_with = "meta::slim_with_labels")]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: WireSpec,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireSpec {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(rename = "clusterIP")]
    cluster_ip: Option<String>,
    selector: Option<BTreeMap<String, String>>,
    internal_traffic_policy: Option<String>,
    ports: Option<Vec<WirePort>>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WirePort {
    name: Option<String>,
    port: i32,
    protocol: Option<String>,
    target_port: Option<IntOrString>,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn service(spec: &Value) -> Service {
        let metadata = json!({"namespace": "ci", "name": "files", "uid": "s1", "resourceVersion": "7",
            "labels": {"storageos.com/volume-id": "v1"}});
        Service::from_wire(serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()).unwrap()
    }

    #[test]
    fn a_service_without_an_address_has_none() {
        let address = |spec: Value| service(&spec).address;
        assert_eq!(address(json!({})), ClusterAddress::None);
        assert_eq!(address(json!({"clusterIP": ""})), ClusterAddress::None);
        assert_eq!(address(json!({"clusterIP": "None"})), ClusterAddress::Headless);
        assert_eq!(address(json!({"clusterIP": "fd00::7"})), ClusterAddress::Ip("fd00::7".parse().unwrap()));
        let socket = service(&json!({"clusterIP": "fd00::7"})).socket(2049);
        assert_eq!(socket.map(|socket| socket.to_string()).as_deref(), Some("[fd00::7]:2049"));
        assert_eq!(service(&json!({"clusterIP": "None"})).socket(2049), None);
    }

    #[test]
    fn what_the_api_server_leaves_out_is_what_it_means() {
        let bare = service(&json!({"ports": [{"port": 2049}], "selector": {}}));
        assert_eq!((&*bare.kind, bare.has_selector, bare.node_local), ("ClusterIP", false, false));
        assert_eq!((&*bare.ports[0].name, &*bare.ports[0].protocol), ("", "TCP"));
        let other = service(&json!({"type": "NodePort", "selector": {"a": "b"}, "internalTrafficPolicy": "Local"}));
        assert_eq!((&*other.kind, other.has_selector, other.node_local), ("NodePort", true, true));
    }
}
