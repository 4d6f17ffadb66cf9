//! Which claim a volume may be given to. The rules are those by which Kubernetes itself finds a volume for a claim.

use std::collections::BTreeMap;

use cluster::{ObjectKey, Volume, class::CLASS_ANNOTATION, quantity::Quantity};
use k8s_openapi::{
    api::core::v1::PersistentVolumeClaim,
    apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement, ObjectMeta},
    jiff::Timestamp,
};
use kube::Resource;
use serde::{Deserialize, de::IgnoredAny};

use crate::decision::Candidate;

/// Whoever sets it has decided that a volume is made for the claim.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// A claim as it is right now.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct WaitingClaim {
    pub(crate) key: ObjectKey,
    pub(crate) uid: Box<str>,
    pub(crate) created: Timestamp,
    pub(crate) being_deleted: bool,
    /// Whether it has a volume, or one is being made for it.
    served: bool,
    class: Option<String>,
    request: Option<Quantity>,
    access_modes: Vec<String>,
    mode: String,
    attributes_class: String,
    selector: Option<LabelSelector>,
    /// Whether it is to begin with somebody's data.
    has_source: bool,
}

impl WaitingClaim {
    pub(crate) fn from_wire(ClaimWire { metadata, spec }: ClaimWire) -> Option<Self> {
        let mut annotations = metadata.annotations.unwrap_or_default();
        Some(Self {
            key: ObjectKey::new(&metadata.namespace?, &metadata.name?),
            uid: metadata.uid?.into(),
            created: metadata.creation_timestamp.map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            being_deleted: metadata.deletion_timestamp.is_some(),
            served: spec.volume_name.is_some_and(|name| !name.is_empty()) || annotations.contains_key(SELECTED_NODE),
            class: annotations.remove(CLASS_ANNOTATION).or(spec.storage_class_name),
            request: spec.resources.requests.get("storage").and_then(|amount| amount.parse().ok()),
            access_modes: spec.access_modes,
            mode: spec.volume_mode.unwrap_or_else(|| "Filesystem".to_owned()),
            attributes_class: spec.volume_attributes_class_name.unwrap_or_default(),
            selector: spec.selector,
            has_source: spec.data_source.is_some() || spec.data_source_ref.is_some(),
        })
    }

    /// Whether it has a volume, or one is being made for it.
    pub(crate) fn is_served(&self) -> bool {
        self.served
    }

    pub(crate) fn candidate(&self) -> Candidate {
        Candidate { key: self.key.clone(), uid: self.uid.clone() }
    }

    /// Whether it may have this volume.
    pub(crate) fn fits(&self, volume: &Volume) -> bool {
        let offer = &volume.offer;
        let offered = |mode: &String| offer.access_modes.iter().any(|offered| **offered == **mode);
        // No class and the empty one are not the same: the former gets the default, and then it is not this volume's.
        self.class.as_deref() == Some(&*volume.class)
            && self.request.zip(offer.capacity).is_some_and(|(request, capacity)| request <= capacity)
            && self.access_modes.iter().all(offered)
            && *self.mode == *offer.mode
            && *self.attributes_class == *offer.attributes_class
            && self.selector.as_ref().is_none_or(|selector| selects(selector, &volume.labels))
            && !self.has_source
    }
}

fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let equal = |(key, value): (&String, &String)| labels.get(key) == Some(value);
    selector.match_labels.iter().flatten().all(equal)
        && selector.match_expressions.iter().flatten().all(|requirement| meets(requirement, labels))
}

fn meets(
    LabelSelectorRequirement { key, operator, values }: &LabelSelectorRequirement,
    labels: &BTreeMap<String, String>,
) -> bool {
    let value = labels.get(key);
    let listed = value.is_some_and(|value| values.iter().flatten().any(|listed| listed == value));
    match operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        // Kubernetes knows something that we don't: better none than a wrong one.
        _ => false,
    }
}

/// A claim on its way from the API server.
#[derive(Debug, Clone, Deserialize, Resource)]
#[resource(inherit = PersistentVolumeClaim)]
pub(crate) struct ClaimWire {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: ClaimSpec,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClaimSpec {
    volume_name: Option<String>,
    storage_class_name: Option<String>,
    #[serde(default)]
    resources: ClaimResources,
    #[serde(default)]
    access_modes: Vec<String>,
    volume_mode: Option<String>,
    volume_attributes_class_name: Option<String>,
    selector: Option<LabelSelector>,
    data_source: Option<IgnoredAny>,
    data_source_ref: Option<IgnoredAny>,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct ClaimResources {
    #[serde(default)]
    requests: BTreeMap<String, String>,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::sample::{merge, volume_with};

    fn claim(change: &Value) -> WaitingClaim {
        let mut json = json!({
            "metadata": {"namespace": "ci", "name": "next", "uid": "c2"},
            "spec": {
                "storageClassName": "cache",
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "10Gi"}},
            },
        });
        merge(&mut json, change);
        WaitingClaim::from_wire(serde_json::from_value(json).unwrap()).unwrap()
    }

    #[test]
    fn a_claim_fits_as_kubernetes_would_have_it() {
        let volume = volume_with(&json!({"metadata": {"labels": {"zone": "a"}}}));
        let expression = |operator: &str, values: &Value| json!({"spec": {"selector": {"matchExpressions": [{"key": "zone", "operator": operator, "values": values}]}}});
        for (change, fits) in [
            (json!({}), true),
            (json!({"spec": {"resources": {"requests": {"storage": "9Gi"}}}}), true),
            (json!({"spec": {"resources": {"requests": {"storage": "10.1Gi"}}}}), false),
            (json!({"spec": {"resources": {"requests": null}}}), false),
            (json!({"spec": {"storageClassName": "other"}}), false),
            (json!({"spec": {"storageClassName": null}}), false),
            (json!({"metadata": {"annotations": {CLASS_ANNOTATION: "other"}}}), false),
            (json!({"spec": {"accessModes": ["ReadWriteOnce", "ReadWriteMany"]}}), false),
            (json!({"spec": {"accessModes": []}}), true),
            (json!({"spec": {"volumeMode": "Filesystem"}}), true),
            (json!({"spec": {"volumeMode": "Block"}}), false),
            (json!({"spec": {"volumeAttributesClassName": "gold"}}), false),
            (json!({"spec": {"volumeAttributesClassName": ""}}), true),
            (json!({"spec": {"selector": {"matchLabels": {"zone": "a"}}}}), true),
            (json!({"spec": {"selector": {"matchLabels": {"zone": "b"}}}}), false),
            (expression("In", &json!(["a", "b"])), true),
            (expression("In", &json!(["b"])), false),
            (expression("NotIn", &json!(["b"])), true),
            (expression("NotIn", &json!(["a"])), false),
            (expression("Exists", &json!(null)), true),
            (expression("DoesNotExist", &json!(null)), false),
            (expression("Gt", &json!(["1"])), false),
            (json!({"spec": {"dataSource": {"kind": "VolumeSnapshot", "name": "x"}}}), false),
            (json!({"spec": {"dataSourceRef": {"kind": "VolumeSnapshot", "name": "x"}}}), false),
        ] {
            assert_eq!(claim(&change).fits(&volume), fits, "{change}");
        }
    }

    #[test]
    fn a_claim_that_gets_a_volume_elsewhere_is_served() {
        assert!(!claim(&json!({})).is_served());
        assert!(claim(&json!({"spec": {"volumeName": "pv-2"}})).is_served());
        assert!(claim(&json!({"metadata": {"annotations": {SELECTED_NODE: "node-1"}}})).is_served());
    }
}
