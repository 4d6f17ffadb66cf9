//! Real nodes: pods that run, write, listen and talk, and a machine that is afterwards what it was before.

mod beside;
mod one;
mod several;
mod traces;

use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testbed::{BUSYBOX, Cluster};

/// Runs kubectl to its end and returns what it printed.
async fn kubectl(cluster: &Cluster, arguments: &[&str]) -> Result<String> {
    let mut command = cluster.kubectl();
    command.args(arguments);
    let output = tokio::process::Command::from(command).kill_on_drop(true).output().await?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "kubectl {} failed: {}", arguments.join(" "), complaint.trim());
    Ok(String::from_utf8(output.stdout)?)
}

async fn apply(cluster: &Cluster, objects: &[Value]) -> Result<()> {
    let file = cluster.directory().join("objects.json");
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
    fs::write(&file, list.to_string())?;
    kubectl(cluster, &["apply", "-f", file.to_str().context("an odd path")?]).await.map(drop)
}

fn pod(name: &str, script: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "labels": { "app": name } },
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [{ "name": "main", "image": BUSYBOX, "command": ["sh", "-c", script] }],
        },
    })
}

async fn expect_phase(cluster: &Cluster, pod: &str, phase: &str) -> Result<()> {
    let found = kubectl(cluster, &["get", "pod", pod, "-o", "jsonpath={.status.phase}"]).await?;
    ensure!(found == phase, "the pod is {found}");
    Ok(())
}
