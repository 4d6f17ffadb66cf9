//! The operator dies at any moment, again and again, and every claim is made all the same: once.

use std::{
    collections::BTreeMap,
    fs,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use k8s_openapi::api::events::v1::Event;
use kube::{Api, ResourceExt, api::ListParams};
use serde_json::json;
use testbed::{ControlPlane, Options, within};

use crate::{
    home::{Home, Prepared},
    ledger::{expect_made_once, owners},
};

const KILLS: usize = 200;
const PODS_PER_LIFE: usize = 10;
const LONGEST_LIFE: Duration = Duration::from_millis(250);
/// The ten claims of a life take about as long.
const LONGEST_WORK: Duration = Duration::from_millis(20);
const LONGEST_CHILDHOOD: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_kills_lose_no_claim_and_make_none_twice() -> Result<()> {
    // A claim is made from a pod that just exists: nobody has to schedule it or to bind anything.
    let bare = Options::default().without_controller_manager().without_scheduler().nodes(0).provisioner(false);
    let control_plane = ControlPlane::start(bare.name("kills")).await?;
    let home = Home::on(control_plane.cluster(), "kills").await?;
    let operator = home.prepare("mortal", json!({"enabled": false}), json!({})).await?;

    let start = Instant::now();
    let (mut uids, mut killed_at_work) = (BTreeMap::new(), 0);
    for life in 0..KILLS {
        let (made, born) = tokio::try_join!(live_and_die(&operator, life % 3 == 2), create_pods(&home, life))?;
        killed_at_work += usize::from(made > 0);
        uids.extend(born);
    }
    println!("{KILLS} lives in {:.1} s, {killed_at_work} of them made claims", start.elapsed().as_secs_f32());
    assert!(killed_at_work >= KILLS / 5, "lives that end before their work begins prove nothing");

    // The last one is allowed to finish.
    let _survivor = operator.launch().await?;
    let claims = within(Duration::from_mins(1), "every claim", async || {
        let claims = home.claims.list(&ListParams::default()).await?.items;
        ensure!(claims.len() >= uids.len(), "{} of {} claims", claims.len(), uids.len());
        Ok(claims)
    })
    .await?;
    assert_eq!(owners(&claims), uids.into_iter().map(|(pod, uid)| (format!("{pod}-scratch"), uid)).collect());
    expect_made_once(&home, &claims).await?;
    let events: Api<Event> = Api::namespaced(home.cluster.admin().await?, &home.namespace);
    let events = events.list(&ListParams::default()).await?.items;
    assert!(events.is_empty(), "{:?}", events.first());
    Ok(())
}

/// One life, and how many claims it told of. Most end at any moment, start-up included; the others in the middle of the
/// claims that they found missing.
async fn live_and_die(operator: &Prepared, at_work: bool) -> Result<usize> {
    let mut process = operator.command()?.spawn()?;
    let told = || fs::read_to_string(operator.log()).map(|log| log.matches("created the claim").count());
    let born = Instant::now();
    while at_work && told()? == 0 && born.elapsed() < LONGEST_CHILDHOOD {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let rest = if at_work { LONGEST_WORK } else { LONGEST_LIFE };
    tokio::time::sleep(rest.mul_f32(rand::random())).await;
    process.kill().await?;
    Ok(told()?)
}

async fn create_pods(home: &Home, life: usize) -> Result<Vec<(String, String)>> {
    let mut born = Vec::new();
    for number in 0..PODS_PER_LIFE {
        let pod = home.create_pod(&format!("pod-{life}-{number}")).await?;
        born.push((pod.name_any(), pod.uid().unwrap_or_default()));
    }
    Ok(born)
}
