//! What is read live, and what it means.

use std::borrow::Cow;

use cluster::{ObjectKey, Template, binary::Meta, class::CLASS_ANNOTATION, pod::EphemeralVolume};
use k8s_openapi::{
    api::core::v1::{Node as FullNode, PersistentVolume, PersistentVolumeClaim},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::Resource;
use prost::Message;
use serde::{Deserialize, de::IgnoredAny};

const LOCAL_VOLUME: &str = "kubernetes.io/local-volume";
const HOST_PATH: &str = "kubernetes.io/host-path";
const NFS: &str = "kubernetes.io/nfs";

/// The plugins in Kubernetes that can be vouched for. All others are attached in ways that we don't pretend to know.
pub const PLUGINS_WITHOUT_ATTACH: [&str; 3] = [LOCAL_VOLUME, HOST_PATH, NFS];

/// A claim as it is right now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveClaim {
    /// Where it is found.
    pub key: ObjectKey,
    /// Which claim it is.
    pub uid: Box<str>,
    /// Which version of it was read.
    pub version: Box<str>,
    /// Its controlling owner, and that owner's place among all.
    pub owner: Option<(usize, Box<str>)>,
    /// Since when it is being deleted.
    pub deleted_at: Option<Time>,
    /// The name of its volume; none as long as it has none.
    pub volume: Option<Box<str>>,
    /// The name of its class.
    pub class: Option<Box<str>>,
}

/// A volume as it is right now, as far as it matters to know when it is unmounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Volume {
    /// The claim names it, but it is gone, and with it whatever could be known.
    Missing,
    /// It is attached to a node before it is mounted there, and the kubelet lists it until it is unmounted.
    Attachable {
        /// Its name in the node's list.
        listed_as: Box<str>,
    },
    /// It is mounted just like that.
    WithoutAttach {
        /// The CSI driver, or the plugin in Kubernetes.
        plugin: Cow<'static, str>,
        /// Whether the configuration vouches for the plugin.
        vouched_for: bool,
    },
}

/// A node as it is right now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    /// There is none of this name.
    Gone,
    /// It is there, and its kubelet uses these attachable volumes.
    There {
        /// Their names.
        volumes_in_use: Vec<Box<str>>,
    },
}

impl LiveClaim {
    pub(super) fn from_wire(wire: ClaimWire) -> Option<Self> {
        let ClaimWire { metadata, spec } = wire;
        let owners = metadata.owner_references.unwrap_or_default();
        let owner = owners.into_iter().enumerate().find(|(_, owner)| owner.controller == Some(true));
        let annotated = metadata.annotations.and_then(|mut annotations| annotations.remove(CLASS_ANNOTATION));
        Some(Self {
            key: ObjectKey::new(&metadata.namespace?, &metadata.name?),
            uid: metadata.uid?.into_boxed_str(),
            version: metadata.resource_version?.into_boxed_str(),
            owner: owner.map(|(place, owner)| (place, owner.uid.into_boxed_str())),
            deleted_at: metadata.deletion_timestamp,
            volume: spec.volume_name.filter(|name| !name.is_empty()).map(String::into_boxed_str),
            class: annotated.or(spec.storage_class_name).map(String::into_boxed_str),
        })
    }
}

impl Volume {
    /// `attach_required` tells whether a CSI driver's volumes are attached; none if no `CSIDriver` object says so.
    pub(super) fn from_wire(
        wire: Option<VolumeWire>,
        attach_required: impl FnOnce(&str) -> Option<bool>,
        vouched_for: &[String],
    ) -> Self {
        let Some(VolumeWire { spec, .. }) = wire else { return Self::Missing };
        let plugin = match spec {
            VolumeSpec { csi: Some(csi), .. } => {
                if attach_required(&csi.driver) == Some(true) {
                    let listed_as = format!("kubernetes.io/csi/{}^{}", csi.driver, csi.volume_handle);
                    return Self::Attachable { listed_as: listed_as.into() };
                }
                // Without the object nobody can tell how a volume was treated that is mounted already.
                Cow::Owned(csi.driver)
            }
            VolumeSpec { local: Some(_), .. } => Cow::Borrowed(LOCAL_VOLUME),
            VolumeSpec { host_path: Some(_), .. } => Cow::Borrowed(HOST_PATH),
            VolumeSpec { nfs: Some(_), .. } => Cow::Borrowed(NFS),
            _ => Cow::Borrowed("another plugin in Kubernetes"),
        };
        let vouched_for = vouched_for.iter().any(|name| *name == plugin);
        Self::WithoutAttach { plugin, vouched_for }
    }
}

impl Node {
    pub(super) fn from_wire(wire: Option<NodeWire>) -> Self {
        wire.map_or(Self::Gone, |wire| {
            let names = wire.status.volumes_in_use.into_iter().map(String::into_boxed_str);
            Self::There { volumes_in_use: names.collect() }
        })
    }
}

/// The class that a volume's template names; none if it leaves the choice to the cluster.
pub(super) fn class_of_template(volume: &EphemeralVolume) -> Option<Box<str>> {
    let (annotations, named) = match &volume.template {
        Template::Json(template) => {
            let TemplateWire { metadata, spec } = serde_json::from_str(template.get()).ok()?;
            (metadata.annotations.unwrap_or_default(), spec.storage_class_name)
        }
        Template::Binary(template) => {
            let BinaryTemplate { metadata, spec } = BinaryTemplate::decode(&**template).ok()?;
            (metadata.unwrap_or_default().annotations, spec.unwrap_or_default().storage_class_name)
        }
    };
    let annotated = annotations.get(CLASS_ANNOTATION).cloned();
    annotated.or(named).map(String::into_boxed_str)
}

/// `k8s.io/api/core/v1.PersistentVolumeClaimTemplate`, as far as it matters here.
#[derive(Clone, PartialEq, Message)]
struct BinaryTemplate {
    #[prost(message, tag = "1")]
    metadata: Option<Meta>,
    #[prost(message, tag = "2")]
    spec: Option<BinarySpec>,
}

#[derive(Clone, PartialEq, Message)]
struct BinarySpec {
    #[prost(string, optional, tag = "5")]
    storage_class_name: Option<String>,
}

#[derive(Debug, Clone, Deserialize, Resource)]
#[resource(inherit = PersistentVolumeClaim)]
pub(super) struct ClaimWire {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: ClaimSpec,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClaimSpec {
    volume_name: Option<String>,
    storage_class_name: Option<String>,
}

#[derive(Deserialize)]
struct TemplateWire {
    #[serde(default)]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: ClaimSpec,
}

#[derive(Debug, Clone, Deserialize, Resource)]
#[resource(inherit = PersistentVolume)]
pub(super) struct VolumeWire {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: VolumeSpec,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct VolumeSpec {
    csi: Option<CsiSource>,
    local: Option<IgnoredAny>,
    host_path: Option<IgnoredAny>,
    nfs: Option<IgnoredAny>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CsiSource {
    driver: String,
    volume_handle: String,
}

#[derive(Debug, Clone, Deserialize, Resource)]
#[resource(inherit = FullNode)]
pub(super) struct NodeWire {
    metadata: ObjectMeta,
    #[serde(default)]
    status: NodeStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeStatus {
    #[serde(default)]
    volumes_in_use: Vec<String>,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json, value::RawValue};

    use super::*;

    fn claim(metadata: &Value, spec: &Value) -> LiveClaim {
        let mut json = json!({"metadata": metadata, "spec": spec});
        for (key, value) in [("namespace", "ci"), ("name", "build-scratch"), ("uid", "c1"), ("resourceVersion", "7")] {
            json["metadata"][key] = value.into();
        }
        LiveClaim::from_wire(serde_json::from_value(json).unwrap()).unwrap()
    }

    #[test]
    fn the_controlling_owner_is_known_with_its_place() {
        let bystander = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "u0"});
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "build", "uid": "u1", "controller": true});
        assert_eq!(claim(&json!({"ownerReferences": [bystander, owner]}), &json!({})).owner, Some((1, "u1".into())));
        assert_eq!(claim(&json!({"ownerReferences": [bystander]}), &json!({})).owner, None);
    }

    fn binary(metadata: &Value, spec: &Value) -> BinaryTemplate {
        let annotations = metadata.get("annotations").cloned().unwrap_or_else(|| json!({}));
        let metadata = Meta { annotations: serde_json::from_value(annotations).unwrap(), ..Meta::default() };
        let spec: ClaimSpec = serde_json::from_value(spec.clone()).unwrap();
        let spec = BinarySpec { storage_class_name: spec.storage_class_name };
        BinaryTemplate { metadata: Some(metadata), spec: Some(spec) }
    }

    #[test]
    fn the_class_is_the_one_that_kubernetes_takes() {
        let old = json!({"annotations": {CLASS_ANNOTATION: "old"}});
        let class = |metadata: &Value, spec: &Value| {
            let of_claim = claim(metadata, spec).class;
            let text = json!({"metadata": metadata, "spec": spec}).to_string();
            let text = Template::Json(RawValue::from_string(text).unwrap());
            for template in [text, Template::Binary(binary(metadata, spec).encode_to_vec().into())] {
                let of_template = class_of_template(&EphemeralVolume { name: "scratch".into(), template });
                assert_eq!(of_template, of_claim);
            }
            of_claim
        };
        assert_eq!(class(&json!({}), &json!({"storageClassName": "new"})).as_deref(), Some("new"));
        assert_eq!(class(&old, &json!({"storageClassName": "new"})).as_deref(), Some("old"));
        assert_eq!(class(&json!({}), &json!({"storageClassName": ""})).as_deref(), Some(""));
        assert_eq!(class(&json!({}), &json!({})), None);
    }

    #[test]
    fn only_a_csi_volume_of_a_driver_that_attaches_shows_its_unmount() {
        let vouched_for = ["vouched.example.dev".to_owned(), "kubernetes.io/nfs".to_owned()];
        let volume = |spec: Value, attach_required: Option<bool>| {
            let wire = serde_json::from_value(json!({"metadata": {"name": "pv"}, "spec": spec})).unwrap();
            Volume::from_wire(Some(wire), |_| attach_required, &vouched_for)
        };
        let csi = |driver: &str| json!({"csi": {"driver": driver, "volumeHandle": "vol-1"}});
        let without = |plugin: &'static str, vouched_for| Volume::WithoutAttach { plugin: plugin.into(), vouched_for };
        let disks = "disks.example.dev";
        let listed_as = "kubernetes.io/csi/disks.example.dev^vol-1".into();
        assert_eq!(volume(csi(disks), Some(true)), Volume::Attachable { listed_as });
        assert_eq!(volume(csi(disks), Some(false)), without(disks, false));
        assert_eq!(volume(csi(disks), None), without(disks, false));
        assert_eq!(volume(csi("vouched.example.dev"), Some(false)), without("vouched.example.dev", true));
        assert_eq!(volume(json!({"local": {"path": "/x"}}), None), without("kubernetes.io/local-volume", false));
        assert_eq!(volume(json!({"hostPath": {"path": "/x"}}), None), without("kubernetes.io/host-path", false));
        assert_eq!(volume(json!({"nfs": {"server": "s", "path": "/"}}), None), without("kubernetes.io/nfs", true));
        assert_eq!(volume(json!({"iscsi": {}}), None), without("another plugin in Kubernetes", false));
        assert_eq!(Volume::from_wire(None, |_| None, &vouched_for), Volume::Missing);
    }
}
