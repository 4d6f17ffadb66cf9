//! Claims that do not fit into a quota, and the moment when they do.

use std::time::Duration;

use anyhow::{Result, ensure};
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams},
};
use serde_json::json;
use testbed::{eventually, within};

use crate::room::{Behind, Room, volume};

const FAILURES: &str = "ephemeral_volume_controller_create_failures_total";

/// After so many failures of each pod, the next try is 20 s away: 5 ms, doubled every time.
const PATIENT: u64 = 13;

/// Less than the pause before the next try, more than the quota controller takes on a busy machine.
const SOON: Duration = Duration::from_secs(15);

impl Room {
    /// Waits until the pods have failed so often that only a wake-up can explain a quick success.
    async fn until_patient(&self, pods: u64) -> Result<()> {
        let before = self.process.metric(FAILURES);
        within(Duration::from_mins(3), "the pauses to grow long", async || {
            let failures = self.process.metric(FAILURES) - before;
            ensure!(failures >= pods * PATIENT, "{failures} failures");
            Ok(())
        })
        .await
    }

    async fn claim_names(&self) -> Result<Vec<String>> {
        Ok(self.claims.list(&ListParams::default()).await?.iter().map(ResourceExt::name_any).collect())
    }

    async fn until_claims(&self, count: usize) -> Result<Vec<String>> {
        within(SOON, &format!("{count} claims"), async || {
            let names = self.claim_names().await?;
            ensure!(names.len() == count, "there are {names:?}");
            Ok(names)
        })
        .await
    }
}

#[tokio::test]
async fn a_claim_that_the_api_server_refuses_is_told_in_its_words() -> Result<()> {
    let room = Room::prepare("refused").await?;
    room.limit_claims(0).await?;
    let room = room.start(Behind::Nothing).await?;
    let pod = room.create_pod("web", json!([volume("scratch")])).await?;
    let warning = room.warning(&pod).await?;
    assert_eq!(warning.reason.as_deref(), Some("FailedBinding"));
    let note = warning.note.unwrap_or_default();
    assert!(note.starts_with("ephemeral volume scratch: create PVC web-scratch: "), "{note}");
    assert!(note.contains("exceeded quota: claims, requested: persistentvolumeclaims=1"), "{note}");
    assert!(room.process.metric(FAILURES) >= 1);
    Ok(())
}

#[tokio::test]
async fn a_raised_quota_wakes_who_waits_for_it() -> Result<()> {
    let room = Room::prepare("raised").await?;
    room.limit_claims(0).await?;
    let room = room.start(Behind::Nothing).await?;
    for pod in ["one", "two", "three"] {
        room.create_pod(pod, json!([volume("scratch")])).await?;
    }
    room.until_patient(3).await?;
    room.limit_claims(2).await?;
    room.until_claims(2).await?;
    room.remove_quota().await?;
    room.until_claims(3).await?;
    Ok(())
}

#[tokio::test]
async fn a_freed_claim_wakes_who_waits_for_its_place() -> Result<()> {
    let room = Room::prepare("freed").await?;
    room.limit_claims(1).await?;
    let room = room.start(Behind::Nothing).await?;
    room.create_pod("first", json!([volume("scratch")])).await?;
    room.claim("first-scratch").await?;
    room.create_pod("second", json!([volume("scratch")])).await?;
    room.until_patient(1).await?;

    room.pods.delete("first", &DeleteParams::default().grace_period(0)).await?;
    within(SOON, "the second pod's claim", async || room.claims.get("second-scratch").await).await?;
    Ok(())
}

#[tokio::test]
async fn a_volume_that_does_not_fit_does_not_keep_a_smaller_one_waiting() -> Result<()> {
    let room = Room::prepare("sizes").await?;
    room.limit("requests.storage", "5Gi").await?;
    let room = room.start(Behind::Nothing).await?;
    let mut big = volume("big");
    big["ephemeral"]["volumeClaimTemplate"]["spec"]["resources"]["requests"]["storage"] = "10Gi".into();
    let pod = room.create_pod("web", json!([big, volume("small")])).await?;
    room.claim("web-small").await?;
    let note = room.warning(&pod).await?.note.unwrap_or_default();
    assert!(note.contains("requested: requests.storage=10Gi"), "{note}");

    room.limit("requests.storage", "11Gi").await?;
    eventually("the big claim", async || room.claims.get("web-big").await).await?;
    Ok(())
}
