//! Claims that we make again ourselves.
//!
//! Between the end of the old claim and the making of the new one nothing in the cluster would know that a claim is missing, so
//! the new one is written down first, on the volume, together with a finalizer that keeps the volume until it is made:
//!
//! | what is written | if we end here, the next leader finds | and |
//! |---|---|---|
//! | nothing | a claim, a node that is gone | begins |
//! | note and finalizer | the note, the claim as it was | goes on, or takes the note back if the node is there again |
//! | and the deletion of the claim | the note, the claim on its way out | waits |
//! | (the claim is gone) | the note, no claim | makes it |
//! | and the new claim | the note, a claim with another uid | takes the note back |
//!
//! A name is made only once: whoever finds a claim of that name with another uid leaves it alone. Two things nobody can tell apart:
//! who deleted the claim after we had read it for the last time, and who deleted the new one before the note was taken back. In both
//! cases, which last as long as a few requests or one crash, a claim that says that it is to be made again is made again: one too
//! many can be deleted, one too few may never be noticed.

use std::sync::Arc;

use cluster::{
    ObjectKey, Volume,
    decision::{Chain, Check, Decision},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// By which a claim asks to be made again when its node is gone.
pub const RECREATE: &str = "claimkeeper.dev/recreate";

/// Where the claim that is to be made is written down, on the volume of the old one; and the finalizer that keeps it there.
pub const PENDING: &str = "claimkeeper.dev/recreate-claim";

/// What Kubernetes and provisioners note on a claim about its volume.
const BINDING: [&str; 4] = [
    "volume.kubernetes.io/selected-node",
    "volume.kubernetes.io/storage-provisioner",
    "volume.beta.kubernetes.io/storage-provisioner",
    "volume.kubernetes.io/storage-resizer",
];
const BINDING_PREFIX: &str = "pv.kubernetes.io/";

/// A claim that is to be made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// On which volume it is written down: backups restore annotations, and then it is another one.
    pub volume: String,
    /// The uid of the claim that it is made after.
    pub claim: String,
    /// The claim.
    pub manifest: Value,
}

impl Pending {
    /// What is to be made again after this claim.
    #[must_use]
    pub fn after(claim: &Value, volume: &Volume) -> Self {
        let uid = claim["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        Self { volume: volume.uid.to_string(), claim: uid, manifest: anew(claim) }
    }

    /// What is written down on a volume; none if nobody can read it, or if it was written for another volume.
    #[must_use]
    pub fn of(volume: &Volume) -> Option<Self> {
        let pending: Self = serde_json::from_str(volume.annotations.get(PENDING)?).ok()?;
        (pending.volume == *volume.uid && pending.key().is_some()).then_some(pending)
    }

    /// Where the claim belongs.
    #[must_use]
    pub fn key(&self) -> Option<ObjectKey> {
        let metadata = &self.manifest["metadata"];
        Some(ObjectKey::new(metadata["namespace"].as_str()?, metadata["name"].as_str()?))
    }
}

/// Whether something is written down on a volume, readable or not.
#[must_use]
pub fn has_pending(volume: &Volume) -> bool {
    volume.annotations.contains_key(PENDING)
}

/// The claim without its volume.
fn anew(claim: &Value) -> Value {
    let old = &claim["metadata"];
    let mut metadata = Map::new();
    for key in ["name", "namespace", "labels", "ownerReferences"] {
        if let Some(value) = old.get(key) {
            metadata.insert(key.to_owned(), value.clone());
        }
    }
    let bound = |key: &str| key.starts_with(BINDING_PREFIX) || BINDING.contains(&key);
    if let Some(annotations) = old["annotations"].as_object() {
        let kept = annotations.iter().filter(|(key, _)| !bound(key));
        let kept: Map<_, _> = kept.map(|(key, value)| (key.clone(), value.clone())).collect();
        metadata.insert("annotations".to_owned(), kept.into());
    }
    let mut spec = claim["spec"].clone();
    spec.as_object_mut().map(|spec| spec.remove("volumeName"));
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec})
}

/// What stands at the place of the claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stands {
    /// Nothing.
    Nothing,
    /// The old claim.
    Old {
        /// Whether somebody asked for its end.
        being_deleted: bool,
    },
    /// A claim of the same name.
    Another,
}

/// What the rules look at.
#[derive(Debug, Clone)]
pub struct Observation {
    /// The volume.
    pub volume: Arc<Volume>,
    /// What is written down on it, if it can be understood.
    pub pending: Option<Pending>,
    /// Whether that is still so, read live.
    pub still: bool,
    /// What stands there, read live.
    pub stands: Stands,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    Leave,
    /// Take the note back.
    Withdraw,
    /// Decide anew whether the claim is to be deleted.
    DecideAnew,
    /// Nothing, until the claim is gone.
    Wait,
    /// Make the claim.
    Create,
}

impl Action {
    /// What it is called in metrics and explanations.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Leave => "leave",
            Self::Withdraw => "withdraw",
            Self::DecideAnew => "decide-anew",
            Self::Wait => "wait",
            Self::Create => "create-claim",
        }
    }
}

/// The rules.
pub const MAKE_AGAIN: Chain<Observation, Action> = Chain {
    checks: &[
        Check { holds: "what is written down still stands", run: stands },
        Check { holds: "it is written down for this volume", run: is_ours },
        Check { holds: "the old claim was deleted", run: deleted },
        Check { holds: "the old claim is gone", run: gone },
        Check { holds: "nobody has made a claim of its name", run: unmade },
    ],
    otherwise: |seen| {
        let claim = seen.pending.as_ref().and_then(Pending::key).map(|key| key.to_string()).unwrap_or_default();
        Decision::new(Action::Create, "ClaimRecreated", format!("claim {claim} is made again, with an empty volume"))
    },
};

type Decided = Option<Decision<Action>>;

fn stands(seen: &Observation) -> Decided {
    let message = "what was written down is taken back already";
    (!seen.still).then(|| Decision::new(Action::Leave, "TakenBack", message))
}

fn is_ours(seen: &Observation) -> Decided {
    let message = "what is written down is about another volume, or nobody can read it";
    seen.pending.is_none().then(|| Decision::new(Action::Withdraw, "NoteForeign", message))
}

fn deleted(seen: &Observation) -> Decided {
    let message = "the claim is there, and nobody has deleted it";
    let there = seen.stands == Stands::Old { being_deleted: false };
    there.then(|| Decision::new(Action::DecideAnew, "NotDeletedYet", message))
}

fn gone(seen: &Observation) -> Decided {
    let message = "the claim goes, and is made again once it is gone";
    let going = seen.stands == Stands::Old { being_deleted: true };
    going.then(|| Decision::new(Action::Wait, "ClaimEnding", message))
}

fn unmade(seen: &Observation) -> Decided {
    let message = "a claim of the same name is there";
    let made = seen.stands == Stands::Another;
    made.then(|| Decision::new(Action::Withdraw, "MadeAgain", message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gone::sample::{volume, volume_with};

    fn claim() -> Value {
        json!({
            "metadata": {
                "name": "data", "namespace": "ci", "uid": "c1", "resourceVersion": "9", "finalizers": ["kubernetes.io/pvc-protection"],
                "labels": {"app": "web"}, "managedFields": [{}],
                "annotations": {
                    RECREATE: "true", "example.dev/note": "kept",
                    "pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes",
                    "volume.kubernetes.io/selected-node": "node-1", "volume.kubernetes.io/storage-provisioner": "d",
                    "volume.beta.kubernetes.io/storage-provisioner": "d",
                },
                "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "o1"}],
            },
            "spec": {"storageClassName": "local", "volumeName": "pv-1", "accessModes": ["ReadWriteOnce"], "futureField": {"a": 1}},
            "status": {"phase": "Bound"},
        })
    }

    #[test]
    fn a_claim_is_made_again_as_it_was_but_for_its_volume() {
        assert_eq!(
            Pending::after(&claim(), &volume()).manifest,
            json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "metadata": {
                    "name": "data", "namespace": "ci", "labels": {"app": "web"},
                    "annotations": {RECREATE: "true", "example.dev/note": "kept"},
                    "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "o1"}],
                },
                "spec": {"storageClassName": "local", "accessModes": ["ReadWriteOnce"], "futureField": {"a": 1}},
            })
        );
    }

    #[test]
    fn what_is_written_down_counts_only_for_the_volume_that_it_was_written_for() {
        let pending = Pending::after(&claim(), &volume());
        let on = |text: String| volume_with(&json!({"metadata": {"annotations": {PENDING: text}}}));
        assert_eq!(Pending::of(&on(json!(pending).to_string())), Some(pending.clone()));
        let restored = Pending { volume: "v0".to_owned(), ..pending };
        for text in [json!(restored).to_string(), "{".to_owned(), String::new()] {
            assert_eq!(Pending::of(&on(text.clone())), None);
            assert!(has_pending(&on(text)));
        }
    }

    #[test]
    fn a_claim_is_made_only_once_the_old_one_is_gone_and_nobody_else_made_it() {
        let pending = Some(Pending::after(&claim(), &volume()));
        for (pending, stands, action, reason) in [
            (None, Stands::Nothing, Action::Withdraw, "NoteForeign"),
            (pending.clone(), Stands::Old { being_deleted: false }, Action::DecideAnew, "NotDeletedYet"),
            (pending.clone(), Stands::Old { being_deleted: true }, Action::Wait, "ClaimEnding"),
            (pending.clone(), Stands::Another, Action::Withdraw, "MadeAgain"),
            (pending.clone(), Stands::Nothing, Action::Create, "ClaimRecreated"),
        ] {
            let decision = MAKE_AGAIN.decide(&Observation { volume: Arc::new(volume()), pending, still: true, stands });
            assert_eq!((decision.action, decision.reason), (action, reason));
        }
        let taken_back = Observation { volume: Arc::new(volume()), pending, still: false, stands: Stands::Nothing };
        assert_eq!(MAKE_AGAIN.decide(&taken_back).action, Action::Leave);
    }
}
