use serde_json::{Value, json};

use cluster::{ObjectKey, volume::VolumePhase};

use super::*;
use crate::{
    sample::{volume, volume_with},
    scrub::{QUARANTINED, SCRUB},
};

/// The volume, Bound to its scrub claim (uid `k1`).
fn handed_over(change: &Value) -> Arc<Volume> {
    let mut all = json!({
        "metadata": {"annotations": {SCRUB: r#"{"template":"wipe","claim":"k1"}"#}},
        "spec": {"claimRef": {"namespace": "ops", "name": "scrub-v1", "uid": "k1"}},
        "status": {"phase": "Bound"},
    });
    json_patch::merge(&mut all, change);
    Arc::new(volume_with(&all))
}

fn noted(progress: &str) -> Value {
    json!({"metadata": {"annotations": {SCRUB: progress}}})
}

const DONE: &str = r#"{"template":"wipe","claim":"k1","done":true}"#;
const FAILED: &str = r#"{"template":"wipe","claim":"k1","failedJob":"j1"}"#;

fn job(owner: &str, state: JobState) -> Arc<Job> {
    let key = ObjectKey::new("ops", "scrub-v1");
    Arc::new(Job { key, uid: "j1".into(), owner: Some(owner.into()), being_deleted: false, state })
}

fn failed() -> JobState {
    JobState::Failed("BackoffLimitExceeded: no luck".into())
}

fn there() -> Live {
    Live { claim: ClaimSeen::There("k1".into()), template: TemplateSeen::Usable }
}

/// A volume that was handed over and waits for its Job.
fn seen() -> Observation {
    Observation {
        volume: handed_over(&json!({})),
        template: Some("wipe".into()),
        on: true,
        dry_run: false,
        job: None,
        live: Some(there()),
    }
}

fn decided(seen: &Observation) -> (Action, &'static str) {
    let Decision { action, reason, .. } = SCRUB_VOLUME.decide(seen);
    (action, reason)
}

#[test]
fn each_step_follows_from_what_is_there() {
    let released = Observation { volume: Arc::new(volume()), ..seen() };
    let gone = Live { claim: ClaimSeen::Gone, ..there() };
    let steps = [
        (Observation { live: None, ..released.clone() }, Action::Look, "NotLookedYet"),
        (Observation { live: Some(gone), ..released.clone() }, Action::MakeClaim, "NoScrubClaim"),
        (released, Action::HandOver("k1".into()), "NotHandedOver"),
        (
            Observation { volume: handed_over(&json!({"status": {"phase": "Released"}})), ..seen() },
            Action::Leave,
            "NotBoundYet",
        ),
        (
            Observation { live: Some(Live { claim: ClaimSeen::Waiting("k1".into()), ..there() }), ..seen() },
            Action::Remind("k1".into()),
            "ClaimNotBoundYet",
        ),
        (seen(), Action::MakeJob("k1".into()), "ScrubStarted"),
        (Observation { job: Some(job("k1", JobState::Running)), ..seen() }, Action::Leave, "Scrubbing"),
        (Observation { job: Some(job("k1", JobState::Complete)), ..seen() }, Action::Finish, "Scrubbed"),
        (
            Observation { volume: handed_over(&noted(DONE)), job: Some(job("k1", JobState::Complete)), ..seen() },
            Action::RemoveJob("j1".into()),
            "CleanUp",
        ),
        (Observation { volume: handed_over(&noted(DONE)), ..seen() }, Action::RemoveClaim("k1".into()), "CleanUp"),
    ];
    for (seen, action, reason) in steps {
        assert_eq!(decided(&seen), (action, reason), "{seen:?}");
    }
}

#[test]
fn a_job_counts_only_for_the_claim_that_the_volume_refers_to() {
    let complete = |owner| Some(job(owner, JobState::Complete));
    let remove = (Action::RemoveJob("j1".into()), "StaleJob");
    assert_eq!(decided(&Observation { job: complete("k0"), ..seen() }), remove);
    // The claim was deleted and made again: the volume was in nobody's hands in between.
    let again = handed_over(&json!({"spec": {"claimRef": {"uid": "k2"}}}));
    assert_eq!(decided(&Observation { volume: again, job: complete("k1"), ..seen() }), remove);
    // Not even handed over.
    assert_eq!(decided(&Observation { volume: Arc::new(volume()), job: complete("k1"), ..seen() }), remove);
    // Somebody removed the note, and with it what the Job was for.
    let unknown = handed_over(&json!({"metadata": {"annotations": {SCRUB: null}}}));
    assert_eq!(decided(&Observation { volume: unknown, job: complete("k1"), ..seen() }), remove);
}

#[test]
fn a_note_about_another_claim_is_void() {
    let other = r#"{"template":"wipe","claim":"k0","done":true}"#;
    for change in [noted(other), noted("nonsense"), noted("{}")] {
        let volume = handed_over(&change);
        assert!(!is_scrubbed(&volume), "{change}");
        assert_eq!(decided(&Observation { volume, ..seen() }).0, Action::HandOver("k1".into()), "{change}");
    }
    assert!(is_scrubbed(&handed_over(&noted(DONE))));
    // A tenant's claim of the same uid is not ours either.
    let tenants =
        handed_over(&json!({"spec": {"claimRef": {"name": "build"}}, "metadata": {"annotations": {SCRUB: DONE}}}));
    assert!(!is_scrubbed(&tenants));
}

#[test]
fn a_failed_job_is_a_quarantine_until_somebody_lifts_it() {
    let failure = Observation { job: Some(job("k1", failed())), ..seen() };
    assert_eq!(decided(&failure), (Action::Quarantine("j1".into()), "ScrubFailed"));
    let message = SCRUB_VOLUME.decide(&failure).message;
    assert!(
        message.starts_with("Job ops/scrub-v1 could not clean the volume: BackoffLimitExceeded: no luck;"),
        "{message}"
    );

    let mut quarantined = noted(FAILED);
    quarantined["metadata"]["annotations"][QUARANTINED] = "ScrubFailed".into();
    for job in [Some(job("k1", failed())), Some(job("k1", JobState::Complete)), None] {
        for phase in ["Bound", "Released"] {
            quarantined["status"] = json!({"phase": phase});
            let seen = Observation { volume: handed_over(&quarantined), job: job.clone(), ..seen() };
            assert_eq!(decided(&seen), (Action::Leave, "Quarantined"), "{job:?} {phase}");
        }
    }
    let lifted = Observation { volume: handed_over(&noted(FAILED)), ..failure.clone() };
    assert_eq!(decided(&lifted), (Action::RemoveJob("j1".into()), "QuarantineLifted"));
    assert_eq!(decided(&Observation { job: None, ..lifted.clone() }).1, "ScrubStarted");
    let earlier = handed_over(&noted(r#"{"template":"wipe","claim":"k1","failedJob":"j0"}"#));
    assert_eq!(decided(&Observation { volume: earlier, ..lifted }).1, "ScrubFailed", "the next one fails as well");
}

#[test]
fn nothing_is_made_that_cannot_work() {
    let live = |live| decided(&Observation { volume: Arc::new(volume()), live: Some(live), ..seen() });
    let again = Action::Refuse(Some(LOOK_AGAIN));
    let invalid = TemplateSeen::Invalid("why".into());
    assert_eq!(live(Live { template: TemplateSeen::Missing, ..there() }), (again.clone(), "ScrubTemplateMissing"));
    assert_eq!(live(Live { template: invalid, ..there() }), (again.clone(), "ScrubTemplateInvalid"));
    assert_eq!(live(Live { claim: ClaimSeen::Foreign, ..there() }), (again, "ScrubNameTaken"));
    assert_eq!(live(Live { claim: ClaimSeen::Leaving, ..there() }), (Action::Wait(LOOK_AGAIN), "ScrubClaimLeaving"));
    assert_eq!(decided(&Observation { on: false, ..seen() }), (Action::Refuse(None), "ScrubOff"));
    assert_eq!(decided(&Observation { dry_run: true, ..seen() }), (Action::Leave, "DryRun"));
    assert_eq!(decided(&Observation { template: None, ..seen() }), (Action::RemoveClaim("k1".into()), "NotWanted"));
}

#[test]
fn a_job_that_kubernetes_refuses_is_tried_again_when_its_template_may_be_mended() {
    let mut seen = seen();
    seen.job_refused("spec.template: Invalid value");
    let Decision { action, reason, message } = SCRUB_VOLUME.decide(&seen);
    assert_eq!((action, reason), (Action::Refuse(Some(LOOK_AGAIN)), "ScrubTemplateInvalid"));
    assert_eq!(
        message,
        "no Job can be made of PodTemplate wipe: Kubernetes refuses it: spec.template: Invalid value; correct it; until then \
         nobody gets the volume"
    );
}

#[test]
fn kubernetes_is_reminded_once_of_a_claim_that_waits() {
    let mut seen = Observation { live: Some(Live { claim: ClaimSeen::Waiting("k1".into()), ..there() }), ..seen() };
    let early = Observation { volume: handed_over(&json!({"status": {"phase": "Released"}})), ..seen.clone() };
    assert_eq!(decided(&early).1, "NotBoundYet", "it would find the volume as it was");
    seen.reminded();
    assert_eq!(decided(&seen), (Action::MakeJob("k1".into()), "ScrubStarted"));
}

#[test]
fn a_volume_that_is_deleted_takes_everything_with_it() {
    let leaving = |phase: &str| {
        handed_over(&json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": {"phase": phase}}))
    };
    let with = |phase, job| decided(&Observation { volume: leaving(phase), job, ..seen() });
    assert_eq!(with("Bound", Some(job("k1", JobState::Running))).0, Action::RemoveJob("j1".into()));
    assert_eq!(with("Bound", None), (Action::RemoveClaim("k1".into()), "VolumeBeingDeleted"));
    assert_eq!(with("Released", None), (Action::Leave, "VolumeBeingDeleted"));
}

#[test]
fn whatever_is_seen_only_a_job_of_this_claim_makes_the_volume_clean() {
    let volumes = [
        Arc::new(volume()),
        handed_over(&json!({})),
        handed_over(&json!({"status": {"phase": "Released"}})),
        handed_over(&noted(FAILED)),
        handed_over(&noted(r#"{"template":"wipe","claim":"k0","done":true}"#)),
        handed_over(&json!({"spec": {"claimRef": {"uid": "k2"}}})),
        handed_over(&json!({"metadata": {"annotations": {QUARANTINED: "x"}}})),
    ];
    let jobs = ["k0", "k1", "k2"]
        .into_iter()
        .flat_map(|owner| [JobState::Running, JobState::Complete, failed()].map(|state| Some(job(owner, state))));
    let mut finished = 0;
    for job in jobs.chain([None]) {
        for volume in &volumes {
            for claim in [ClaimSeen::Gone, ClaimSeen::Foreign, ClaimSeen::Leaving, ClaimSeen::There("k1".into())] {
                let live = Some(Live { claim, ..there() });
                let seen = Observation { volume: Arc::clone(volume), job: job.clone(), live, ..seen() };
                let action = decided(&seen).0;
                if action == Action::Finish {
                    let job = job.as_ref().unwrap();
                    let refers = volume.claim.as_ref().and_then(|claim| claim.uid.clone());
                    assert_eq!((job.owner.clone(), &job.state), (refers, &JobState::Complete), "{seen:?}");
                    finished += 1;
                }
                if matches!(action, Action::MakeJob(_)) {
                    assert_eq!(volume.phase, VolumePhase::Bound, "{seen:?}");
                }
            }
        }
    }
    assert!(finished > 0);
}
