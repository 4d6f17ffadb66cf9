//! Classes, as far as a decision reads them.

use std::collections::BTreeMap;

use k8s_openapi::{api::storage::v1::StorageClass, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::Resource;
use serde::Deserialize;

use crate::{ObjectKey, meta, store::Slim};

/// The predecessor of `storageClassName`. Where it is set it still counts, and before the field.
pub const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";

/// The provisioner of classes whose volumes somebody makes by hand.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// A class.
#[derive(Debug, PartialEq, Eq)]
pub struct Class {
    /// Its name.
    pub key: ObjectKey,
    /// Which class it is.
    pub uid: Box<str>,
    /// The annotations by which an administrator says how volumes and claims of the class are treated, word for word.
    pub annotations: BTreeMap<String, String>,
    /// Whether somebody makes volumes for its claims.
    pub provisions: bool,
    /// Whether a claim gets its volume only when a pod needs it.
    pub waits_for_consumer: bool,
}

impl Slim for Class {
    type Wire = Wire;
    const KIND: &'static str = "storageclasses";

    fn from_wire(Wire { metadata, provisioner, volume_binding_mode }: Wire) -> Option<Self> {
        Some(Self {
            key: ObjectKey::new("", &metadata.name?),
            uid: metadata.uid?.into_boxed_str(),
            annotations: metadata.annotations.unwrap_or_default(),
            provisions: provisioner != NO_PROVISIONER,
            waits_for_consumer: volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"),
        })
    }

    fn key(&self) -> &ObjectKey {
        &self.key
    }
}

/// A class on its way from the API server.
#[derive(Debug, Clone, Deserialize, Resource)]
#[resource(inherit = StorageClass)]
#[serde(rename_all = "camelCase")]
pub struct Wire {
    #[serde(deserialize_with = "meta::slim")]
    metadata: ObjectMeta,
    #[serde(default)]
    provisioner: String,
    volume_binding_mode: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(json: &str) -> Class {
        Class::from_wire(serde_json::from_str(json).unwrap()).unwrap()
    }

    #[test]
    fn our_annotations_are_kept_word_for_word() {
        for (annotations, kept) in [
            (r#"{"claimkeeper.dev/release":"soft","other":"x"}"#, Some("soft")),
            (r#"{"claimkeeper.dev/release":"Soft "}"#, Some("Soft ")),
            (r#"{"other":"soft"}"#, None),
            ("null", None),
        ] {
            let class = decode(&format!(r#"{{"metadata":{{"name":"fast","uid":"u1","annotations":{annotations}}}}}"#));
            assert_eq!(class.annotations.get("claimkeeper.dev/release").map(String::as_str), kept, "{annotations}");
            assert!(!class.annotations.contains_key("other"));
        }
    }

    #[test]
    fn who_makes_the_volumes_and_when_is_known() {
        let class = |rest: &str| decode(&format!(r#"{{"metadata":{{"name":"fast","uid":"u1"}},{rest}}}"#));
        let made = class(r#""provisioner":"disks.example.dev","volumeBindingMode":"WaitForFirstConsumer""#);
        assert!(made.provisions && made.waits_for_consumer);
        let by_hand = class(r#""provisioner":"kubernetes.io/no-provisioner","volumeBindingMode":"Immediate""#);
        assert!(!by_hand.provisions && !by_hand.waits_for_consumer);
    }
}
