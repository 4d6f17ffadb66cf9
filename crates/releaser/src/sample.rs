//! Objects for the tests of the rules.

use std::{collections::BTreeMap, sync::Arc};

use cluster::{Class, ObjectKey, Volume, store::Slim};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

/// A volume of class `cache` whose claim `ci/build` (uid `c1`) is gone since the first second of 2026.
pub(crate) fn volume() -> Volume {
    volume_with(&json!({}))
}

/// The same with something else merged into it.
pub(crate) fn volume_with(change: &Value) -> Volume {
    let mut json = json!({
        "metadata": {"name": "pv-1", "uid": "v1", "resourceVersion": "7", "labels": {}, "annotations": {}},
        "spec": {
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "cache",
            "capacity": {"storage": "10Gi"},
            "accessModes": ["ReadWriteOnce"],
            "claimRef": {"namespace": "ci", "name": "build", "uid": "c1"},
        },
        "status": {"phase": "Released", "lastPhaseTransitionTime": "2026-01-01T00:00:00Z"},
    });
    json_patch::merge(&mut json, change);
    Volume::from_wire(serde_json::from_value(json).unwrap()).unwrap()
}

/// The class `cache` with these annotations.
#[allow(clippy::unnecessary_wraps)] // as observations have it
pub(crate) fn class(annotations: &[(&str, &str)]) -> Option<Arc<Class>> {
    Some(Arc::new(Class {
        key: ObjectKey::new("", "cache"),
        uid: "s1".into(),
        annotations: annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        created: Timestamp::UNIX_EPOCH,
        is_default: false,
        provisioner: "disks.example.dev".into(),
        parameters: BTreeMap::new(),
        provisions: true,
        waits_for_consumer: true,
    }))
}
