//! The creation of claims, a third of each kind: under the rule, the same with the risk accepted, and of another driver's class. They
//! are as large as those of a claim applied by kubectl.

use anyhow::Result;
use serde_json::{Value, json};

use super::{Asked, Review, Webhook};
use crate::bench::local::{FOREIGN, LOCAL, NAMESPACE};

const ACCEPT: &str = "localdisk.csi.acstor.io/accept-ephemeral-storage";

pub(super) fn review(number: usize) -> Result<Review> {
    let (class, accepted) = match number % 3 {
        0 => (LOCAL, false),
        1 => (LOCAL, true),
        _ => (FOREIGN, false),
    };
    let user = json!({
        "username": "jane@example.dev",
        "uid": "5e2a0f6b-7d57-4c59-9b55-4d8f0e4c5a11",
        "groups": ["developers", "system:authenticated"],
        "extra": {"authentication.kubernetes.io/credential-id": ["X509SHA256=0f1e2d3c4b5a69788796a5b4c3d2e1f0"]},
    });
    let options = json!({
        "kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1",
        "fieldManager": "kubectl-client-side-apply", "fieldValidation": "Strict",
    });
    let object = claim(&format!("scratch-{number}"), class, accepted);
    let (kind, resource) = ("PersistentVolumeClaim", "persistentvolumeclaims");
    let asked = Asked { webhook: Webhook::Claims, number, kind, resource, user, options, object };
    asked.review(class != LOCAL || accepted, None)
}

/// A claim as the API server has it when it asks, managedFields included.
pub(crate) fn claim(name: &str, class: &str, accepted: bool) -> Value {
    let mut annotations = json!({"example.dev/team": "search", "example.dev/cost-center": "4711"});
    if accepted {
        annotations[ACCEPT] = "true".into();
    }
    let labels = json!({"app.kubernetes.io/name": "index", "app.kubernetes.io/instance": name});
    let spec = json!({
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "10Gi"}},
        "storageClassName": class,
        "volumeMode": "Filesystem",
    });
    let applied = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"annotations": annotations, "labels": labels, "name": name, "namespace": NAMESPACE}, "spec": spec,
    });
    annotations["kubectl.kubernetes.io/last-applied-configuration"] = format!("{applied}\n").into();
    json!({
        "kind": "PersistentVolumeClaim",
        "apiVersion": "v1",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": "b5a3c8f0-3c1e-4d57-8a53-2f6f1b9a7c44",
            "creationTimestamp": "2026-11-15T10:00:00Z",
            "labels": labels,
            "annotations": annotations,
            "managedFields": [{
                "manager": "kubectl-client-side-apply",
                "operation": "Update",
                "apiVersion": "v1",
                "time": "2026-11-15T10:00:00Z",
                "fieldsType": "FieldsV1",
                "fieldsV1": {
                    "f:metadata": {
                        "f:annotations": {
                            ".": {}, "f:example.dev/cost-center": {}, "f:example.dev/team": {},
                            "f:kubectl.kubernetes.io/last-applied-configuration": {},
                        },
                        "f:labels": {".": {}, "f:app.kubernetes.io/instance": {}, "f:app.kubernetes.io/name": {}},
                    },
                    "f:spec": {
                        "f:accessModes": {}, "f:resources": {"f:requests": {".": {}, "f:storage": {}}},
                        "f:storageClassName": {}, "f:volumeMode": {},
                    },
                },
            }],
        },
        "spec": spec,
        "status": {"phase": "Pending"},
    })
}

#[cfg(test)]
mod tests {
    use super::{super::COUNT, *};

    #[test]
    fn a_third_is_denied() {
        let denied = (0..COUNT).filter(|number| !review(*number).unwrap().allowed);
        assert_eq!(denied.count(), COUNT / 3);
    }
}
