//! Two replicas with all that they can be asked and all that they can do, while something happens to them or to the API server.
//!
//! ```text
//! calls: claims that are refused, pods that are steered ──> API server ──> Service ──> both replicas
//! work:  pods that ask for claims, volumes to be released ──> API server ──watch──> the leader
//! ```
//!
//! The incidents follow each other under the same load: a leader that is asked to end, a leader that is killed, a new authority for
//! the certificate, an API server that restarts, an API server that is away for longer than a lease. No call fails while the API
//! server is up, but for those that a killed replica can no longer answer before the Service knows; no claim is missing or made
//! twice, and no volume released twice.
//!
//! A program of its own, because others time what the operator does and would measure this load instead.

#![allow(clippy::unwrap_used)] // helpers are tests too

mod calls;
#[allow(dead_code)] // shared with the tests of the operator; this takes what it needs
#[path = "../operator/home.rs"]
mod home;
#[allow(dead_code)]
#[path = "../operator/scene.rs"]
mod scene;
mod stage;
mod work;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use testbed::Component;
use tokio::time::{Instant, sleep};

use crate::{
    calls::{Calls, Log},
    home::Replica,
    stage::{LEASE, RETRY, Stage},
    work::Work,
};

/// What a hand-over may take on a machine that is busy; much less than it takes a lease to run out.
const LONGEST_HANDOVER: SignedDuration = SignedDuration::from_secs(10);

/// The end of a replica: the delay, then what the admission server takes at most to answer what is under way.
const LONGEST_END: Duration = Duration::from_mins(2);

/// Longer than a lease: nobody leads when the API server is back.
const OUTAGE: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_happens_calls_are_answered_and_work_is_done_once() -> Result<()> {
    let mut stage = Stage::open().await?;
    let mut replicas = vec![stage.start("first").await?, stage.start("second").await?];
    stage.until_both_answer().await?;
    let calls = Calls::begin(&stage);
    let work = Work::begin(&stage).await?;
    work.until_done().await?;

    asked_to_end(&mut stage, &mut replicas, &calls, &work).await.context("a leader that is asked to end")?;
    killed(&mut stage, &mut replicas, &calls, &work).await.context("a leader that is killed")?;
    new_authority(&stage, &calls, &work).await.context("a new authority")?;
    work.expect_no_warning().await?;
    api_server_restarts(&stage, &calls, &work).await.context("an API server that restarts")?;
    api_server_is_away(&stage, &mut replicas, &calls, &work).await.context("an API server that is away")?;

    calls.end().await?;
    work.end(&stage).await
}

/// As a Deployment does it: first a new replica, then the end of an old one.
async fn asked_to_end(stage: &mut Stage, replicas: &mut Vec<Replica>, calls: &Calls, work: &Work) -> Result<()> {
    calls.since_last();
    replicas.push(stage.start("third").await?);
    stage.scene.until_ready(3).await?;
    let mut leader = stage.take_leader(replicas).await?;
    let asked = Timestamp::now();
    leader.leash.terminate()?;
    let taken = stage.until_taken_from(&leader).await?;
    work.until_done().await?;
    let ended = leader.leash.ended(LONGEST_END).await?;
    ensure!(ended.success(), "it ended badly: {}", leader.leash.output());
    stage.scene.until_ready(2).await?;

    let gap = taken.acquired.duration_since(asked);
    report("asked to end", &calls.since_last().expect_all_answered()?, Some(gap), work.longest_wait(asked)?);
    ensure!(gap <= LONGEST_HANDOVER, "the hand-over took {gap:?}");
    Ok(())
}

async fn killed(stage: &mut Stage, replicas: &mut Vec<Replica>, calls: &Calls, work: &Work) -> Result<()> {
    calls.since_last();
    let leader = stage.take_leader(replicas).await?;
    let (kill, killed) = (Instant::now(), Timestamp::now());
    leader.leash.kill()?;
    stage.scene.until_ready(1).await?;
    let known = Instant::now();
    let taken = stage.until_taken_from(&leader).await?;
    replicas.push(stage.start("fourth").await?);
    work.until_done().await?;
    stage.scene.until_ready(2).await?;

    let gap = taken.acquired.duration_since(taken.renewed);
    let log = calls.since_last().expect_all_answered_but_between(kill, known)?;
    report("killed", &log, Some(gap), work.longest_wait(killed)?);
    ensure!(gap >= LEASE, "the lease was taken {gap:?} after its last renewal, before it ran out");
    ensure!(gap <= (LEASE + RETRY) * 2, "the lease was taken {gap:?} after its last renewal");
    Ok(())
}

async fn new_authority(stage: &Stage, calls: &Calls, work: &Work) -> Result<()> {
    calls.since_last();
    let (old, began) = (stage.authority().await?, Timestamp::now());
    stage.delete_certificate().await?;
    stage.until_changed_over(&old).await?;
    work.until_done().await?;
    report("new authority", &calls.since_last().expect_all_answered()?, None, work.longest_wait(began)?);
    Ok(())
}

/// At once, so that on most machines the lease outlives it.
async fn api_server_restarts(stage: &Stage, calls: &Calls, work: &Work) -> Result<()> {
    calls.since_last();
    let began = Timestamp::now();
    stage.control_plane.kill(Component::ApiServer)?;
    stage.control_plane.start_component(Component::ApiServer).await?;
    recover("API server restarted", stage, calls, work, began).await
}

async fn api_server_is_away(stage: &Stage, replicas: &mut [Replica], calls: &Calls, work: &Work) -> Result<()> {
    calls.since_last();
    let began = Timestamp::now();
    stage.control_plane.kill(Component::ApiServer)?;
    let kill = Instant::now();
    while kill.elapsed() < OUTAGE {
        for replica in replicas.iter_mut() {
            ensure!(replica.ask("/healthz").await?.0 == 200, "it is not alive: {}", replica.leash.output());
        }
        sleep(Duration::from_millis(500)).await;
    }
    stage.control_plane.start_component(Component::ApiServer).await?;
    recover("API server away", stage, calls, work, began).await
}

async fn recover(incident: &str, stage: &Stage, calls: &Calls, work: &Work, began: Timestamp) -> Result<()> {
    let back = Timestamp::now();
    let since = |time: Timestamp| seconds(time.duration_since(back));
    println!("{incident}: it was away for {:.1} s", -since(began));
    stage.until_both_answer().await?;
    work.until_done().await?;
    // Not before its return, unless the lease outlived the incident.
    println!("{incident}: the leader leads since {:.1} s after its return", since(stage.led_since().await?));
    println!("{incident}: the first claim is made {:.1} s after its return", since(work.first_claim_after(back)?));
    report(incident, &calls.since_last().expect_none_failed()?, None, work.longest_wait(began)?);
    Ok(())
}

fn report(incident: &str, calls: &Log, takeover: Option<SignedDuration>, wait: SignedDuration) {
    let takeover = takeover.map(|gap| format!("; the lease was taken after {:.2} s", seconds(gap))).unwrap_or_default();
    println!("{incident}: {calls}{takeover}; the longest wait for a claim was {:.1} s", seconds(wait));
}

fn seconds(duration: SignedDuration) -> f64 {
    duration.as_secs_f64()
}
