//! Claims of ended pods: freed if the configuration says so, and not even looked at otherwise.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::Api;
use serde_json::json;
use testbed::eventually;

use crate::home::Home;

async fn until_running(home: &Home, pod: &str) -> Result<()> {
    eventually("the pod to run", async || {
        let phase = home.pods.get(pod).await?.status.and_then(|status| status.phase);
        ensure!(phase.as_deref() == Some("Running"), "it is {phase:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_completed_pod_stays_while_its_claim_and_volume_go() -> Result<()> {
    let home = Home::on(testbed::shared().await?, "reclaim").await?;
    let ephemeral = json!({"reclaimCompleted": "delete", "reclaimWithoutAttach": ["kubernetes.io/host-path"]});
    let replica = home.start_with("solo", json!({}), ephemeral).await?;
    replica.until_ready().await?;
    home.create_pod("build").await?;
    until_running(&home, "build").await?;
    let volume = home.claim_of("build").await?.spec.and_then(|spec| spec.volume_name).unwrap_or_default();
    assert!(!volume.is_empty());

    home.cluster.set_pod_phase(&home.namespace, "build", "Succeeded").await?;
    let volumes: Api<PersistentVolume> = Api::all(home.cluster.admin().await?);
    eventually("claim and volume to go", async || {
        ensure!(home.claims.get_opt("build-scratch").await?.is_none(), "the claim is there");
        ensure!(volumes.get_opt(&volume).await?.is_none(), "the volume is there");
        Ok(())
    })
    .await?;
    home.pods.get("build").await?;
    let freed = r#"claimkeeper_ephemeral_decisions_total{decision="reclaim",reason="ClaimReclaimed"}"#;
    // A claim that changed while it was decided on is decided on again.
    assert!(replica.metric(freed).await? >= 1);
    let log = replica.leash.output();
    assert_eq!(log.matches("nothing can still be mounted").count(), 1, "{log}");
    Ok(())
}

#[tokio::test]
async fn while_reclaim_is_off_nothing_is_watched_or_read_for_it() -> Result<()> {
    let home = Home::on(testbed::shared().await?, "unreclaimed").await?;
    let replica = home.start("solo", json!({})).await?;
    replica.until_ready().await?;
    home.create_pod("build").await?;
    until_running(&home, "build").await?;
    home.cluster.set_pod_phase(&home.namespace, "build", "Succeeded").await?;
    // The next pod's claim shows that the operator has seen the end of the first.
    home.create_pod("next").await?;
    home.claim_of("next").await?;
    let (_, metrics) = replica.ask("/metrics").await?;
    assert!(!metrics.contains("ephemeral_reclaim"), "{metrics}");
    for resource in ["storageclasses", "csidrivers", "volumeattachments", "persistentvolumes", "nodes"] {
        let requests = home.cluster.audit_log().user(&replica.user).resource(resource).requests()?;
        assert!(requests.is_empty(), "{requests:?}");
    }
    home.claims.get("build-scratch").await?;
    Ok(())
}
