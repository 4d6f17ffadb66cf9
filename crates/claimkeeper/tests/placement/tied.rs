//! Volumes that are tied to their node: pods wait for it while it is there, and get new volumes when it is gone.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use testbed::within;

use crate::{
    ledger::changes,
    stage::{LONG, Stage},
};

const REPLICAS: usize = 3;

async fn until_tied(stage: &Stage, replica: &str) -> Result<()> {
    let node = stage.node(replica).await?;
    let at_home = json!({"key": "topology.localdisk.csi.acstor.io/node", "operator": "In", "values": [node]});
    let tied = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [at_home]}]}});
    within(LONG, "the volume to be tied to its node", async || {
        let affinity = serde_json::to_value(stage.volume(replica).await?)?["spec"]["nodeAffinity"].take();
        ensure!(affinity == tied, "{affinity}");
        Ok(())
    })
    .await
}

async fn cordon(stage: &Stage, node: &str, cordoned: bool) -> Result<()> {
    let patch = Patch::Merge(json!({"spec": {"unschedulable": cordoned}}));
    stage.nodes.patch(node, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Waits until the scheduler has said that a volume keeps this replica where nothing may go.
async fn until_waiting(stage: &Stage, replica: &str) -> Result<()> {
    within(LONG, "the replica to wait for its node", async || {
        let pod = stage.shop.pods.get(replica).await?;
        let conditions = pod.status.and_then(|status| status.conditions).unwrap_or_default();
        let scheduled = conditions.into_iter().find(|condition| condition.type_ == "PodScheduled");
        let message = scheduled.and_then(|condition| condition.message).unwrap_or_default();
        ensure!(message.contains("PersistentVolume's node affinity"), "{message:?}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_waits_for_its_volume_and_gets_a_new_one_when_the_node_is_gone() -> Result<()> {
    let placement = json!({"podWebhook": false, "nodeGone": "delete", "nodeGoneAfter": "1s"});
    let stage = Stage::open("tied", 3, &placement).await?;
    stage.class("local", &json!({})).await?;
    stage.stateful_set("db", "local", REPLICAS).await?;
    let mut before = BTreeMap::new();
    for ordinal in 0..REPLICAS {
        let replica = format!("db-{ordinal}");
        until_tied(&stage, &replica).await?;
        let volume = stage.volume(&replica).await?.name_any();
        stage.disks.write(&volume, &replica)?;
        before.insert(replica.clone(), (stage.claim(&replica).await?.uid(), volume, stage.node(&replica).await?));
    }

    // It does not go elsewhere while its node is there.
    let home = stage.node("db-0").await?;
    cordon(&stage, &home, true).await?;
    stage.end_pods(|pod| pod.name_any() == "db-0").await?;
    until_waiting(&stage, "db-0").await?;
    cordon(&stage, &home, false).await?;
    stage.until_settled(&[("db", REPLICAS)]).await?;
    assert_eq!(stage.node("db-0").await?, home);

    let lost: Vec<_> = before.iter().filter(|(_, (_, _, node))| *node == home).map(|(replica, _)| replica).collect();
    stage.until_noted(std::slice::from_ref(&home)).await?;
    stage.cluster.remove_node(&home).await?;
    stage.end_pods(|pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()) == Some(&home)).await?;
    within(LONG, "new volumes for those that were lost", async || {
        for replica in &lost {
            let (uid, volume, _) = &before[*replica];
            ensure!(stage.claim(replica).await?.uid() != *uid, "{replica} has its old claim");
            let old = stage.volumes.get_opt(volume).await?;
            ensure!(old.is_none(), "its old volume is there: {:?}", old.map(|volume| (volume.status, volume.metadata)));
        }
        Ok(())
    })
    .await?;
    stage.until_settled(&[("db", REPLICAS)]).await?;

    for (replica, (uid, volume, node)) in &before {
        if *node == home {
            assert_ne!(stage.node(replica).await?, home);
            until_tied(&stage, replica).await?;
        } else {
            assert_eq!(stage.claim(replica).await?.uid(), *uid);
            let content = stage.disks.read(volume).context("no content")?;
            assert_eq!((&content.node, &content.text, content.generation), (node, replica, 1));
        }
    }
    let deleted = changes(&stage, "delete", "persistentvolumeclaims")?;
    let deleted: Vec<Value> = deleted.into_iter().map(|(name, _)| name.into()).collect();
    let expected: Vec<Value> = lost.iter().map(|replica| format!("data-{replica}").into()).collect();
    assert_eq!(deleted, expected);
    stage.check_rights()
}
