//! Several replicas: one writes, the others are ready to.

use std::time::Duration;

use crate::home::{Home, Replica};
use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use testbed::{AuditedRequest, eventually};

/// When each request of a replica reached the API server, oldest first.
fn requests(home: &Home, replica: &Replica, verb: &str, resource: &str) -> Result<Vec<AuditedRequest>> {
    let log = home.cluster.audit_log().user(&replica.user).verb(verb).resource(resource);
    let mut requests = log.requests()?;
    requests.retain(|request| request.code().is_some_and(|code| code < 300));
    requests.sort_by_key(|request| request.request_received_timestamp);
    Ok(requests)
}

fn times(requests: &[AuditedRequest]) -> Vec<Timestamp> {
    requests.iter().map(|request| request.request_received_timestamp).collect()
}

/// The first time that a replica took the lease.
fn taken(home: &Home, replica: &Replica) -> Result<Timestamp> {
    let updates = times(&requests(home, replica, "update", "leases")?);
    updates.first().copied().context("it never took the lease")
}

/// All claims that the one made came before the other took over, and all of the other's after.
fn assert_never_both(home: &Home, first: &Replica, second: &Replica) -> Result<()> {
    let taken = taken(home, second)?;
    let of_first = times(&requests(home, first, "create", "persistentvolumeclaims")?);
    let of_second = times(&requests(home, second, "create", "persistentvolumeclaims")?);
    assert!(!of_first.is_empty() && !of_second.is_empty(), "both wrote in their time");
    assert!(of_first.iter().all(|time| *time < taken), "the first one wrote after {taken}: {of_first:?}");
    assert!(of_second.iter().all(|time| *time > taken), "the second one wrote before {taken}: {of_second:?}");
    Ok(())
}

async fn keep_busy(home: &Home, prefix: &str, pods: usize) -> Result<()> {
    for number in 0..pods {
        home.create_pod(&format!("{prefix}-{number}")).await?;
    }
    Ok(())
}

async fn until_all_claimed(home: &Home, prefix: &str, pods: usize) -> Result<()> {
    for number in 0..pods {
        home.claim_of(&format!("{prefix}-{number}")).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_leader_that_is_asked_to_end_hands_over_within_two_seconds() -> Result<()> {
    let home = Home::on(testbed::shared().await?, "handover").await?;
    let mut first = home.start("first", json!({})).await?;
    home.until_leader_is("first").await?;
    let second = home.start("second", json!({})).await?;
    second.until_ready().await?;
    keep_busy(&home, "before", 10).await?;
    until_all_claimed(&home, "before", 1).await?;

    let asked = Timestamp::now();
    first.leash.terminate()?;
    keep_busy(&home, "after", 10).await?;
    until_all_claimed(&home, "before", 10).await?;
    until_all_claimed(&home, "after", 10).await?;
    assert_eq!(first.leash.ended(Duration::from_secs(25)).await?.code(), Some(0), "{}", first.leash.output());

    let gap = taken(&home, &second)?.duration_since(asked);
    println!("the hand-over took {gap:?}");
    assert!(gap <= SignedDuration::from_secs(2), "{}", first.leash.output());
    assert_never_both(&home, &first, &second)
}

#[tokio::test]
async fn a_dead_leader_is_replaced_when_its_lease_has_run_out() -> Result<()> {
    let home = Home::on(testbed::shared().await?, "takeover").await?;
    // Counted from when the API server got the last renewal; the standby counts from when it heard of it. On a busy machine
    // that is later, and the retry period is what the promise leaves for it.
    let (lease, retry) = (SignedDuration::from_secs(5), SignedDuration::from_secs(2));
    let quick = json!({"leaseDuration": "5s", "renewDeadline": "3s", "retryPeriod": "2s"});
    let first = home.start("first", quick.clone()).await?;
    home.until_leader_is("first").await?;
    let second = home.start("second", quick).await?;
    second.until_ready().await?;
    keep_busy(&home, "before", 3).await?;
    until_all_claimed(&home, "before", 3).await?;

    first.leash.kill()?;
    keep_busy(&home, "after", 3).await?;
    until_all_claimed(&home, "after", 3).await?;

    let mut held = times(&requests(&home, &first, "create", "leases")?);
    held.extend(times(&requests(&home, &first, "update", "leases")?));
    let last = held.last().copied().context("the first one never held the lease")?;
    let gap = taken(&home, &second)?.duration_since(last);
    println!("the lease was taken {gap:?} after its last renewal");
    assert!(gap >= lease, "it was taken {gap:?} after its last renewal, before it ran out");
    assert!(gap <= lease + retry, "it was taken {gap:?} after its last renewal:\n{}", second.leash.output());
    assert_never_both(&home, &first, &second)
}

#[tokio::test]
async fn a_leader_that_was_frozen_does_not_write_when_it_wakes_up() -> Result<()> {
    let home = Home::on(testbed::shared().await?, "frozen").await?;
    let quick = json!({"leaseDuration": "4s", "renewDeadline": "2s", "retryPeriod": "500ms"});
    let mut first = home.start("first", quick.clone()).await?;
    home.until_leader_is("first").await?;
    let second = home.start("second", quick).await?;
    second.until_ready().await?;
    keep_busy(&home, "before", 3).await?;
    until_all_claimed(&home, "before", 3).await?;

    first.leash.pause()?;
    keep_busy(&home, "after", 3).await?;
    home.until_leader_is("second").await?;
    until_all_claimed(&home, "after", 3).await?;
    first.leash.resume()?;

    // It notices, stands by again, and would take over if it had to.
    eventually("the first one to stand by", async || {
        let leads = first.metric(r#"leader_election_master_status{name="shared"}"#).await?;
        ensure!(leads == 0, "it believes that it leads");
        Ok(())
    })
    .await?;
    keep_busy(&home, "later", 3).await?;
    until_all_claimed(&home, "later", 3).await?;
    assert!(!first.leash.has_ended()?);
    assert_never_both(&home, &first, &second)?;
    second.leash.terminate()?;
    home.until_leader_is("first").await
}
