//! Attachments of volumes to nodes, as far as a decision reads them.

use k8s_openapi::{api::storage::v1::VolumeAttachment, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::Resource;
use serde::Deserialize;

use crate::{
    ObjectKey, meta,
    store::{Index, Slim},
};

/// A volume that is attached to a node, or on its way there or back. It is gone only when the volume is detached.
#[derive(Debug, PartialEq, Eq)]
pub struct Attachment {
    /// Its name.
    pub key: ObjectKey,
    /// The name of the volume; none if it belongs to no volume object.
    pub volume: Option<Box<str>>,
    /// The name of the node.
    pub node: Option<Box<str>>,
}

/// Attachments by the name of their volume.
pub const BY_VOLUME: Index<Attachment> =
    Index { name: "volume", values: |attachment| attachment.volume.iter().cloned().collect() };

impl Slim for Attachment {
    type Wire = Wire;
    const KIND: &'static str = "volumeattachments";

    fn from_wire(Wire { metadata, spec }: Wire) -> Option<Self> {
        let volume = spec.source.persistent_volume_name.map(String::into_boxed_str);
        let node = spec.node_name.map(String::into_boxed_str);
        Some(Self { key: ObjectKey::new("", &metadata.name?), volume, node })
    }

    fn key(&self) -> &ObjectKey {
        &self.key
    }
}

/// An attachment on its way from the API server.
#[derive(Debug, Clone, Deserialize, Resource)]
#[resource(inherit = VolumeAttachment)]
pub struct Wire {
    #[serde(deserialize_with = "meta::slim")]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: WireSpec,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireSpec {
    #[serde(default)]
    source: WireSource,
    node_name: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireSource {
    persistent_volume_name: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attachment_is_found_by_its_volume() {
        let json = r#"{"metadata":{"name":"csi-1"},
                       "spec":{"attacher":"disks.example.dev","nodeName":"node-1","source":{"persistentVolumeName":"pv-1"}}}"#;
        let attachment = Attachment::from_wire(serde_json::from_str(json).unwrap()).unwrap();
        assert_eq!((BY_VOLUME.values)(&attachment), ["pv-1".into()]);
        assert_eq!(attachment.node.as_deref(), Some("node-1"));
        // An inline volume of a pod, moved to CSI: it has no object.
        let inline = r#"{"metadata":{"name":"csi-2"},"spec":{"source":{"inlineVolumeSpec":{}}}}"#;
        let inline = Attachment::from_wire(serde_json::from_str(inline).unwrap()).unwrap();
        assert!((BY_VOLUME.values)(&inline).is_empty());
    }
}
