//! Namespaces that keep ephemeral volumes out.

use anyhow::{Result, ensure};
use kube::ResourceExt;
use serde_json::json;
use testbed::eventually;

use crate::room::{Behind, Room, volume};

const DENIED: &str = r#"claimkeeper_ephemeral_decisions_total{decision="refuse",reason="EphemeralVolumesDenied"}"#;

#[tokio::test]
async fn a_namespace_that_denies_ephemeral_volumes_keeps_its_claims_and_gets_no_new_ones() -> Result<()> {
    let room = Room::prepare("denies").await?;
    // Both pods come before the label does: afterwards the admission policy turns them away.
    room.create_pod("early", json!([volume("scratch")])).await?;
    let room = room.start(Behind::Nothing).await?;
    let first = room.claim("early-scratch").await?;
    let late = room.create_pod("late", json!([volume("scratch")])).await?;
    room.claim("late-scratch").await?;

    room.label_namespace(json!("deny")).await?;
    eventually("the label to be seen", async || {
        room.delete_claim("late-scratch").await.or_else(Room::ignore_missing)?;
        room.drop_finalizers("late-scratch").await.or_else(Room::ignore_missing)?;
        ensure!(room.process.metric(DENIED) >= 1, "nothing was denied yet");
        Ok(())
    })
    .await?;
    let warning = room.warning(&late).await?;
    assert_eq!(warning.reason.as_deref(), Some("EphemeralVolumesDenied"));
    let note = warning.note.unwrap_or_default();
    assert!(note.starts_with("ephemeral volume scratch: namespace"), "{note}");
    assert!(note.contains("remove the label claimkeeper.dev/ephemeral-volumes=deny"), "{note}");
    assert_eq!(room.claim("early-scratch").await?.uid(), first.uid(), "what is there stays");

    room.label_namespace(json!(null)).await?;
    room.claim("late-scratch").await?;
    Ok(())
}

#[tokio::test]
async fn a_namespace_that_the_cache_does_not_know_yet_is_asked_live() -> Result<()> {
    let room = Room::prepare("unknown").await?;
    let pod = room.create_pod("web", json!([volume("scratch")])).await?;
    room.label_namespace(json!("deny")).await?;
    let room = room.start(Behind::Namespaces).await?;
    let warning = room.warning(&pod).await?;
    assert_eq!(warning.reason.as_deref(), Some("EphemeralVolumesDenied"));
    assert!(room.claims.get_opt("web-scratch").await?.is_none());
    Ok(())
}
