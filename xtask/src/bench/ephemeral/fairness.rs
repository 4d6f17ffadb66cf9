//! One namespace has a backlog; how long do single pods of another one wait?

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::time::Instant;

use super::{
    contestant::{Contestant, Programs},
    scene::{Scene, created_claims, delay, span},
    steady::waits,
};
use crate::bench::{
    claims,
    pods::{self, Plan, Scratch},
    report::Section,
    sample::Samples,
};

const EVERY: Duration = Duration::from_millis(100);
const STATE: &str = "crowd";
/// The namespace with the backlog; the first one of a plan.
const CROWD: &str = "bench-0";
const NAMESPACE: &str = "neighbour";

pub(crate) async fn run(programs: &Programs, crowd: usize, rounds: usize, command: String) -> Result<()> {
    let scene = Scene::open(programs).await?;
    let client = scene.client().await?;
    Plan { per_namespace: crowd, ..Plan::new(crowd, 1) }.create(&client).await?;
    pods::create_namespace(&client, NAMESPACE).await?;
    scene.save(STATE).await?;
    let mut measured =
        [Contestant::Claimkeeper, Contestant::BEST_PEER].map(|contestant| (contestant, Measured::default()));
    for round in 0..rounds {
        for turn in 0..measured.len() {
            let (contestant, to) = &mut measured[(round + turn) % 2];
            eprintln!("fairness, round {} of {rounds}: {}", round + 1, contestant.label());
            let waits = measure(&scene, *contestant, crowd).await?;
            eprintln!("  {} pods: p50 {:.1} ms, worst {:.1} ms", waits.len(), waits.median(), waits.largest());
            to.median.add(waits.median());
            to.worst.add(waits.largest());
            to.pods.add(waits.len() as f64);
        }
    }
    let mut rows = vec![["who", "p50 ms", "worst ms", "single pods"].map(str::to_owned).to_vec()];
    rows.extend(measured.iter().map(|(contestant, Measured { median, worst, pods })| {
        vec![contestant.label(), median.rounded(), worst.rounded(), pods.rounded()]
    }));
    Section {
        title: "Ephemeral volumes: fairness",
        command,
        circumstances: format!(
            "One namespace has a backlog of {crowd} pods when the program starts. While that is worked off, single pods are created in \
             another\nnamespace, one every {} ms: how long each waits for its claim, from the answer to its creation (or from the \
             backlog's first\nclaim, whichever is later) to the answer to its claim's creation.",
            EVERY.as_millis()
        ),
        rows,
    }
    .publish()
}

#[derive(Default)]
struct Measured {
    median: Samples,
    worst: Samples,
    pods: Samples,
}

/// The milliseconds that each single pod waited that was created before the backlog was gone.
async fn measure(scene: &Scene, contestant: Contestant, crowd: usize) -> Result<Samples> {
    scene.restore(STATE).await?;
    let (log, client) = (scene.audit()?, scene.client().await?);
    let mut running = scene.start(contestant).await?;
    let mut working = std::pin::pin!(claims::wait_for(&client, crowd));
    let (mut single, mut creating) = (0, Vec::new());
    let mut next = Instant::now();
    loop {
        tokio::select! {
            biased;
            done = &mut working => break done?,
            () = tokio::time::sleep_until(next) => {}
        }
        next += EVERY;
        single += 1;
        let (client, name) = (client.clone(), format!("single-{single}"));
        creating
            .push(tokio::spawn(async move { pods::create_one(&client, NAMESPACE, &name, Scratch::Ephemeral).await }));
    }
    for created in futures::future::try_join_all(creating).await? {
        created?;
    }
    claims::wait_for(&client, crowd + single).await?;
    running.check()?;

    let backlog = created_claims(&log.clone().namespace(CROWD), crowd).await?;
    let (first, last) = span(&backlog).context("no claim was created")?;
    let waits = waits(&log, NAMESPACE, single).await?;
    // So few pods must all be there: the one that is not may be the one that waited longest.
    ensure!(waits.len() == single, "{} single pods of {single} have a claim in the audit log", waits.len());
    let during = waits.iter().filter(|wait| wait.pod_created < last && wait.claim_created > first);
    Ok(during.map(|wait| delay(wait.pod_created.max(first), wait.claim_created).as_secs_f64() * 1000.0).collect())
}
