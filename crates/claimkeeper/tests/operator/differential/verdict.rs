//! Whether the two clusters look the same, and where they may differ.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail, ensure};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use serde_json::Value;

use super::side::HOLD;

/// Whose cluster it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Maker {
    Claimkeeper,
    /// The controller in kube-controller-manager.
    Original,
}

/// Where Claimkeeper is meant to differ, and nowhere else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Improvement {
    /// The original makes claims for pods that will never run again.
    EndedPodsGetNoClaim,
    /// The original stops at a pod's first volume whose name is taken.
    LaterVolumesGetTheirs,
}

/// All that must be the same about a claim.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ClaimFacts {
    owners: Vec<String>,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    finalizers: BTreeSet<String>,
    spec: Value,
    pub(crate) leaving: bool,
    owned: Option<bool>,
}

impl ClaimFacts {
    pub(crate) fn is_held(&self) -> bool {
        self.finalizers.contains(HOLD)
    }
}

/// What the next step needs to know of a pod.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(crate) struct PodFacts {
    uid: Option<String>,
    pub(crate) ended: bool,
    pub(crate) leaving: bool,
    pub(crate) scheduled: bool,
    gated: bool,
    shut_down: bool,
    runs: bool,
    held: bool,
    volumes: Vec<String>,
}

/// One cluster at one moment.
#[derive(Debug)]
pub(crate) struct Snapshot {
    maker: Maker,
    pods: BTreeMap<String, PodFacts>,
    claims: BTreeMap<String, ClaimFacts>,
    uids: BTreeMap<String, Option<String>>,
}

/// Both clusters, settled and found to be as they should.
#[derive(Debug, Default)]
pub(crate) struct View {
    pub(crate) pods: BTreeMap<String, PodFacts>,
    /// The claims that are the same in both.
    pub(crate) common: BTreeMap<String, ClaimFacts>,
    /// All names of claims, of both.
    pub(crate) taken: BTreeSet<String>,
    pub(crate) improvements: BTreeSet<Improvement>,
    /// The claims of later volumes that only our cluster has.
    ours_alone: BTreeSet<String>,
    our_uids: BTreeMap<String, Option<String>>,
}

impl Snapshot {
    pub(crate) fn new(maker: Maker, pods: &[Pod], claims: &[PersistentVolumeClaim]) -> Result<Self> {
        let uids: BTreeMap<String, String> =
            pods.iter().map(|pod| (pod.name_any(), pod.uid().unwrap_or_default())).collect();
        let facts = claims.iter().map(|claim| Ok((claim.name_any(), claim_facts(claim, &uids)?)));
        Ok(Self {
            maker,
            pods: pods.iter().map(|pod| (pod.name_any(), pod_facts(pod))).collect(),
            claims: facts.collect::<Result<_>>()?,
            uids: claims.iter().map(|claim| (claim.name_any(), claim.uid())).collect(),
        })
    }

    /// Whether nothing will change by itself any more; the error says what still will.
    pub(crate) fn settled(&self, closed: bool) -> Result<()> {
        for (name, pod) in &self.pods {
            ensure!(!pod.leaving || (pod.held && pod.shut_down), "{:?}: pod {name} is on its way out", self.maker);
            if !pod.leaving {
                self.settled_pod(name, pod, closed)?;
            }
        }
        for (name, claim) in &self.claims {
            let owner = self.pods.iter().find(|(pod, facts)| facts.claims(pod).any(|wanted| wanted == *name));
            let protected = owner.is_some_and(|(_, pod)| pod.scheduled && !pod.leaving) && claim.owned == Some(true);
            ensure!(!claim.leaving || claim.is_held() || protected, "{:?}: claim {name} is on its way out", self.maker);
            let collected = claim.owned == Some(false) && !claim.leaving;
            ensure!(!collected, "{:?}: claim {name} of a pod that is gone waits to be collected", self.maker);
        }
        Ok(())
    }

    fn settled_pod(&self, name: &str, pod: &PodFacts, closed: bool) -> Result<()> {
        let (mut blocked, mut complete) = (false, true);
        for claim in pod.claims(name) {
            let facts = self.claims.get(&claim);
            complete &= facts.is_some_and(|claim| claim.owned == Some(true) && !claim.leaving);
            let needs_none = match self.maker {
                Maker::Claimkeeper => pod.ended,
                Maker::Original => blocked,
            };
            ensure!(facts.is_some() || closed || needs_none, "{:?}: claim {claim} is missing", self.maker);
            blocked |= facts.is_some_and(|claim| claim.owned != Some(true));
        }
        let runs = pod.runs || pod.gated || pod.ended || !complete;
        ensure!(runs, "{:?}: pod {name} does not run yet", self.maker);
        Ok(())
    }

    /// Whether a volume of the pod before the one with this claim has its name taken.
    fn is_behind_a_taken_name(&self, claim: &str) -> bool {
        self.pods.iter().any(|(name, pod)| {
            let before = pod.claims(name).take_while(|wanted| wanted != claim);
            let is_of_pod = pod.claims(name).any(|wanted| wanted == claim);
            is_of_pod
                && before.into_iter().any(|wanted| self.claims.get(&wanted).is_some_and(|it| it.owned != Some(true)))
        })
    }
}

impl PodFacts {
    fn claims(&self, pod: &str) -> impl Iterator<Item = String> {
        self.volumes.iter().map(move |volume| format!("{pod}-{volume}"))
    }
}

/// Compares both clusters; the error says in what they differ that nobody meant to.
pub(crate) fn compare(ours: Snapshot, originals: &Snapshot, before: &View) -> Result<View> {
    let pods = (ours.pods.keys(), originals.pods.keys());
    ensure!(pods.0.clone().eq(pods.1.clone()), "the pods are {pods:?}");
    ours.expect_nothing_made_too_late(before)?;
    let mut view = View::default();
    view.taken.extend(ours.claims.keys().chain(originals.claims.keys()).cloned());
    for name in &view.taken {
        match (ours.claims.get(name), originals.claims.get(name)) {
            (Some(our), Some(original)) if our == original => drop(view.common.insert(name.clone(), our.clone())),
            (None, Some(original)) if original.owned == Some(true) && ours.has_ended(name) => {
                view.improvements.insert(Improvement::EndedPodsGetNoClaim);
            }
            // What was once behind stays behind if the pod leaves before the name is free.
            (Some(our), None)
                if our.owned == Some(true)
                    && (originals.is_behind_a_taken_name(name) || before.ours_alone.contains(name)) =>
            {
                view.improvements.insert(Improvement::LaterVolumesGetTheirs);
                view.ours_alone.insert(name.clone());
            }
            (our, original) => bail!("claim {name} is {our:#?}\nbut the original's is {original:#?}"),
        }
    }
    (view.pods, view.our_uids) = (ours.pods, ours.uids);
    Ok(view)
}

impl Snapshot {
    /// Looks for claims that were made for a pod that did not need them any more.
    fn expect_nothing_made_too_late(&self, before: &View) -> Result<()> {
        for (name, pod) in &self.pods {
            let earlier = before.pods.get(name).filter(|earlier| earlier.uid == pod.uid);
            if earlier.is_some_and(|earlier| earlier.ended || earlier.leaving) {
                for claim in pod.claims(name).filter(|claim| self.uids.contains_key(claim)) {
                    let is_old = self.uids.get(&claim) == before.our_uids.get(&claim);
                    ensure!(is_old, "{:?}: claim {claim} was made for a pod that had ended", self.maker);
                }
            }
        }
        Ok(())
    }

    /// Whether the pod that this claim is for has ended.
    fn has_ended(&self, claim: &str) -> bool {
        self.pods.iter().any(|(name, pod)| pod.ended && pod.claims(name).any(|wanted| wanted == claim))
    }
}

fn pod_facts(pod: &Pod) -> PodFacts {
    let (spec, status) = (pod.spec.clone().unwrap_or_default(), pod.status.clone().unwrap_or_default());
    let phase = status.phase.unwrap_or_default();
    PodFacts {
        uid: pod.uid(),
        ended: ["Succeeded", "Failed"].contains(&phase.as_str()),
        leaving: pod.metadata.deletion_timestamp.is_some(),
        shut_down: pod.metadata.deletion_grace_period_seconds == Some(0),
        scheduled: spec.node_name.is_some(),
        gated: spec.scheduling_gates.is_some_and(|gates| !gates.is_empty()),
        runs: phase == "Running",
        held: pod.finalizers().iter().any(|finalizer| finalizer == HOLD),
        volumes: spec.volumes.into_iter().flatten().map(|volume| volume.name).filter(|name| is_ours(name)).collect(),
    }
}

/// Not the volume with the token that every pod gets.
fn is_ours(volume: &str) -> bool {
    !volume.starts_with("kube-api-access")
}

fn claim_facts(claim: &PersistentVolumeClaim, uids: &BTreeMap<String, String>) -> Result<ClaimFacts> {
    let is_current = |name: &String, uid: &String| uids.get(name) == Some(uid);
    let owners = claim.owner_references().iter().map(|owner| {
        let current = if is_current(&owner.name, &owner.uid) { "the current" } else { "an earlier" };
        let (controller, blocks) = (owner.controller, owner.block_owner_deletion);
        format!("{current} {} {} {}, {controller:?}, {blocks:?}", owner.api_version, owner.kind, owner.name)
    });
    let mut spec = serde_json::to_value(&claim.spec)?;
    // Whether it is bound already, to a volume that is named after a uid, is not what is compared.
    if let Some(fields) = spec.as_object_mut() {
        fields.retain(|field, value| field != "volumeName" || value == "by-name");
    }
    let mut annotations = claim.annotations().clone();
    // Nor are the binder's own.
    annotations.retain(|key, _| !key.split('/').next().is_some_and(|domain| domain.ends_with("kubernetes.io")));
    Ok(ClaimFacts {
        owners: owners.collect(),
        labels: claim.labels().clone(),
        annotations,
        finalizers: claim.finalizers().iter().cloned().collect(),
        spec,
        leaving: claim.metadata.deletion_timestamp.is_some(),
        owned: claim.owner_references().first().map(|owner| is_current(&owner.name, &owner.uid)),
    })
}
