//! The decision table as data, and the objects that its rows are about. Whoever decides the rows takes them from here.

#![allow(dead_code)] // each of those takes what it needs

use std::collections::BTreeMap;

use enforcement::Settings;
use serde::Deserialize;
use serde_json::{Value, json};

const ROWS: &str = include_str!("rows.yaml");

/// The table.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Table {
    pub(crate) classes: BTreeMap<String, ClassOf>,
    volumes: BTreeMap<String, Value>,
    pods: BTreeMap<String, Value>,
    pub(crate) rows: Vec<Row>,
}

/// A class, shortened.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct ClassOf {
    provisioner: String,
    #[serde(default)]
    parameters: BTreeMap<String, String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    volume_binding_mode: Option<String>,
}

/// One row; what its parts mean stands above the table.
#[allow(clippy::struct_excessive_bools)] // a row is a list of facts
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) default: Option<String>,
    #[serde(default)]
    pub(crate) volumes: Vec<String>,
    #[serde(default)]
    pub(crate) pods: Vec<String>,
    pub(crate) label: Option<String>,
    #[serde(default)]
    settings: Option<Value>,
    #[serde(default = "alice")]
    pub(crate) user: String,
    #[serde(default)]
    pub(crate) dry_run: bool,
    pub(crate) kind: Option<Value>,
    #[serde(default)]
    pub(crate) sub_resource: String,
    pub(crate) operation: Option<String>,
    old: Option<Value>,
    claim: Value,
    /// The claim is being deleted.
    #[serde(default)]
    pub(crate) terminating: bool,
    /// The claim is in the operator's own namespace.
    #[serde(default)]
    pub(crate) home: bool,
    /// Nothing can be read live.
    #[serde(default)]
    pub(crate) unreadable: bool,
    expect: String,
    policy: Option<Policy>,
    /// Why only the rules alone can decide it.
    pub(crate) in_process: Option<String>,
}

/// Where the policies differ.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Policy {
    expect: String,
    why: String,
}

fn alice() -> String {
    "alice".to_owned()
}

impl Table {
    pub(crate) fn load() -> Self {
        let table: Self = serde_saphyr::from_str(ROWS).unwrap();
        let known = |names: &[String], of: &BTreeMap<String, Value>| names.iter().all(|name| of.contains_key(name));
        for row in &table.rows {
            assert!(known(&row.volumes, &table.volumes) && known(&row.pods, &table.pods), "{}", row.name);
            assert!(row.policy.as_ref().is_none_or(|policy| !policy.why.is_empty()), "{}", row.name);
        }
        table
    }

    /// A class as the API server takes it.
    pub(crate) fn class(&self, name: &str, is_default: bool) -> Value {
        let ClassOf { provisioner, parameters, annotations, volume_binding_mode } = &self.classes[name];
        let mut annotations = annotations.clone();
        if is_default {
            annotations.insert("storageclass.kubernetes.io/is-default-class".to_owned(), "true".to_owned());
        }
        json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {"name": name, "annotations": annotations},
            "provisioner": provisioner, "parameters": parameters,
            "volumeBindingMode": volume_binding_mode.as_deref().unwrap_or("Immediate"),
        })
    }

    /// A volume as the API server takes it; its phase has to be written on its own.
    pub(crate) fn volume(&self, name: &str, namespace: &str) -> Value {
        let mut volume = json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
            "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "10Gi"}, "persistentVolumeReclaimPolicy": "Retain"},
        });
        json_patch::merge(&mut volume, &self.volumes[name]);
        replaced(volume, &|word| (word == "namespace").then(|| namespace.to_owned()))
    }

    /// A pod as the API server takes it.
    pub(crate) fn pod(&self, name: &str, namespace: &str) -> Value {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace},
            "spec": {"containers": [{"name": "main", "image": "none"}]},
        });
        json_patch::merge(&mut pod, &self.pods[name]);
        pod
    }
}

impl Row {
    /// The configuration.
    pub(crate) fn settings(&self, namespace: &str) -> Settings {
        let settings = self.settings.clone().map(|settings| serde_json::from_value(settings).unwrap());
        Settings { home: self.home.then(|| namespace.to_owned()), ..settings.unwrap_or_default() }
    }

    /// The configuration as it is written, to tell rows apart by it.
    pub(crate) fn written_settings(&self) -> Value {
        self.settings.clone().unwrap_or_else(|| json!({}))
    }

    /// The claim as it is to be; `uid` knows those of the pods.
    pub(crate) fn claim(&self, namespace: &str, uid: &dyn Fn(&str) -> Option<String>) -> Value {
        claim(&self.claim, namespace, uid)
    }

    /// The claim as it was.
    pub(crate) fn old(&self, namespace: &str, uid: &dyn Fn(&str) -> Option<String>) -> Option<Value> {
        self.old.as_ref().map(|old| claim(old, namespace, uid))
    }

    /// What is decided, and why.
    pub(crate) fn expected(&self) -> (&str, &str) {
        self.expect.split_once(' ').unwrap()
    }

    /// Whether the claim wants no class, not even the default one.
    pub(crate) fn wants_no_class(&self) -> bool {
        self.claim["spec"]["storageClassName"] == ""
    }

    /// Why the policies decide otherwise, if they do.
    pub(crate) fn differs(&self) -> Option<&str> {
        self.policy.as_ref().map(|policy| policy.why.as_str())
    }

    /// What the policies decide.
    pub(crate) fn expected_of_policies(&self) -> &str {
        self.policy.as_ref().map_or_else(|| self.expected().0, |policy| &policy.expect)
    }
}

fn claim(change: &Value, namespace: &str, uid: &dyn Fn(&str) -> Option<String>) -> Value {
    let mut claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data", "namespace": namespace},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}}},
    });
    json_patch::merge(&mut claim, change);
    replaced(claim, uid)
}

/// With words such as `$namespace` replaced by what they stand for.
fn replaced(value: Value, by: &dyn Fn(&str) -> Option<String>) -> Value {
    match value {
        Value::Object(map) => map.into_iter().map(|(key, value)| (key, replaced(value, by))).collect(),
        Value::Array(list) => list.into_iter().map(|value| replaced(value, by)).collect(),
        Value::String(text) => match text.strip_prefix('$') {
            Some(word) => by(word).unwrap_or_else(|| panic!("nobody knows {text}")).into(),
            None => text.into(),
        },
        other => other,
    }
}
