//! The API server goes away and comes back.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use crate::home::Home;
use anyhow::{Result, ensure};
use serde_json::json;
use testbed::{Component, ControlPlane, Options, eventually};

/// Longer than the lease, and than every pause between two tries.
const OUTAGE: Duration = Duration::from_mins(1);

#[tokio::test(flavor = "multi_thread")]
async fn the_process_outlives_the_api_server_and_goes_on_without_making_anything_twice() -> Result<()> {
    let control_plane = ControlPlane::start(Options::default().name("outage").nodes(1)).await?;
    let home = Home::on(control_plane.cluster(), "outage").await?;
    let mut replica = home.start("solo", json!({})).await?;
    home.create_pod("before").await?;
    home.claim_of("before").await?;

    control_plane.kill(Component::ApiServer)?;
    let start = Instant::now();
    while start.elapsed() < OUTAGE {
        assert_eq!(replica.ask("/healthz").await?.0, 200, "alive all the time");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    assert!(!replica.leash.has_ended()?, "{}", replica.leash.output());
    let lines_about_it = replica.leash.output().lines().count();
    assert!(lines_about_it < 60, "the outage filled the log with {lines_about_it} lines");

    control_plane.start_component(Component::ApiServer).await?;
    home.create_pod("after").await?;
    home.claim_of("after").await?;

    let mut made: BTreeMap<String, usize> = BTreeMap::new();
    for request in
        home.cluster.audit_log().user(&replica.user).verb("create").resource("persistentvolumeclaims").requests()?
    {
        if request.code() == Some(201) {
            let name = request.object_ref.map(|object| object.name).unwrap_or_default();
            *made.entry(name).or_default() += 1;
        }
    }
    assert!(made.values().all(|times| *times == 1), "{made:?}");
    let (_, body) = replica.ask("/readyz?verbose").await?;
    assert!(body.contains("readyz check passed"), "{body}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_a_process_that_cannot_finish() -> Result<()> {
    let control_plane = ControlPlane::start(Options::default().name("impatient").nodes(0)).await?;
    let home = Home::on(control_plane.cluster(), "impatient").await?;
    let mut replica = home.start("solo", json!({})).await?;
    home.until_leader_is("solo").await?;

    // Connected and silent: the lease can be neither renewed nor released.
    control_plane.pause(Component::ApiServer)?;
    replica.leash.terminate()?;
    eventually("the first signal to be taken in", async || {
        ensure!(replica.leash.output().contains("finishing what is under way"), "not yet");
        Ok(())
    })
    .await?;
    assert!(!replica.leash.has_ended()?, "it waits for the answer of the API server");
    replica.leash.terminate()?;
    let status = replica.leash.ended(Duration::from_secs(1)).await?;
    assert_eq!(status.code(), Some(1), "{}", replica.leash.output());
    Ok(())
}
