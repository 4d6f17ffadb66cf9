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
    /// What its CSI driver noted about it, as far as some decision reads it.
    pub attributes: BTreeMap<String, String>,
    /// Where it can be reached from.
    pub reach: Reach,
    /// What it has to offer to a claim.
    pub offer: Offer,
}

/// From which nodes a volume can be reached.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reach {
    /// Whether its node affinity says anything at all.
    pub is_limited: bool,
    /// What every such node has: label, or the field [`NODE_NAME_FIELD`], and its one value. Empty if there is a choice.
    pub pins: Vec<(Box<str>, Box<str>)>,
}

/// What a pin to the name of a node is called.
pub const NODE_NAME_FIELD: &str = "metadata.name";

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

    /// Forgets the annotations, attributes and pins that neither this house nor the configuration has a word for.
    pub fn keep_only(&mut self, wants: impl Fn(&str) -> bool) {
        self.annotations.retain(|key, _| meta::is_ours(key) || wants(key));
        self.attributes.retain(|key, _| wants(key));
        self.reach.pins.retain(|(key, _)| wants(key));
        self.reach.pins.shrink_to_fit();
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
        let (driver, attributes) = spec.csi.map(|csi| (csi.driver, csi.volume_attributes)).unzip();
        let attributes = attributes.flatten();
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
            driver: driver.or(maker).unwrap_or_default().into_boxed_str(),
            attributes: attributes.unwrap_or_default(),
            reach: spec.node_affinity.and_then(|affinity| affinity.required).map(Reach::from).unwrap_or_default(),
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
    #[serde(deserialize_with = "meta::slim_with_labels_and_annotations")]
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
    node_affinity: Option<WireAffinity>,
    claim_ref: Option<WireReference>,
    capacity: Option<WireCapacity>,
    #[serde(default)]
    access_modes: Vec<String>,
    volume_mode: Option<String>,
    volume_attributes_class_name: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireCsi {
    #[serde(default)]
    driver: String,
    volume_attributes: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Clone, Deserialize)]
struct WireAffinity {
    required: Option<WireSelector>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireSelector {
    #[serde(default)]
    node_selector_terms: Vec<WireTerm>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireTerm {
    #[serde(default)]
    match_expressions: Vec<WireRequirement>,
    #[serde(default)]
    match_fields: Vec<WireRequirement>,
}

#[derive(Debug, Clone, Deserialize)]
struct WireRequirement {
    key: Box<str>,
    operator: String,
    #[serde(default)]
    values: Vec<Box<str>>,
}

impl WireTerm {
    /// Keys that can have one value only. A term without any requirement matches no node at all.
    fn pins(self) -> Vec<(Box<str>, Box<str>)> {
        let pin = |WireRequirement { key, operator, values }| match <[Box<str>; 1]>::try_from(values) {
            Ok([value]) if operator == "In" => Some((key, value)),
            _ => None,
        };
        self.match_expressions.into_iter().chain(self.match_fields).filter_map(pin).collect()
    }
}

impl From<WireSelector> for Reach {
    fn from(WireSelector { node_selector_terms }: WireSelector) -> Self {
        // Only one of the terms need match, so a pin is what all of them have.
        let mut terms = node_selector_terms.into_iter().map(WireTerm::pins);
        let mut pins = terms.next().unwrap_or_default();
        terms.for_each(|term| pins.retain(|pin| term.contains(pin)));
        Self { is_limited: true, pins }
    }
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
                 "annotations":{{"{BOUND_BY_CONTROLLER}":"yes","example.dev/note":"x","kubectl.kubernetes.io/last-applied-configuration":"long"}},
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
        assert_eq!(volume.annotations.keys().collect::<Vec<_>>(), ["example.dev/note", BOUND_BY_CONTROLLER]);
        assert_eq!((&*volume.class, &*volume.offer.mode), ("cache", "Filesystem"));
        assert_eq!(unused_by_namespace(&volume), ["ci".into()]);
        assert_eq!((RELEASED_BY_CLASS.values)(&volume), ["cache".into()]);
        assert!((FREE_BY_CLASS.values)(&volume).is_empty());
    }

    #[test]
    fn what_the_configuration_has_no_word_for_is_forgotten() {
        let mut volume = decode(
            r#"{"csi":{"driver":"d","volumeAttributes":{"home":"n","size":"1"}},"nodeAffinity":{"required":{"nodeSelectorTerms":[
                {"matchExpressions":[{"key":"host","operator":"In","values":["n"]},{"key":"zone","operator":"In","values":["a"]}]}]}}}"#,
            "{}",
        );
        volume.keep_only(|key| ["home", "host"].contains(&key));
        assert_eq!(volume.annotations.keys().collect::<Vec<_>>(), [BOUND_BY_CONTROLLER]);
        assert_eq!(volume.attributes.keys().collect::<Vec<_>>(), ["home"]);
        assert_eq!(volume.reach, Reach { is_limited: true, pins: vec![("host".into(), "n".into())] });
    }

    #[test]
    fn a_pin_is_what_every_term_says_and_leaves_no_choice() {
        let host = |values: &str| format!(r#"{{"key":"host","operator":"In","values":{values}}}"#);
        let expressions = |all: &[String]| format!(r#"{{"matchExpressions":[{}]}}"#, all.join(","));
        let zone = r#"{"key":"zone","operator":"In","values":["a"]}"#.to_owned();
        let (one, other, two) = (host(r#"["n"]"#), host(r#"["m"]"#), host(r#"["n","m"]"#));
        let not = r#"{"key":"host","operator":"NotIn","values":["n"]}"#.to_owned();
        let named = r#"{"matchFields":[{"key":"metadata.name","operator":"In","values":["n"]}]}"#.to_owned();
        for (terms, pins) in [
            (vec![expressions(std::slice::from_ref(&one))], vec![("host", "n")]),
            (
                vec![expressions(&[one.clone(), zone.clone()]), expressions(&[zone.clone(), one.clone()])],
                vec![("host", "n"), ("zone", "a")],
            ),
            (vec![expressions(&[one.clone(), zone.clone()]), expressions(&[other, zone])], vec![("zone", "a")]),
            (vec![expressions(&[two])], vec![]),
            (vec![expressions(&[not])], vec![]),
            (vec![expressions(&[one]), expressions(&[])], vec![]),
            (vec![named], vec![(NODE_NAME_FIELD, "n")]),
        ] {
            let terms = terms.join(",");
            let spec = format!(r#"{{"nodeAffinity":{{"required":{{"nodeSelectorTerms":[{terms}]}}}}}}"#);
            let reach = decode(&spec, "{}").reach;
            let pins: Vec<(Box<str>, Box<str>)> =
                pins.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
            assert_eq!(reach, Reach { is_limited: true, pins }, "{terms}");
        }
        assert_eq!(decode("{}", "{}").reach, Reach::default());
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
