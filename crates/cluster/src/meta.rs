//! Metadata without what nobody reads.

use std::{borrow::Cow, collections::BTreeMap, fmt};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};

use crate::{
    class::{CLASS_ANNOTATION, IS_DEFAULT},
    volume::{BOUND_BY_CONTROLLER, PROVISIONED_BY},
};

/// Decodes the few fields of metadata that some decision reads and skips the rest while parsing. managedFields alone are
/// often more than half of an object: they must not even be allocated.
pub(crate) fn slim<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    SlimMeta::<Ours>::deserialize(deserializer).map(SlimMeta::whole)
}

/// As [`slim`], with all labels: only for kinds whose labels anybody may select by.
pub(crate) fn slim_with_labels<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    SlimMeta::<All>::deserialize(deserializer).map(SlimMeta::whole)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SlimMeta<L: Default> {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    /// The watch resumes from it.
    resource_version: Option<String>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    owner_references: Option<Vec<OwnerReference>>,
    #[serde(default)]
    annotations: Ours,
    #[serde(default)]
    labels: L,
}

impl<L: Default + Into<Option<Entries>>> SlimMeta<L> {
    fn whole(self) -> ObjectMeta {
        let Self {
            name,
            namespace,
            uid,
            resource_version,
            creation_timestamp,
            deletion_timestamp,
            owner_references,
            annotations,
            labels,
        } = self;
        let (annotations, labels) = (annotations.into(), labels.into());
        ObjectMeta {
            name,
            namespace,
            uid,
            resource_version,
            creation_timestamp,
            deletion_timestamp,
            owner_references,
            annotations,
            labels,
            ..ObjectMeta::default()
        }
    }
}

type Entries = BTreeMap<String, String>;

/// What the keys begin with that some decision reads.
const OUR_PREFIXES: [&str; 8] = [
    "claimkeeper.dev/",
    "dynamic-pvc-provisioner.kubernetes.io/",
    // Two spellings of the same domain are in use.
    "reclaimable-pv-releaser",
    BOUND_BY_CONTROLLER,
    PROVISIONED_BY,
    CLASS_ANNOTATION,
    IS_DEFAULT[0],
    IS_DEFAULT[1],
];

/// Labels or annotations that concern us; others, such as the last applied configuration, can be as big as the object itself.
#[derive(Default)]
struct Ours(Entries);

impl From<Ours> for Option<Entries> {
    fn from(Ours(entries): Ours) -> Self {
        Some(entries).filter(|entries| !entries.is_empty())
    }
}

/// All labels.
#[derive(Default, Deserialize)]
struct All(Option<Entries>);

impl From<All> for Option<Entries> {
    fn from(All(entries): All) -> Self {
        entries
    }
}

impl<'de> Deserialize<'de> for Ours {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Choose;
        impl<'de> Visitor<'de> for Choose {
            type Value = Ours;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("labels or annotations")
            }

            fn visit_unit<E>(self) -> Result<Ours, E> {
                Ok(Ours::default())
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Ours, A::Error> {
                let mut chosen = BTreeMap::new();
                while let Some(key) = map.next_key::<Cow<'de, str>>()? {
                    if OUR_PREFIXES.iter().any(|prefix| key.starts_with(prefix)) {
                        chosen.insert(key.into_owned(), map.next_value()?);
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(Ours(chosen))
            }
        }
        deserializer.deserialize_any(Choose)
    }
}

/// The owner that is marked as the controller: the only one that counts.
pub(crate) fn controller(meta: &mut ObjectMeta) -> Option<OwnerReference> {
    meta.owner_references.take()?.into_iter().find(|owner| owner.controller == Some(true))
}
