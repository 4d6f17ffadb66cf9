//! The claim that is made from a volume's template.

use std::collections::BTreeMap;

use cluster::{ObjectKey, Pod, pod::EphemeralVolume};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{
    Client, Resource,
    api::PostParams,
    core::{Request, Status},
};
use platform::{
    client::{self, RequestError},
    trouble::causes,
};
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

/// Why a claim could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CreateError {
    /// The API server would not have let such a pod in; it is checked all the same.
    #[error("the volume's template cannot be read: {0}")]
    Template(serde_json::Error),
    /// The API server said no; these are its words.
    #[error("{}", .0.message)]
    Refused(Box<Status>),
    /// This replica lost the lease while it was at it.
    #[error("this replica does not lead any more")]
    NotLeader,
    /// Nobody knows whether the claim was made.
    #[error("{0}")]
    Unanswered(String),
}

impl CreateError {
    /// Whether the claim did not fit into a quota, or a quota could not tell: what changes in the quota may change the answer.
    pub(crate) fn is_about_quota(&self) -> bool {
        // There is no code for it. These are the beginnings of all that quota admission ever says.
        const WORDS: [&str; 4] =
            ["exceeded quota:", "failed quota:", "status unknown for quota:", "insufficient quota to"];
        matches!(self, Self::Refused(status)
            if status.code == 403 && WORDS.iter().any(|words| status.message.contains(words)))
    }
}

impl From<kube::Error> for CreateError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::Refused(status),
            error if RequestError::is_not_leader(&error) => Self::NotLeader,
            error => Self::Unanswered(causes(&error)),
        }
    }
}

/// Asks the API server for the claim of `volume`. That its name is ours to compute is the precondition: a second request for
/// the same claim is refused, whoever sends it.
pub(crate) async fn create(
    client: &Client,
    pod: &Pod,
    volume: &EphemeralVolume,
    claim: &ObjectKey,
) -> Result<(), CreateError> {
    let body = body(pod, volume, claim).map_err(CreateError::Template)?;
    let path = PersistentVolumeClaim::url_path(&(), Some(claim.namespace()));
    let request = Request::new(path).create(&PostParams::default(), body);
    let request = request.map_err(|error| CreateError::Unanswered(error.to_string()))?;
    Ok(client::send_unread(client, request).await?)
}

/// The body of the request that creates the claim of `volume`.
fn body(pod: &Pod, volume: &EphemeralVolume, claim: &ObjectKey) -> Result<Vec<u8>, serde_json::Error> {
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
            ephemeral_volumes: Box::default(),
            used_claims: Box::default(),
            last_node: None,
        };
        let body = String::from_utf8(body(&pod, &volume, &pod.claim_key(&volume)).unwrap()).unwrap();
        assert_eq!(
            body,
            r#"{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"namespace":"ci","name":"build-scratch","labels":{"a":"b"},"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"build","uid":"uid-1","controller":true,"blockOwnerDeletion":true}]},"spec":{"newer": 1.50, "x":[ ]}}"#
        );
    }
}
