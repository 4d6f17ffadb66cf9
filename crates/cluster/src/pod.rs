//! Pods, as far as a decision reads them.

mod binary;

use k8s_openapi::{
    api::core::v1::{ObjectReference, Pod as FullPod},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
    jiff::Timestamp,
};
use kube::Resource;
use serde::Deserialize;

use crate::{
    ObjectKey, Template, meta,
    store::{FromBinary, Index, Slim},
};

/// The scheduling gate of pods whose home node is away and must not be left.
pub const HOME_NODE_GATE: &str = "claimkeeper.dev/home-node";

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
    /// Whether its containers run, so that its volumes are mounted.
    pub running: bool,
    /// Its generic ephemeral volumes, in the order of the pod's spec.
    pub ephemeral_volumes: Box<[EphemeralVolume]>,
    /// The names of the claims that it uses without owning them: those that its spec calls by name.
    pub used_claims: Box<[Box<str>]>,
    /// Where it runs, or is to run, or ran; none if nobody has found it a place yet.
    pub node: Option<Box<str>>,
    /// Whether it waits behind [`HOME_NODE_GATE`].
    pub waits_for_home: bool,
    /// What it asks for by annotation; most pods ask for nothing.
    pub claim_requests: Option<Box<ClaimRequests>>,
}

/// What matters of a pod that asks for claims by annotation.
#[derive(Debug, PartialEq, Eq)]
pub struct ClaimRequests {
    /// The annotations that may ask for claims, as they are.
    pub annotations: Box<[(Box<str>, Box<str>)]>,
    /// All volumes of the pod in the order of its spec, each with the claim that it uses, if it does.
    pub volumes: Vec<(Box<str>, Option<Box<str>>)>,
    /// As whom the pod runs.
    pub service_account: Box<str>,
    /// Whether the pod has not started yet.
    pub pending: bool,
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
    /// What the claim is made from.
    pub template: Template,
}

/// Pods by the `namespace/name` of the claims that are theirs to have.
pub const BY_EPHEMERAL_CLAIM: Index<Pod> = Index { name: "ephemeral-claim", values: ephemeral_claims };

fn ephemeral_claims(pod: &Pod) -> Vec<Box<str>> {
    pod.ephemeral_volumes.iter().map(|volume| pod.claim_key(volume).as_str().into()).collect()
}

/// Pods by the `namespace/name` of the claims that they use without owning them.
pub const BY_USED_CLAIM: Index<Pod> = Index { name: "used-claim", values: used_claims };

fn used_claims(pod: &Pod) -> Vec<Box<str>> {
    pod.used_claims.iter().map(|claim| ObjectKey::new(pod.key.namespace(), claim).as_str().into()).collect()
}

impl Pod {
    /// Whether it will never start again.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.phase != Phase::Active
    }

    /// The pod as what an event is about.
    #[must_use]
    pub fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Pod".into()),
            namespace: Some(self.key.namespace().to_owned()),
            name: Some(self.key.name().to_owned()),
            uid: Some(self.uid.to_string()),
            ..ObjectReference::default()
        }
    }

    /// Where the claim of an ephemeral volume belongs. The scheduler and the kubelet compute the same name.
    #[must_use]
    pub fn claim_key(&self, volume: &EphemeralVolume) -> ObjectKey {
        ObjectKey::new(self.key.namespace(), &format!("{}-{}", self.key.name(), volume.name))
    }
}

impl Slim for Pod {
    type Wire = Wire;
    const KIND: &'static str = "pods";
    const FROM_BINARY: Option<FromBinary<Wire>> = Some(binary::read);

    fn from_wire(wire: Wire) -> Option<Self> {
        let Wire { mut metadata, spec, status } = wire;
        let claim_requests = claim_requests(&mut metadata, &spec, &status);
        let (mut ephemeral_volumes, mut used_claims) = (Vec::new(), Vec::new());
        for volume in spec.volumes {
            if let Some(template) = volume.ephemeral.and_then(|ephemeral| ephemeral.volume_claim_template) {
                ephemeral_volumes.push(EphemeralVolume { name: volume.name.into_boxed_str(), template });
            }
            if let Some(used) = volume.persistent_volume_claim {
                used_claims.push(used.claim_name.into_boxed_str());
            }
        }
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
            running: status.phase.as_deref() == Some("Running"),
            ephemeral_volumes: ephemeral_volumes.into(),
            used_claims: used_claims.into(),
            claim_requests,
            node: spec.node_name.filter(|node| !node.is_empty()).map(String::into_boxed_str),
            waits_for_home: spec.scheduling_gates.iter().any(|gate| gate.name == HOME_NODE_GATE),
        })
    }

    fn key(&self) -> &ObjectKey {
        &self.key
    }
}

fn claim_requests(metadata: &mut ObjectMeta, spec: &WireSpec, status: &WireStatus) -> Option<Box<ClaimRequests>> {
    let annotations = metadata.annotations.take()?.into_iter().filter(|(key, _)| may_ask_for_claim(key));
    let annotations: Box<[_]> = annotations.map(|(key, value)| (key.into(), value.into())).collect();
    let volumes = spec.volumes.iter().map(|volume| {
        let claim = volume.persistent_volume_claim.as_ref().map(|used| used.claim_name.as_str().into());
        (volume.name.as_str().into(), claim)
    });
    (!annotations.is_empty()).then(|| {
        Box::new(ClaimRequests {
            annotations,
            volumes: volumes.collect(),
            service_account: spec.service_account_name.as_deref().unwrap_or("default").into(),
            pending: status.phase.as_deref().is_none_or(|phase| phase == "Pending"),
        })
    })
}

fn may_ask_for_claim(annotation: &str) -> bool {
    [".enabled", ".pvc", ".claim"].iter().any(|suffix| annotation.ends_with(suffix))
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
#[serde(rename_all = "camelCase")]
struct WireSpec {
    #[serde(default)]
    volumes: Vec<WireVolume>,
    node_name: Option<String>,
    service_account_name: Option<String>,
    #[serde(default)]
    scheduling_gates: Vec<WireGate>,
}

#[derive(Debug, Clone, Deserialize)]
struct WireGate {
    #[serde(default)]
    name: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireVolume {
    #[serde(default)]
    name: String,
    ephemeral: Option<WireEphemeral>,
    persistent_volume_claim: Option<WireUsedClaim>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireUsedClaim {
    claim_name: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireEphemeral {
    volume_claim_template: Option<Template>,
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
        let Template::Json(template) = &pod.ephemeral_volumes[0].template else { panic!("in another format") };
        assert_eq!(template.get(), r#"{"spec":{"future": [1, 2.50]}}"#);
        assert_eq!(ephemeral_claims(&pod), ["ci/build-scratch".into()]);
        assert_eq!((pod.being_deleted, pod.phase, pod.running), (false, Phase::Active, false));
    }

    #[test]
    fn the_end_of_a_pod_is_seen() {
        let pod = decode(
            r#"{"metadata":{"namespace":"ci","name":"build","uid":"u1","deletionTimestamp":"2026-01-01T00:00:00Z"},
                "status":{"phase":"Failed"}}"#,
        );
        assert_eq!((pod.being_deleted, pod.phase), (true, Phase::Failed));
    }

    #[test]
    fn claims_that_are_called_by_name_are_known_and_so_is_the_node() {
        let pod = |node: &str| {
            decode(&format!(
                r#"{{"metadata":{{"namespace":"ci","name":"build","uid":"u1"}},
                     "spec":{{{node}"volumes":[{{"name":"a","persistentVolumeClaim":{{"claimName":"data"}}}}]}},
                     "status":{{"phase":"Running"}}}}"#
            ))
        };
        assert_eq!(used_claims(&pod("")), ["ci/data".into()]);
        assert_eq!(pod("").node, None);
        assert!(pod("").running);
        assert_eq!(pod(r#""nodeName":"node-1","#).node.as_deref(), Some("node-1"));
    }

    #[test]
    fn only_our_own_gate_keeps_a_pod_waiting_for_its_home() {
        for (gates, waits) in
            [(r#"[{"name":"example.dev/other"},{"name":"claimkeeper.dev/home-node"}]"#, true), ("[]", false)]
        {
            let pod = decode(&format!(
                r#"{{"metadata":{{"namespace":"ci","name":"build","uid":"u1"}},"spec":{{"schedulingGates":{gates}}}}}"#
            ));
            assert_eq!(pod.waits_for_home, waits, "{gates}");
        }
    }

    #[test]
    fn only_a_pod_that_may_ask_for_claims_carries_what_that_takes() {
        let pod = |annotations: &str| {
            decode(&format!(
                r#"{{"metadata":{{"namespace":"ci","name":"build","uid":"u1","annotations":{annotations}}},
                    "spec":{{"serviceAccountName":"builder","volumes":[{{"name":"tmp","emptyDir":{{}}}},
                        {{"name":"cache","persistentVolumeClaim":{{"claimName":"cache-1"}}}}]}},
                    "status":{{"phase":"Pending"}}}}"#
            ))
        };
        let asks = pod(r#"{"claimkeeper.dev/cache.claim":"x","other":"y","claimkeeper.dev/note":"z"}"#).claim_requests;
        assert_eq!(
            asks.as_deref(),
            Some(&ClaimRequests {
                annotations: [("claimkeeper.dev/cache.claim".into(), "x".into())].into(),
                volumes: [("tmp".into(), None), ("cache".into(), Some("cache-1".into()))].into(),
                service_account: "builder".into(),
                pending: true,
            })
        );
        for annotations in [r#"{"other.dev/cache.claim":"x"}"#, "{}", "null", r#"{"claimkeeper.dev/note":"z"}"#] {
            assert_eq!(pod(annotations).claim_requests, None, "{annotations}");
        }
    }
}
