//! Rotation of leaf and authority by their age, while the API server calls the webhook 200 times a second.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::Api;
use parking_lot::Mutex;
use testbed::within;
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};

use crate::certificates_support::{Handshakes, Replica, Stage, ask, count};

const RATE: u64 = 200;

/// Enough for 200 requests a second that take 300 ms each; more would only queue up in the API server.
const MOST_AT_ONCE: usize = 64;

/// How long an API server and a replica may be behind, on a machine that is busy with other things.
const SETTLE: Duration = Duration::from_secs(4);
const GRACE: Duration = Duration::from_secs(10);

#[derive(Default)]
struct Calls {
    answered: AtomicU64,
    /// Refused by the API server because of the webhook.
    failed: Mutex<Vec<String>>,
    /// Not even asked about, such as when the API server has too much to do.
    other: Mutex<Vec<String>>,
}

impl Calls {
    async fn make(&self, claims: &Api<PersistentVolumeClaim>) {
        match ask(claims).await {
            Ok(()) => drop(self.answered.fetch_add(1, Ordering::SeqCst)),
            Err(error) if error.to_string().contains("webhook") => self.failed.lock().push(error.to_string()),
            Err(error) => self.other.lock().push(error.to_string()),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_fails_or_is_skipped_while_leaf_and_authority_are_rotated_under_load() -> Result<()> {
    let stage = Stage::new().await?;
    let mut settings = stage.settings();
    (settings.settle, settings.grace) = (SETTLE, GRACE);
    // A third of their lives is left when they are renewed.
    (settings.leaf_lifetime, settings.authority_lifetime) = (Duration::from_secs(45), Duration::from_secs(75));
    let replicas = [stage.start("first", settings.clone()).await?, stage.start("second", settings).await?];
    for replica in &replicas {
        replica.until_ready().await?;
    }
    within(testbed::PATIENCE, "the API server to be answered", async || stage.ask().await).await?;
    let asked = || replicas.iter().map(Replica::asked).sum::<u64>();
    let made = |certificate| {
        let series = format!("claimkeeper_certificate_rotations_total{{certificate=\"{certificate}\"}}");
        replicas.iter().map(|replica| replica.metric(&series)).sum::<u64>()
    };
    let (before, first) = (asked(), stage.entry("ca.crt").await?);

    let (calls, done) = (Arc::new(Calls::default()), Arc::new(AtomicBool::new(false)));
    let load = tokio::spawn(load(Arc::clone(&calls), Arc::clone(&done), stage.claims.clone()));
    // The API server goes on with the connections that it has; these are new ones.
    let connections = Handshakes::begin(&stage, stage.address(), SETTLE / 8, SETTLE);
    let rotated = within(Duration::from_mins(3), "the authority to be rotated", async || {
        ensure!(made("ca") >= 2 && made("leaf") >= 3, "made {} authorities, {} leaves", made("ca"), made("leaf"));
        let (stored, bundle) = (stage.entry("ca.crt").await?, stage.bundle().await?);
        ensure!(stored != first && count(&stored) == 1 && stored == bundle, "the old authority is still trusted");
        Ok(())
    })
    .await;
    done.store(true, Ordering::SeqCst);
    load.await?;
    let (connections, refused) = connections.end().await?;
    rotated?;

    let (failed, other) = (calls.failed.lock().clone(), calls.other.lock().clone());
    let answered = calls.answered.load(Ordering::SeqCst);
    assert!(failed.is_empty(), "{} of {answered} calls failed: {:?}", failed.len(), failed.first());
    assert!(refused.is_empty(), "{} of {connections} connections were refused: {:?}", refused.len(), refused.first());
    assert!(answered > 1_000 && connections > 50, "only {answered} calls and {connections} connections");
    let reached = asked() - before;
    let unknown = u64::try_from(other.len())?;
    assert!(
        (answered..=answered + unknown).contains(&reached),
        "{reached} calls reached the webhook, {answered} were answered, {unknown} had other errors: {:?}",
        other.first()
    );
    Ok(())
}

async fn load(calls: Arc<Calls>, done: Arc<AtomicBool>, claims: Api<PersistentVolumeClaim>) {
    let mut ticks = interval(Duration::from_secs(1) / u32::try_from(RATE).unwrap());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let (turns, mut running) = (Arc::new(Semaphore::new(MOST_AT_ONCE)), JoinSet::new());
    while !done.load(Ordering::SeqCst) {
        ticks.tick().await;
        let turn = Arc::clone(&turns).acquire_owned().await.unwrap();
        let (calls, claims) = (Arc::clone(&calls), claims.clone());
        running.spawn(async move {
            calls.make(&claims).await;
            drop(turn);
        });
        while running.try_join_next().is_some() {}
    }
    running.join_all().await;
}
