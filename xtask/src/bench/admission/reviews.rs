//! What is asked: the creation of claims, a third of each kind.
//!
//! The reviews are as large as those that the API server sends for a claim applied by kubectl, and are written before the first
//! one is sent.

use anyhow::Result;
use serde_json::{Value, json};

/// The class under the rule, of the driver that is so by default.
pub(crate) const LOCAL: &str = "local";
/// The class of another driver.
pub(crate) const FOREIGN: &str = "replicated";

/// The driver under the rule.
pub(crate) const DRIVER: &str = "localdisk.csi.acstor.io";

const ACCEPT: &str = "localdisk.csi.acstor.io/accept-ephemeral-storage";

/// Where the claims are to be made. Nobody looks whether it exists.
pub(crate) const NAMESPACE: &str = "bench-0";

/// Enough that no two of them follow each other on a connection.
const COUNT: usize = 300;

/// One question and the verdict that is right.
pub(crate) struct Review {
    pub uid: String,
    pub body: Vec<u8>,
    pub allowed: bool,
}

/// All of them, in the order in which they are asked.
pub(crate) fn all() -> Result<Vec<Review>> {
    (0..COUNT).map(review).collect()
}

fn review(number: usize) -> Result<Review> {
    let (class, accepted) = match number % 3 {
        0 => (LOCAL, false),
        1 => (LOCAL, true),
        _ => (FOREIGN, false),
    };
    let uid = format!("6f2c1d8e-0000-4000-8000-{number:012}");
    let name = format!("scratch-{number}");
    let kind = json!({"group": "", "version": "v1", "kind": "PersistentVolumeClaim"});
    let resource = json!({"group": "", "version": "v1", "resource": "persistentvolumeclaims"});
    let body = serde_json::to_vec(&json!({
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": uid,
            "kind": kind,
            "resource": resource,
            "requestKind": kind,
            "requestResource": resource,
            "name": name,
            "namespace": NAMESPACE,
            "operation": "CREATE",
            "userInfo": {
                "username": "jane@example.dev",
                "uid": "5e2a0f6b-7d57-4c59-9b55-4d8f0e4c5a11",
                "groups": ["developers", "system:authenticated"],
                "extra": {"authentication.kubernetes.io/credential-id": ["X509SHA256=0f1e2d3c4b5a69788796a5b4c3d2e1f0"]},
            },
            "object": claim(&name, class, accepted),
            "oldObject": null,
            "dryRun": false,
            "options": {
                "kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1",
                "fieldManager": "kubectl-client-side-apply", "fieldValidation": "Strict",
            },
        },
    }))?;
    Ok(Review { uid, body, allowed: class != LOCAL || accepted })
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
    use super::*;

    #[test]
    fn a_third_is_denied_and_every_review_says_its_own_name() {
        let reviews = all().unwrap();
        assert_eq!(reviews.iter().filter(|review| !review.allowed).count(), COUNT / 3);
        for review in &reviews {
            let body: Value = serde_json::from_slice(&review.body).unwrap();
            assert_eq!(body["request"]["uid"], review.uid.as_str());
        }
    }
}
