//! The claim that is made from a volume's template.

use std::collections::BTreeMap;

use cluster::{ObjectKey, Pod, pod::EphemeralVolume};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// What a template may say. The spec stays the text that the API server sent, so nothing in it is lost or changed.
#[derive(Deserialize)]
struct Template<'a> {
    #[serde(default)]
    metadata: TemplateMeta,
    #[serde(borrow)]
    spec: &'a RawValue,
}

// The API server accepts nothing but these two here.
#[derive(Default, Deserialize)]
struct TemplateMeta {
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NewClaim<'a> {
    api_version: &'static str,
    kind: &'static str,
    metadata: NewMeta<'a>,
    spec: &'a RawValue,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NewMeta<'a> {
    namespace: &'a str,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    labels: Option<BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    annotations: Option<BTreeMap<String, String>>,
    owner_references: [Owner<'a>; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Owner<'a> {
    api_version: &'static str,
    kind: &'static str,
    name: &'a str,
    uid: &'a str,
    controller: bool,
    block_owner_deletion: bool,
}

/// The body of the request that creates the claim of `volume`.
pub(crate) fn body(pod: &Pod, volume: &EphemeralVolume, claim: &ObjectKey) -> Result<Vec<u8>, serde_json::Error> {
    let Template { metadata, spec } = serde_json::from_str(volume.template.get())?;
    serde_json::to_vec(&NewClaim {
        api_version: "v1",
        kind: "PersistentVolumeClaim",
        metadata: NewMeta {
            namespace: claim.namespace(),
            name: claim.name(),
            labels: metadata.labels,
            annotations: metadata.annotations,
            owner_references: [Owner {
                api_version: "v1",
                kind: "Pod",
                name: pod.key.name(),
                uid: &pod.uid,
                controller: true,
                block_owner_deletion: true,
            }],
        },
        spec,
    })
}

#[cfg(test)]
mod tests {
    use cluster::pod::Phase;
    use k8s_openapi::jiff::Timestamp;

    use super::*;

    #[test]
    fn the_claim_has_the_templates_spec_to_the_letter_and_the_pod_as_its_controller() {
        let template = r#"{"metadata":{"labels":{"a":"b"},"creationTimestamp":null},"spec":{"newer": 1.50, "x":[ ]}}"#;
        let volume =
            EphemeralVolume { name: "scratch".into(), template: RawValue::from_string(template.to_owned()).unwrap() };
        let pod = Pod {
            key: ObjectKey::new("ci", "build"),
            uid: "uid-1".into(),
            created: Timestamp::UNIX_EPOCH,
            being_deleted: false,
            phase: Phase::Active,
            running: false,
            ephemeral_volumes: Box::default(),
            used_claims: Box::default(),
            node: None,
            waits_for_home: false,
            claim_requests: None,
        };
        let body = String::from_utf8(body(&pod, &volume, &pod.claim_key(&volume)).unwrap()).unwrap();
        assert_eq!(
            body,
            r#"{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"namespace":"ci","name":"build-scratch","labels":{"a":"b"},"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"build","uid":"uid-1","controller":true,"blockOwnerDeletion":true}]},"spec":{"newer": 1.50, "x":[ ]}}"#
        );
    }
}
