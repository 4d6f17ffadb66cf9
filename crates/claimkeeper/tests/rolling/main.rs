//! Both replicas are replaced, one after the other, while the API server asks them 200 times a second and takes no answer for a no.
//!
//! A program of its own, because others time what the operator does and would measure this load instead.

#![allow(clippy::unwrap_used)] // helpers are tests too

#[allow(dead_code)] // shared with the tests of the operator; this takes what it needs
#[path = "../operator/home.rs"]
mod home;
#[path = "../operator/scene.rs"]
mod scene;

use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::{
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;

use crate::{
    home::Replica,
    scene::{REFUSAL, Rehearsal, Scene},
};

const EVERY: Duration = Duration::from_millis(5);

/// A machine that is too slow for the rate is asked as fast as it can.
const MOST_AT_ONCE: usize = 64;

/// How long a Service takes to hear of a replica's end, and how long the replica waits for that: on a busy machine both drag.
const LAG: Duration = Duration::from_secs(1);
const DRAIN_DELAY: &str = "6s";

/// The delay, then what the admission server takes at most to close connections and to answer what is under way.
const LONGEST_END: Duration = Duration::from_mins(2);

/// Makes claims that break the rule until it is told to stop; returns how many, and what became of those that were not refused.
async fn load(rehearsal: Rehearsal, stop: CancellationToken) -> (usize, Vec<String>) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut asking, mut answers, mut count) = (JoinSet::new(), Vec::new(), 0);
    while !stop.is_cancelled() {
        ticks.tick().await;
        while asking.len() >= MOST_AT_ONCE {
            answers.extend(asking.join_next().await.map(Result::unwrap));
        }
        let rehearsal = rehearsal.clone();
        asking.spawn(async move { rehearsal.make().await });
        count += 1;
    }
    answers.extend(asking.join_all().await);
    let others = answers.into_iter().filter_map(|answer| match answer {
        // A call that was skipped.
        Ok(()) => Some("it was made".to_owned()),
        Err(error) if error.contains(REFUSAL) => None,
        Err(error) => Some(error),
    });
    (count, others.collect())
}

/// How many claims this replica has refused. There is no such number at one that nobody has connected to.
async fn refused(replica: &Replica) -> u64 {
    let labels = r#"webhook="validate-pvc",decision="deny",reason="NotEphemeral""#;
    replica.metric(&format!("claimkeeper_admission_requests_total{{{labels}}}")).await.unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_claim_is_judged_while_both_replicas_are_replaced() -> Result<()> {
    let mut scene = Scene::open("rolling", LAG).await?;
    let mut prepared = Vec::new();
    for name in ["first", "second", "third", "fourth"] {
        prepared.push(scene.install(name, DRAIN_DELAY).await?);
    }
    let [first, second, third, fourth] = &prepared[..] else { unreachable!() };
    let old = [scene.start(first).await?, scene.start(second).await?];
    scene.until_ready(2).await?;
    scene.until_asked().await?;

    let stop = CancellationToken::new();
    let load = tokio::spawn(load(scene.rehearsal(), stop.clone()));
    let mut new = Vec::new();
    for (mut old, next) in old.into_iter().zip([third, fourth]) {
        // As a Deployment does it: first the new one, then the end of an old one.
        new.push(scene.start(next).await?);
        scene.until_ready(3).await?;
        old.leash.terminate()?;
        let ended = old.leash.ended(LONGEST_END).await?;
        ensure!(ended.success(), "a replica ended badly: {}", old.leash.output());
        scene.until_ready(2).await?;
    }
    stop.cancel();
    let (count, others) = load.await?;
    println!("{count} claims were refused");
    assert!(others.is_empty(), "{} of {count} claims were not refused, such as: {}", others.len(), others[0]);
    assert!(count > 200, "only {count} claims");
    let by_new = refused(&new[0]).await + refused(&new[1]).await;
    assert!(by_new > 0, "the new replicas were never asked");
    scene.close().await
}
