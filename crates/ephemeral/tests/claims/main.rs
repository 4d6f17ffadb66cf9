//! Claims of ephemeral volumes, made on a real control plane with the rights that the chart grants.

#![allow(clippy::unwrap_used)] // helpers are tests too

mod denial;
mod healing;
mod ownership;
mod quota;
mod refusal;
mod room;
mod webhook;
mod workloads;

use anyhow::{Result, ensure};
use kube::{
    ResourceExt,
    api::{DeleteParams, PostParams},
};
use room::{Behind, Room, spec, volume};
use serde_json::{Value, json};
use testbed::eventually;

#[tokio::test]
async fn a_pod_gets_its_claim_and_runs_on_the_bound_volume() -> Result<()> {
    let room = Room::open("claim").await?;
    let mut scratch = volume("scratch");
    scratch["ephemeral"]["volumeClaimTemplate"]["metadata"] =
        json!({"labels": {"type": "cache"}, "annotations": {"example.dev/note": "kept"}});
    let pod = room.create_pod("web", json!([scratch])).await?;

    let claim = room.claim("web-scratch").await?;
    let owners = serde_json::to_value(claim.owner_references())?;
    assert_eq!(
        owners,
        json!([{"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": pod.uid(), "controller": true, "blockOwnerDeletion": true}])
    );
    assert_eq!(claim.labels().get("type").map(String::as_str), Some("cache"));
    assert_eq!(claim.annotations().get("example.dev/note").map(String::as_str), Some("kept"));
    let claimed = serde_json::to_value(&claim.spec)?;
    assert_eq!(claimed["storageClassName"], "testbed-wait");
    assert_eq!(claimed["resources"], spec("testbed-wait")["resources"]);

    eventually("the pod to run", async || {
        let phase = room.pods.get("web").await?.status.and_then(|status| status.phase);
        ensure!(phase.as_deref() == Some("Running"), "{phase:?}");
        Ok(())
    })
    .await?;
    let phase = room.claim("web-scratch").await?.status.and_then(|status| status.phase);
    assert_eq!(phase.as_deref(), Some("Bound"));
    assert!(room.warnings(&pod).await?.is_empty(), "success is told by the claim itself, not by an event");
    assert_eq!(room.process.metric("ephemeral_volume_controller_create_total"), 1);
    assert_eq!(room.process.metric("ephemeral_volume_controller_create_failures_total"), 0);
    Ok(())
}

#[tokio::test]
async fn a_foreign_claim_of_the_name_is_left_alone_and_the_pod_is_warned() -> Result<()> {
    let room = Room::open("foreign").await?;
    let foreign = room.create_foreign_claim("web-scratch", json!({})).await?;
    let pod = room.create_pod("web", json!([volume("scratch"), volume("other")])).await?;

    let warning = room.warning(&pod).await?;
    assert_eq!(warning.reason.as_deref(), Some("FailedBinding"));
    let ns = &room.namespace;
    assert_eq!(
        warning.note,
        Some(format!(
            "ephemeral volume scratch: PVC {ns}/web-scratch was not created for pod {ns}/web (pod is not owner)"
        ))
    );
    // The volume behind it in the pod's spec does not suffer.
    room.claim("web-other").await?;

    let after = room.claims.get("web-scratch").await?;
    assert_eq!((after.uid(), after.owner_references()), (foreign.uid(), foreign.owner_references()));
    let requests = room.cluster.audit_log().user(room.user()).resource("persistentvolumeclaims").requests()?;
    let written: Vec<&str> = requests
        .iter()
        .filter(|request| request.object_ref.as_ref().is_some_and(|object| object.name == "web-scratch"))
        .map(|request| request.verb.as_str())
        .filter(|verb| *verb != "get")
        .collect();
    assert!(written.is_empty(), "nothing was even tried on it, but: {written:?}");

    // Once it is out of the way the pod gets its own.
    room.delete_claim("web-scratch").await?;
    eventually("the pod's own claim", async || {
        let claim = room.claims.get("web-scratch").await?;
        ensure!(claim.owner_references().iter().any(|owner| Some(&owner.uid) == pod.uid().as_ref()), "still foreign");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_deleted_claim_of_a_living_pod_is_made_again() -> Result<()> {
    let room = Room::open("again").await?;
    room.create_pod("web", json!([volume("scratch")])).await?;
    let first = room.claim("web-scratch").await?;
    room.delete_claim("web-scratch").await?;
    // The claim's protection lasts as long as a pod uses it; here nobody waits for that.
    room.drop_finalizers("web-scratch").await.or_else(Room::ignore_missing)?;
    eventually("a new claim", async || {
        let claim = room.claims.get("web-scratch").await?;
        ensure!(claim.uid() != first.uid(), "still the first one");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_claim_of_an_earlier_pod_on_its_way_out_is_waited_for_without_an_alarm() -> Result<()> {
    let room = Room::open("waits").await?;
    room.create_foreign_claim("web-scratch", json!({"finalizers": ["example.dev/hold"]})).await?;
    room.delete_claim("web-scratch").await?;
    let pod = room.create_pod("web", json!([volume("scratch")])).await?;
    let waited = r#"claimkeeper_ephemeral_decisions_total{decision="wait",reason="ClaimBeingDeleted"}"#;
    eventually("the decision to wait", async || {
        ensure!(room.process.metric(waited) >= 1, "not decided yet");
        Ok(())
    })
    .await?;

    room.drop_finalizers("web-scratch").await?;
    eventually("the pod's own claim", async || {
        let claim = room.claims.get("web-scratch").await?;
        ensure!(
            claim.owner_references().iter().any(|owner| Some(&owner.uid) == pod.uid().as_ref()),
            "still the old one"
        );
        Ok(())
    })
    .await?;
    assert!(room.warnings(&pod).await?.is_empty());
    assert_eq!(room.process.metric("ephemeral_volume_controller_create_failures_total"), 0);
    Ok(())
}

#[tokio::test]
async fn pods_that_ended_or_are_being_deleted_get_nothing() -> Result<()> {
    let room = Room::prepare("ended").await?;
    room.create_pod("done", json!([volume("scratch")])).await?;
    room.cluster.set_pod_phase(&room.namespace, "done", "Succeeded").await?;
    // The finalizer keeps the deleted pod in sight.
    room.create_pod("leaving", json!([volume("scratch")])).await?;
    room.hold_pod("leaving").await?;
    room.pods.delete("leaving", &DeleteParams::default()).await?;

    let room = room.start(Behind::Nothing).await?;
    room.create_pod("lives", json!([volume("scratch")])).await?;
    room.claim("lives-scratch").await?;
    let names: Vec<String> =
        room.claims.list(&kube::api::ListParams::default()).await?.iter().map(ResourceExt::name_any).collect();
    assert_eq!(names, ["lives-scratch"]);
    Ok(())
}

#[tokio::test]
async fn a_claim_that_the_cache_does_not_know_yet_is_no_failure_if_it_is_ours() -> Result<()> {
    let room = Room::prepare("behind").await?;
    let pod = room.create_pod("web", json!([volume("scratch")])).await?;
    let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": pod.uid(), "controller": true}]);
    let ours = room.create_foreign_claim("web-scratch", json!({"ownerReferences": owner})).await?;

    let room = room.start(Behind::Claims).await?;
    let met = r#"claimkeeper_ephemeral_decisions_total{decision="leave",reason="ClaimExists"}"#;
    eventually("the live read to find our own claim", async || {
        ensure!(room.process.metric(met) >= 1, "not found yet");
        Ok(())
    })
    .await?;
    // Its end could fall into a gap of the watch and never be told: the pod is looked at again without being asked to.
    eventually("another look to be planned", async || {
        ensure!(room.process.metric(r#"workqueue_retries_total{name="ephemeral_volume"}"#) == 1, "not planned");
        Ok(())
    })
    .await?;
    assert_eq!(room.claim("web-scratch").await?.uid(), ours.uid());
    assert_eq!(room.process.metric("ephemeral_volume_controller_create_failures_total"), 0);
    assert!(room.warnings(&pod).await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn a_foreign_claim_that_the_cache_does_not_know_yet_is_found_out_and_left_alone() -> Result<()> {
    let room = Room::prepare("unseen").await?;
    let foreign = room.create_foreign_claim("web-scratch", json!({})).await?;
    let room = room.start(Behind::Claims).await?;
    let pod = room.create_pod("web", json!([volume("scratch")])).await?;
    let note = room.warning(&pod).await?.note.unwrap_or_default();
    assert!(note.ends_with("(pod is not owner)"), "{note}");
    let after = room.claims.get("web-scratch").await?;
    assert_eq!((after.uid(), after.owner_references().len()), (foreign.uid(), 0));
    Ok(())
}

#[tokio::test]
async fn the_chart_grants_every_right_that_was_needed() -> Result<()> {
    let room = Room::open("rights").await?;
    room.create_foreign_claim("web-taken", json!({})).await?;
    let pod = room.create_pod("web", json!([volume("scratch"), volume("taken")])).await?;
    room.claim("web-scratch").await?;
    room.warning(&pod).await?;
    let requests = room.cluster.audit_log().user(room.user()).requests()?;
    let refused: Vec<Value> = requests
        .iter()
        .filter(|request| request.code() == Some(403))
        .map(|request| json!([request.verb, request.object_ref.as_ref().map(|object| &object.resource)]))
        .collect();
    assert!(!requests.is_empty() && refused.is_empty(), "{refused:?}");
    Ok(())
}

#[tokio::test]
async fn the_documented_pod_gets_the_documented_claim() -> Result<()> {
    let room = Room::open("documented").await?;
    let page = include_str!("../../../../docs/ephemeral.md");
    let example = page.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap_or_default();
    room.pods.create(&PostParams::default(), &serde_saphyr::from_str(example)?).await?;
    let claim = room.claim("web-scratch").await?;
    assert_eq!(claim.spec.and_then(|spec| spec.storage_class_name).as_deref(), Some("fast-local"));
    Ok(())
}
