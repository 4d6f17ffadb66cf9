//! Pods land where their volumes are: the real kube-scheduler decides.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http::Method;
use rehearsal::STAGEHAND;
use serde_json::{Value, json};
use testbed::{Options, within};

use crate::stage::{CLASSES, NODES, Stage, pod};

/// A busy machine may take its time to find a place for a pod.
const LONG: Duration = Duration::from_mins(2);

/// Without us each of these would be a throw of dice.
const THROWS: usize = 6;

#[tokio::test(flavor = "multi_thread")]
async fn pods_land_where_their_volumes_are() -> Result<()> {
    let stage = Stage::on(Options::default().name("steer-scheduler").nodes(3)).await?;
    let labels = json!({"metadata": {"labels": {"kubernetes.io/hostname": "host-of-2", "zone": "z"}}});
    change_node(&stage, "node-2", &labels).await?;
    change_node(&stage, "node-3", &json!({"metadata": {"labels": {"kubernetes.io/hostname": null, "zone": "z"}}}))
        .await?;
    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "local"},
                       "provisioner": "localdisk.csi.acstor.io"});
    stage.actors.make(CLASSES, &class).await?;
    within(LONG, "the caches know the nodes", async || {
        let hostname = |name: &str| {
            let node = stage.caches.nodes.get(&cluster::ObjectKey::new("", name));
            node.map(|node| node.hostname().map(str::to_owned))
        };
        ensure!(
            hostname("node-2") == Some(Some("host-of-2".to_owned())) && hostname("node-3") == Some(None),
            "not yet"
        );
        anyhow::Ok(())
    })
    .await?;

    for throw in 0..THROWS {
        for node in ["node-1", "node-2", "node-3"] {
            for mode in ["availability", "durability"] {
                let claim = format!("{mode}-{throw}-on-{node}");
                stage.local(&claim, node, mode).await?;
                make(&stage, &pod(&claim, &[&claim])).await?;
            }
        }
    }
    what_the_author_allows_is_narrowed(&stage).await?;
    for throw in 0..THROWS {
        for node in ["node-1", "node-2", "node-3"] {
            for mode in ["availability", "durability"] {
                let pod = format!("{mode}-{throw}-on-{node}");
                ensure!(place(&stage, &pod).await? == node, "{pod} is somewhere else");
            }
        }
    }
    a_pod_that_waits_for_its_node_is_not_scheduled(&stage).await?;
    volumes_that_are_apart_keep_their_pod_from_running(&stage).await
}

async fn change_node(stage: &Stage, name: &str, change: &Value) -> Result<()> {
    let changed = stage.actors.send(STAGEHAND, Method::PATCH, &format!("{NODES}/{name}"), Some(change)).await?;
    ensure!(changed.code == 200, "{changed:?}");
    Ok(())
}

/// Where there are no controllers nobody takes the taints of new nodes away.
async fn make(stage: &Stage, pod: &Value) -> Result<()> {
    let mut pod = pod.clone();
    pod["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    let pod = &pod;
    let made = stage.actors.send("alice", Method::POST, &stage.path("pods"), Some(pod)).await?;
    ensure!(made.code == 201, "{made:?}");
    Ok(())
}

async fn look(stage: &Stage, pod: &str) -> Result<Value> {
    let found = stage.actors.send(STAGEHAND, Method::GET, &stage.path(&format!("pods/{pod}")), None).await?;
    ensure!(found.code == 200, "{found:?}");
    Ok(found.body)
}

/// Where the scheduler puts a pod.
async fn place(stage: &Stage, pod: &str) -> Result<String> {
    within(LONG, &format!("a place for {pod}"), async || {
        let found = look(stage, pod).await?;
        found["spec"]["nodeName"].as_str().map(str::to_owned).with_context(|| format!("{}", found["status"]))
    })
    .await
}

/// Why the scheduler does not put it anywhere.
async fn refusal(stage: &Stage, pod: &str, reason: &str) -> Result<String> {
    within(LONG, &format!("the scheduler's word about {pod}"), async || {
        let found = look(stage, pod).await?;
        let conditions = found["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let refused = conditions.iter().find(|condition| condition["reason"] == reason);
        let message = refused.map(|refused| refused["message"].as_str().unwrap_or_default().to_owned());
        message.with_context(|| format!("{conditions:?}"))
    })
    .await
}

/// The author's terms allow node-2 and node-3; a term beside them would allow all that they do.
async fn what_the_author_allows_is_narrowed(stage: &Stage) -> Result<()> {
    for throw in 0..THROWS {
        let claim = format!("narrowed-{throw}");
        stage.local(&claim, "node-2", "durability").await?;
        let mut pod = pod(&claim, &[&claim]);
        let term = json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": ["z"]}]});
        pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
            json!({"nodeSelectorTerms": [term]});
        make(stage, &pod).await?;
    }
    for throw in 0..THROWS {
        ensure!(place(stage, &format!("narrowed-{throw}")).await? == "node-2");
    }
    Ok(())
}

async fn a_pod_that_waits_for_its_node_is_not_scheduled(stage: &Stage) -> Result<()> {
    stage.local("waits", "node-9", "durability").await?;
    stage.local("goes-on", "node-9", "availability").await?;
    make(stage, &pod("waits", &["waits"])).await?;
    make(stage, &pod("goes-on", &["goes-on"])).await?;
    place(stage, "goes-on").await?;
    refusal(stage, "waits", "SchedulingGated").await?;
    let waits = look(stage, "waits").await?;
    ensure!(waits["spec"]["schedulingGates"] == json!([{"name": "claimkeeper.dev/home-node"}]), "{waits}");
    ensure!(waits["spec"]["nodeName"].is_null() && waits["spec"]["affinity"].is_null(), "{waits}");
    Ok(())
}

async fn volumes_that_are_apart_keep_their_pod_from_running(stage: &Stage) -> Result<()> {
    stage.local("left", "node-1", "durability").await?;
    stage.local("right", "node-3", "durability").await?;
    make(stage, &pod("torn", &["left", "right"])).await?;
    let message = refusal(stage, "torn", "Unschedulable").await?;
    ensure!(message.contains("node affinity"), "{message}");
    Ok(())
}
