//! Volumes that can be made again anywhere, blank: pods follow them while their node is there, and leave them when it is gone.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};
use testbed::within;

use crate::stage::{LONG, Stage};

const SELECTED_NODE: &str = "localdisk.csi.acstor.io/selected-node";
const RECREATIONS: &str = "claimkeeper.dev/blank-recreations";

const REPLICAS: usize = 3;

const PAGE: &str = include_str!("../../../../docs/placement.md");

/// The nodes that a pod was told to prefer.
fn preferred(pod: &Pod) -> Value {
    let affinity = serde_json::to_value(pod).unwrap()["spec"]["affinity"]["nodeAffinity"].take();
    affinity["preferredDuringSchedulingIgnoredDuringExecution"].clone()
}

fn prefers(node: &str) -> Value {
    let at_home = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [node]});
    json!([{"weight": 100, "preference": {"matchExpressions": [at_home]}}])
}

/// Waits until it is recorded that the volume of `db-0` was made blank so often, the last time between these nodes.
async fn until_recorded(stage: &Stage, count: u32, from: &str, to: &str) -> Result<()> {
    let check = |annotations: &std::collections::BTreeMap<String, String>| {
        let record: Value = serde_json::from_str(annotations.get(RECREATIONS).context("nothing is recorded")?)?;
        let seen = [&record["count"], &record["from"], &record["to"]];
        ensure!(seen == [&json!(count), &json!(from), &json!(to)], "it is recorded: {record}");
        ensure!(record["last"].as_str().is_some_and(|time| time.parse::<jiff::Timestamp>().is_ok()), "{record}");
        Ok(())
    };
    within(LONG, "the failover to be recorded", async || {
        let (volume, claim) = (stage.volume("db-0").await?, stage.claim("db-0").await?);
        let noted = volume.annotations().get(SELECTED_NODE);
        ensure!(noted.map(String::as_str) == Some(to), "the driver noted {noted:?}");
        check(volume.annotations()).context("on the volume")?;
        check(claim.annotations()).context("on the claim")?;
        let told = ("Warning".to_owned(), "VolumeRecreatedBlank".to_owned());
        let times = stage.told("PersistentVolumeClaim", "data-db-0").await?.get(&told).copied().unwrap_or_default();
        ensure!(u32::try_from(times)? == count, "it was told {times} times on the claim");
        let times = stage.told("Pod", "db-0").await?.get(&told).copied().unwrap_or_default();
        ensure!(u32::try_from(times)? == count, "it was told {times} times on the pods");
        Ok::<_, anyhow::Error>(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_follows_its_volume_and_what_is_lost_with_a_node_is_recorded() -> Result<()> {
    let stage = Stage::open("blank", 3, &json!({})).await?;
    stage.class("local", &json!({})).await?;
    stage.stateful_set("db", "local", REPLICAS).await?;
    for ordinal in 0..REPLICAS {
        let replica = format!("db-{ordinal}");
        let (node, volume) = (stage.node(&replica).await?, stage.volume(&replica).await?.name_any());
        stage.disks.write(&volume, &replica)?;
        let pod = stage.restart("db", REPLICAS, &replica).await?;
        assert_eq!(preferred(&pod), prefers(&node));
        assert_eq!(stage.node(&replica).await?, node);
    }

    // The first loss, which Kubernetes itself notices: it takes the pods of a node away that is gone.
    let volume = stage.volume("db-0").await?.name_any();
    let first = stage.node("db-0").await?;
    stage.cluster.remove_node(&first).await?;
    stage.until_settled(&[("db", REPLICAS)]).await?;
    let second = stage.node("db-0").await?;
    assert_ne!(second, first);
    until_recorded(&stage, 1, &first, &second).await?;
    assert_eq!(stage.volume("db-0").await?.name_any(), volume, "it is the same volume");
    // Who waits for it as documented is told.
    let command =
        PAGE.lines().find(|line| line.starts_with("kubectl wait -n prod")).context("nothing is documented")?;
    stage.shop.run_as_administrator(&command.replace("-n prod", &format!("-n {}", stage.shop.namespace))).await?;
    let content = stage.disks.read(&volume).context("no content")?;
    assert_eq!((content.node.as_str(), content.generation, content.text.as_str()), (second.as_str(), 2, ""));

    // Now it is at home where the driver has noted it, although it was made elsewhere and that node is there again.
    stage.disks.write(&volume, "second life")?;
    stage.add_node(&first).await?;
    let pod = stage.restart("db", REPLICAS, "db-0").await?;
    assert_eq!(preferred(&pod), prefers(&second));
    assert_eq!(stage.node("db-0").await?, second);
    assert_eq!(stage.disks.read(&volume).map(|content| content.text).as_deref(), Some("second life"));

    // The second loss.
    stage.cluster.remove_node(&second).await?;
    stage.end_pods(|pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()) == Some(&second)).await?;
    stage.until_settled(&[("db", REPLICAS)]).await?;
    let third = stage.node("db-0").await?;
    assert_ne!(third, second);
    until_recorded(&stage, 2, &second, &third).await?;

    // Who lost no node lost no data.
    for ordinal in 1..REPLICAS {
        let replica = format!("db-{ordinal}");
        let volume = stage.volume(&replica).await?;
        if volume.annotations().contains_key(SELECTED_NODE) {
            // It was together with the other one.
            continue;
        }
        assert_eq!(stage.disks.read(&volume.name_any()).map(|content| content.text), Some(replica));
        assert_eq!(volume.annotations().get(RECREATIONS), None);
    }
    stage.check_rights()
}
