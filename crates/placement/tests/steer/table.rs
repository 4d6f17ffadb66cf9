//! The decision table as data, and the objects that its rows are about. Whoever decides the rows takes them from here.

use std::collections::BTreeMap;

use placement::{Settings, settings::Preset};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::short::Wishes;

const ROWS: &str = include_str!("rows.yaml");

/// The table.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Table {
    pub(crate) nodes: BTreeMap<String, NodeOf>,
    pub(crate) classes: BTreeMap<String, Value>,
    pub(crate) claims: BTreeMap<String, ClaimOf>,
    pub(crate) rows: Vec<Row>,
}

/// A node, shortened.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NodeOf {
    labels: BTreeMap<String, String>,
    #[serde(default)]
    unschedulable: bool,
}

/// A claim and its volume, shortened.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClaimOf {
    driver: Option<String>,
    class: Option<String>,
    made: Option<String>,
    noted: Option<String>,
    mode: Option<String>,
    tied: Option<(String, String)>,
    #[serde(default)]
    attributes: BTreeMap<String, String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    /// Which of the two refers to the other.
    #[serde(default)]
    bound: Bound,
    volume: Option<String>,
}

#[derive(Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Bound {
    #[default]
    Both,
    Claim,
    Volume,
    Neither,
}

/// One row; what its parts mean stands above the table.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Row {
    pub(crate) name: String,
    uses: Vec<String>,
    pod: Option<Value>,
    #[serde(default)]
    keep_null: bool,
    required: Option<Vec<Vec<String>>>,
    preferred: Option<Vec<Wish>>,
    gates: Option<Vec<String>>,
    pub(crate) settings: Option<Value>,
    pub(crate) kind: Option<Value>,
    #[serde(default)]
    pub(crate) sub_resource: String,
    pub(crate) operation: Option<String>,
    expect: String,
    #[serde(default)]
    becomes: Becomes,
    #[serde(default)]
    pub(crate) warns: Vec<String>,
    #[serde(default)]
    pub(crate) unreadable: bool,
    /// The webhook's match conditions keep the API server from asking.
    #[serde(default)]
    pub(crate) not_asked: bool,
    pub(crate) in_process: Option<String>,
    pub(crate) defect: Option<String>,
}

type Wish = Vec<Value>;

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Becomes {
    required: Option<Vec<Vec<String>>>,
    preferred: Option<Vec<Wish>>,
    gates: Option<Vec<String>>,
}

fn wishes(wishes: Option<&Vec<Wish>>) -> Option<Vec<(i64, Vec<String>)>> {
    let word = |word: &Value| word.as_str().unwrap().to_owned();
    wishes.map(|wishes| {
        wishes.iter().map(|wish| (wish[0].as_i64().unwrap(), wish[1..].iter().map(word).collect())).collect()
    })
}

/// Whose volumes the stores keep, whatever a row configures.
pub(crate) fn widest() -> Settings {
    let own = json!({"drivers": [{"preset": "localdisk"}, {
        "name": "own.example.dev", "initialNodeAttribute": "own.example.dev/home", "failoverModeAttribute": "own.example.dev/keep",
        "topologyKey": "example.dev/none",
    }]});
    serde_json::from_value(own).unwrap()
}

impl Table {
    pub(crate) fn load() -> Self {
        serde_saphyr::from_str(ROWS).unwrap()
    }

    /// A node as the API server takes it.
    pub(crate) fn node(&self, name: &str) -> Value {
        let NodeOf { labels, unschedulable } = &self.nodes[name];
        json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
            "spec": {"unschedulable": unschedulable},
        })
    }

    /// A class as the API server takes it.
    pub(crate) fn class(&self, name: &str) -> Value {
        let class = &self.classes[name];
        json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {"name": name, "annotations": class["annotations"]}, "provisioner": class["provisioner"],
        })
    }

    /// A claim as the API server takes it, and its volume, if that is there.
    pub(crate) fn claim(&self, name: &str, namespace: &str) -> (Value, Option<Value>) {
        let of = &self.claims[name];
        let class = of.class.as_deref().unwrap_or("local");
        let volume = of.volume.clone().unwrap_or_else(|| format!("volume-of-{name}"));
        let named = matches!(of.bound, Bound::Both | Bound::Claim).then_some(&volume);
        let claim = claim(name, namespace, class, named.map(String::as_str));
        let there = matches!(of.bound, Bound::Both | Bound::Volume);
        (claim, there.then(|| of.volume(&volume, name, namespace, class)))
    }
}

/// A claim that has this volume, if any.
pub(crate) fn claim(name: &str, namespace: &str, class: &str, volume: Option<&str>) -> Value {
    let bound = volume.map(|_| json!({"pv.kubernetes.io/bind-completed": "yes"}));
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace, "annotations": bound},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": class,
            "volumeName": volume,
        },
    })
}

impl ClaimOf {
    fn volume(&self, name: &str, claim: &str, namespace: &str, class: &str) -> Value {
        let localdisk = Preset::Localdisk.driver();
        let mut attributes = self.attributes.clone();
        attributes.extend(localdisk.initial_node_attribute.zip(self.made.clone()));
        attributes.extend(localdisk.failover_mode_attribute.zip(self.mode.clone()));
        let mut annotations = self.annotations.clone();
        annotations.extend(self.noted.clone().map(|node| (localdisk.selected_node_annotation, node)));
        let affinity = self.tied.as_ref().map(|(key, value)| {
            let term = json!({"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]});
            json!({"required": {"nodeSelectorTerms": [term]}})
        });
        json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name, "annotations": annotations},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": class,
                "persistentVolumeReclaimPolicy": "Retain", "nodeAffinity": affinity,
                "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": claim},
                "csi": {
                    "driver": self.driver.as_deref().unwrap_or(&localdisk.name), "volumeHandle": format!("containerstorage#{name}"),
                    "volumeAttributes": attributes,
                },
            },
        })
    }
}

impl Row {
    /// The configuration.
    pub(crate) fn settings(&self) -> Settings {
        self.settings.clone().map(|settings| serde_json::from_value(settings).unwrap()).unwrap_or_default()
    }

    /// The pod as its author writes it.
    pub(crate) fn pod(&self, namespace: &str) -> Value {
        let volumes: Vec<Value> = self.uses.iter().map(|name| volume(name)).collect();
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": namespace},
            "spec": {"containers": [{"name": "main", "image": "none"}], "volumes": volumes},
        });
        let (required, preferred) = (self.required.clone(), wishes(self.preferred.as_ref()));
        Wishes { required, preferred, gates: self.gates.clone() }.write(&mut pod);
        if let Some(change) = &self.pod {
            merge(&mut pod, change, self.keep_null);
        }
        pod
    }

    /// What it wants of its node afterwards.
    pub(crate) fn becomes(&self) -> Wishes {
        let Becomes { required, preferred, gates } = &self.becomes;
        let allowed = !self.expect.starts_with("steer");
        // Who is left alone, or only admitted, stays as they were.
        let kept = |what: &Option<Vec<Vec<String>>>, was: &Option<Vec<Vec<String>>>| {
            what.clone().or_else(|| was.clone().filter(|_| allowed))
        };
        Wishes { required: kept(required, &self.required), preferred: wishes(preferred.as_ref()), gates: gates.clone() }
    }

    /// What is decided, and why.
    pub(crate) fn expected(&self) -> (&str, &str) {
        self.expect.split_once(' ').unwrap()
    }
}

fn volume(name: &str) -> Value {
    match name.strip_prefix('~') {
        Some(name) => {
            let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
            json!({"name": name, "ephemeral": {"volumeClaimTemplate": {"spec": spec}}})
        }
        None => json!({"name": name, "persistentVolumeClaim": {"claimName": name}}),
    }
}

/// As the API server merges a patch; `keep_null` writes what is null instead of taking it away.
fn merge(into: &mut Value, change: &Value, keep_null: bool) {
    let Value::Object(change) = change else { return *into = change.clone() };
    if !into.is_object() {
        *into = json!({});
    }
    for (key, value) in change {
        if value.is_null() && !keep_null {
            into.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut into[key.as_str()], value, keep_null);
        }
    }
}
