//! What a change of a claim is judged by. Everything else may go on as it did before there was a rule.

use crate::{
    claim::AskedClaim,
    observation::Write,
    settings::{ACCEPT, PodOwner, Settings},
};

/// Who collects what has lost its owners, with an account of its own and without.
const GARBAGE_COLLECTORS: [&str; 2] =
    ["system:serviceaccount:kube-system:generic-garbage-collector", "system:kube-controller-manager"];

/// Who binds claims to volumes: they choose by the claim's class, which was judged when it was set.
const BINDERS: [&str; 3] = [
    "system:serviceaccount:kube-system:persistent-volume-binder",
    "system:kube-controller-manager",
    "system:kube-scheduler",
];

/// Whether this is the garbage collector of Kubernetes.
pub(crate) fn is_garbage_collector(user: &str) -> bool {
    GARBAGE_COLLECTORS.contains(&user)
}

/// What of a claim changes, as far as it is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent of each other")]
pub(crate) struct Changes {
    class: bool,
    volume: bool,
    acceptance: bool,
    /// It loses a pod by which it may have been a pod's.
    owner: bool,
    /// Owners are only taken away.
    orphans: bool,
}

impl Changes {
    pub(crate) fn is_empty(self) -> bool {
        !(self.class || self.volume || self.acceptance || self.owner)
    }

    /// Whether a claim loses its pod, and that is all.
    pub(crate) fn only_orphans(self) -> bool {
        self.owner && self.orphans && !(self.class || self.volume || self.acceptance)
    }
}

pub(crate) fn judged(settings: &Settings, write: &Write, old: &AskedClaim) -> Changes {
    let new = &write.claim;
    let accepts = |annotation: &str| old.accepts(annotation) && !new.accepts(annotation);
    let annotations = settings.drivers.iter().map(|driver| driver.accept_annotation.as_str());
    Changes {
        class: old.class != new.class,
        volume: old.volume_name != new.volume_name && !BINDERS.contains(&write.user.as_str()),
        acceptance: annotations.chain([ACCEPT]).any(accepts),
        owner: loses_pod(settings.pod_owner, old, new),
        orphans: new.owners.iter().all(|owner| old.owners.contains(owner)),
    }
}

fn loses_pod(pod_owner: PodOwner, old: &AskedClaim, new: &AskedClaim) -> bool {
    match pod_owner {
        // It was a pod's and is not the same pod's alone any more.
        PodOwner::Verified => {
            let pod = old.pod().map(|pod| &pod.uid);
            pod.is_some() && pod != new.pod().map(|pod| &pod.uid)
        }
        // One pod among the owners was enough, whether or not it controls the claim.
        PodOwner::Seed => old.pods().any(|before| new.pods().all(|pod| pod.uid != before.uid)),
    }
}
