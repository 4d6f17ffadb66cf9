//! The objects of a volume as they should be, and what is to be changed where they are not.
//!
//! Every change says which version of the object it was made for, and is refused if there is a newer one.

use std::net::SocketAddr;

use cluster::{
    Endpoints, ObjectKey, Service, Slice,
    service::{ClusterAddress, ServicePort},
    slice::{MANAGED_BY, SERVICE_NAME, SlicePort, Target},
};
use k8s_openapi::{
    api::core::v1::EndpointSubset,
    apimachinery::pkg::{apis::meta::v1::OwnerReference, util::intstr::IntOrString},
};
use serde_json::{Value, json};

use crate::{
    address::{family, remembered},
    names::{self, MANAGER, NFS_PORT, PORT_NAME, SKIP_MIRROR, VOLUME_ID},
    source::SharedVolume,
};

/// The claim that owns the objects of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// Where it is.
    pub key: ObjectKey,
    /// Which one it is.
    pub uid: Box<str>,
    /// Whether it is being deleted. Then somebody may be about to part them, and what it owned would be deleted with it.
    pub leaving: bool,
}

impl Owner {
    fn reference(&self) -> Value {
        // As the original's, so that neither has anything to repair after the other.
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": self.key.name(), "uid": self.uid})
    }
}

/// What is to be changed about a Service.
#[derive(Debug, Clone, PartialEq)]
pub struct Repair {
    /// The change.
    pub patch: Value,
    /// Whether clients are led wrong without it; otherwise it can wait until they are led right.
    pub urgent: bool,
}

/// A new Service.
#[must_use]
pub fn service(
    volume: &SharedVolume,
    owner: &Owner,
    name: &str,
    endpoint: SocketAddr,
    address: Option<String>,
) -> Value {
    let mut spec = json!({
        "type": "ClusterIP",
        // Otherwise it would be of the cluster's first family, which its server need not have.
        "ipFamilies": [family(endpoint.ip())],
        "ports": [service_port(endpoint.port())],
    });
    if let Some(address) = address {
        spec["clusterIP"] = address.into();
    }
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "namespace": owner.key.namespace(),
            "name": name,
            "labels": {VOLUME_ID: &*volume.id},
            "ownerReferences": [owner.reference()],
        },
        "spec": spec,
    })
}

fn service_port(target: u16) -> Value {
    json!({"name": PORT_NAME, "port": NFS_PORT, "protocol": "TCP", "targetPort": target})
}

/// What is to be changed about a Service; none if it is as it should be. Without an endpoint its target port stays.
#[must_use]
pub fn repair_service(
    service: &Service,
    volume: &SharedVolume,
    owner: &Owner,
    endpoint: Option<SocketAddr>,
) -> Option<Repair> {
    let (mut metadata, mut spec) = (json!({}), json!({}));
    if service.labels.get(VOLUME_ID).is_none_or(|id| **id != *volume.id) {
        metadata["labels"] = json!({VOLUME_ID: &*volume.id});
    }
    let owns = |other: &OwnerReference| other.kind == "PersistentVolumeClaim" && other.api_version == "v1";
    let claims: Vec<&OwnerReference> = service.owners.iter().filter(|other| owns(other)).collect();
    if !owner.leaving && !matches!(claims[..], [only] if *only.uid == *owner.uid && only.name == owner.key.name()) {
        let others = service.owners.iter().filter(|other| !owns(other)).map(|other| json!(other));
        metadata["ownerReferences"] = others.chain([owner.reference()]).collect();
    }
    let mut urgent = false;
    if &*service.kind != "ClusterIP" {
        urgent = true;
        (spec["type"], spec["externalName"]) = ("ClusterIP".into(), Value::Null);
        if service.address == ClusterAddress::None
            && let Some(ip) = remembered(volume)
        {
            spec["clusterIP"] = ip.to_string().into();
        }
    }
    if service.has_selector {
        (urgent, spec["selector"]) = (true, Value::Null);
    }
    if service.node_local {
        (urgent, spec["internalTrafficPolicy"]) = (true, "Cluster".into());
    }
    let [misnamed, mistargeted] = wrong_ports(&service.ports, endpoint);
    if misnamed || mistargeted || &*service.kind != "ClusterIP" {
        urgent |= misnamed;
        let target = endpoint.map(|endpoint| endpoint.port()).or_else(|| known_target(&service.ports));
        spec["ports"] = json!([service_port(target.unwrap_or(NFS_PORT))]);
    }
    if metadata == json!({}) && spec == json!({}) {
        return None;
    }
    let patch = for_version(json!({"metadata": metadata, "spec": spec}), &service.uid, &service.version);
    Some(Repair { patch, urgent })
}

/// Whether the ports are wrong for clients, and whether they are for who reads them.
fn wrong_ports(ports: &[ServicePort], endpoint: Option<SocketAddr>) -> [bool; 2] {
    let [port] = ports else { return [true, true] };
    let named = &*port.name == PORT_NAME && port.port == i32::from(NFS_PORT) && &*port.protocol == "TCP";
    let target = |endpoint: SocketAddr| Some(IntOrString::Int(endpoint.port().into()));
    [!named, endpoint.is_some_and(|endpoint| port.target != target(endpoint))]
}

fn known_target(ports: &[ServicePort]) -> Option<u16> {
    match ports.first()?.target {
        Some(IntOrString::Int(port)) => u16::try_from(port).ok(),
        _ => None,
    }
}

/// A new slice.
#[must_use]
pub fn slice(volume: &SharedVolume, service: &Service, endpoint: SocketAddr) -> Value {
    let family = family(endpoint.ip());
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "namespace": service.key.namespace(),
            "name": names::slice(service.key.name(), family),
            "labels": slice_labels(volume, service),
            "ownerReferences": [owned_by(service)],
        },
        "addressType": family,
        "ports": [slice_port(endpoint)],
        "endpoints": [slice_target(&endpoint.ip().to_string(), true)],
    })
}

fn slice_labels(volume: &SharedVolume, service: &Service) -> Value {
    json!({SERVICE_NAME: service.key.name(), MANAGED_BY: MANAGER, VOLUME_ID: &*volume.id})
}

fn owned_by(service: &Service) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "name": service.key.name(), "uid": service.uid})
}

fn slice_port(endpoint: SocketAddr) -> Value {
    json!({"name": PORT_NAME, "port": endpoint.port(), "protocol": "TCP"})
}

fn slice_target(address: &str, open: bool) -> Value {
    json!({"addresses": [address], "conditions": {"ready": open, "serving": open, "terminating": false}})
}

/// What is to be changed about our slice; none if it is as it should be. Without an endpoint it leads nowhere.
#[must_use]
pub fn repair_slice(
    slice: &Slice,
    volume: &SharedVolume,
    service: &Service,
    endpoint: Option<SocketAddr>,
) -> Option<Value> {
    let mut change = json!({"metadata": {}});
    let wanted = slice_labels(volume, service);
    let labelled = |(key, value): (&String, &Value)| slice.labels.get(key).is_some_and(|found| *value == **found);
    if !wanted.as_object().is_some_and(|wanted| wanted.iter().all(labelled)) {
        change["metadata"]["labels"] = wanted;
    }
    if !is_owned_by(&slice.owners, service) {
        change["metadata"]["ownerReferences"] = json!([owned_by(service)]);
    }
    match endpoint {
        Some(endpoint) => {
            let port = SlicePort { name: PORT_NAME.into(), port: Some(endpoint.port().into()), protocol: "TCP".into() };
            if slice.ports != [port] {
                change["ports"] = json!([slice_port(endpoint)]);
            }
            let ip = endpoint.ip().to_string();
            if slice.targets != [Target { addresses: vec![ip.as_str().into()], ready: true, serving: true }] {
                change["endpoints"] = json!([slice_target(&ip, true)]);
            }
        }
        None => {
            if let Some(closed) = closed(&slice.targets) {
                change["endpoints"] = closed;
            }
        }
    }
    let news = change != json!({"metadata": {}});
    news.then(|| for_version(change, &slice.uid, &slice.version))
}

fn is_owned_by(owners: &[OwnerReference], service: &Service) -> bool {
    matches!(owners, [only] if only.kind == "Service" && *only.uid == *service.uid)
}

/// The targets of a slice that leads nowhere: the one that it had, for people to see, but not ready.
fn closed(targets: &[Target]) -> Option<Value> {
    let shut = |target: &Target| !target.ready && !target.serving;
    match targets {
        [] => None,
        [one] if shut(one) && one.addresses.len() == 1 => None,
        [one] => Some(one.addresses.first().map_or_else(|| json!([]), |ip| json!([slice_target(ip, false)]))),
        _ => Some(json!([])),
    }
}

/// Closes a slice whatever else is wrong with it.
#[must_use]
pub fn close_slice(slice: &Slice) -> Option<Value> {
    let endpoints = closed(&slice.targets)?;
    Some(for_version(json!({"metadata": {}, "endpoints": endpoints}), &slice.uid, &slice.version))
}

/// A new Endpoints object.
#[must_use]
pub fn endpoints(volume: &SharedVolume, service: &Service, endpoint: SocketAddr) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": {
            "namespace": service.key.namespace(),
            "name": service.key.name(),
            "labels": {VOLUME_ID: &*volume.id, SKIP_MIRROR: "true"},
            "ownerReferences": [owned_by(service)],
        },
        "subsets": [subset("addresses", &endpoint.ip().to_string(), endpoint.port().into())],
    })
}

fn subset(list: &str, ip: &str, port: i32) -> Value {
    json!({list: [{"ip": ip}], "ports": [{"name": PORT_NAME, "port": port, "protocol": "TCP"}]})
}

/// What is to be changed about the Endpoints object; none if it is as it should be.
#[must_use]
pub fn repair_endpoints(
    found: &Endpoints,
    volume: &SharedVolume,
    service: &Service,
    endpoint: Option<SocketAddr>,
) -> Option<Value> {
    let mut change = json!({"metadata": {}});
    let labelled = |key: &str, value: &str| found.labels.get(key).is_some_and(|found| found == value);
    if !labelled(VOLUME_ID, &volume.id) || !labelled(SKIP_MIRROR, "true") {
        change["metadata"]["labels"] = json!({VOLUME_ID: &*volume.id, SKIP_MIRROR: "true"});
    }
    if !is_owned_by(&found.owners, service) {
        change["metadata"]["ownerReferences"] = json!([owned_by(service)]);
    }
    let subsets = &found.subsets;
    let wanted = match endpoint {
        Some(endpoint) => Some(json!([subset("addresses", &endpoint.ip().to_string(), endpoint.port().into())])),
        None => withdrawn(subsets),
    };
    if let Some(wanted) = wanted
        && !is_same(subsets, &wanted)
    {
        change["subsets"] = wanted;
    }
    let news = change != json!({"metadata": {}});
    news.then(|| for_version(change, &found.uid, &found.version))
}

fn withdrawn(subsets: &[EndpointSubset]) -> Option<Value> {
    let is_open = |subset: &EndpointSubset| subset.addresses.as_ref().is_some_and(|addresses| !addresses.is_empty());
    if !subsets.iter().any(is_open) {
        return None;
    }
    let target = |subset: &EndpointSubset| {
        let ip = subset.addresses.as_ref()?.first()?.ip.clone();
        Some((ip, subset.ports.as_ref()?.first()?.port))
    };
    Some(match subsets {
        [one] => target(one).map_or_else(|| json!([]), |(ip, port)| json!([subset("notReadyAddresses", &ip, port)])),
        _ => json!([]),
    })
}

fn is_same(found: &[EndpointSubset], wanted: &Value) -> bool {
    // The API server writes down only what is there, so both have the same fields if they mean the same.
    serde_json::to_value(found).is_ok_and(|found| found == *wanted)
}

/// The change, for this very version of this very object.
fn for_version(mut change: Value, uid: &str, version: &str) -> Value {
    change["metadata"]["uid"] = uid.into();
    change["metadata"]["resourceVersion"] = version.into();
    change
}

#[cfg(test)]
mod tests;
