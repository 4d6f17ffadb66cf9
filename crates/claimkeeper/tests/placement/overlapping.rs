//! Nodes are lost faster than what was on them is repaired.

use std::{collections::BTreeSet, env};

use anyhow::{Context, Result, ensure};
use kube::{ResourceExt, api::ListParams};
use rand::{
    RngExt, SeedableRng,
    rngs::StdRng,
    seq::{IndexedRandom, SliceRandom},
};
use serde_json::json;
use testbed::{MODE, within};

use crate::{
    ledger::Ledger,
    stage::{LONG, Stage},
};

const NODES: usize = 8;
const LOSSES: usize = 20;
const MOST_AT_ONCE: usize = 4;
const SETS: [(&str, usize); 2] = [("free", 5), ("tied", 5)];

const SEED: u64 = 20;
/// Tells another story.
const SEED_VARIABLE: &str = "CLAIMKEEPER_PLACEMENT_SEED";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_overlapping_losses_leave_nothing_stuck_and_touch_nothing_of_a_living_node() -> Result<()> {
    let seed = env::var(SEED_VARIABLE).ok().map_or(Ok(SEED), |seed| seed.parse())?;
    println!("{SEED_VARIABLE}={seed}");
    Box::pin(lose_twenty(seed)).await.with_context(|| format!("{SEED_VARIABLE}={seed} tells this story again"))
}

async fn lose_twenty(seed: u64) -> Result<()> {
    // Here whole halves of the cluster vanish, and everybody may believe it.
    let placement = json!({"nodeGone": "delete", "nodeGoneAfter": "1s", "nodeGoneBrake": "100%"});
    let stage = Stage::open("overlapping", NODES, &placement).await?;
    let mut ledger = Ledger::open(stage.volumes.clone());
    let repaired = lose_and_repair(&stage, &mut ledger, StdRng::seed_from_u64(seed)).await;
    // Before anything else is told, because it may be why something else is stuck.
    let deleted = ledger.check(&stage)?;
    let by_hand = repaired?;
    println!("{LOSSES} nodes were lost, and {deleted} claims with them; {by_hand} more by hand");
    ensure!(deleted > 0, "nothing was lost with {LOSSES} nodes, which proves nothing");
    stage.check_rights()
}

/// Returns how many volumes nobody but a person could help.
async fn lose_and_repair(stage: &Stage, ledger: &mut Ledger, mut chance: StdRng) -> Result<usize> {
    stage.class("free", &json!({})).await?;
    stage.class("tied", &json!({MODE: "affinity"})).await?;
    for (set, replicas) in SETS {
        stage.stateful_set(set, set, replicas).await?;
    }

    let (mut lost, mut next, mut by_hand) = (0, NODES + 1, BTreeSet::new());
    while lost < LOSSES {
        let mut living = stage.living_nodes().await?;
        living.sort();
        living.shuffle(&mut chance);
        let burst = chance.random_range(1..=MOST_AT_ONCE).min(LOSSES - lost);
        stage.until_noted(&living[..burst]).await?;
        for node in &living[..burst] {
            ledger.lose(node);
            stage.cluster.remove_node(node).await?;
            lost += 1;
            end_pods_of_the_lost(stage).await?;
        }
        // Machines come in another order than they went, and under names of their own.
        for _ in 0..burst {
            stage.add_node(&format!("node-{next}")).await?;
            next += 1;
        }
        // How much of it is repaired before the next ones go is chance, too.
        let enough = *[0, 3, 6].choose(&mut chance).context("no choice")?;
        within(LONG, "some replicas to run", async || {
            repair(stage, &mut by_hand).await?;
            let running = running(stage).await?;
            ensure!(running >= enough, "{running} of {enough} run");
            Ok(())
        })
        .await?;
    }
    // One volume for each replica, and no other: nothing is left of the lost.
    within(LONG, "the volumes of lost nodes to go", async || {
        repair(stage, &mut by_hand).await?;
        let volumes = stage.volumes.list(&ListParams::default()).await?;
        let phases: Vec<_> = volumes.iter().map(|volume| (volume.name_any(), volume.status.clone())).collect();
        let all: usize = SETS.iter().map(|(_, replicas)| replicas).sum();
        ensure!(running(stage).await? == all && volumes.items.len() == all, "{phases:?}");
        Ok(())
    })
    .await?;
    stage.until_settled(&SETS).await?;
    Ok(by_hand.len())
}

/// What people do after a loss.
async fn repair(stage: &Stage, by_hand: &mut BTreeSet<String>) -> Result<()> {
    end_pods_of_the_lost(stage).await?;
    by_hand.extend(stage.give_up_unnoted().await?);
    Ok(())
}

/// Who takes machines away ends their pods. Some are bound to a node in the moment in which it goes.
async fn end_pods_of_the_lost(stage: &Stage) -> Result<()> {
    let living = stage.living_nodes().await?;
    let is_lost = |node: &String| !living.contains(node);
    stage.end_pods(|pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()).is_some_and(is_lost)).await
}

async fn running(stage: &Stage) -> Result<usize> {
    let (living, pods) = (stage.living_nodes().await?, stage.shop.pods.list(&ListParams::default()).await?);
    let runs = |pod: &&k8s_openapi::api::core::v1::Pod| {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        phase == Some("Running") && node.is_some_and(|node| living.contains(node))
    };
    Ok(pods.iter().filter(runs).count())
}
