//! Whether a claim may be made, or changed.
//!
//! | what is seen                                                      | decision                              |
//! |-------------------------------------------------------------------|---------------------------------------|
//! | no claim is made or changed                                       | allow: `Unhandled`                    |
//! | the claim cannot be read                                          | error: `ClaimUnreadable`              |
//! | it is in the operator's own namespace                             | allow: `OwnNamespace`                 |
//! | it is being deleted                                               | allow: `BeingDeleted`                 |
//! | neither class nor volume is set, nor owner or acceptance removed  | allow: `NothingToJudge`               |
//! | its class, or the volume that it names, cannot be read            | error: `ClassUnreadable`, `VolumeUnreadable` |
//! | it has no class, and no local volume that it could have is there  | allow: `NoClass`                      |
//! | its class does not exist (and so on)                              | allow: `ClassNotFound`                |
//! | its class takes itself out                                        | allow: `ClassExempt`                  |
//! | its class is another driver's                                     | allow: `OtherDriver`                  |
//! | its class is of a pool that is not ephemeral                      | allow: `PersistentPool`               |
//! | its class keeps more than one copy                                | allow: `Replicated`                   |
//! | its author accepts the risk                                       | allow: `Accepted`                     |
//! | it is its pod's                                                   | allow: `OwnedByPod`                   |
//! | the garbage collector takes its owner away                        | audit: `Orphaned`                     |
//! | its owner is no pod that controls it alone                        | refuse: `OwnerNotAPod`                |
//! | its owner cannot be read                                          | refuse: `OwnerUnreadable`             |
//! | its owner does not exist                                          | refuse: `OwnerNotFound`               |
//! | its owner does not use it                                         | refuse: `OwnerDoesNotUseIt`           |
//! | otherwise                                                         | refuse: `NotEphemeral`                |
//!
//! An error allows unless `enforcement.onError` says otherwise; to refuse is to deny, to warn or to audit, as the namespace,
//! the class or the configuration says, in this order. What the caches do not have and the rule needs is read live, once:
//! such a decision is [`Verdict::Read`], and the rule is asked again.

use std::sync::Arc;

use cluster::{
    Class, Pod,
    decision::{Chain, Check, Decision},
};

use crate::{
    change,
    claim::AskedClaim,
    governed::{Exempt, Standing, standing},
    message,
    observation::{Asked, Look, Observation},
    settings::{Action, OnError, PodOwner},
};

/// What is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It may happen.
    Allow,
    /// It may happen, because nobody knows better.
    AllowOnError,
    /// It may happen, and its author is warned.
    Warn,
    /// It may happen, and administrators are told.
    Audit,
    /// It may not happen.
    Deny,
    /// It may not happen, because nobody knows better.
    DenyOnError,
    /// Look for this live, and ask again.
    Read(Wanted),
}

/// What is to be read live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// The claim's class.
    Class,
    /// The volume that the claim names.
    Volume,
    /// The claim's owner.
    Owner,
    /// The claim's namespace.
    Namespace,
}

/// How far the rule got with a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Nothing was to be judged.
    NotJudged,
    /// The claim is not under the rule.
    Exempt,
    /// The claim is under the rule, or nobody knows whether it is.
    Governed,
}

/// How far the rule got when it decided so.
#[must_use]
pub fn scope(decision: &Decision<Verdict>) -> Scope {
    match (decision.action, decision.reason) {
        (Verdict::Allow, "Unhandled" | "OwnNamespace" | "BeingDeleted" | "NothingToJudge") => Scope::NotJudged,
        (Verdict::Allow, "Accepted" | "OwnedByPod") => Scope::Governed,
        (Verdict::Allow, _) => Scope::Exempt,
        _ => Scope::Governed,
    }
}

impl Verdict {
    /// The verdict as a metric label.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Warn => "warn",
            Self::Audit => "audit",
            Self::Deny => "deny",
            Self::AllowOnError | Self::DenyOnError => "error",
            Self::Read(_) => "read",
        }
    }

    /// Whether it may happen.
    #[must_use]
    pub fn allows(self) -> bool {
        matches!(self, Self::Allow | Self::AllowOnError | Self::Warn | Self::Audit)
    }
}

/// The rules.
pub const ADMIT_CLAIM: Chain<Observation, Verdict> = Chain {
    checks: &[
        Check { holds: "a claim is made or changed", run: unhandled },
        Check { holds: "the claim can be read", run: claim_unreadable },
        Check { holds: "it is not in the operator's own namespace", run: own_namespace },
        Check { holds: "it is not being deleted", run: being_deleted },
        Check { holds: "its class, volume, owner or acceptance is what changes", run: nothing_to_judge },
        Check { holds: "its class is known", run: class_unknown },
        Check { holds: "the volume that it names is known", run: volume_unknown },
        Check { holds: "it has a class, or could have a local volume without one", run: no_class },
        Check { holds: "its class exists", run: class_not_found },
        Check { holds: "its class does not take itself out", run: class_exempt },
        Check { holds: "its class, or a volume that it could have, is local", run: other_driver },
        Check { holds: "the pool of its class is ephemeral", run: persistent_pool },
        Check { holds: "its class keeps one copy only", run: replicated },
        Check { holds: "its author does not accept the risk", run: accepted },
        Check { holds: "it is not known as its pod's", run: owned_by_pod },
        Check { holds: "it is not the garbage collector that takes its owner away", run: orphaned },
        Check { holds: "its namespace is known", run: namespace_unknown },
        Check { holds: "it has no owner, or a pod that controls it alone", run: owner_not_a_pod },
        Check { holds: "it has no owner, or one that can be read", run: owner_unreadable },
        Check { holds: "it has no owner, or one that exists", run: owner_not_found },
        Check { holds: "it has no owner, or one that uses it", run: owner_does_not_use_it },
    ],
    otherwise: |seen| refuse(seen, "NotEphemeral", "the claim is not made for a pod"),
};

type Answer = Option<Decision<Verdict>>;

fn allow(reason: &'static str, message: &'static str) -> Decision<Verdict> {
    Decision::new(Verdict::Allow, reason, message)
}

fn read(wanted: Wanted) -> Decision<Verdict> {
    Decision::new(Verdict::Read(wanted), "NotCached", "what the cache does not have is read live")
}

fn unhandled(seen: &Observation) -> Answer {
    matches!(seen.asked, Asked::Other).then(|| allow("Unhandled", "unhandled request allowed"))
}

fn claim_unreadable(seen: &Observation) -> Answer {
    let Asked::Unreadable { error, .. } = &seen.asked else { return None };
    Some(errored(seen, "ClaimUnreadable", format!("the claim cannot be read: {error}")))
}

// What the operator itself needs there must not depend on it.
fn own_namespace(seen: &Observation) -> Answer {
    let write = seen.write()?;
    let own = seen.settings.home.as_deref() == Some(write.claim.key.namespace());
    own.then(|| allow("OwnNamespace", "the rule does not hold in the operator's own namespace"))
}

// Whatever is still written, such as the end of a finalizer, must be possible.
fn being_deleted(seen: &Observation) -> Answer {
    seen.write()?.claim.being_deleted.then(|| allow("BeingDeleted", "the claim is being deleted"))
}

// Binding, growing and finalizers of claims that are older than the rule must go on.
fn nothing_to_judge(seen: &Observation) -> Answer {
    let write = seen.write()?;
    let old = write.old.as_ref()?;
    let changes = change::judged(&seen.settings, write, old);
    changes.is_empty().then(|| allow("NothingToJudge", "neither class, volume, owner nor acceptance changes"))
}

fn class_unknown(seen: &Observation) -> Answer {
    match seen.class {
        Look::NotCached => Some(read(Wanted::Class)),
        Look::Failed => Some(errored(seen, "ClassUnreadable", "the class of the claim cannot be read".to_owned())),
        _ => None,
    }
}

fn volume_unknown(seen: &Observation) -> Answer {
    match seen.named_volume {
        Look::NotCached => Some(read(Wanted::Volume)),
        // Under the rule by its class already: the volume makes it neither better nor worse.
        Look::Failed if !matches!(standing(seen), Standing::Governed { .. }) => {
            let message = "the volume that the claim names cannot be read";
            Some(errored(seen, "VolumeUnreadable", message.to_owned()))
        }
        _ => None,
    }
}

fn exempt(seen: &Observation, exempt: Exempt, reason: &'static str, message: &'static str) -> Answer {
    (standing(seen) == Standing::Exempt(exempt)).then(|| allow(reason, message))
}

fn no_class(seen: &Observation) -> Answer {
    exempt(seen, Exempt::NoClass, "NoClass", "no storage class")
}

fn class_not_found(seen: &Observation) -> Answer {
    exempt(seen, Exempt::ClassNotFound, "ClassNotFound", "storage class not found")
}

fn class_exempt(seen: &Observation) -> Answer {
    let message = "the class is taken out by its annotation claimkeeper.dev/ephemeral-only: \"false\"";
    exempt(seen, Exempt::ByAnnotation, "ClassExempt", message)
}

fn other_driver(seen: &Observation) -> Answer {
    exempt(seen, Exempt::OtherDriver, "OtherDriver", "not a class of a local driver")
}

fn persistent_pool(seen: &Observation) -> Answer {
    exempt(seen, Exempt::PersistentPool, "PersistentPool", "volume is not from an ephemeral pool")
}

fn replicated(seen: &Observation) -> Answer {
    exempt(seen, Exempt::Replicated, "Replicated", "volume has replicas")
}

fn accepted(seen: &Observation) -> Answer {
    let Standing::Governed { accept_annotation, .. } = standing(seen) else { return None };
    let accepts = seen.write()?.claim.accepts(accept_annotation);
    accepts.then(|| allow("Accepted", "the author of the claim accepts that the storage is ephemeral"))
}

fn owned_by_pod(seen: &Observation) -> Answer {
    let write = seen.write()?;
    let pods_own = || Some(allow("OwnedByPod", "volume is ephemeral"));
    if seen.settings.pod_owner == PodOwner::Seed {
        return write.claim.pods().next().and_then(|_| pods_own());
    }
    let owner = write.claim.pod()?;
    // Who changes a claim did not make it: then the trusted accounts are as good as anybody.
    if write.old.is_none() && seen.settings.trusted_creators.contains(&write.user) {
        return pods_own();
    }
    match &seen.owner {
        Look::NotCached => Some(read(Wanted::Owner)),
        Look::Known(pod) if is_owner(pod, &owner.uid) && uses(pod, &write.claim) => pods_own(),
        _ => None,
    }
}

fn is_owner(pod: &Pod, uid: &str) -> bool {
    *pod.uid == *uid && !pod.being_deleted
}

/// Whether the claim is the pod's to have, or one that its spec calls by name.
fn uses(pod: &Pod, claim: &AskedClaim) -> bool {
    pod.used_claims.iter().any(|used| **used == *claim.key.name())
        || pod.ephemeral_volumes.iter().any(|volume| pod.claim_key(volume) == claim.key)
}

// Refusing would not keep the owner, only the garbage collector from its work.
fn orphaned(seen: &Observation) -> Answer {
    let write = seen.write()?;
    let changes = change::judged(&seen.settings, write, write.old.as_ref()?);
    let message = "the garbage collector orphans a claim on ephemeral storage: nothing will delete it any more, and its data is \
                   lost with its node; delete it, or accept the risk by annotation";
    (changes.only_orphans() && change::is_garbage_collector(&write.user))
        .then(|| Decision::new(Verdict::Audit, "Orphaned", message))
}

fn namespace_unknown(seen: &Observation) -> Answer {
    matches!(seen.namespace, Look::NotCached).then(|| read(Wanted::Namespace))
}

fn owner_not_a_pod(seen: &Observation) -> Answer {
    let claim = &seen.write()?.claim;
    let wrong = "its owner must be one pod of apiVersion v1 that controls it, and no other object";
    (!claim.owners.is_empty() && claim.pod().is_none()).then(|| refuse(seen, "OwnerNotAPod", wrong))
}

// It is under the rule, so it is ours to refuse; whoever makes claims for pods tries again.
fn owner_unreadable(seen: &Observation) -> Answer {
    let wrong = "the pod that owns it cannot be read right now";
    matches!(seen.owner, Look::Failed).then(|| refuse(seen, "OwnerUnreadable", wrong))
}

fn owner_not_found(seen: &Observation) -> Answer {
    let owner = seen.write()?.claim.pod()?;
    let exists = seen.owner.known().is_some_and(|pod| is_owner(pod, &owner.uid));
    (!exists).then(|| refuse(seen, "OwnerNotFound", "there is no pod of the name and uid that its owner has"))
}

fn owner_does_not_use_it(seen: &Observation) -> Answer {
    let claim = &seen.write()?.claim;
    let pod = claim.pod().and_then(|_| seen.owner.known())?;
    let wrong = "the pod that owns it neither has it as an ephemeral volume nor mounts it";
    (!uses(pod, claim)).then(|| refuse(seen, "OwnerDoesNotUseIt", wrong))
}

/// What is done about a claim that breaks the rule: the namespace's word, or else the class's, or else the configuration's.
fn action(seen: &Observation) -> Action {
    let namespace = seen.namespace.known().and_then(|namespace| namespace.enforcement.as_deref());
    let annotation = |class: &Arc<Class>| class.annotations.get(cluster::namespace::ENFORCEMENT).cloned();
    let class = seen.class.known().and_then(annotation);
    let words = [namespace, class.as_deref()];
    words.into_iter().flatten().find_map(Action::parse).unwrap_or(seen.settings.action)
}

fn refuse(seen: &Observation, reason: &'static str, wrong: &'static str) -> Decision<Verdict> {
    let verdict = match action(seen) {
        Action::Deny => Verdict::Deny,
        Action::Warn => Verdict::Warn,
        Action::Audit => Verdict::Audit,
    };
    Decision::new(verdict, reason, message::refusal(seen, wrong))
}

fn errored(seen: &Observation, reason: &'static str, message: String) -> Decision<Verdict> {
    let verdict = match seen.settings.on_error {
        OnError::Allow => Verdict::AllowOnError,
        OnError::Deny => Verdict::DenyOnError,
    };
    Decision::new(verdict, reason, message)
}
