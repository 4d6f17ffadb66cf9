//! Pods, as far as a decision reads them.

use k8s_openapi::{api::core::v1::Pod as FullPod, apimachinery::pkg::apis::meta::v1::ObjectMeta, jiff::Timestamp};
use kube::Resource;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    ObjectKey, meta,
    store::{Index, Slim},
};

/// A pod.
#[derive(Debug)]
pub struct Pod {
    /// Where it is found.
    pub key: ObjectKey,
    /// Which pod it is: a new pod of the same name has another one.
    pub uid: Box<str>,
    /// When the API server took it in.
    pub created: Timestamp,
    /// Whether somebody asked for its end.
    pub being_deleted: bool,
    /// How far it got.
    pub phase: Phase,
    /// Its generic ephemeral volumes, in the order of the pod's spec.
    pub ephemeral_volumes: Box<[EphemeralVolume]>,
}

/// How far a pod got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Waiting, running, or not known: it may still need its volumes.
    Active,
    /// All containers ended well; it will never start again.
    Succeeded,
    /// It ended and will never start again.
    Failed,
}

/// A volume whose claim is made for the pod.
#[derive(Debug)]
pub struct EphemeralVolume {
    /// The volume's name within the pod.
    pub name: Box<str>,
    /// `volumeClaimTemplate` exactly as the API server sent it, so that fields newer than our types reach the claim too.
    pub template: Box<RawValue>,
}

/// Pods by the `namespace/name` of the claims that are theirs to have.
pub const BY_EPHEMERAL_CLAIM: Index<Pod> = Index { name: "ephemeral-claim", values: ephemeral_claims };

fn ephemeral_claims(pod: &Pod) -> Vec<Box<str>> {
    pod.ephemeral_volumes.iter().map(|volume| pod.claim_key(volume).as_str().into()).collect()
}

impl Pod {
    /// Where the claim of an ephemeral volume belongs. The scheduler and the kubelet compute the same name.
    #[must_use]
    pub fn claim_key(&self, volume: &EphemeralVolume) -> ObjectKey {
        ObjectKey::new(self.key.namespace(), &format!("{}-{}", self.key.name(), volume.name))
    }
}

impl Slim for Pod {
    type Wire = Wire;
    const KIND: &'static str = "pods";

    fn from_wire(wire: Wire) -> Option<Self> {
        let Wire { metadata, spec, status } = wire;
        let ephemeral_volumes = spec.volumes.into_iter().filter_map(|volume| {
            let template = volume.ephemeral?.volume_claim_template?;
            Some(EphemeralVolume { name: volume.name.into_boxed_str(), template })
        });
        let phase = match status.phase.as_deref() {
            Some("Succeeded") => Phase::Succeeded,
            Some("Failed") => Phase::Failed,
            _ => Phase::Active,
        };
        Some(Self {
            key: ObjectKey::new(&metadata.namespace?, &metadata.name?),
            uid: metadata.uid?.into_boxed_str(),
            created: metadata.creation_timestamp.map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            being_deleted: metadata.deletion_timestamp.is_some(),
            phase,
            ephemeral_volumes: ephemeral_volumes.collect(),
        })
    }

    fn key(&self) -> &ObjectKey {
        &self.key
    }
}

/// A pod on its way from the API server.
#[derive(Debug, Clone, Deserialize, Resource)]
#[resource(inherit = FullPod)]
pub struct Wire {
    #[serde(deserialize_with = "meta::slim")]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: WireSpec,
    #[serde(default)]
    status: WireStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct WireSpec {
    #[serde(default)]
    volumes: Vec<WireVolume>,
}

#[derive(Debug, Clone, Deserialize)]
struct WireVolume {
    #[serde(default)]
    name: String,
    ephemeral: Option<WireEphemeral>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireEphemeral {
    volume_claim_template: Option<Box<RawValue>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct WireStatus {
    phase: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(json: &str) -> Pod {
        Pod::from_wire(serde_json::from_str(json).unwrap()).unwrap()
    }

    #[test]
    fn a_template_is_kept_letter_by_letter() {
        let pod = decode(
            r#"{"metadata":{"namespace":"ci","name":"build","uid":"u1","managedFields":[{"manager":"x"}]},
                "spec":{"volumes":[{"name":"tmp","emptyDir":{}},
                                   {"name":"scratch","ephemeral":{"volumeClaimTemplate":{"spec":{"future": [1, 2.50]}}}}]},
                "status":{"phase":"Pending"}}"#,
        );
        assert_eq!(pod.ephemeral_volumes.len(), 1);
        assert_eq!(pod.ephemeral_volumes[0].template.get(), r#"{"spec":{"future": [1, 2.50]}}"#);
        assert_eq!(ephemeral_claims(&pod), ["ci/build-scratch".into()]);
        assert_eq!((pod.being_deleted, pod.phase), (false, Phase::Active));
    }

    #[test]
    fn the_end_of_a_pod_is_seen() {
        let pod = decode(
            r#"{"metadata":{"namespace":"ci","name":"build","uid":"u1","deletionTimestamp":"2026-01-01T00:00:00Z"},
                "status":{"phase":"Failed"}}"#,
        );
        assert_eq!((pod.being_deleted, pod.phase), (true, Phase::Failed));
    }
}
