//! The claim in a request, as far as the rule reads it.

use std::collections::BTreeMap;

use cluster::{
    ObjectKey,
    class::CLASS_ANNOTATION,
    fit::{Wants, WireSpec},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde::{Deserialize, de::IgnoredAny};

/// A claim as somebody wants it to be, or as it was before.
#[derive(Debug, Clone, PartialEq)]
pub struct AskedClaim {
    /// Where it is to be found.
    pub key: ObjectKey,
    /// What its name was made from; empty if its author chose the name.
    pub generate_name: String,
    /// Which claim it is; the API server has chosen it before it asks.
    pub uid: Box<str>,
    /// Whether somebody asked for its end.
    pub being_deleted: bool,
    /// The class that it names, by annotation or by field; none if it leaves that to the default.
    pub class: Option<String>,
    /// The volume that it names; empty if any will do.
    pub volume_name: String,
    /// Whose it is.
    pub owners: Vec<OwnerReference>,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// What it wants of its volume.
    pub wants: Wants,
}

impl AskedClaim {
    /// Reads it. A request's namespace counts: the object's own may be absent.
    pub fn read(json: &str, namespace: &str) -> serde_json::Result<Self> {
        let Wire { metadata, spec } = serde_json::from_str(json)?;
        Ok(Self::new(namespace, metadata, spec))
    }

    /// A claim of which this much has arrived.
    pub(crate) fn new(namespace: &str, metadata: WireMeta, mut spec: WireSpec) -> Self {
        let annotations = metadata.annotations.unwrap_or_default();
        Self {
            key: ObjectKey::new(namespace, &metadata.name.unwrap_or_default()),
            generate_name: metadata.generate_name.unwrap_or_default(),
            uid: metadata.uid.unwrap_or_default().into(),
            being_deleted: metadata.deletion_timestamp.is_some(),
            // Kubernetes prefers the annotation, too.
            class: annotations.get(CLASS_ANNOTATION).cloned().or_else(|| spec.storage_class_name.take()),
            volume_name: spec.volume_name.take().unwrap_or_default(),
            owners: metadata.owner_references.unwrap_or_default(),
            annotations,
            wants: spec.into(),
        }
    }

    /// Its only owner, if that is the pod that controls it: what Kubernetes and the provisioners write.
    #[must_use]
    pub fn pod(&self) -> Option<&OwnerReference> {
        match &self.owners[..] {
            [owner] if is_pod(owner) && owner.controller == Some(true) && !owner.uid.is_empty() => Some(owner),
            _ => None,
        }
    }

    /// The pods among its owners, whatever they are to it.
    pub(crate) fn pods(&self) -> impl Iterator<Item = &OwnerReference> {
        self.owners.iter().filter(|owner| is_pod(owner))
    }

    /// Whether its author accepts the risk; the word is exactly this one.
    #[must_use]
    pub fn accepts(&self, annotation: &str) -> bool {
        self.annotations.get(annotation).is_some_and(|word| word == "true")
    }
}

/// Whether this is a pod of Kubernetes: what calls itself a Pod of another group is not, and nobody collects its claims.
fn is_pod(owner: &OwnerReference) -> bool {
    owner.api_version == "v1" && owner.kind == "Pod"
}

#[derive(Deserialize)]
struct Wire {
    #[serde(default)]
    metadata: WireMeta,
    #[serde(default)]
    spec: WireSpec,
}

/// What is read of a claim's metadata.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WireMeta {
    name: Option<String>,
    generate_name: Option<String>,
    uid: Option<String>,
    deletion_timestamp: Option<IgnoredAny>,
    owner_references: Option<Vec<OwnerReference>>,
    annotations: Option<BTreeMap<String, String>>,
}

impl From<ObjectMeta> for WireMeta {
    fn from(metadata: ObjectMeta) -> Self {
        Self {
            name: metadata.name,
            generate_name: metadata.generate_name,
            uid: metadata.uid,
            deletion_timestamp: metadata.deletion_timestamp.map(|_| IgnoredAny),
            owner_references: metadata.owner_references,
            annotations: metadata.annotations,
        }
    }
}
