//! The claim that is made from a pod's template.

use cluster::{Pod, creation::NewClaim};
use serde_json::{Map, Value, json};

use crate::{request::ORIGINAL, template::Template};

/// The label by which the releaser finds what the provisioner made.
pub(crate) const MANAGED_BY: &str = "managed-by";

/// The claim that is made from a template.
pub(crate) fn new(pod: &Pod, name: &str, template: &Template, controller_id: &str, block_deletion: bool) -> NewClaim {
    let mut metadata = template.metadata.clone();
    metadata.insert("name".to_owned(), name.into());
    metadata.remove("generateName");
    let labels = metadata.entry("labels").or_insert_with(|| Value::Object(Map::new()));
    if let Some(labels) = labels.as_object_mut() {
        labels.insert(format!("{ORIGINAL}/{MANAGED_BY}"), controller_id.into());
    }
    let mut owner = json!({
        "apiVersion": "v1", "kind": "Pod", "name": pod.key.name(), "uid": pod.uid, "controller": true,
    });
    if block_deletion {
        owner["blockOwnerDeletion"] = true.into();
    }
    metadata.insert("ownerReferences".to_owned(), json!([owner]));
    let claim =
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": template.spec});
    NewClaim::Json(claim.to_string().into_bytes())
}
