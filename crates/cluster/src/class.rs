//! Classes, as far as a decision reads them.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{api::storage::v1::StorageClass, apimachinery::pkg::apis::meta::v1::ObjectMeta, jiff::Timestamp};
use kube::Resource;
use serde::Deserialize;

use crate::{ObjectKey, meta, store::Slim};

/// The predecessor of `storageClassName`. Where it is set it still counts, and before the field.
pub const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";

/// What marks a class as the one of claims that name none, and what did before.
pub(crate) const IS_DEFAULT: [&str; 2] =
    ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];

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
    /// When it was made: of several defaults the newest counts.
    pub created: Timestamp,
    /// Whether it is marked as the class of claims that name none.
    pub is_default: bool,
    /// Who makes volumes for its claims.
    pub provisioner: Box<str>,
    /// What that one is told about the volumes.
    pub parameters: BTreeMap<String, String>,
    /// Whether somebody makes volumes for its claims.
    pub provisions: bool,
    /// Whether a claim gets its volume only when a pod needs it.
    pub waits_for_consumer: bool,
}

impl Slim for Class {
    type Wire = Wire;
    const KIND: &'static str = "storageclasses";

    fn from_wire(Wire { metadata, provisioner, parameters, volume_binding_mode }: Wire) -> Option<Self> {
        let mut annotations = metadata.annotations.unwrap_or_default();
        let marks = IS_DEFAULT.map(|mark| annotations.remove(mark));
        Some(Self {
            key: ObjectKey::new("", &metadata.name?),
            uid: metadata.uid?.into_boxed_str(),
            annotations,
            created: metadata.creation_timestamp.map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            is_default: marks.iter().flatten().any(|mark| mark == "true"),
            provisions: provisioner != NO_PROVISIONER,
            provisioner: provisioner.into_boxed_str(),
            parameters: parameters.unwrap_or_default(),
            waits_for_consumer: volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"),
        })
    }

    fn key(&self) -> &ObjectKey {
        &self.key
    }
}

/// Which of these classes a claim gets that names none; Kubernetes chooses alike.
#[must_use]
pub fn default_of(classes: &[Arc<Class>]) -> Option<&Arc<Class>> {
    let defaults = classes.iter().filter(|class| class.is_default);
    defaults.min_by(|a, b| b.created.cmp(&a.created).then_with(|| a.key.cmp(&b.key)))
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
    parameters: Option<BTreeMap<String, String>>,
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

    #[test]
    fn of_several_defaults_the_newest_counts_and_then_the_first_by_name() {
        let class = |name: &str, created: &str, mark: &str| {
            let metadata = serde_json::json!({"name": name, "uid": name, "creationTimestamp": created, "annotations": {mark: "true"}});
            Arc::new(decode(&serde_json::json!({"metadata": metadata}).to_string()))
        };
        let [mark, before] = IS_DEFAULT;
        let (old, new) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
        let classes = [class("a", old, mark), class("c", new, before), class("b", new, mark), class("z", new, "other")];
        assert_eq!(default_of(&classes).unwrap().key.name(), "b");
        assert!(classes[2].annotations.is_empty());
        assert_eq!(default_of(&classes[3..]), None);
    }
}
