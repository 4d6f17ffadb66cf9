//! Endpoint slices: where Services lead to, as far as a decision reads them.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use k8s_openapi::{
    api::discovery::v1::EndpointSlice,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::Resource;
use serde::Deserialize;

use crate::{
    ObjectKey, meta,
    store::{Index, Slim},
};

/// The label that names the Service of a slice.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// The label that names who looks after a slice.
pub const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";

/// All slices but those of Services that find their targets themselves, which are nearly all.
pub const WITHOUT_SELECTOR: &str = "endpointslice.kubernetes.io/managed-by!=endpointslice-controller.k8s.io";

/// Slices by the Service that they belong to, as `namespace/name`.
pub const BY_SERVICE: Index<Slice> =
    Index { name: "service", values: |slice| slice.service().map(|key| key.as_str().into()).into_iter().collect() };

/// A slice.
#[derive(Debug, Clone, PartialEq)]
pub struct Slice {
    /// Where it is found.
    pub key: ObjectKey,
    /// Which slice it is.
    pub uid: Box<str>,
    /// Which version of it.
    pub version: Box<str>,
    /// All of its labels.
    pub labels: BTreeMap<String, String>,
    /// All of its owners.
    pub owners: Vec<OwnerReference>,
    /// `IPv4`, `IPv6`, or what else. It cannot change.
    pub family: Box<str>,
    /// The targets' ports.
    pub ports: Vec<SlicePort>,
    /// The targets.
    pub targets: Vec<Target>,
}

/// A port of a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlicePort {
    /// By which the Service finds it.
    pub name: Box<str>,
    /// All ports if absent.
    pub port: Option<i32>,
    /// `TCP`, or what else.
    pub protocol: Box<str>,
}

/// A target of a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// They are one and the same.
    pub addresses: Vec<Box<str>>,
    /// Whether connections may be sent to it.
    pub ready: bool,
    /// Whether connections may be sent to it where nothing is ready.
    pub serving: bool,
}

impl Slice {
    /// The Service that it belongs to.
    #[must_use]
    pub fn service(&self) -> Option<ObjectKey> {
        let name = self.labels.get(SERVICE_NAME).filter(|name| !name.is_empty())?;
        Some(ObjectKey::new(self.key.namespace(), name))
    }

    /// Where connections are sent.
    #[must_use]
    pub fn leads_to(&self) -> Vec<SocketAddr> {
        let open = self.targets.iter().filter(|target| target.ready || target.serving);
        let ips = open.flat_map(|target| target.addresses.iter()).filter_map(|address| address.parse::<IpAddr>().ok());
        let ports = || self.ports.iter().filter_map(|port| u16::try_from(port.port?).ok());
        ips.flat_map(|ip| ports().map(move |port| SocketAddr::new(ip, port))).collect()
    }
}

impl Slim for Slice {
    type Wire = Wire;
    const KIND: &'static str = "endpointslices";

    fn from_wire(Wire { metadata, address_type, ports, endpoints }: Wire) -> Option<Self> {
        Some(Self {
            key: ObjectKey::new(&metadata.namespace?, &metadata.name?),
            uid: metadata.uid?.into_boxed_str(),
            version: metadata.resource_version?.into_boxed_str(),
            labels: metadata.labels.unwrap_or_default(),
            owners: metadata.owner_references.unwrap_or_default(),
            family: address_type.into_boxed_str(),
            ports: ports.unwrap_or_default().into_iter().map(SlicePort::from).collect(),
            targets: endpoints.unwrap_or_default().into_iter().map(Target::from).collect(),
        })
    }

    fn key(&self) -> &ObjectKey {
        &self.key
    }
}

impl From<WirePort> for SlicePort {
    fn from(WirePort { name, port, protocol }: WirePort) -> Self {
        let protocol = protocol.unwrap_or_else(|| "TCP".to_owned()).into_boxed_str();
        Self { name: name.unwrap_or_default().into_boxed_str(), port, protocol }
    }
}

impl From<WireEndpoint> for Target {
    fn from(WireEndpoint { addresses, conditions: WireConditions { ready, serving } }: WireEndpoint) -> Self {
        // Nothing said means yes, and serving follows ready.
        let ready = ready.unwrap_or(true);
        let addresses = addresses.into_iter().map(String::into_boxed_str).collect();
        Self { addresses, ready, serving: serving.unwrap_or(ready) }
    }
}

/// A slice on its way from the API server.
#[derive(Debug, Clone, Deserialize, Resource)]
#[resource(inherit = EndpointSlice)]
#[serde(rename_all = "camelCase")]
pub struct Wire {
    #[serde(deserialize_with = "meta::slim_with_labels")]
    metadata: ObjectMeta,
    #[serde(default)]
    address_type: String,
    ports: Option<Vec<WirePort>>,
    endpoints: Option<Vec<WireEndpoint>>,
}

#[derive(Debug, Clone, Deserialize)]
struct WirePort {
    name: Option<String>,
    port: Option<i32>,
    protocol: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
struct WireEndpoint {
    #[serde(default)]
    addresses: Vec<String>,
    #[serde(default)]
    conditions: WireConditions,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
struct WireConditions {
    ready: Option<bool>,
    serving: Option<bool>,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn slice(endpoints: &Value) -> Slice {
        let json = json!({
            "metadata": {"namespace": "ci", "name": "files-1", "uid": "e1", "resourceVersion": "7",
                "labels": {SERVICE_NAME: "files"}},
            "addressType": "IPv4",
            "ports": [{"name": "nfs", "port": 25_705, "protocol": "TCP"}],
            "endpoints": endpoints,
        });
        Slice::from_wire(serde_json::from_value(json).unwrap()).unwrap()
    }

    #[test]
    fn a_slice_leads_where_connections_may_be_sent() {
        let leads_to = |endpoints: Value| {
            let targets = slice(&endpoints).leads_to();
            targets.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(leads_to(json!([{"addresses": ["10.1.0.4"]}])), ["10.1.0.4:25705"]);
        assert!(leads_to(json!([{"addresses": ["10.1.0.4"], "conditions": {"ready": false}}])).is_empty());
        let draining = json!([{"addresses": ["10.1.0.4"], "conditions": {"ready": false, "serving": true}}]);
        assert_eq!(leads_to(draining), ["10.1.0.4:25705"]);
        assert_eq!(leads_to(json!([{"addresses": ["10.1.0.4", "10.1.0.5"]}])).len(), 2);
        assert!(leads_to(Value::Null).is_empty());
    }

    #[test]
    fn a_slice_is_found_by_its_service() {
        assert_eq!((BY_SERVICE.values)(&slice(&json!([]))), ["ci/files".into()]);
    }
}
