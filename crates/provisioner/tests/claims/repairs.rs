//! What the original got wrong.

use anyhow::{Result, ensure};
use kube::{ResourceExt, api::DeleteParams};
use serde_json::{Value, json};
use testbed::eventually;

use crate::room::{Room, TEMPLATE, defaults, volume};

#[tokio::test]
async fn a_foreign_claim_of_the_name_is_reported_and_never_adopted() -> Result<()> {
    let room = Room::open("foreign").await?;
    let foreign = room.create_foreign_claim("web-1", json!({"labels": {"whose": "somebody-else"}})).await?;
    let pod = room.ask("web", TEMPLATE).await?;
    let note = room.told(&pod, "ErrForeignPVC").await?;
    assert!(note.contains("(pod is not owner)") && note.contains("use another claimName"), "{note}");
    let after = room.claims.get("web-1").await?;
    assert_eq!((after.uid(), after.owner_references()), (foreign.uid(), foreign.owner_references()));
    assert_eq!(after.labels(), foreign.labels());

    room.delete_claim("web-1").await?;
    room.own_claim("web-1", &pod).await?;
    Ok(())
}

#[tokio::test]
async fn a_foreign_claim_that_the_cache_does_not_know_is_met_and_looked_at() -> Result<()> {
    let room = Room::open("met").await?;
    let first = room.ask("first", TEMPLATE).await?;
    room.own_claim("first-1", &first).await?;
    room.stop_hearing_of_claims().await?;
    room.create_foreign_claim("second-1", json!({})).await?;
    let second = room.ask("second", TEMPLATE).await?;
    let note = room.told(&second, "ErrForeignPVC").await?;
    assert!(note.contains("was not created for pod"), "{note}");
    Ok(())
}

#[tokio::test]
async fn two_pods_that_call_one_claim_do_not_share_it_silently() -> Result<()> {
    let room = Room::open("shared").await?;
    let annotations = json!({"claimkeeper.dev/cache.claim": TEMPLATE});
    let first = room.create_pod("first", annotations.clone(), json!([volume("cache", "one")])).await?;
    room.own_claim("one", &first).await?;
    let second = room.create_pod("second", annotations, json!([volume("cache", "one")])).await?;
    let note = room.told(&second, "ErrForeignPVC").await?;
    assert!(note.contains("was not created for pod"), "{note}");
    Ok(())
}

#[tokio::test]
async fn a_claim_of_the_previous_run_on_its_way_out_is_waited_for() -> Result<()> {
    let room = Room::open("waits").await?;
    room.create_foreign_claim("web-1", json!({"finalizers": ["example.dev/hold"]})).await?;
    room.claims.delete("web-1", &DeleteParams::default()).await?;
    let pod = room.ask("web", TEMPLATE).await?;
    let waited = r#"claimkeeper_provisioner_decisions_total{decision="wait",reason="ClaimBeingDeleted"}"#;
    eventually("the decision to wait", async || {
        ensure!(room.process.metric(waited) >= 1, "not decided yet");
        Ok(())
    })
    .await?;
    let release = kube::api::Patch::Merge(json!({"metadata": {"finalizers": null}}));
    room.claims.patch("web-1", &kube::api::PatchParams::default(), &release).await?;
    room.own_claim("web-1", &pod).await?;
    assert!(room.events(&pod).await?.iter().all(|told| told.kind == "Normal"));
    Ok(())
}

#[tokio::test]
async fn a_pod_that_comes_back_under_its_name_gets_a_claim_of_its_own_without_an_alarm() -> Result<()> {
    let room = Room::open("back").await?;
    let first = room.ask_and_wait("web", TEMPLATE).await?;
    room.own_claim("web-1", &first).await?;
    room.pods.delete("web", &DeleteParams::default().grace_period(0)).await?;
    // If it found a node before the garbage collector looks, it would hold the first one's claim, and that would stay for ever.
    let second = room.ask_and_wait("web", TEMPLATE).await?;
    room.own_claim("web-1", &second).await?;
    let events = room.events(&second).await?;
    assert!(events.iter().all(|told| told.kind == "Normal"), "{events:?}");
    Ok(())
}

#[tokio::test]
async fn a_claim_that_is_lost_while_the_pod_is_pending_is_made_again() -> Result<()> {
    let room = Room::open("again").await?;
    let pod = room.ask_and_wait("web", TEMPLATE).await?;
    let first = room.own_claim("web-1", &pod).await?;
    room.delete_claim("web-1").await?;
    eventually("a new claim", async || {
        ensure!(room.claims.get("web-1").await?.uid() != first.uid(), "still the first one");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn what_the_api_server_refuses_is_told_with_its_words() -> Result<()> {
    let room = Room::open("refused").await?;
    let pod = room.ask("web", &TEMPLATE.replace("ReadWriteOnce", "ReadWriteSometimes")).await?;
    let note = room.told(&pod, "ErrPVCProvisionFailed").await?;
    assert!(note.starts_with("PVC failed to create: "), "{note}");
    assert!(note.contains("Unsupported value: \"ReadWriteSometimes\""), "{note}");
    Ok(())
}

#[tokio::test]
async fn who_may_not_create_claims_gets_none_until_the_printed_command_has_run() -> Result<()> {
    let room = Room::prepare("denied").await?.start(defaults()).await?;
    let pod = room.ask("web", TEMPLATE).await?;
    let note = room.told(&pod, "ErrNotAuthorized").await?;
    let ns = &room.namespace;
    assert!(note.starts_with(&format!("ServiceAccount {ns}/default may not create persistentvolumeclaims")), "{note}");
    assert!(room.claims.get_opt("web-1").await?.is_none());

    // As a person would: copied from the event into a shell.
    let (_, commands) = note.split_once("can allow it: ").unwrap();
    for command in commands.split("; ") {
        let words: Vec<&str> = command.split(' ').skip(1).collect();
        let output = room.cluster.kubectl().args(words).output()?;
        ensure!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    }
    room.own_claim("web-1", &pod).await?;
    Ok(())
}

#[tokio::test]
async fn the_rights_in_one_namespace_are_enough() -> Result<()> {
    let room = Room::open("rights").await?;
    let pod = room.ask("web", TEMPLATE).await?;
    room.own_claim("web-1", &pod).await?;
    room.told(&pod, "PVCProvisioned").await?;
    let requests = room.cluster.audit_log().user(room.user()).requests()?;
    let refused: Vec<Value> = requests
        .iter()
        .filter(|request| request.code() == Some(403))
        .map(|request| json!([request.verb, request.object_ref.as_ref().map(|object| &object.resource)]))
        .collect();
    assert!(!requests.is_empty() && refused.is_empty(), "{refused:?}");
    let roles = room.cluster.kubectl().args(["get", "clusterroles", "-o", "name"]).output()?;
    let roles = String::from_utf8(roles.stdout)?;
    assert!(!roles.contains(&room.namespace), "a namespaced installation has no cluster-wide rights");
    Ok(())
}
