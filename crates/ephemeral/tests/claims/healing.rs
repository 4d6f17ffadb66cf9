//! Claims that disappear, and pods that come back under their name.

use anyhow::{Result, ensure};
use kube::{ResourceExt, api::DeleteParams};
use serde_json::json;
use testbed::eventually;

use crate::room::{Room, volume};

#[tokio::test]
async fn a_claim_that_was_deleted_while_nobody_watched_is_made_again() -> Result<()> {
    let mut room = Room::open("gap").await?;
    room.create_pod("web", json!([volume("scratch")])).await?;
    let first = room.claim("web-scratch").await?;
    eventually("the cache to know the claim", async || {
        ensure!(room.process.metric(r#"claimkeeper_cache_objects{kind="persistentvolumeclaims"}"#) == 1, "not yet");
        Ok(())
    })
    .await?;
    room.interrupt_claim_watch();
    room.delete_claim("web-scratch").await?;
    room.drop_finalizers("web-scratch").await.or_else(Room::ignore_missing)?;
    eventually("the claim to be gone", async || {
        ensure!(room.claims.get_opt("web-scratch").await?.is_none(), "still there");
        Ok(())
    })
    .await?;

    room.resume_claim_watch();
    let second = room.claim("web-scratch").await?;
    assert_ne!(second.uid(), first.uid());
    Ok(())
}

#[tokio::test]
async fn a_pod_that_comes_back_under_its_name_gets_a_claim_of_its_own_without_an_alarm() -> Result<()> {
    let room = Room::open("back").await?;
    let first = room.create_pod("web-0", json!([volume("scratch")])).await?;
    room.claim("web-0-scratch").await?;
    room.pods.delete("web-0", &DeleteParams::default().grace_period(0)).await?;
    let second = room.create_pod("web-0", json!([volume("scratch")])).await?;
    assert_ne!(first.uid(), second.uid());

    eventually("the new pod's own claim", async || {
        let claim = room.claims.get("web-0-scratch").await?;
        let owner = claim.owner_references().first().map(|owner| owner.uid.clone());
        ensure!(owner == second.uid(), "{owner:?} owns it");
        Ok(())
    })
    .await?;
    assert!(room.warnings(&second).await?.is_empty());
    assert_eq!(room.process.metric("ephemeral_volume_controller_create_failures_total"), 0);
    Ok(())
}
