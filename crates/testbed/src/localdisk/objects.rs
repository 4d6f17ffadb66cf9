//! What the driver reads in objects, and the volume that it makes of a claim.

use anyhow::{Context, Result};
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::StorageClass,
};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{CURRENT_NODE, FINALIZER, INITIAL_NODE, LOCALDISK, MODE, TOPOLOGY};
use crate::provisioner::PROVISIONED_BY;

pub(super) fn volume_for(claim: &PersistentVolumeClaim, class: &StorageClass, node: &str) -> Result<PersistentVolume> {
    let uid = claim.uid().context("a claim without uid")?;
    let name = format!("pvc-{uid}");
    let spec = claim.spec.clone().unwrap_or_default();
    let requests = spec.resources.and_then(|resources| resources.requests).unwrap_or_default();
    let mut attributes = class.parameters.clone().unwrap_or_default();
    let is_tied = attributes.get(MODE).is_some_and(|mode| mode == "affinity");
    if !is_tied {
        attributes.insert(INITIAL_NODE.to_owned(), node.to_owned());
    }
    let at_node = json!({ "key": TOPOLOGY, "operator": "In", "values": [node] });
    let affinity = json!({ "required": { "nodeSelectorTerms": [{ "matchExpressions": [at_node] }] } });
    Ok(serde_json::from_value(json!({
        "metadata": {
            "name": name,
            "annotations": { PROVISIONED_BY: LOCALDISK },
            "finalizers": [FINALIZER],
        },
        "spec": {
            "accessModes": spec.access_modes,
            "capacity": { "storage": requests.get("storage") },
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": claim.namespace(),
                "name": claim.name_any(),
                "uid": uid,
                "resourceVersion": claim.resource_version(),
            },
            "csi": {
                "driver": LOCALDISK,
                "volumeHandle": format!("containerstorage#{name}"),
                "volumeAttributes": attributes,
            },
            "nodeAffinity": if is_tied { affinity } else { Value::Null },
            "persistentVolumeReclaimPolicy": class.reclaim_policy.as_deref().unwrap_or("Delete"),
            "storageClassName": class.name_any(),
            "volumeMode": spec.volume_mode,
        },
    }))?)
}

pub(super) fn is_of_driver(volume: &PersistentVolume) -> bool {
    let csi = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
    csi.is_some_and(|csi| csi.driver == LOCALDISK)
}

pub(super) fn is_tied(volume: &PersistentVolume) -> bool {
    volume.spec.as_ref().is_some_and(|spec| spec.node_affinity.is_some())
}

/// The node that a volume cannot leave.
pub(super) fn tied_to(volume: &PersistentVolume) -> Option<&str> {
    let required = volume.spec.as_ref()?.node_affinity.as_ref()?.required.as_ref()?;
    let expressions = required.node_selector_terms.iter().flat_map(|term| term.match_expressions.iter().flatten());
    let mut ours = expressions.filter(|expression| expression.key == TOPOLOGY);
    ours.next()?.values.as_ref()?.first().map(String::as_str)
}

/// The node that has a volume which can be made anywhere.
pub(super) fn owner(volume: &PersistentVolume) -> Option<&str> {
    let made = || volume.spec.as_ref()?.csi.as_ref()?.volume_attributes.as_ref()?.get(INITIAL_NODE);
    volume.annotations().get(CURRENT_NODE).or_else(made).map(String::as_str)
}

/// The node that a pod runs on, or is about to.
pub(super) fn node_of(pod: &Pod) -> Option<&str> {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let is_over = matches!(phase, Some("Succeeded" | "Failed")) || pod.metadata.deletion_timestamp.is_some();
    pod.spec.as_ref()?.node_name.as_deref().filter(|_| !is_over)
}

pub(super) fn claims_of(pod: &Pod) -> Vec<String> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes
        .filter_map(|volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
            (Some(claim), _) => Some(claim.claim_name.clone()),
            (None, Some(_)) => Some(format!("{}-{}", pod.name_any(), volume.name)),
            (None, None) => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(parameters: &Value) -> StorageClass {
        let class = json!({ "metadata": { "name": "local" }, "provisioner": LOCALDISK, "parameters": parameters });
        serde_json::from_value(class).unwrap()
    }

    fn made(parameters: &Value) -> PersistentVolume {
        let claim = json!({
            "metadata": { "name": "data", "namespace": "shop", "uid": "u1" },
            "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "10Gi" } } },
        });
        volume_for(&serde_json::from_value(claim).unwrap(), &class(parameters), "node-1").unwrap()
    }

    #[test]
    fn a_volume_beside_a_webhook_says_where_it_was_made_and_can_be_used_anywhere() {
        let mut volume = made(&json!({ "localdisk.csi.acstor.io/failover-mode": "durability" }));
        let csi = volume.spec.clone().and_then(|spec| spec.csi).unwrap();
        assert_eq!((csi.driver.as_str(), csi.volume_handle.as_str()), (LOCALDISK, "containerstorage#pvc-u1"));
        let attributes = csi.volume_attributes.unwrap();
        assert_eq!(attributes[INITIAL_NODE], "node-1");
        assert_eq!(attributes["localdisk.csi.acstor.io/failover-mode"], "durability");
        assert_eq!(volume.finalizers(), [FINALIZER]);
        assert!(is_of_driver(&volume) && !is_tied(&volume));
        assert_eq!((owner(&volume), tied_to(&volume)), (Some("node-1"), None));
        volume.annotations_mut().insert(CURRENT_NODE.to_owned(), "node-2".to_owned());
        assert_eq!(owner(&volume), Some("node-2"));
    }

    #[test]
    fn a_volume_without_a_webhook_is_tied_to_its_node() {
        let volume = made(&json!({ MODE: "affinity" }));
        assert!(is_tied(&volume));
        assert_eq!((owner(&volume), tied_to(&volume)), (None, Some("node-1")));
    }

    #[test]
    fn a_pod_uses_its_claims_and_those_of_its_ephemeral_volumes_until_it_is_over() {
        let pod = |phase: &str| -> Pod {
            let volumes = json!([
                { "name": "a", "persistentVolumeClaim": { "claimName": "data" } },
                { "name": "b", "ephemeral": {} },
                { "name": "c", "emptyDir": {} },
            ]);
            let spec = json!({ "nodeName": "node-1", "containers": [], "volumes": volumes });
            serde_json::from_value(json!({ "metadata": { "name": "web" }, "spec": spec, "status": { "phase": phase } }))
                .unwrap()
        };
        assert_eq!(claims_of(&pod("Pending")), ["data", "web-b"]);
        assert_eq!((node_of(&pod("Pending")), node_of(&pod("Failed"))), (Some("node-1"), None));
    }
}
