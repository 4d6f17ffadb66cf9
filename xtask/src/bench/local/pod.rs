//! Pods of a `StatefulSet`, as the API server has them when it asks webhooks.

use serde_json::{Value, json};

use super::{Bound, Kind, NAMESPACE, uid};

pub(crate) const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// The pod of a claim, with what API servers and their own admission fill in. Authors of those that must not leave their volume
/// also want to say in which zones they run.
pub(crate) fn pod(bound: Bound) -> Value {
    let name = bound.pod();
    let set = name.trim_end_matches(|digit: char| digit.is_ascii_digit()).trim_end_matches('-');
    json!({
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": metadata(bound, &name, set),
        "spec": spec(bound, &name, set),
        "status": {},
    })
}

fn metadata(bound: Bound, name: &str, set: &str) -> Value {
    let created = "2026-11-15T10:00:00Z";
    let owner = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "name": set, "uid": uid(5, 1),
        "controller": true, "blockOwnerDeletion": true,
    });
    json!({
        "name": name,
        "generateName": format!("{set}-"),
        "namespace": NAMESPACE,
        "uid": uid(6, bound.number),
        "creationTimestamp": created,
        "labels": {
            "app.kubernetes.io/name": set,
            "app.kubernetes.io/instance": "search",
            "apps.kubernetes.io/pod-index": bound.number.to_string(),
            "controller-revision-hash": format!("{set}-6d5f9c7b84"),
            "statefulset.kubernetes.io/pod-name": name,
        },
        "annotations": {
            "checksum/config": format!("{:064x}", 42),
            "prometheus.io/port": "9114",
            "prometheus.io/scrape": "true",
        },
        "ownerReferences": [owner],
        "managedFields": [{
            "manager": "kube-controller-manager", "operation": "Update", "apiVersion": "v1", "time": created,
            "fieldsType": "FieldsV1", "fieldsV1": fields(set),
        }],
    })
}

fn spec(bound: Bound, name: &str, set: &str) -> Value {
    let tolerations = ["not-ready", "unreachable"].map(|taint| {
        json!({
            "key": format!("node.kubernetes.io/{taint}"), "operator": "Exists", "effect": "NoExecute",
            "tolerationSeconds": 300,
        })
    });
    json!({
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": bound.name()}},
            {"name": "settings", "configMap": {"name": "search-settings", "defaultMode": 420}},
            {"name": "kube-api-access-x7k2p", "projected": {"defaultMode": 420, "sources": [
                {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                {"downwardAPI": {"items": [
                    {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}},
                ]}},
            ]}},
        ],
        "containers": [container(0, set), container(1, "exporter")],
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 120,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": "default",
        "serviceAccount": "default",
        "hostname": name,
        "subdomain": set,
        "securityContext": {"runAsUser": 1000, "fsGroup": 1000},
        "affinity": affinity(bound.kind, set),
        "schedulerName": "default-scheduler",
        "tolerations": tolerations,
        "priority": 0,
        "enableServiceLinks": true,
        "preemptionPolicy": "PreemptLowerPriority",
    })
}

fn container(number: usize, name: &str) -> Value {
    let env: Vec<Value> = (0..10)
        .map(|n| json!({"name": format!("SETTING_{n}"), "value": format!("value-{n}-of-a-realistic-length")}))
        .collect();
    let probe = |path: &str, every: u8| {
        json!({
            "httpGet": {"path": path, "port": "http", "scheme": "HTTP"},
            "timeoutSeconds": 1, "periodSeconds": every, "successThreshold": 1, "failureThreshold": 3,
        })
    };
    json!({
        "name": name,
        "image": format!("registry.example/search/{name}@sha256:{:064x}", number + 1),
        "ports": [{"name": "http", "containerPort": 9200 + number, "protocol": "TCP"}],
        "env": env,
        "resources": {"requests": {"cpu": "500m", "memory": "2Gi"}, "limits": {"memory": "2Gi"}},
        "volumeMounts": [
            {"name": "data", "mountPath": "/var/lib/data"},
            {"name": "settings", "mountPath": "/etc/settings"},
            {"name": "kube-api-access-x7k2p", "readOnly": true, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"},
        ],
        "livenessProbe": probe("/healthz", 10),
        "readinessProbe": probe("/readyz", 5),
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
        "securityContext": {"readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false},
    })
}

fn affinity(kind: Kind, set: &str) -> Value {
    let apart = json!({
        "weight": 50,
        "podAffinityTerm": {
            "labelSelector": {"matchLabels": {"app.kubernetes.io/name": set}},
            "topologyKey": "kubernetes.io/hostname",
        },
    });
    let mut affinity = json!({"podAntiAffinity": {PREFERRED: [apart]}});
    if kind == Kind::Durability {
        let term = |zone: &str| {
            json!({"matchExpressions": [
                {"key": "topology.kubernetes.io/zone", "operator": "In", "values": [zone]},
                {"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64", "arm64"]},
            ]})
        };
        affinity["nodeAffinity"] = json!({REQUIRED: {"nodeSelectorTerms": [term("north-0"), term("north-1")]}});
    }
    affinity
}

/// What the `StatefulSet`'s controller manages.
fn fields(set: &str) -> Value {
    let setting = |n: usize| (format!("k:{{\"name\":\"SETTING_{n}\"}}"), json!({".": {}, "f:name": {}, "f:value": {}}));
    let env: serde_json::Map<String, Value> = (0..10).map(setting).collect();
    let probe = json!({
        ".": {}, "f:failureThreshold": {}, "f:httpGet": {".": {}, "f:path": {}, "f:port": {}, "f:scheme": {}},
        "f:periodSeconds": {}, "f:successThreshold": {}, "f:timeoutSeconds": {},
    });
    let container = json!({
        ".": {}, "f:env": env, "f:image": {}, "f:imagePullPolicy": {}, "f:livenessProbe": probe, "f:name": {},
        "f:readinessProbe": probe, "f:resources": {".": {}, "f:limits": {".": {}, "f:memory": {}}, "f:requests": {
            ".": {}, "f:cpu": {}, "f:memory": {},
        }},
        "f:securityContext": {".": {}, "f:allowPrivilegeEscalation": {}, "f:readOnlyRootFilesystem": {}},
        "f:terminationMessagePath": {}, "f:terminationMessagePolicy": {},
    });
    json!({
        "f:metadata": {
            "f:annotations": {".": {}, "f:checksum/config": {}, "f:prometheus.io/port": {}, "f:prometheus.io/scrape": {}},
            "f:generateName": {},
            "f:labels": {
                ".": {}, "f:app.kubernetes.io/instance": {}, "f:app.kubernetes.io/name": {},
                "f:apps.kubernetes.io/pod-index": {}, "f:controller-revision-hash": {},
                "f:statefulset.kubernetes.io/pod-name": {},
            },
            "f:ownerReferences": {".": {}, format!("k:{{\"uid\":\"{}\"}}", uid(5, 1)): {}},
        },
        "f:spec": {
            "f:affinity": {".": {}, "f:podAntiAffinity": {}},
            "f:containers": {
                format!("k:{{\"name\":\"{set}\"}}"): container,
                "k:{\"name\":\"exporter\"}": container,
            },
            "f:dnsPolicy": {}, "f:enableServiceLinks": {}, "f:hostname": {}, "f:restartPolicy": {}, "f:schedulerName": {},
            "f:securityContext": {".": {}, "f:fsGroup": {}, "f:runAsUser": {}}, "f:subdomain": {},
            "f:terminationGracePeriodSeconds": {},
            "f:volumes": {".": {}, "k:{\"name\":\"data\"}": {".": {}, "f:name": {}, "f:persistentVolumeClaim": {
                ".": {}, "f:claimName": {},
            }}},
        },
    })
}
