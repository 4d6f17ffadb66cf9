//! Metadata without what nobody reads.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use serde::{Deserialize, Deserializer};

/// Decodes the few fields of metadata that some decision reads and skips the rest while parsing. managedFields alone are
/// often more than half of an object: they must not even be allocated.
pub(crate) fn slim<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let SlimMeta { name, namespace, uid, resource_version, creation_timestamp, deletion_timestamp, owner_references } =
        SlimMeta::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name,
        namespace,
        uid,
        resource_version,
        creation_timestamp,
        deletion_timestamp,
        owner_references,
        ..ObjectMeta::default()
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SlimMeta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    /// The watch resumes from it.
    resource_version: Option<String>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    owner_references: Option<Vec<OwnerReference>>,
}

/// As [`slim`], with the labels: only for kinds of which there are few.
pub(crate) fn slim_with_labels<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let LabelledMeta { name, namespace, uid, resource_version, labels } = LabelledMeta::deserialize(deserializer)?;
    Ok(ObjectMeta { name, namespace, uid, resource_version, labels, ..ObjectMeta::default() })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LabelledMeta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    labels: Option<BTreeMap<String, String>>,
}

/// The owner that is marked as the controller: the only one that counts.
pub(crate) fn controller(meta: &mut ObjectMeta) -> Option<OwnerReference> {
    meta.owner_references.take()?.into_iter().find(|owner| owner.controller == Some(true))
}
