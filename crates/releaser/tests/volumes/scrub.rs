//! Volumes that are cleaned on their way to the pool.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::{
    ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use testbed::{eventually, within};

use crate::{
    laundry::{History, Laundry, RELEASE_SCRUB, SCRUB},
    room::{RELEASE, reference},
};

const QUARANTINED: &str = "claimkeeper.dev/quarantined";
const PREVIOUS_CLAIM: &str = "claimkeeper.dev/previous-claim";

#[tokio::test]
async fn a_volume_is_cleaned_before_anybody_else_gets_it() -> Result<()> {
    let laundry = Laundry::open("scrub").await?;
    let room = &laundry.room;
    let volume = room.create_volume("one", &laundry.class, json!({})).await?.name_any();
    let tenant = room.create_claim("one", &laundry.class, json!({"spec": {"volumeName": volume}})).await?;
    room.until_phase(&volume, "Bound").await?;
    let (greedy, elsewhere) = laundry.be_greedy().await?;
    let history = History::of(room, &volume).await?;
    room.delete_claim("one").await?;

    let job = laundry.until_job(&volume).await?;
    let pod = job.spec.context("it has no spec")?;
    assert_eq!((pod.backoff_limit, pod.active_deadline_seconds), (Some(0), Some(24 * 60 * 60)));
    let handed_over = room.until_phase(&volume, "Bound").await?;
    let name = laundry.scrub_name(&volume).await?;
    assert_eq!(
        reference(&handed_over).map(|[namespace, name, _]| (namespace, name)),
        Some((room.namespace.clone(), name))
    );
    assert!(room.told(&volume, "ScrubStarted").await?.contains("Job of template wipe"));
    laundry.end_job(&volume, "Succeeded").await?;

    let taken = eventually("the greedy claim to have the volume", async || {
        let found = room.volumes.get(&volume).await?;
        ensure!(reference(&found).is_some_and(|[namespace, ..]| namespace == elsewhere), "{:?}", reference(&found));
        Ok(found)
    })
    .await?;
    // Kubernetes writes the claim after the volume.
    eventually("the claim to know it too", async || {
        let found = greedy.get("greedy").await?.spec.and_then(|spec| spec.volume_name);
        ensure!(found.as_ref() == Some(&volume), "it has {found:?}");
        Ok(())
    })
    .await?;
    history.check(room)?;
    let previous: Value = serde_json::from_str(&taken.annotations()[PREVIOUS_CLAIM])?;
    assert_eq!(
        (&previous["name"], &previous["uid"]),
        (&json!("one"), &json!(tenant.uid())),
        "the tenant's, not the Job's"
    );
    assert!(!taken.annotations().contains_key(SCRUB));
    laundry.until_swept().await?;
    for reason in ["Scrubbed", "Released"] {
        room.told(&volume, reason).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_volume_that_could_not_be_cleaned_is_for_nobody_until_the_quarantine_is_lifted() -> Result<()> {
    let laundry = Laundry::open("quarantine").await?;
    let room = &laundry.room;
    let volume = laundry.create_released("one").await?;
    let history = History::of(room, &volume).await?;
    let failed = laundry.until_job(&volume).await?.uid();
    laundry.end_job(&volume, "Failed").await?;
    let note = room.told(&volume, "ScrubFailed").await?;
    assert!(note.contains("BackoffLimitExceeded") && note.contains(QUARANTINED), "{note}");
    let warned = room.events(&volume).await?.into_iter().find(|told| told.reason == "ScrubFailed");
    assert_eq!(warned.map(|told| told.kind).as_deref(), Some("Warning"));
    room.until_decided("leave", "Quarantined", 1).await?;
    let kept = room.until_phase(&volume, "Bound").await?;
    assert!(kept.annotations()[QUARANTINED].starts_with("ScrubFailed: "), "{:?}", kept.annotations());
    assert_eq!(laundry.until_job(&volume).await?.uid(), failed, "its logs are kept");

    // Even if somebody tidies up.
    let before = room.decided("refuse", "Quarantined") + room.decided("leave", "Quarantined");
    laundry.jobs.delete(&laundry.scrub_name(&volume).await?, &DeleteParams::background()).await?;
    eventually("somebody to look at it", async || {
        let now = room.decided("refuse", "Quarantined") + room.decided("leave", "Quarantined");
        ensure!(now > before, "{now}");
        Ok(())
    })
    .await?;
    room.until_phase(&volume, "Bound").await?;

    room.patch_volume(&volume, json!({"metadata": {"annotations": {QUARANTINED: null}}})).await?;
    laundry.wash_until_free(&volume).await?;
    history.check(room)?;
    laundry.until_swept().await
}

#[tokio::test]
async fn a_lifted_quarantine_begins_with_a_new_job() -> Result<()> {
    let laundry = Laundry::open("lifted").await?;
    let room = &laundry.room;
    let volume = laundry.create_released("one").await?;
    let first = laundry.until_job(&volume).await?.uid();
    laundry.end_job(&volume, "Failed").await?;
    room.told(&volume, "ScrubFailed").await?;
    room.until_decided("leave", "Quarantined", 1).await?;
    room.patch_volume(&volume, json!({"metadata": {"annotations": {QUARANTINED: null}}})).await?;
    eventually("another Job", async || {
        ensure!(laundry.until_job(&volume).await?.uid() != first, "it is the same");
        Ok(())
    })
    .await?;
    laundry.wash_until_free(&volume).await?;
    Ok(())
}

#[tokio::test]
async fn a_template_that_is_missing_or_unusable_is_told_and_found_when_it_is_mended() -> Result<()> {
    let laundry = Laundry::prepare("template").await?.start().await?;
    let room = &laundry.room;
    let volume = laundry.create_released("one").await?;
    let note = room.told(&volume, "ScrubTemplateMissing").await?;
    assert!(note.contains("there is no PodTemplate wipe in the operator's namespace; create it"), "{note}");
    // Nothing was begun that cannot be ended.
    laundry.until_swept().await?;
    let kept = room.until_phase(&volume, "Released").await?;
    assert_eq!(reference(&kept).map(|[_, name, _]| name).as_deref(), Some("one"));

    laundry
        .create_template("all-but", json!({"template": {"spec": {"containers": [{"name": "idle", "image": "idle"}]}}}))
        .await?;
    room.annotate_class(&laundry.class, json!({RELEASE_SCRUB: "all-but"})).await?;
    let note = room.told(&volume, "ScrubTemplateInvalid").await?;
    assert!(note.contains("exactly one of its containers"), "{note}");
    room.annotate_class(&laundry.class, json!({RELEASE_SCRUB: "wipe"})).await?;
    laundry.create_template("wipe", json!({})).await?;
    laundry.wash_until_free(&volume).await?;
    let missing = room.events(&volume).await?.iter().filter(|told| told.reason == "ScrubTemplateMissing").count();
    assert!(missing <= 2, "told once for each time it was news, but {missing} times");
    Ok(())
}

#[tokio::test]
async fn a_template_of_which_kubernetes_takes_no_job_is_told_and_tried_again() -> Result<()> {
    let laundry = Laundry::prepare("refused").await?;
    // Kubernetes writes this label itself, and takes no other value for it.
    let conflict = json!({"template": {"metadata": {"labels": {"batch.kubernetes.io/job-name": "another"}}}});
    laundry.create_template("wipe", conflict).await?;
    let laundry = laundry.start().await?;
    let room = &laundry.room;
    let volume = laundry.create_released("one").await?;
    let note = room.told(&volume, "ScrubTemplateInvalid").await?;
    assert!(note.contains("Kubernetes refuses it: Job.batch") && note.contains("job-name"), "{note}");
    assert!(laundry.jobs.get_opt(&laundry.scrub_name(&volume).await?).await?.is_none());
    let mended = json!({"template": {"metadata": {"labels": null}}});
    laundry.templates.patch("wipe", &PatchParams::default(), &Patch::Merge(mended)).await?;
    laundry.wash_until_free(&volume).await?;
    laundry.until_swept().await
}

#[tokio::test]
async fn who_asks_about_a_volume_that_is_cleaned_is_told_how_far_that_is() -> Result<()> {
    let laundry = Laundry::open("asked").await?;
    let room = &laundry.room;
    let volume = laundry.create_released("one").await?;
    laundry.until_job(&volume).await?;
    let told = releaser::why::explain(&room.admin, &room.defaults(), &volume).await?.context("it is not there")?;
    assert_eq!((told.about, told.reason), (format!("scrub of volume {volume}"), "Scrubbing"));
    laundry.end_job(&volume, "Failed").await?;
    room.told(&volume, "ScrubFailed").await?;
    let told = releaser::why::explain(&room.admin, &room.defaults(), &volume).await?.context("it is not there")?;
    assert_eq!((told.decision, told.reason), ("leave", "Quarantined"));
    Ok(())
}

#[tokio::test]
async fn a_class_that_asks_for_a_scrub_where_nothing_is_scrubbed_releases_nothing() -> Result<()> {
    let mut laundry = Laundry::prepare("off").await?;
    laundry.create_template("wipe", json!({})).await?;
    laundry.room.scrub = false;
    let laundry = laundry.start().await?;
    let volume = laundry.create_released("one").await?;
    let note = laundry.room.told(&volume, "ScrubOff").await?;
    assert!(note.contains("set releaser.scrub to true"), "{note}");
    laundry.room.until_phase(&volume, "Released").await?;
    laundry.until_swept().await?;
    // Nothing was begun, so nothing is in the way of another word of the class.
    laundry.room.annotate_class(&laundry.class, json!({RELEASE_SCRUB: null})).await?;
    laundry.room.until_phase(&volume, "Available").await?;
    Ok(())
}

#[tokio::test]
async fn a_crash_after_any_write_leaves_a_scrub_that_the_next_process_ends() -> Result<()> {
    let mut laundry = Laundry::prepare("crash").await?;
    laundry.create_template("wipe", json!({})).await?;
    // One write each time: the volume goes its whole way through a crash after every one of them.
    let volume = laundry.create_released("one").await?;
    // Only now, or it could have the volume before anybody ever used it.
    let (_, elsewhere) = laundry.be_greedy().await?;
    let history = History::of(&laundry.room, &volume).await?;
    let mut processes = 0;
    loop {
        let found = laundry.room.volumes.get(&volume).await?;
        if reference(&found).is_none_or(|[namespace, ..]| namespace == elsewhere) {
            break;
        }
        ensure!(processes < 20, "it does not end: {found:?}");
        Box::pin(laundry.run_for_one_write(&volume)).await?;
        processes += 1;
    }
    eventually("the greedy claim to have it", async || {
        let found = reference(&laundry.room.volumes.get(&volume).await?);
        ensure!(found.as_ref().is_some_and(|[namespace, ..]| *namespace == elsewhere), "{found:?}");
        Ok(())
    })
    .await?;
    // The reminder is written only if Kubernetes has not looked at the claim by itself meanwhile.
    assert!(
        (7..=8).contains(&processes),
        "claim, volume, reminder, Job, note, Job, claim and release are each the last that a process writes, but {processes} \
         processes wrote"
    );
    history.check(&laundry.room)?;
    laundry.until_swept().await
}

#[tokio::test]
async fn a_job_that_somebody_deletes_is_made_again() -> Result<()> {
    let laundry = Laundry::open("by-hand").await?;
    let room = &laundry.room;
    let volume = laundry.create_released("one").await?;
    let history = History::of(room, &volume).await?;
    // Kubernetes counts the pods of a Job by its name. One that is deleted before its first pod is seen leaves it waiting for
    // that pod, for five minutes, whoever has the name by then.
    let first = laundry.until_job_runs(&volume).await?.0.uid();
    let name = laundry.scrub_name(&volume).await?;
    laundry.jobs.delete(&name, &DeleteParams::background()).await?;
    eventually("another Job", async || {
        ensure!(laundry.until_job(&volume).await?.uid() != first, "it is the same");
        Ok(())
    })
    .await?;
    laundry.wash_until_free(&volume).await?;
    history.check(room)
}

#[tokio::test]
async fn a_scrub_claim_that_somebody_deletes_starts_the_scrub_over() -> Result<()> {
    let laundry = Laundry::open("anew").await?;
    let room = &laundry.room;
    let volume = laundry.create_released("one").await?;
    let history = History::of(room, &volume).await?;
    laundry.until_job_runs(&volume).await?;
    let name = laundry.scrub_name(&volume).await?;
    let first = room.claims.get(&name).await?.uid();
    room.claims.delete(&name, &DeleteParams::default()).await?;
    // The claim stays as long as a pod of the Job does.
    laundry.jobs.delete(&name, &DeleteParams::background()).await?;
    within(Duration::from_mins(1), "another scrub claim", async || {
        let found = room.claims.get_opt(&name).await?.and_then(|claim| claim.uid());
        ensure!(found.is_some() && found != first, "{found:?}");
        Ok(())
    })
    .await?;
    laundry.wash_until_free(&volume).await?;
    history.check(room)?;
    laundry.until_swept().await
}

#[tokio::test]
async fn a_volume_that_is_deleted_while_it_is_cleaned_leaves_nothing_behind() -> Result<()> {
    let laundry = Laundry::open("deleted").await?;
    let room = &laundry.room;
    let volume = laundry.create_released("one").await?;
    laundry.until_job(&volume).await?;
    room.volumes.delete(&volume, &DeleteParams::default()).await?;
    within(Duration::from_mins(1), "the end of the volume", async || {
        ensure!(room.volumes.get_opt(&volume).await?.is_none(), "it is there");
        Ok(())
    })
    .await?;
    laundry.until_swept().await
}

#[tokio::test]
async fn what_was_left_behind_while_nobody_looked_is_swept_at_the_start() -> Result<()> {
    let laundry = Laundry::prepare("sweep").await?;
    let room = &laundry.room;
    laundry.create_template("wipe", json!({})).await?;
    // One whose volume is gone, and one whose volume nobody wants to be scrubbed any more.
    room.annotate_class(&laundry.class, json!({RELEASE: "never", RELEASE_SCRUB: null})).await?;
    let volume = laundry.create_released("one").await?;
    let uid = room.until_phase(&volume, "Released").await?.uid().unwrap();
    for (volume, uid) in [(volume.as_str(), uid.as_str()), ("gone", "0b5a2b9e-7a4c-4c4b-9c39-2a5cbd1d7c11")] {
        let left = json!({"metadata": {"labels": {SCRUB: uid}}, "spec": {"volumeName": volume}});
        room.create_claim(&format!("scrub-{uid}"), &laundry.class, left).await?;
    }
    let laundry = laundry.start().await?;
    laundry.until_swept().await?;
    laundry.room.until_phase(&volume, "Released").await?;
    Ok(())
}

#[tokio::test]
async fn volumes_that_are_being_cleaned_count_as_free() -> Result<()> {
    let laundry = Laundry::prepare("full").await?;
    let room = &laundry.room;
    laundry.create_template("wipe", json!({})).await?;
    room.annotate_class(&laundry.class, json!({"claimkeeper.dev/release-max-available": "1"})).await?;
    let mut volumes = Vec::new();
    for number in 0..3 {
        volumes.push(laundry.create_released(&format!("v{number}")).await?);
    }
    for volume in &volumes {
        room.until_phase(volume, "Released").await?;
    }
    let laundry = laundry.start().await?;
    let room = &laundry.room;
    room.until_decided("refuse", "PoolFull", 2).await?;
    let begun = async || -> Result<Option<String>> {
        let mut begun = Vec::new();
        for volume in &volumes {
            let name = laundry.scrub_name(volume).await?;
            if laundry.jobs.get_opt(&name).await?.is_some() {
                begun.push(volume.clone());
            }
        }
        ensure!(begun.len() <= 1, "there are {begun:?}");
        Ok(begun.pop())
    };
    let first = eventually("the first Job", async || begun().await?.context("there is none")).await?;
    laundry.wash_until_free(&first).await?;
    laundry.until_swept().await?;
    assert_eq!(room.decided("release", "Released"), 1);

    // The first is taken; the next one fails and is out of the count.
    laundry.be_greedy().await?;
    let second = eventually("the second Job", async || begun().await?.context("there is none")).await?;
    laundry.end_job(&second, "Failed").await?;
    room.told(&second, "ScrubFailed").await?;
    let third = volumes.iter().find(|volume| **volume != first && **volume != second).context("there are three")?;
    laundry.wash_until_free(third).await?;
    Ok(())
}
