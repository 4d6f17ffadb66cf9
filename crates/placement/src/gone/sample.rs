//! Objects for the tests of the rules.

use cluster::{Node, Volume, store::Slim};
use serde_json::{Value, json};

use super::identity::{HOME_NODE, Note};
use crate::home::Home;

pub(crate) fn home() -> Home {
    Home::Label("kubernetes.io/hostname".into(), "node-1".into())
}

/// A volume tied to `node-1`, in use by claim `ci/data-web-0` (uid `c1`) since the first second of 2026.
pub(crate) fn volume() -> Volume {
    volume_with(&json!({}))
}

/// The same with something else merged into it.
pub(crate) fn volume_with(change: &Value) -> Volume {
    Volume::from_wire(serde_json::from_value(volume_json(change)).unwrap()).unwrap()
}

pub(crate) fn volume_json(change: &Value) -> Value {
    let host = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-1"]});
    let mut json = json!({
        "metadata": {"name": "pv-1", "uid": "v1", "resourceVersion": "7", "annotations": {}},
        "spec": {
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": "local",
            "claimRef": {"namespace": "ci", "name": "data-web-0", "uid": "c1"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [host]}]}},
        },
        "status": {"phase": "Bound", "lastPhaseTransitionTime": "2026-01-01T00:00:00Z"},
    });
    json_patch::merge(&mut json, change);
    json
}

/// A node that calls its machine so in every way; one without a name says nothing.
pub(crate) fn node(name: &str, uid: &str, machine: &str) -> Node {
    node_since(name, uid, machine, "2025-01-01T00:00:00Z")
}

/// The same, made at this time.
pub(crate) fn node_since(name: &str, uid: &str, machine: &str, created: &str) -> Node {
    let say = |what: &str| if machine.is_empty() { String::new() } else { format!("{what}-{machine}") };
    let json = json!({
        "metadata": {
            "name": name, "uid": uid, "creationTimestamp": created, "labels": {"kubernetes.io/hostname": "node-1"},
        },
        "spec": {"providerID": say("p")},
        "status": {"nodeInfo": {"systemUUID": say("s"), "machineID": say("m")}},
    });
    Node::from_wire(serde_json::from_value(json).unwrap()).unwrap()
}

/// The volume with this machine noted.
pub(crate) fn noted(machine: &str, uid: &str) -> Volume {
    let mut volume = volume();
    note(&mut volume, machine, uid);
    volume
}

pub(crate) fn note(volume: &mut Volume, machine: &str, uid: &str) {
    let note = Note::about(&node("node-1", uid, machine), volume, &home());
    volume.annotations.insert(HOME_NODE.to_owned(), json!(note).to_string());
}
