//! What is written for a scrub: the scrub claim, and the notes on the volume.

use cluster::{ObjectKey, Volume};
use k8s_openapi::{api::core::v1::PersistentVolumeClaim, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::Resource;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Progress, QUARANTINED, SCRUB, decision::ClaimSeen};
use crate::write;

/// On a scrub claim: its volume was given to it.
const HANDED_OVER: &str = "claimkeeper.dev/scrub-handed-over";
/// By which Kubernetes notes on a claim that it has its volume.
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";

/// The claim that only this volume satisfies, and that only this volume is given to.
pub(super) fn claim(volume: &Volume, key: &ObjectKey) -> Value {
    let offer = &volume.offer;
    let size = offer.capacity.map_or(1, |capacity| capacity.whole().max(1));
    let mut claim = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"namespace": key.namespace(), "name": key.name(), "labels": {SCRUB: volume.uid}},
        "spec": {
            "storageClassName": volume.class,
            "volumeName": volume.key.name(),
            "volumeMode": offer.mode,
            "accessModes": offer.access_modes,
            "resources": {"requests": {"storage": size.to_string()}},
        },
    });
    if !offer.attributes_class.is_empty() {
        claim["spec"]["volumeAttributesClassName"] = (*offer.attributes_class).into();
    }
    claim
}

/// Gives the volume to the scrub claim. Kubernetes binds by itself what refers to each other; it must not take this for its
/// own choice, which it may undo.
pub(super) fn hand_over(volume: &Volume, claim: &ObjectKey, uid: &str, template: &str) -> Value {
    let mut change = write::give(volume, claim, uid);
    let progress = Progress { template: template.into(), claim: uid.into(), done: false, failed_job: None };
    change["metadata"]["annotations"][SCRUB] = json!(progress).to_string().into();
    change
}

/// A note on the scrub claim of this uid, by which Kubernetes sees it once more.
pub(super) fn remind(uid: &str) -> Value {
    json!({"metadata": {"uid": uid, "annotations": {HANDED_OVER: "true"}}})
}

/// Notes that the volume is clean.
pub(super) fn finish(volume: &Volume, progress: Progress) -> Value {
    note(volume, &Progress { done: true, ..progress })
}

/// Notes that the volume is nobody's until an administrator has looked at it.
pub(super) fn quarantine(volume: &Volume, progress: Progress, job: &str, why: &str) -> Value {
    let mut change = note(volume, &Progress { failed_job: Some(job.into()), ..progress });
    change["metadata"]["annotations"][QUARANTINED] = why.into();
    change
}

fn note(volume: &Volume, progress: &Progress) -> Value {
    write::merged(volume, json!({"metadata": {"annotations": {SCRUB: json!(progress).to_string()}}}))
}

/// A claim on its way from the API server.
#[derive(Debug, Clone, Deserialize, Resource)]
#[resource(inherit = PersistentVolumeClaim)]
pub(super) struct ClaimWire {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: ClaimSpec,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClaimSpec {
    volume_name: Option<String>,
}

/// A scrub claim, whoever's volume it is for.
#[derive(Debug)]
pub(super) struct ScrubClaim {
    pub(super) key: ObjectKey,
    pub(super) uid: Box<str>,
    pub(super) leaving: bool,
    /// Whether it does not have its volume yet, and nobody has reminded Kubernetes of it.
    waiting: bool,
    /// The name and uid of the volume that it was made for.
    pub(super) volume: (ObjectKey, Box<str>),
}

impl ScrubClaim {
    /// None if it is no scrub claim.
    pub(super) fn from_wire(ClaimWire { metadata, spec }: ClaimWire) -> Option<Self> {
        let uid = metadata.labels?.remove(SCRUB)?;
        let annotations = metadata.annotations.unwrap_or_default();
        Some(Self {
            waiting: ![HANDED_OVER, BIND_COMPLETED].into_iter().any(|key| annotations.contains_key(key)),
            key: ObjectKey::new(&metadata.namespace?, &metadata.name?),
            uid: metadata.uid?.into(),
            leaving: metadata.deletion_timestamp.is_some(),
            volume: (ObjectKey::new("", &spec.volume_name?), uid.into()),
        })
    }

    pub(super) fn is_for(&self, volume: &Volume) -> bool {
        self.volume.0 == volume.key && self.volume.1 == volume.uid
    }

    /// What a claim that stands under the name of a volume's scrub claim is to it.
    pub(super) fn seen(wire: Option<ClaimWire>, volume: &Volume) -> ClaimSeen {
        let Some(wire) = wire else { return ClaimSeen::Gone };
        match Self::from_wire(wire).filter(|claim| claim.is_for(volume)) {
            None => ClaimSeen::Foreign,
            Some(claim) if claim.leaving => ClaimSeen::Leaving,
            Some(claim) if claim.waiting => ClaimSeen::Waiting(claim.uid),
            Some(claim) => ClaimSeen::There(claim.uid),
        }
    }
}
