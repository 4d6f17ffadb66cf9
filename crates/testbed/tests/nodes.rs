//! Nodes and pods without a kubelet.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::json;
use testbed::{ControlPlane, Options, eventually};

fn pod_on(node: Option<&str>) -> Result<Pod> {
    Ok(serde_json::from_value(json!({
        "metadata": { "name": "app" },
        "spec": {
            "nodeName": node,
            "restartPolicy": "Never",
            "containers": [{ "name": "main", "image": "app" }],
            "initContainers": [{ "name": "first", "image": "app" }],
        },
    }))?)
}

async fn expect_phase(pods: &Api<Pod>, phase: &str) -> Result<()> {
    let found = pods.get("app").await?.status.and_then(|status| status.phase);
    ensure!(found.as_deref() == Some(phase), "the pod is {found:?}");
    Ok(())
}

async fn expect_gone(pods: &Api<Pod>) -> Result<()> {
    ensure!(pods.get_opt("app").await?.is_none(), "it is there");
    Ok(())
}

#[tokio::test]
async fn pods_run_by_themselves_end_when_told_and_finish_deleting() -> Result<()> {
    let cluster = testbed::shared().await?;
    for end in ["Succeeded", "Failed"] {
        let namespace = cluster.create_namespace("nodes").await?;
        let pods: Api<Pod> = Api::namespaced(cluster.admin().await?, &namespace);
        pods.create(&PostParams::default(), &pod_on(None)?).await?;
        eventually("the pod to run", async || expect_phase(&pods, "Running").await).await?;
        cluster.set_pod_phase(&namespace, "app", end).await?;
        expect_phase(&pods, end).await?;
        pods.delete("app", &DeleteParams::default()).await?;
        eventually("the pod to go", async || expect_gone(&pods).await).await?;
    }
    Ok(())
}

#[tokio::test]
async fn who_ends_a_pod_leaves_the_next_one_of_its_name_alone() -> Result<()> {
    const TIMES: usize = 100;
    let cluster = testbed::shared().await?;
    let namespace = cluster.create_namespace("nodes").await?;
    let pods: Api<Pod> = Api::namespaced(cluster.admin().await?, &namespace);
    let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    pods.create(&PostParams::default(), &pod_on(Some("node-1"))?).await?;
    for _ in 0..TIMES {
        eventually("the pod to run", async || expect_phase(&pods, "Running").await).await?;
        pods.delete("app", &at_once).await?;
        pods.create(&PostParams::default(), &pod_on(Some("node-1"))?).await?;
    }
    eventually("the last pod to run", async || expect_phase(&pods, "Running").await).await?;
    pods.delete("app", &DeleteParams::default()).await?;
    eventually("the pod to go", async || expect_gone(&pods).await).await
}

#[tokio::test]
async fn a_node_can_be_added_run_pods_and_be_removed() -> Result<()> {
    // Not the shared one: other tests' pods would be put on a node that is about to go.
    let cluster = ControlPlane::start(Options::default().nodes(1).provisioner(false)).await?;
    let namespace = cluster.create_namespace("nodes").await?;
    cluster.add_node("extra", &[("example.org/zone", "a")]).await?;
    let nodes: Api<Node> = Api::all(cluster.admin().await?);
    let labels = nodes.get("extra").await?.metadata.labels.unwrap_or_default();
    assert_eq!(labels["example.org/zone"], "a");

    let pods: Api<Pod> = Api::namespaced(cluster.admin().await?, &namespace);
    pods.create(&PostParams::default(), &pod_on(Some("extra"))?).await?;
    eventually("the pod to run", async || expect_phase(&pods, "Running").await).await?;
    pods.delete("app", &DeleteParams::default()).await?;
    eventually("the pod to go", async || expect_gone(&pods).await).await?;

    cluster.remove_node("extra").await?;
    assert!(nodes.get_opt("extra").await?.is_none());
    Ok(())
}
