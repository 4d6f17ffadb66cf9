//! What the next step of a scrub is.
//!
//! | what is seen                                              | decision                            |
//! |-----------------------------------------------------------|-------------------------------------|
//! | the configuration lets nothing be scrubbed                | refuse: `ScrubOff`                  |
//! | the volume is quarantined                                 | leave: `Quarantined`                |
//! | it is being deleted, its Job is there                     | remove Job: `VolumeBeingDeleted`    |
//! | … its claim is there                                      | remove claim: `VolumeBeingDeleted`  |
//! | it is clean, its Job is there                             | remove Job: `CleanUp`               |
//! | … its claim is there                                      | remove claim: `CleanUp`             |
//! | it is a dry run                                           | leave: `DryRun`                     |
//! | nobody asks for a scrub any more, its claim is there      | remove claim: `NotWanted`           |
//! | a Job of another claim than the volume's is there         | remove Job: `StaleJob`              |
//! | the Job has succeeded                                     | finish: `Scrubbed`                  |
//! | the Job has failed                                        | quarantine: `ScrubFailed`           |
//! | … and the quarantine was lifted since                     | remove Job: `QuarantineLifted`      |
//! | the Job is under way, or on its way out                   | leave: `Scrubbing`                  |
//! | nobody has looked live yet                                | look: `NotLookedYet`                |
//! | the template is not there                                 | refuse: `ScrubTemplateMissing`      |
//! | no Job can be made from the template                      | refuse: `ScrubTemplateInvalid`      |
//! | somebody else's claim has the name of the scrub claim     | refuse: `ScrubNameTaken`            |
//! | the scrub claim is being deleted                          | wait: `ScrubClaimLeaving`           |
//! | there is no scrub claim                                   | make claim: `NoScrubClaim`          |
//! | the volume does not refer to the scrub claim              | hand over: `NotHandedOver`          |
//! | Kubernetes has not bound it yet                           | leave: `NotBoundYet`                |
//! | it has, but has not looked at the scrub claim since       | remind: `ClaimNotBoundYet`          |
//! | otherwise                                                 | make Job: `ScrubStarted`            |

use std::{sync::Arc, time::Duration};

use cluster::{
    Job, Volume,
    decision::{Chain, Check, Decision},
    job::JobState,
    volume::VolumePhase,
};

use super::{Progress, has_scrub_name, is_quarantined, is_scrubbed};
use crate::decision::LOOK_AGAIN;

/// All that the rules look at.
#[derive(Debug, Clone)]
pub struct Observation {
    /// The volume. If it does not refer to its scrub claim yet, all rules of its release were passed.
    pub volume: Arc<Volume>,
    /// The name of the template; none if nobody asks for a scrub any more.
    pub template: Option<Box<str>>,
    /// Whether volumes may be scrubbed at all.
    pub on: bool,
    /// Whether nothing is to be done but told.
    pub dry_run: bool,
    /// What stands under the name of the volume's Job.
    pub job: Option<Arc<Job>>,
    /// What was read live; none until somebody has looked.
    pub live: Option<Live>,
}

/// What is read live before something is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Live {
    /// What stands under the name of the scrub claim.
    pub claim: ClaimSeen,
    /// What stands under the name of the template.
    pub template: TemplateSeen,
}

/// What stands under the name of the scrub claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimSeen {
    /// Nothing.
    Gone,
    /// A claim that is not for this volume.
    Foreign,
    /// The scrub claim, on its way out.
    Leaving,
    /// The scrub claim; this is its uid.
    There(Box<str>),
    /// The same, which does not have its volume yet; nobody has reminded Kubernetes of it.
    Waiting(Box<str>),
}

/// What stands under the name of the template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplateSeen {
    /// Nothing.
    Missing,
    /// Something from which no Job can be made, and why.
    Invalid(Box<str>),
    /// A template.
    Usable,
}

/// What is done about one volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Nothing; whoever changes something wakes us.
    Leave,
    /// Not yet: look again when this is over.
    Wait(Duration),
    /// Read live what the rules need, and decide again.
    Look,
    /// It cannot be scrubbed: tell it once, and look again when this is over.
    Refuse(Option<Duration>),
    /// Make the scrub claim.
    MakeClaim,
    /// Let the volume refer to the scrub claim of this uid.
    HandOver(Box<str>),
    /// Change the scrub claim of this uid, so that Kubernetes looks at it.
    Remind(Box<str>),
    /// Make the Job, owned by the scrub claim of this uid.
    MakeJob(Box<str>),
    /// Note on the volume that it is clean.
    Finish,
    /// Note on the volume that the Job of this uid has failed, and let nobody have it.
    Quarantine(Box<str>),
    /// Delete the Job of this uid, with its pods.
    RemoveJob(Box<str>),
    /// Delete the scrub claim of this uid.
    RemoveClaim(Box<str>),
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
            Self::MakeClaim => "make-claim",
            Self::HandOver(_) => "hand-over",
            Self::Remind(_) => "remind",
            Self::MakeJob(_) => "make-job",
            Self::Finish => "finish",
            Self::Quarantine(_) => "quarantine",
            Self::RemoveJob(_) => "remove-job",
            Self::RemoveClaim(_) => "remove-claim",
        }
    }
}

/// The rules.
pub const SCRUB_VOLUME: Chain<Observation, Action> = Chain {
    checks: &[
        Check { holds: "volumes may be scrubbed", run: scrub_off },
        Check { holds: "the volume is not quarantined", run: quarantined },
        Check { holds: "it is not being deleted", run: volume_going_away },
        Check { holds: "it is not clean", run: clean },
        Check { holds: "it is not a dry run", run: dry_run },
        Check { holds: "its class, or a note on it, says how it is cleaned", run: not_wanted },
        Check { holds: "no Job of an earlier scrub is there", run: stale_job },
        Check { holds: "no Job has cleaned it", run: job_succeeded },
        Check { holds: "no Job has failed to", run: job_failed },
        Check { holds: "no Job is about to", run: job_under_way },
        Check { holds: "what is needed was read live", run: not_looked_yet },
        Check { holds: "there is a template of which a Job can be made", run: template_unusable },
        Check { holds: "the scrub claim is not somebody else's, and stays", run: claim_unusable },
        Check { holds: "there is a scrub claim", run: claim_missing },
        Check { holds: "the volume refers to it", run: not_handed_over },
        Check { holds: "Kubernetes has bound it", run: not_bound_yet },
        Check { holds: "Kubernetes has bound the scrub claim, or knows that it should", run: claim_not_bound_yet },
    ],
    otherwise: make_job,
};

type Answer = Option<Decision<Action>>;

impl Observation {
    /// The uid of the scrub claim that the volume refers to. Its name is enough here: what is deleted by it is looked for in
    /// the operator's namespace.
    fn handed_to(&self) -> Option<&str> {
        let claim = self.volume.claim.as_ref().filter(|_| has_scrub_name(&self.volume))?;
        claim.uid.as_deref()
    }

    /// The Job for the claim that the volume refers to, and what is noted about it.
    fn own_job(&self) -> Option<(&Job, Progress)> {
        let progress = Progress::of(&self.volume)?;
        let job = self.job.as_ref().filter(|job| job.owner.as_deref() == Some(&*progress.claim))?;
        Some((job, progress))
    }

    /// The way out: first the Job, because the claim stays as long as one of its pods is there.
    fn clean_up(&self, reason: &'static str, message: &'static str) -> Decision<Action> {
        let action = match (&self.job, self.handed_to()) {
            (Some(job), _) if job.being_deleted => Action::Leave,
            (Some(job), _) => Action::RemoveJob(job.uid.clone()),
            (None, Some(uid)) if self.volume.phase == VolumePhase::Bound => Action::RemoveClaim(uid.into()),
            (None, _) => Action::Leave,
        };
        Decision::new(action, reason, message)
    }
}

fn scrub_off(seen: &Observation) -> Answer {
    let message = format!(
        "class {} wants its volumes cleaned by template {} before they are released, but nothing is scrubbed here; set \
         releaser.scrub to true in the configuration, and in the values of the chart for the rights; until then the volume \
         stays Released",
        seen.volume.class,
        seen.template()
    );
    (!seen.on).then(|| Decision::new(Action::Refuse(None), "ScrubOff", message))
}

fn quarantined(seen: &Observation) -> Answer {
    let message = "the volume is quarantined until an administrator removes the annotation claimkeeper.dev/quarantined";
    is_quarantined(&seen.volume).then(|| Decision::new(Action::Leave, "Quarantined", message))
}

fn volume_going_away(seen: &Observation) -> Answer {
    let message = "the volume is being deleted, and what was made for its scrub with it";
    seen.volume.being_deleted.then(|| seen.clean_up("VolumeBeingDeleted", message))
}

fn clean(seen: &Observation) -> Answer {
    let message = "the volume is clean; what was made for its scrub is deleted";
    is_scrubbed(&seen.volume).then(|| seen.clean_up("CleanUp", message))
}

fn dry_run(seen: &Observation) -> Answer {
    let message = "the scrub would go on, but releaser.dryRun is on";
    seen.dry_run.then(|| Decision::new(Action::Leave, "DryRun", message))
}

fn not_wanted(seen: &Observation) -> Answer {
    let message =
        "neither the class of the volume nor a note on it says how it is cleaned, so its scrub claim is deleted";
    seen.template.is_none().then(|| seen.clean_up("NotWanted", message))
}

// What it did, it did to the volume before somebody deleted the claim; who had it since, nobody knows.
fn stale_job(seen: &Observation) -> Answer {
    let job = seen.job.as_ref().filter(|_| seen.own_job().is_none())?;
    let action = if job.being_deleted { Action::Leave } else { Action::RemoveJob(job.uid.clone()) };
    Some(Decision::new(action, "StaleJob", "a Job of an earlier scrub of the volume is in the way"))
}

fn job_succeeded(seen: &Observation) -> Answer {
    let (job, progress) = seen.own_job().filter(|(job, _)| job.state == JobState::Complete)?;
    let message = format!("Job {} of template {} has cleaned the volume", job.key, progress.template);
    Some(Decision::new(Action::Finish, "Scrubbed", message))
}

fn job_failed(seen: &Observation) -> Answer {
    let (job, progress) = seen.own_job()?;
    let JobState::Failed(why) = &job.state else { return None };
    if progress.failed_job.as_deref() == Some(&*job.uid) {
        let action = if job.being_deleted { Action::Leave } else { Action::RemoveJob(job.uid.clone()) };
        let message = "an administrator has lifted the quarantine, so the scrub is tried again";
        return Some(Decision::new(action, "QuarantineLifted", message));
    }
    let message = format!(
        "Job {} could not clean the volume: {why}; look at its logs, then remove the annotation claimkeeper.dev/quarantined from \
         the volume to have it tried again; until then nobody gets the volume",
        job.key
    );
    Some(Decision::new(Action::Quarantine(job.uid.clone()), "ScrubFailed", message))
}

fn job_under_way(seen: &Observation) -> Answer {
    seen.job.is_some().then(|| Decision::new(Action::Leave, "Scrubbing", "a Job cleans the volume"))
}

fn not_looked_yet(seen: &Observation) -> Answer {
    let message = "the template and the scrub claim are read live";
    seen.live.is_none().then(|| Decision::new(Action::Look, "NotLookedYet", message))
}

fn template_unusable(seen: &Observation) -> Answer {
    let name = seen.template();
    let refuse = |reason, message: String| Some(Decision::new(Action::Refuse(Some(LOOK_AGAIN)), reason, message));
    match &seen.live.as_ref()?.template {
        TemplateSeen::Usable => None,
        TemplateSeen::Missing => {
            let message = format!(
                "class {} wants its volumes cleaned, but there is no PodTemplate {name} in the operator's namespace; create it, \
                 or correct the class's annotation claimkeeper.dev/release-scrub; until then nobody gets the volume",
                seen.volume.class
            );
            refuse("ScrubTemplateMissing", message)
        }
        TemplateSeen::Invalid(why) => {
            let message = format!(
                "no Job can be made of PodTemplate {name}: {why}; correct it; until then nobody gets the volume"
            );
            refuse("ScrubTemplateInvalid", message)
        }
    }
}

fn claim_unusable(seen: &Observation) -> Answer {
    let name = super::name(&seen.volume);
    match seen.live.as_ref()?.claim {
        ClaimSeen::Foreign => {
            let message = format!(
                "a claim that is not for this volume has the name {name} in the operator's namespace; delete it if nobody needs it"
            );
            Some(Decision::new(Action::Refuse(Some(LOOK_AGAIN)), "ScrubNameTaken", message))
        }
        ClaimSeen::Leaving => {
            let message = "somebody has deleted the scrub claim; it is made again";
            Some(Decision::new(Action::Wait(LOOK_AGAIN), "ScrubClaimLeaving", message))
        }
        ClaimSeen::Gone | ClaimSeen::There(_) | ClaimSeen::Waiting(_) => None,
    }
}

fn claim_missing(seen: &Observation) -> Answer {
    let gone = seen.live.as_ref()?.claim == ClaimSeen::Gone;
    gone.then(|| Decision::new(Action::MakeClaim, "NoScrubClaim", "the volume gets a claim of its own for the scrub"))
}

impl Observation {
    /// Kubernetes has refused the Job. The pod is the administrator's, and only Kubernetes knows all that a pod may be.
    pub(super) fn job_refused(&mut self, why: &str) {
        if let Some(live) = &mut self.live {
            live.template = TemplateSeen::Invalid(format!("Kubernetes refuses it: {why}").into());
        }
    }

    /// Kubernetes has been reminded of the scrub claim.
    pub(super) fn reminded(&mut self) {
        if let Some(Live { claim, .. }) = &mut self.live
            && let ClaimSeen::Waiting(uid) = claim
        {
            *claim = ClaimSeen::There(std::mem::take(uid));
        }
    }

    fn template(&self) -> &str {
        self.template.as_deref().unwrap_or_default()
    }

    fn scrub_claim(&self) -> Option<&str> {
        match &self.live.as_ref()?.claim {
            ClaimSeen::There(uid) | ClaimSeen::Waiting(uid) => Some(uid),
            ClaimSeen::Gone | ClaimSeen::Foreign | ClaimSeen::Leaving => None,
        }
    }
}

fn not_handed_over(seen: &Observation) -> Answer {
    let uid = seen.scrub_claim()?;
    let message = "the volume is given to the scrub claim, and to nobody else";
    let noted = Progress::of(&seen.volume).is_some_and(|progress| progress.claim == uid);
    (!noted).then(|| Decision::new(Action::HandOver(uid.into()), "NotHandedOver", message))
}

fn not_bound_yet(seen: &Observation) -> Answer {
    let message = "Kubernetes has not bound the volume to the scrub claim yet";
    (seen.volume.phase != VolumePhase::Bound).then(|| Decision::new(Action::Leave, "NotBoundYet", message))
}

fn claim_not_bound_yet(seen: &Observation) -> Answer {
    let ClaimSeen::Waiting(uid) = &seen.live.as_ref()?.claim else { return None };
    let message = "the volume is bound to the scrub claim, which Kubernetes looks at when it changes";
    Some(Decision::new(Action::Remind(uid.clone()), "ClaimNotBoundYet", message))
}

fn make_job(seen: &Observation) -> Decision<Action> {
    let uid = seen.scrub_claim().unwrap_or_default();
    let message = format!("the volume is cleaned by a Job of template {} before it is released", seen.template());
    Decision::new(Action::MakeJob(uid.into()), "ScrubStarted", message)
}

#[cfg(test)]
mod tests;
