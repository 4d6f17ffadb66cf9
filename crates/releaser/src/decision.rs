//! Whether a Released volume is made available again, and to whom.
//!
//! | what is seen                                              | decision                           |
//! |-----------------------------------------------------------|------------------------------------|
//! | its claim was in a namespace that we do not look after    | leave: `OtherNamespace`            |
//! | neither its class nor a label asks for it                 | leave: `NotManaged`                |
//! | a label or its class names another releaser               | leave: `ManagedByOther`            |
//! | its class says something that means nothing               | refuse: `InvalidPolicy`            |
//! | its class says `never`                                    | leave: `ClassSaysNever`            |
//! | the volume is not Released                                | leave: `NotReleased`               |
//! | it refers to no claim                                     | leave: `NothingToRelease`          |
//! | it is meant for a claim by name (an administrator's word) | leave: `PreBound`                  |
//! | it is being deleted                                       | refuse: `VolumeBeingDeleted`       |
//! | it is quarantined                                         | refuse: `Quarantined`              |
//! | its reclaim policy is not Retain                          | refuse: `NotRetained`              |
//! | it was cleaned for the pool, but the mode is not `pool`   | refuse: `ScrubbedForPool`          |
//! | mode `namespace`, but the class provisions at once        | refuse: `ProvisionerWins`          |
//! | it has not been Released for long enough                  | wait: `TooYoung`                   |
//! | enough volumes of the class are free                      | refuse: `PoolFull`                 |
//! | nobody has looked live yet                                | look: `NotLookedYet`               |
//! | the claim that it refers to is still there                | refuse: `ClaimStillExists`         |
//! | `soft`, `namespace`: the namespace is gone                | refuse: `NamespaceGone`            |
//! | … is being deleted                                        | refuse: `NamespaceTerminating`     |
//! | … is younger than the claim's end                         | refuse: `NamespaceRecreated`       |
//! | `soft`: a new claim of the name has another volume        | refuse: `ClaimRecreatedElsewhere`  |
//! | the volume is attached to a node                          | refuse: `StillAttached`            |
//! | `namespace`: no claim that it fits waits for a volume     | leave: `NoClaimWaits`              |
//! | it is a dry run                                           | report: `WouldRelease`             |
//! | the class wants its volumes scrubbed, and it is not       | scrub: `NotScrubbed`               |
//! | otherwise                                                 | release: `Released`                |

use std::{borrow::Cow, sync::Arc, time::Duration};

use cluster::{
    Class, Volume,
    decision::{Chain, Check, Decision},
    volume::VolumePhase,
};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::{
    policy::{Mode, NoTerms, Terms, terms},
    previous::{PreviousClaim, gone_since},
    scrub::{is_quarantined, refers_to_scrub_claim},
    seen::{Attached, Candidate, ClaimSeen, Live, NamespaceSeen},
};

/// All that the rules look at.
#[derive(Debug, Clone)]
pub struct Observation {
    /// The volume.
    pub volume: Arc<Volume>,
    /// Its class, if there is such an object.
    pub class: Option<Arc<Class>>,
    /// Who we are.
    pub controller_id: Arc<str>,
    /// The only namespace that we look after; none if it is all of them.
    pub namespace: Option<Arc<str>>,
    /// Whether nothing is to be done but told.
    pub dry_run: bool,
    /// How many volumes of the class are free, or will be in a moment.
    pub available: usize,
    /// What was read live, right before the write; none until somebody has looked.
    pub live: Option<Live>,
    /// Whether a Job has cleaned it since it was used.
    pub scrubbed: bool,
    /// When we look.
    pub now: Timestamp,
}

/// What is done about one volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// There is nothing to do, and nothing to tell.
    Leave,
    /// Not yet: look again when this is over.
    Wait(Duration),
    /// Read live what the rules need, and decide again.
    Look,
    /// It must not be released: tell it once, and look again when this is over.
    Refuse(Option<Duration>),
    /// It would be released: tell it once.
    Report,
    /// Hand it to a Job of this template.
    Scrub(Box<str>),
    /// Release it.
    Release(To),
}

/// To whom a volume is released.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum To {
    /// Any claim.
    Pool,
    /// The next claim of the previous one's name.
    SameName,
    /// This claim.
    Claim(Candidate),
}

impl Action {
    /// The action as a metric label.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Leave => "leave",
            Self::Wait(_) => "wait",
            Self::Look => "look",
            Self::Refuse(_) => "refuse",
            Self::Report => "report",
            Self::Scrub(_) => "scrub",
            Self::Release(_) => "release",
        }
    }
}

/// How soon we look again at what should pass by itself and tells nobody when it does.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_secs(15);

/// The rules.
pub const RELEASE_VOLUME: Chain<Observation, Action> = Chain {
    checks: &[
        Check { holds: "its claim was in a namespace that is looked after", run: other_namespace },
        Check { holds: "its class or a label says that this releaser releases it", run: not_managed },
        Check { holds: "the volume is Released", run: not_released },
        Check { holds: "it refers to a claim that it had", run: nothing_to_release },
        Check { holds: "it is not being deleted", run: volume_going_away },
        Check { holds: "it is not quarantined", run: quarantined },
        Check { holds: "its reclaim policy is Retain", run: not_retained },
        Check { holds: "it was not cleaned for others than it would go to", run: scrubbed_for_pool },
        Check { holds: "no provisioner is faster", run: provisioner_wins },
        Check { holds: "it has been Released for long enough", run: too_young },
        Check { holds: "the pool has room", run: pool_full },
        Check { holds: "what can have changed was read live", run: not_looked_yet },
        Check { holds: "the claim that it had is gone", run: claim_still_exists },
        Check { holds: "the namespace of that claim is still the one that it was", run: namespace_lost },
        Check { holds: "no new claim of that name has another volume", run: claim_recreated_elsewhere },
        Check { holds: "it is attached to no node", run: still_attached },
        Check { holds: "a claim that it fits waits for a volume", run: no_claim_waits },
        Check { holds: "it is not a dry run", run: dry_run },
        Check { holds: "it needs no scrub, or has had it", run: not_scrubbed },
    ],
    otherwise: release,
};

fn leave(reason: &'static str, message: impl Into<Cow<'static, str>>) -> Decision<Action> {
    Decision::new(Action::Leave, reason, message)
}

fn refuse(again: Option<Duration>, reason: &'static str, message: impl Into<Cow<'static, str>>) -> Decision<Action> {
    Decision::new(Action::Refuse(again), reason, message)
}

impl Observation {
    fn terms(&self) -> Result<Terms, NoTerms> {
        terms(&self.volume, self.class.as_deref(), &self.controller_id)
    }

    /// To whom it would go; the first check lets nobody pass without it.
    fn mode(&self) -> Mode {
        self.terms().map_or(Mode::Never, |terms| terms.mode)
    }
}

fn other_namespace(seen: &Observation) -> Option<Decision<Action>> {
    let only = seen.namespace.as_ref()?;
    let volume = &seen.volume;
    // Of a volume that is scrubbed, the claim before counts: the scrub claim is in the operator's namespace.
    let previous = PreviousClaim::of(volume).filter(|_| refers_to_scrub_claim(volume)).map(|previous| previous.key());
    let claim = previous.or_else(|| volume.claim.as_ref().map(|claim| claim.key.clone()));
    let other = claim.is_some_and(|claim| claim.namespace() != &**only);
    let message = "its claim was in a namespace that this releaser does not look after";
    other.then(|| leave("OtherNamespace", message))
}

fn not_managed(seen: &Observation) -> Option<Decision<Action>> {
    Some(match seen.terms() {
        Ok(Terms { mode: Mode::Never, .. }) => leave("ClassSaysNever", "its class says that it is never released"),
        Ok(_) => return None,
        Err(error @ NoTerms::NotManaged) => leave("NotManaged", error.to_string()),
        Err(error @ NoTerms::ManagedByOther(_)) => leave("ManagedByOther", error.to_string()),
        Err(error @ NoTerms::Wrong { .. }) => {
            if seen.volume.phase != VolumePhase::Released {
                return not_released(seen);
            }
            refuse(None, "InvalidPolicy", format!("{error}; until then its volumes stay Released"))
        }
    })
}

fn not_released(seen: &Observation) -> Option<Decision<Action>> {
    (seen.volume.phase != VolumePhase::Released).then(|| leave("NotReleased", "the volume is not Released"))
}

fn nothing_to_release(seen: &Observation) -> Option<Decision<Action>> {
    Some(match &seen.volume.claim {
        None => leave("NothingToRelease", "the volume refers to no claim; Kubernetes makes it available by itself"),
        Some(claim) if claim.uid.is_none() => {
            leave("PreBound", format!("somebody has given the volume to claim {}", claim.key))
        }
        Some(_) => return None,
    })
}

fn volume_going_away(seen: &Observation) -> Option<Decision<Action>> {
    seen.volume.being_deleted.then(|| refuse(None, "VolumeBeingDeleted", "the volume is being deleted"))
}

fn quarantined(seen: &Observation) -> Option<Decision<Action>> {
    let message = "the volume is quarantined: nobody gets it until an administrator removes the annotation \
                   claimkeeper.dev/quarantined";
    is_quarantined(&seen.volume).then(|| refuse(None, "Quarantined", message))
}

// Its claimRef is the scrub claim's: what the other modes go by is not there any more.
fn scrubbed_for_pool(seen: &Observation) -> Option<Decision<Action>> {
    let message = "the volume was on its way to the pool when its class changed: set claimkeeper.dev/release to pool, or release \
                   it by hand to the claim in its annotation claimkeeper.dev/previous-claim";
    let changed = refers_to_scrub_claim(&seen.volume) && seen.mode() != Mode::Pool;
    changed.then(|| refuse(None, "ScrubbedForPool", message))
}

fn not_retained(seen: &Observation) -> Option<Decision<Action>> {
    let message = "its reclaim policy is not Retain, so its data may be on its way out; set persistentVolumeReclaimPolicy to \
                   Retain before its claim is deleted";
    (!seen.volume.retained).then(|| refuse(None, "NotRetained", message))
}

// A claim of such a class has a volume made for it before we can offer one.
fn provisioner_wins(seen: &Observation) -> Option<Decision<Action>> {
    let class = seen.class.as_ref().filter(|class| class.provisions && !class.waits_for_consumer)?;
    if seen.mode() != Mode::Namespace {
        return None;
    }
    let message = format!(
        "class {} provisions a volume for each claim at once, so that none ever waits for this one; set volumeBindingMode to \
         WaitForFirstConsumer in a new class, or release by mode soft",
        class.key
    );
    Some(refuse(None, "ProvisionerWins", message))
}

fn too_young(seen: &Observation) -> Option<Decision<Action>> {
    // Who had it has waited for already, before the scrub.
    let after = seen.terms().ok().map(|terms| terms.after).filter(|after| !after.is_zero() && !seen.scrubbed)?;
    // Without the time we wait as if it were now, each time again: it stays as it is, which does no harm.
    let age = seen.volume.phase_since.map(|since| seen.now.duration_since(since)).unwrap_or_default();
    let left = after.checked_sub(age).filter(SignedDuration::is_positive)?;
    let message = format!("the volume is released {after:#} after its claim is gone");
    Some(Decision::new(Action::Wait(left.unsigned_abs()), "TooYoung", message))
}

fn pool_full(seen: &Observation) -> Option<Decision<Action>> {
    let terms = seen.terms().ok().filter(|terms| terms.mode == Mode::Pool)?;
    let most = terms.max_available.filter(|most| seen.available >= *most)?;
    let message = format!(
        "{} volumes of class {} are free and {most} may be; the volume stays Released until one of them is used",
        seen.available, seen.volume.class
    );
    Some(refuse(None, "PoolFull", message))
}

fn not_looked_yet(seen: &Observation) -> Option<Decision<Action>> {
    let message = "its claim, its attachments and what else may have changed are read live";
    seen.live.is_none().then(|| Decision::new(Action::Look, "NotLookedYet", message))
}

fn claim_still_exists(seen: &Observation) -> Option<Decision<Action>> {
    let message = "the claim that the volume refers to is still there";
    let same = seen.live.as_ref()?.claim == ClaimSeen::Same;
    same.then(|| refuse(Some(LOOK_AGAIN), "ClaimStillExists", message))
}

fn namespace_lost(seen: &Observation) -> Option<Decision<Action>> {
    if !matches!(seen.mode(), Mode::Soft | Mode::Namespace) {
        return None;
    }
    let namespace = seen.live.as_ref()?.namespace.unwrap_or(NamespaceSeen::Gone);
    let lost = namespace.lost_since(gone_since(&seen.volume))?;
    Some(refuse(None, lost.reason(), format!("{}, so the volume stays Released", lost.sentence())))
}

fn claim_recreated_elsewhere(seen: &Observation) -> Option<Decision<Action>> {
    let served = seen.live.as_ref()?.claim == ClaimSeen::Served;
    let message =
        "a new claim of the previous one's name has a volume, or one is being made for it; this one stays Released";
    (served && seen.mode() == Mode::Soft).then(|| refuse(None, "ClaimRecreatedElsewhere", message))
}

fn still_attached(seen: &Observation) -> Option<Decision<Action>> {
    let message = "the volume is attached to a node, so somebody may still write to it";
    let attached = seen.live.as_ref()?.attached == Attached::Yes;
    attached.then(|| refuse(Some(LOOK_AGAIN), "StillAttached", message))
}

fn no_claim_waits(seen: &Observation) -> Option<Decision<Action>> {
    let waits = seen.live.as_ref()?.candidate.is_some();
    let message = "no claim of its namespace and class that it fits waits for a volume";
    (seen.mode() == Mode::Namespace && !waits).then(|| leave("NoClaimWaits", message))
}

fn dry_run(seen: &Observation) -> Option<Decision<Action>> {
    let message =
        || format!("the volume would be released now, {}, but releaser.dryRun is on", to(seen).sentence(seen));
    seen.dry_run.then(|| Decision::new(Action::Report, "WouldRelease", message()))
}

fn not_scrubbed(seen: &Observation) -> Option<Decision<Action>> {
    let template = seen.terms().ok()?.scrub.filter(|_| !seen.scrubbed)?;
    let message = format!("the volume is cleaned by a Job of template {template} before it is released");
    Some(Decision::new(Action::Scrub(template), "NotScrubbed", message))
}

fn release(seen: &Observation) -> Decision<Action> {
    let to = to(seen);
    // The words are the original's; it knew only the pool.
    let message = match to {
        To::Pool => "PV released successfully".to_owned(),
        _ => format!("PV released successfully, {}", to.sentence(seen)),
    };
    Decision::new(Action::Release(to), "Released", message)
}

fn to(seen: &Observation) -> To {
    let candidate = seen.live.as_ref().and_then(|live| live.candidate.clone());
    match (seen.mode(), candidate) {
        (Mode::Namespace, Some(candidate)) => To::Claim(candidate),
        (Mode::Pool, _) => To::Pool,
        // The checks let only soft come here; it is also what gives away least.
        _ => To::SameName,
    }
}

impl To {
    fn sentence(&self, seen: &Observation) -> String {
        match self {
            Self::Pool => "to any claim".to_owned(),
            Self::SameName => {
                let claim = seen.volume.claim.as_ref().map(|claim| claim.key.to_string()).unwrap_or_default();
                format!("to the next claim of the name {claim}")
            }
            Self::Claim(candidate) => format!("to claim {}", candidate.key),
        }
    }
}

#[cfg(test)]
mod tests;
