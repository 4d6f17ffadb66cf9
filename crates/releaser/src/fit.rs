//! Which claim a volume may be given to.

use cluster::{
    ObjectKey, Volume,
    class::CLASS_ANNOTATION,
    fit::{Wants, WireSpec},
};
use k8s_openapi::{
    api::core::v1::PersistentVolumeClaim, apimachinery::pkg::apis::meta::v1::ObjectMeta, jiff::Timestamp,
};
use kube::Resource;
use serde::Deserialize;

use crate::seen::Candidate;

/// Whoever sets it has decided that a volume is made for the claim.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// A claim as it is right now.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct WaitingClaim {
    pub(crate) key: ObjectKey,
    pub(crate) uid: Box<str>,
    pub(crate) created: Timestamp,
    pub(crate) being_deleted: bool,
    /// The volume that it has.
    volume: Option<String>,
    /// Whether one is being made for it.
    provisioned: bool,
    class: Option<String>,
    wants: Wants,
}

impl WaitingClaim {
    pub(crate) fn from_wire(ClaimWire { metadata, mut spec }: ClaimWire) -> Option<Self> {
        let mut annotations = metadata.annotations.unwrap_or_default();
        Some(Self {
            key: ObjectKey::new(&metadata.namespace?, &metadata.name?),
            uid: metadata.uid?.into(),
            created: metadata.creation_timestamp.map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            being_deleted: metadata.deletion_timestamp.is_some(),
            volume: spec.volume_name.take().filter(|name| !name.is_empty()),
            provisioned: annotations.contains_key(SELECTED_NODE),
            class: annotations.remove(CLASS_ANNOTATION).or_else(|| spec.storage_class_name.take()),
            wants: spec.into(),
        })
    }

    /// Whether it has a volume, or one is being made for it.
    pub(crate) fn is_served(&self) -> bool {
        self.volume.is_some() || self.provisioned
    }

    /// Whether it has a volume, and not this one.
    pub(crate) fn has_other_than(&self, volume: &Volume) -> bool {
        self.volume.as_ref().is_some_and(|name| name != volume.key.name())
    }

    pub(crate) fn candidate(&self) -> Candidate {
        Candidate { key: self.key.clone(), uid: self.uid.clone() }
    }

    /// Whether it may have this volume.
    pub(crate) fn fits(&self, volume: &Volume) -> bool {
        // No class and the empty one are not the same: the former gets the default, and then it is not this volume's.
        self.class.as_deref().is_some_and(|class| self.wants.fits(class, volume))
    }
}

/// A claim on its way from the API server.
#[derive(Debug, Clone, Deserialize, Resource)]
#[resource(inherit = PersistentVolumeClaim)]
pub(crate) struct ClaimWire {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: WireSpec,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::sample::volume_with;

    fn claim(change: &Value) -> WaitingClaim {
        let mut json = json!({
            "metadata": {"namespace": "ci", "name": "next", "uid": "c2"},
            "spec": {
                "storageClassName": "cache",
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "10Gi"}},
            },
        });
        json_patch::merge(&mut json, change);
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
