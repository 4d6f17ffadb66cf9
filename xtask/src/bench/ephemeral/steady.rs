//! A steady stream of pods: how long each waits for its claim.

use std::{collections::HashMap, time::Duration};

use anyhow::Result;
use futures::future::try_join_all;
use kube::Client;
use testbed::{AuditLog, AuditedRequest};
use tokio::time::{MissedTickBehavior, interval};

use super::{
    contestant::{Contestant, Programs},
    scene::{Scene, created_claims, delay},
};
use crate::bench::{
    claims,
    pods::{self, Scratch},
    report::Section,
    sample::Samples,
};

const PODS_PER_SECOND: u32 = 50;
const STATE: &str = "steady";
const NAMESPACE: &str = "steady";
/// Is made first and shows that the contestant has begun.
const HERALD: &str = "herald";

pub(crate) async fn run(programs: &Programs, time: Duration, rounds: usize, command: String) -> Result<()> {
    let scene = Scene::open(programs).await?;
    pods::create_namespace(&scene.client().await?, NAMESPACE).await?;
    scene.save(STATE).await?;
    let mut measured =
        [Contestant::Claimkeeper, Contestant::BEST_PEER].map(|contestant| (contestant, Measured::default()));
    for round in 0..rounds {
        for turn in 0..measured.len() {
            let (contestant, to) = &mut measured[(round + turn) % 2];
            eprintln!("steady, round {} of {rounds}: {}", round + 1, contestant.label());
            let waits = measure(&scene, *contestant, time).await?;
            let (median, p99) = (waits.quantile(0.5), waits.quantile(0.99));
            eprintln!("  p50 {median:.1} ms, p99 {p99:.1} ms");
            to.median.add(median);
            to.p99.add(p99);
            to.worst.add(waits.largest());
            to.missing += usize::try_from(time.as_secs() * u64::from(PODS_PER_SECOND))? - waits.len();
        }
    }
    let mut rows = vec![["who", "p50 ms", "p99 ms", "worst ms", "left out"].map(str::to_owned).to_vec()];
    rows.extend(measured.iter().map(|(contestant, Measured { median, p99, worst, missing })| {
        vec![contestant.label(), median.to_string(), p99.to_string(), worst.to_string(), missing.to_string()]
    }));
    Section {
        title: "Ephemeral volumes: a steady stream",
        command,
        circumstances: format!(
            "{PODS_PER_SECOND} pods a second for {} s in each round; how long after the answer to the pod's creation the answer to its \
             claim's\ncreation was out, by the API server's own clock (audit log). \"left out\" are pods whose claim\nexists, but not in that log.",
            time.as_secs()
        ),
        rows,
    }
    .publish()
}

#[derive(Default)]
struct Measured {
    median: Samples,
    p99: Samples,
    worst: Samples,
    missing: usize,
}

/// The milliseconds that each pod waited.
async fn measure(scene: &Scene, contestant: Contestant, time: Duration) -> Result<Samples> {
    scene.restore(STATE).await?;
    let client = scene.client().await?;
    let mut running = scene.start(contestant).await?;
    pods::create_one(&client, NAMESPACE, HERALD, Scratch::Ephemeral).await?;
    claims::wait_for(&client, 1).await?;

    let log = scene.audit()?;
    let names: Vec<String> =
        (0..time.as_secs() * u64::from(PODS_PER_SECOND)).map(|number| format!("pod-{number}")).collect();
    create_in_rhythm(&client, NAMESPACE, &names, Duration::from_secs(1) / PODS_PER_SECOND).await?;
    claims::wait_for(&client, names.len() + 1).await?;
    running.check()?;
    let waits = waits(&log, NAMESPACE, names.len()).await?;
    Ok(waits.into_iter().map(|wait| wait.took.as_secs_f64() * 1000.0).collect())
}

/// Creates pods at regular intervals, however long each one takes.
pub(super) async fn create_in_rhythm(
    client: &Client,
    namespace: &str,
    names: &[String],
    every: Duration,
) -> Result<()> {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut creating = Vec::new();
    for name in names {
        ticks.tick().await;
        let (client, namespace, name) = (client.clone(), namespace.to_owned(), name.clone());
        creating
            .push(tokio::spawn(async move { pods::create_one(&client, &namespace, &name, Scratch::Ephemeral).await }));
    }
    for created in try_join_all(creating).await? {
        created?;
    }
    Ok(())
}

/// One pod and its claim.
pub(super) struct Wait {
    pub(super) pod_created: jiff::Timestamp,
    pub(super) claim_created: jiff::Timestamp,
    pub(super) took: Duration,
}

/// How long each pod that was created in this namespace waited for its claim.
pub(super) async fn waits(log: &AuditLog, namespace: &str, wanted: usize) -> Result<Vec<Wait>> {
    let claims = created_claims(&log.clone().namespace(namespace), wanted).await?;
    let claims: HashMap<String, &AuditedRequest> = claims.iter().map(|claim| (name(claim), claim)).collect();
    let pods = log.clone().namespace(namespace).verb("create").resource("pods").requests()?;
    let waits = pods.iter().filter_map(|pod| {
        let claim = claims.get(&format!("{}-scratch", name(pod)))?;
        let (pod_created, claim_created) = (pod.stage_timestamp, claim.stage_timestamp);
        Some(Wait { pod_created, claim_created, took: delay(pod_created, claim_created) })
    });
    Ok(waits.collect())
}

fn name(request: &AuditedRequest) -> String {
    request.object_ref.as_ref().map(|object| object.name.clone()).unwrap_or_default()
}
