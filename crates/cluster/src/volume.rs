//! Volumes, as far as a decision reads them.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{ObjectReference, PersistentVolume},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
    jiff::Timestamp,
};
use kube::Resource;
use serde::Deserialize;

use crate::{
    ObjectKey,
    class::CLASS_ANNOTATION,
    meta,
    quantity::Quantity,
    store::{Index, Slim},
};

/// The annotation by which Kubernetes remembers that it, and not an administrator, chose the claim of a volume.
pub const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";

/// The annotation by which the maker of a volume signs it.
pub(crate) const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

/// A volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// Its name.
    pub key: ObjectKey,
    /// Which volume it is.
    pub uid: Box<str>,
    /// Which version of it was seen: whoever writes says so, and is refused if there is a newer one.
    pub version: Box<str>,
    /// How far it got.
    pub phase: VolumePhase,
    /// Since when.
    pub phase_since: Option<Timestamp>,
    /// Whether it is kept when its claim is gone.
    pub retained: bool,
    /// Whether somebody asked for its end.
    pub being_deleted: bool,
    /// The name of its class, empty if it has none.
    pub class: Box<str>,
    /// The CSI driver that serves it or else who made it; empty if neither is known.
    pub driver: Box<str>,
    /// The claim that it belongs to, or did, or is meant for.
    pub claim: Option<ClaimReference>,
    /// All its labels: claims may select by them.
    pub labels: BTreeMap<String, String>,
    /// The annotations that some decision reads.
    pub annotations: BTreeMap<String, String>,
    /// What it has to offer to a claim.
    pub offer: Offer,
}

/// What a volume has to offer to a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// How much fits.
    pub capacity: Option<Quantity>,
    /// How it may be mounted.
    pub access_modes: Vec<Box<str>>,
    /// `Filesystem` or `Block`.
    pub mode: Box<str>,
    /// The name of its class of attributes, empty if it has none.
    pub attributes_class: Box<str>,
}

/// How far a volume got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum VolumePhase {
    /// Nobody has looked at it yet, or nobody knows.
    Pending,
    /// Free, at least for one claim.
    Available,
    /// In use by a claim.
    Bound,
    /// Its claim is gone.
    Released,
    /// Its reclaim failed.
    Failed,
}

/// The claim in a volume's `claimRef`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClaimReference {
    /// Where the claim is, or was.
    pub key: ObjectKey,
    /// Which claim it is; none if any of this name will do.
    pub uid: Option<Box<str>>,
}

/// Volumes by the `namespace/name` of the claim that they refer to.
pub const BY_CLAIM: Index<Volume> =
    Index { name: "claim", values: |volume| volume.claim.iter().map(|claim| claim.key.as_str().into()).collect() };

/// Volumes that are not in use, by the namespace of the claim that they refer to.
pub const UNUSED_BY_NAMESPACE: Index<Volume> = Index { name: "unused-by-namespace", values: unused_by_namespace };

/// Volumes whose claim is gone, by the name of their class.
pub const RELEASED_BY_CLASS: Index<Volume> =
    Index { name: "released-by-class", values: |volume| class_if(volume, volume.phase == VolumePhase::Released) };

/// Volumes that any claim may have, by the name of their class.
pub const FREE_BY_CLASS: Index<Volume> =
    Index { name: "free-by-class", values: |volume| class_if(volume, volume.is_free()) };

fn unused_by_namespace(volume: &Volume) -> Vec<Box<str>> {
    let claim = volume.claim.iter().filter(|_| volume.phase != VolumePhase::Bound);
    claim.map(|claim| claim.key.namespace().into()).collect()
}

fn class_if(volume: &Volume, counts: bool) -> Vec<Box<str>> {
    if counts { vec![volume.class.clone()] } else { Vec::new() }
}

impl Volume {
    /// Whether any claim may have it.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.phase == VolumePhase::Available && self.claim.is_none()
    }

    /// The volume as what an event is about.
    #[must_use]
    pub fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("PersistentVolume".into()),
            name: Some(self.key.name().to_owned()),
            uid: Some(self.uid.to_string()),
            ..ObjectReference::default()
        }
    }
}

impl Slim for Volume {
    type Wire = Wire;
    const KIND: &'static str = "persistentvolumes";

    fn from_wire(Wire { metadata, spec, status }: Wire) -> Option<Self> {
        let mut annotations = metadata.annotations.unwrap_or_default();
        let maker = annotations.remove(PROVISIONED_BY);
        let class = annotations.get(CLASS_ANNOTATION).cloned().or(spec.storage_class_name).unwrap_or_default();
        Some(Self {
            key: ObjectKey::new("", &metadata.name?),
            uid: metadata.uid?.into_boxed_str(),
            version: metadata.resource_version?.into_boxed_str(),
            phase: match status.phase.as_deref() {
                Some("Available") => VolumePhase::Available,
                Some("Bound") => VolumePhase::Bound,
                Some("Released") => VolumePhase::Released,
                Some("Failed") => VolumePhase::Failed,
                _ => VolumePhase::Pending,
            },
            phase_since: status.last_phase_transition_time.map(|time| time.0),
            retained: spec.persistent_volume_reclaim_policy.as_deref() == Some("Retain"),
            being_deleted: metadata.deletion_timestamp.is_some(),
            class: class.into_boxed_str(),
            driver: spec.csi.map(|csi| csi.driver).or(maker).unwrap_or_default().into_boxed_str(),
            claim: spec.claim_ref.map(Into::into),
            labels: metadata.labels.unwrap_or_default(),
            annotations,
            offer: Offer {
                capacity: spec.capacity.and_then(|capacity| capacity.storage?.parse().ok()),
                access_modes: spec.access_modes.into_iter().map(String::into_boxed_str).collect(),
                mode: spec.volume_mode.unwrap_or_else(|| "Filesystem".to_owned()).into(),
                attributes_class: spec.volume_attributes_class_name.unwrap_or_default().into(),
            },
        })
    }

    fn key(&self) -> &ObjectKey {
        &self.key
    }
}

/// A volume on its way from the API server.
#[derive(Debug, Clone, Deserialize, Resource)]
#[resource(inherit = PersistentVolume)]
pub struct Wire {
    #[serde(deserialize_with = "meta::slim_with_labels")]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: WireSpec,
    #[serde(default)]
    status: WireStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireSpec {
    persistent_volume_reclaim_policy: Option<String>,
    storage_class_name: Option<String>,
    csi: Option<WireCsi>,
    claim_ref: Option<WireReference>,
    capacity: Option<WireCapacity>,
    #[serde(default)]
    access_modes: Vec<String>,
    volume_mode: Option<String>,
    volume_attributes_class_name: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
struct WireCsi {
    #[serde(default)]
    driver: String,
}

#[derive(Debug, Clone, Deserialize)]
struct WireCapacity {
    storage: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
struct WireReference {
    namespace: Option<String>,
    name: Option<String>,
    uid: Option<String>,
}

impl From<WireReference> for ClaimReference {
    fn from(WireReference { namespace, name, uid }: WireReference) -> Self {
        let key = ObjectKey::new(&namespace.unwrap_or_default(), &name.unwrap_or_default());
        Self { key, uid: uid.filter(|uid| !uid.is_empty()).map(String::into_boxed_str) }
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireStatus {
    phase: Option<String>,
    last_phase_transition_time: Option<Time>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(spec: &str, status: &str) -> Volume {
        let json = format!(
            r#"{{"metadata":{{"name":"pv-1","uid":"u1","resourceVersion":"7","labels":{{"zone":"a"}},
                 "annotations":{{"{BOUND_BY_CONTROLLER}":"yes","kubectl.kubernetes.io/last-applied-configuration":"long"}},
                 "managedFields":[{{"manager":"x"}}]}},"spec":{spec},"status":{status}}}"#
        );
        Volume::from_wire(serde_json::from_str(&json).unwrap()).unwrap()
    }

    #[test]
    fn what_decisions_read_is_kept_and_nothing_else() {
        let volume = decode(
            r#"{"persistentVolumeReclaimPolicy":"Retain","storageClassName":"cache","capacity":{"storage":"1Gi"},
                "accessModes":["ReadWriteOnce"],"claimRef":{"namespace":"ci","name":"build","uid":"c1"}}"#,
            r#"{"phase":"Released","lastPhaseTransitionTime":"2026-01-01T00:00:00Z"}"#,
        );
        assert_eq!((volume.phase, volume.retained), (VolumePhase::Released, true));
        assert_eq!(volume.phase_since, Some("2026-01-01T00:00:00Z".parse().unwrap()));
        assert_eq!(volume.claim, Some(ClaimReference { key: ObjectKey::new("ci", "build"), uid: Some("c1".into()) }));
        assert_eq!(volume.annotations.keys().collect::<Vec<_>>(), [BOUND_BY_CONTROLLER]);
        assert_eq!((&*volume.class, &*volume.offer.mode), ("cache", "Filesystem"));
        assert_eq!(unused_by_namespace(&volume), ["ci".into()]);
        assert_eq!((RELEASED_BY_CLASS.values)(&volume), ["cache".into()]);
        assert!((FREE_BY_CLASS.values)(&volume).is_empty());
    }

    #[test]
    fn who_serves_a_volume_is_known_and_otherwise_who_made_it() {
        let volume = |annotations: &str, spec: &str| {
            let metadata = format!(r#"{{"name":"pv-1","uid":"u1","resourceVersion":"7","annotations":{annotations}}}"#);
            let json = format!(r#"{{"metadata":{metadata},"spec":{spec}}}"#);
            Volume::from_wire(serde_json::from_str(&json).unwrap()).unwrap()
        };
        let made = r#"{"pv.kubernetes.io/provisioned-by":"maker.example.dev"}"#;
        assert_eq!(&*volume(made, r#"{"csi":{"driver":"csi.example.dev"}}"#).driver, "csi.example.dev");
        let local = volume(made, r#"{"local":{"path":"/mnt"}}"#);
        assert_eq!((&*local.driver, local.annotations.is_empty()), ("maker.example.dev", true));
        assert_eq!(&*volume("{}", r#"{"hostPath":{"path":"/mnt"}}"#).driver, "");
    }

    #[test]
    fn a_reference_without_uid_is_meant_for_any_claim_of_the_name() {
        let volume = decode(r#"{"claimRef":{"namespace":"ci","name":"build","uid":""}}"#, r#"{"phase":"Available"}"#);
        assert!(!volume.is_free());
        assert_eq!(volume.claim.unwrap().uid, None);
        assert!(decode("{}", r#"{"phase":"Available"}"#).is_free());
    }

    #[test]
    fn a_volume_in_use_is_in_no_index_of_unused_ones() {
        let volume = decode(r#"{"claimRef":{"namespace":"ci","name":"build","uid":"c1"}}"#, r#"{"phase":"Bound"}"#);
        assert!(unused_by_namespace(&volume).is_empty());
        assert!((RELEASED_BY_CLASS.values)(&volume).is_empty() && (FREE_BY_CLASS.values)(&volume).is_empty());
        assert_eq!((BY_CLAIM.values)(&volume), ["ci/build".into()]);
    }
}
