//! The claim that is made from a volume's template, in the format of the template.
//!
//! The spec stays what the API server sent, letter by letter and byte by byte, so nothing in it is lost or changed.

use std::collections::BTreeMap;

use cluster::{
    ObjectKey, Pod, Template,
    binary::{Meta, Owner},
    creation::NewClaim,
    pod::EphemeralVolume,
};
use platform::client::binary;
use prost::Message;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The claim of `volume`, or why its template makes none.
pub(crate) fn new(pod: &Pod, volume: &EphemeralVolume, claim: &ObjectKey) -> Result<NewClaim, String> {
    match &volume.template {
        Template::Json(template) => json(pod, template, claim).map(NewClaim::Json).map_err(|error| error.to_string()),
        Template::Binary(template) => {
            binary(pod, template, claim).map(NewClaim::Binary).map_err(|error| error.to_string())
        }
    }
}

/// What a template may say.
#[derive(Deserialize)]
struct JsonTemplate<'a> {
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
struct JsonClaim<'a> {
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
    owner_references: [JsonOwner<'a>; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JsonOwner<'a> {
    api_version: &'static str,
    kind: &'static str,
    name: &'a str,
    uid: &'a str,
    controller: bool,
    block_owner_deletion: bool,
}

fn json(pod: &Pod, template: &RawValue, claim: &ObjectKey) -> Result<Vec<u8>, serde_json::Error> {
    let JsonTemplate { metadata, spec } = serde_json::from_str(template.get())?;
    serde_json::to_vec(&JsonClaim {
        api_version: "v1",
        kind: "PersistentVolumeClaim",
        metadata: NewMeta {
            namespace: claim.namespace(),
            name: claim.name(),
            labels: metadata.labels,
            annotations: metadata.annotations,
            owner_references: [JsonOwner {
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

/// `k8s.io/api/core/v1.PersistentVolumeClaimTemplate`, and `PersistentVolumeClaim` as far as a new one has something to say: they
/// have the same fields. The spec is a message that nobody takes apart here.
#[derive(Clone, PartialEq, Message)]
struct BinaryClaim {
    #[prost(message, tag = "1")]
    metadata: Option<Meta>,
    #[prost(bytes = "vec", tag = "2")]
    spec: Vec<u8>,
}

fn binary(pod: &Pod, template: &[u8], claim: &ObjectKey) -> Result<Vec<u8>, prost::DecodeError> {
    let BinaryClaim { metadata, spec } = BinaryClaim::decode(template)?;
    let Meta { labels, annotations, .. } = metadata.unwrap_or_default();
    let owner = Owner {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: pod.key.name().to_owned(),
        uid: pod.uid.to_string(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    };
    let metadata = Meta {
        namespace: claim.namespace().to_owned(),
        name: claim.name().to_owned(),
        labels,
        annotations,
        owner_references: vec![owner],
        ..Meta::default()
    };
    Ok(binary::wrap("v1", "PersistentVolumeClaim", &BinaryClaim { metadata: Some(metadata), spec }))
}

#[cfg(test)]
mod tests {
    use cluster::pod::Phase;
    use k8s_openapi::jiff::Timestamp;

    use super::*;

    #[test]
    fn the_claim_has_the_templates_spec_to_the_letter_and_the_pod_as_its_controller() {
        let template = r#"{"metadata":{"labels":{"a":"b"},"creationTimestamp":null},"spec":{"newer": 1.50, "x":[ ]}}"#;
        let template = Template::Json(RawValue::from_string(template.to_owned()).unwrap());
        let NewClaim::Json(body) = made_from(template) else { panic!("in another format") };
        assert_eq!(
            String::from_utf8(body).unwrap(),
            r#"{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"namespace":"ci","name":"build-scratch","labels":{"a":"b"},"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"build","uid":"uid-1","controller":true,"blockOwnerDeletion":true}]},"spec":{"newer": 1.50, "x":[ ]}}"#
        );
    }

    #[test]
    fn in_the_binary_format_no_byte_of_the_spec_is_lost_either() {
        // A field 2000 that nobody has heard of, between two that everybody knows.
        let spec = b"\x0a\x0dReadWriteOnce\x82\x7d\x05newer\x2a\x04fast".to_vec();
        let labels = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
        let metadata = Meta { labels: labels.clone(), name: "not its to say".to_owned(), ..Meta::default() };
        let template = BinaryClaim { metadata: Some(metadata), spec: spec.clone() }.encode_to_vec();
        let NewClaim::Binary(body) = made_from(Template::Binary(template.into())) else { panic!("in another format") };
        let claim = BinaryClaim::decode(binary::open(body.into()).unwrap()).unwrap();
        assert_eq!(claim.spec, spec);
        let metadata = claim.metadata.unwrap();
        assert_eq!((metadata.namespace.as_str(), metadata.name.as_str()), ("ci", "build-scratch"));
        assert_eq!(metadata.labels, labels);
        let [owner] = metadata.owner_references.as_slice() else { panic!("{:?}", metadata.owner_references) };
        assert_eq!((owner.kind.as_str(), owner.name.as_str(), owner.uid.as_str()), ("Pod", "build", "uid-1"));
        assert_eq!((owner.controller, owner.block_owner_deletion), (Some(true), Some(true)));
    }

    #[test]
    fn a_template_that_is_none_makes_no_claim() {
        let volume = EphemeralVolume { name: "scratch".into(), template: Template::Binary([0xff].into()) };
        assert!(new(&pod(), &volume, &ObjectKey::new("ci", "build-scratch")).is_err());
    }

    fn made_from(template: Template) -> NewClaim {
        let (pod, volume) = (pod(), EphemeralVolume { name: "scratch".into(), template });
        new(&pod, &volume, &pod.claim_key(&volume)).unwrap()
    }

    fn pod() -> Pod {
        Pod {
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
        }
    }
}
