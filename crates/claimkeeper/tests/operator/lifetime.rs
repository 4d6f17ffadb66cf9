//! One replica from start to end.

use std::time::Duration;

use crate::home::Home;
use anyhow::{Result, ensure};
use serde_json::json;
use testbed::eventually;

#[tokio::test]
async fn the_operator_makes_a_claim_reports_it_and_ends_cleanly() -> Result<()> {
    let home = Home::on(testbed::shared().await?, "operator").await?;
    let mut replica = home.start("solo", json!({})).await?;
    assert_eq!(replica.ask("/healthz").await?.0, 200);
    replica.until_ready().await?;
    home.create_pod("web").await?;
    home.claim_of("web").await?;

    // What the design of generic ephemeral volumes promises after one pod.
    eventually("the metrics of one processed pod", async || {
        let (_, text) = replica.ask("/metrics").await?;
        for line in [
            r#"workqueue_depth{name="ephemeral_volume"} 0"#,
            r#"workqueue_longest_running_processor_seconds{name="ephemeral_volume"} 0"#,
            r#"workqueue_queue_duration_seconds_bucket{name="ephemeral_volume",le="1e-08"} 0"#,
            r#"workqueue_retries_total{name="ephemeral_volume"} 0"#,
            r#"workqueue_unfinished_work_seconds{name="ephemeral_volume"} 0"#,
            "ephemeral_volume_controller_create_total 1",
            "ephemeral_volume_controller_create_failures_total 0",
            "# TYPE ephemeral_volume_controller_create_total counter",
            r#"claimkeeper_ephemeral_decisions_total{decision="create",reason="ClaimMissing"} 1"#,
            r#"claimkeeper_api_requests_total{verb="create",resource="persistentvolumeclaims",code="201"} 1"#,
            r#"claimkeeper_cache_objects{kind="pods"} 1"#,
            r#"leader_election_master_status{name="shared"} 1"#,
        ] {
            ensure!(text.lines().any(|printed| printed == line), "{line} is missing in\n{text}");
        }
        // At least once: Kubernetes may change the pod while it is looked at.
        for series in [
            r#"workqueue_adds_total{name="ephemeral_volume"}"#,
            r#"workqueue_queue_duration_seconds_bucket{name="ephemeral_volume",le="+Inf"}"#,
            r#"workqueue_queue_duration_seconds_count{name="ephemeral_volume"}"#,
            r#"workqueue_work_duration_seconds_bucket{name="ephemeral_volume",le="+Inf"}"#,
            r#"workqueue_work_duration_seconds_count{name="ephemeral_volume"}"#,
        ] {
            let value = text.lines().find_map(|printed| printed.strip_prefix(series)?.trim().parse::<u32>().ok());
            ensure!(value.is_some_and(|value| value >= 1), "{series} is {value:?} in\n{text}");
        }
        Ok(())
    })
    .await?;
    let log = replica.leash.output();
    assert_eq!(log.matches("created the claim").count(), 1, "one line per decision that changed something:\n{log}");

    replica.leash.terminate()?;
    let status = replica.leash.ended(Duration::from_secs(10)).await?;
    assert_eq!(status.code(), Some(0), "{}", replica.leash.output());
    let lease = home.leases.get("shared").await?.spec.unwrap_or_default();
    assert_eq!(lease.holder_identity.unwrap_or_default(), "", "the lease is released");
    Ok(())
}

/// The metrics that a documentation page names: words in backquotes, up to a brace.
pub(crate) fn documented_metrics(page: &str) -> Vec<&str> {
    let quoted = page.split('`').skip(1).step_by(2).map(|word| word.split(['{', '*']).next().unwrap_or_default());
    let prefixes = ["claimkeeper_", "workqueue_", "leader_election_", "process_", "ephemeral_volume_", "storageos_"];
    quoted.filter(|word| prefixes.iter().any(|prefix| word.starts_with(prefix))).collect()
}

#[tokio::test]
async fn every_documented_metric_is_served() -> Result<()> {
    let home = Home::on(testbed::shared().await?, "metrics").await?;
    let replica = home.start("solo", json!({})).await?;
    home.create_pod("web").await?;
    home.claim_of("web").await?;
    home.create_claim("api-scratch").await?;
    home.create_pod("api").await?;
    eventually("all of them", async || {
        let (_, text) = replica.ask("/metrics").await?;
        for page in [include_str!("../../../../docs/operations.md"), include_str!("../../../../docs/ephemeral.md")] {
            let names = documented_metrics(page);
            ensure!(!names.is_empty(), "the page names no metric");
            for name in names.iter().filter(|name| **name != "ephemeral_volume") {
                ensure!(text.lines().any(|line| line.starts_with(name)), "{name} is missing");
            }
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn pods_without_ephemeral_volumes_are_not_even_kept() -> Result<()> {
    let home = Home::on(testbed::shared().await?, "slim").await?;
    home.create_plain_pod("plain").await?;
    home.create_pod("web").await?;
    let replica = home.start("solo", json!({})).await?;
    home.claim_of("web").await?;
    assert_eq!(replica.metric(r#"claimkeeper_cache_objects{kind="pods"}"#).await?, 1);
    Ok(())
}
