//! Metadata without what nobody reads.

use std::{borrow::Cow, collections::BTreeMap, fmt, marker::PhantomData};

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

/// As [`slim`], with all labels: only for kinds whose labels anybody may select by, or name in the configuration.
pub(crate) fn slim_with_labels<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    SlimMeta::<All>::deserialize(deserializer).map(SlimMeta::whole)
}

/// As [`slim_with_labels`], with the annotations that the configuration may name, too: a store forgets those that it does not.
pub(crate) fn slim_with_labels_and_annotations<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<ObjectMeta, D::Error> {
    SlimMeta::<All, Annotations>::deserialize(deserializer).map(SlimMeta::whole)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SlimMeta<L: Default, A: Default = Ours> {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    /// The watch resumes from it.
    resource_version: Option<String>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    owner_references: Option<Vec<OwnerReference>>,
    #[serde(default)]
    annotations: A,
    #[serde(default)]
    labels: L,
}

impl<L, A> SlimMeta<L, A>
where
    L: Default + Into<Option<Entries>>,
    A: Default + Into<Option<Entries>>,
{
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

/// Whether some decision reads labels or annotations of this key, whatever is configured.
pub(crate) fn is_ours(key: &str) -> bool {
    OUR_PREFIXES.iter().any(|prefix| key.starts_with(prefix))
}

/// What can be as big as the object itself, and never says anything about it.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Labels or annotations whose key is wanted.
struct Chosen<W>(Entries, PhantomData<W>);

/// Those that concern us.
type Ours = Chosen<Concerning>;

/// All annotations that may concern us.
type Annotations = Chosen<Concise>;

/// Which keys are wanted.
trait Wants {
    fn wants(key: &str) -> bool;
}

struct Concerning;

impl Wants for Concerning {
    fn wants(key: &str) -> bool {
        is_ours(key)
    }
}

struct Concise;

impl Wants for Concise {
    fn wants(key: &str) -> bool {
        key != LAST_APPLIED
    }
}

impl<W> Default for Chosen<W> {
    fn default() -> Self {
        Self(Entries::new(), PhantomData)
    }
}

impl<W> From<Chosen<W>> for Option<Entries> {
    fn from(Chosen(entries, _): Chosen<W>) -> Self {
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

impl<'de, W: Wants> Deserialize<'de> for Chosen<W> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Choose<W>(PhantomData<W>);
        impl<'de, W: Wants> Visitor<'de> for Choose<W> {
            type Value = Chosen<W>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("labels or annotations")
            }

            fn visit_unit<E>(self) -> Result<Chosen<W>, E> {
                Ok(Chosen::default())
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Chosen<W>, A::Error> {
                let mut chosen = BTreeMap::new();
                while let Some(key) = map.next_key::<Cow<'de, str>>()? {
                    if W::wants(&key) {
                        chosen.insert(key.into_owned(), map.next_value()?);
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(Chosen(chosen, PhantomData))
            }
        }
        deserializer.deserialize_any(Choose(PhantomData))
    }
}

/// The owner that is marked as the controller: the only one that counts.
pub(crate) fn controller(meta: &mut ObjectMeta) -> Option<OwnerReference> {
    meta.owner_references.take()?.into_iter().find(|owner| owner.controller == Some(true))
}
