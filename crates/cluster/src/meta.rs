//! Metadata without what nobody reads.

use std::{borrow::Cow, collections::BTreeMap, fmt};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};

/// Decodes the few fields of metadata that some decision reads and skips the rest while parsing. managedFields alone are
/// often more than half of an object: they must not even be allocated.
pub(crate) fn slim<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let SlimMeta {
        name,
        namespace,
        uid,
        resource_version,
        creation_timestamp,
        deletion_timestamp,
        owner_references,
        annotations: OurAnnotations(annotations),
    } = SlimMeta::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name,
        namespace,
        uid,
        resource_version,
        creation_timestamp,
        deletion_timestamp,
        owner_references,
        annotations: Some(annotations).filter(|annotations| !annotations.is_empty()),
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
    #[serde(default)]
    annotations: OurAnnotations,
}

/// The domains of the annotations that some decision reads.
const OUR_DOMAINS: [&str; 2] = ["claimkeeper.dev/", "dynamic-pvc-provisioner.kubernetes.io/"];

/// Annotations that concern us; others, such as the last applied configuration, can be as big as the object itself.
#[derive(Default)]
struct OurAnnotations(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for OurAnnotations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Choose;
        impl<'de> Visitor<'de> for Choose {
            type Value = OurAnnotations;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("annotations")
            }

            fn visit_unit<E>(self) -> Result<OurAnnotations, E> {
                Ok(OurAnnotations::default())
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<OurAnnotations, A::Error> {
                let mut chosen = BTreeMap::new();
                while let Some(key) = map.next_key::<Cow<'de, str>>()? {
                    if OUR_DOMAINS.iter().any(|domain| key.starts_with(domain)) {
                        chosen.insert(key.into_owned(), map.next_value()?);
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(OurAnnotations(chosen))
            }
        }
        deserializer.deserialize_any(Choose)
    }
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
