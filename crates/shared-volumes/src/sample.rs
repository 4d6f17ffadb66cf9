//! Objects for tests.

use std::collections::BTreeMap;

use cluster::{
    ObjectKey, Service, Slice,
    service::{ClusterAddress, ServicePort},
    slice::{MANAGED_BY, SERVICE_NAME, SlicePort, Target},
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::{
    address::family,
    names::{self, MANAGER, VOLUME_ID},
    source::SharedVolume,
};

/// The volume of claim `ci/files`, at 10.1.0.4:25705 behind 10.0.0.7.
pub(crate) fn volume(id: &str) -> SharedVolume {
    SharedVolume {
        id: id.into(),
        home: "n1".into(),
        volume: Some("pvc-1".into()),
        claim: Some(ObjectKey::new("ci", "files")),
        endpoint: Some("10.1.0.4:25705".into()),
        published: Some("10.0.0.7:2049".into()),
    }
}

/// A Service as we make them, in namespace `ci`.
pub(crate) fn service(name: &str, ip: &str, labels: &[(&str, &str)]) -> Service {
    let address = match ip {
        "None" => ClusterAddress::Headless,
        ip => ip.parse().map_or(ClusterAddress::None, ClusterAddress::Ip),
    };
    Service {
        key: ObjectKey::new("ci", name),
        uid: format!("uid-of-{name}").into(),
        version: "1".into(),
        labels: owned(labels),
        owners: Vec::new(),
        being_deleted: false,
        kind: "ClusterIP".into(),
        address,
        has_selector: false,
        node_local: false,
        ports: vec![ServicePort {
            name: "nfs".into(),
            port: 2049,
            protocol: "TCP".into(),
            target: Some(IntOrString::Int(25_705)),
        }],
    }
}

/// A slice of ours for the Service of this name, of volume `v1`.
pub(crate) fn slice(service: &str, ip: &str, port: i32) -> Slice {
    let family = family(ip.parse().unwrap());
    Slice {
        key: ObjectKey::new("ci", &names::slice(service, family)),
        uid: "e1".into(),
        version: "1".into(),
        labels: owned(&[(SERVICE_NAME, service), (MANAGED_BY, MANAGER), (VOLUME_ID, "v1")]),
        owners: Vec::new(),
        family: family.into(),
        ports: vec![SlicePort { name: "nfs".into(), port: Some(port), protocol: "TCP".into() }],
        targets: vec![Target { addresses: vec![ip.into()], ready: true, serving: true }],
    }
}

pub(crate) fn owned(labels: &[(&str, &str)]) -> BTreeMap<String, String> {
    labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}
