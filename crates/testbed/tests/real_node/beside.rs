//! What stands beside real nodes for their pods: a driver of local disks, and whatever this process has to tell.

use std::{fs, net::SocketAddr, time::Duration};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use testbed::{Cluster, ControlPlane, LOCALDISK, LocalDisks, Options, real_node_turn, within};
use tokio::{io::AsyncWriteExt, net::TcpListener};

use crate::{apply, expect_phase, kubectl, pod};

/// A kubelet that fails to mount something waits longer each time before it tries again.
const PATIENCE: Duration = Duration::from_mins(2);
/// In the network of the nodes, where nobody else is.
const LISTENER: ([u8; 4], u16) = ([10, 1, 0, 1], 5000);

#[tokio::test]
async fn pods_have_local_disks_that_stay_behind_and_reach_what_listens_on_their_node() -> Result<()> {
    let Some(_turn) = real_node_turn().await? else { return Ok(()) };
    let cluster = ControlPlane::start(Options::default().real_nodes(2)).await?;
    let listener = TcpListener::from_std(cluster.listen(SocketAddr::from(LISTENER))?)?;
    let greeter = tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            let _ = connection.write_all(b"hello\n").await;
        }
    });
    let _disks = LocalDisks::start(&cluster, "default").await?;
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": "local" },
        "provisioner": LOCALDISK, "volumeBindingMode": "WaitForFirstConsumer",
    });
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "data" },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "local", "resources": { "requests": { "storage": "1Gi" } },
        },
    });
    apply(&cluster, &[class, claim]).await?;

    let first = run(&cluster, "first", "node-2").await?;
    assert_eq!(first, "first hello\n");
    assert_eq!(run(&cluster, "second", "node-2").await?, "first hello\nsecond hello\n", "it is still there");
    assert_eq!(run(&cluster, "third", "node-1").await?, "third hello\n", "elsewhere it is a blank one");
    let volume = kubectl(&cluster, &["get", "pvc/data", "-o", "jsonpath={.spec.volumeName}"]).await?;
    let on = |node: &str| cluster.directory().join(format!("nodes/{node}/localdisk/containerstorage#{volume}/file"));
    assert_eq!(fs::read_to_string(on("node-1"))?, "third hello\n");
    assert_eq!(fs::read_to_string(on("node-2"))?, "first hello\nsecond hello\n");
    greeter.abort();
    Ok(())
}

/// Runs a pod on a node to its end: what is on the volume then.
async fn run(cluster: &Cluster, name: &str, node: &str) -> Result<String> {
    let [a, b, c, d] = LISTENER.0;
    let script = format!("echo {name} $(nc {a}.{b}.{c}.{d} {} < /dev/null) >> /data/file; cat /data/file", LISTENER.1);
    let mut pod: Value = pod(name, &script);
    pod["spec"]["nodeSelector"] = json!({ "kubernetes.io/hostname": node });
    pod["spec"]["volumes"] = json!([{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{ "name": "data", "mountPath": "/data" }]);
    apply(cluster, &[pod]).await?;
    within(PATIENCE, &format!("{name} to end well"), async || expect_phase(cluster, name, "Succeeded").await).await?;
    let written = kubectl(cluster, &["logs", name]).await?;
    ensure!(written.lines().last() == Some(&format!("{name} hello")), "{written:?}");
    kubectl(cluster, &["delete", "pod", name]).await?;
    Ok(written)
}
