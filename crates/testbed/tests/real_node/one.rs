//! One real node, which is what most end-to-end tests need.

use std::{fs, path::Path, time::Instant};

use anyhow::{Result, ensure};
use serde_json::json;
use testbed::{Component, ControlPlane, Image, Options, eventually, real_node_turn};

use crate::{apply, expect_phase, kubectl, pod};

#[tokio::test]
async fn real_pods_write_through_claims_and_answer_to_logs_exec_and_services() -> Result<()> {
    let Some(_turn) = real_node_turn().await? else { return Ok(()) };
    let started = Instant::now();
    let cluster = ControlPlane::start(Options::default().real_node()).await?;

    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "data" },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "testbed-wait",
            "resources": { "requests": { "storage": "1Gi" } },
        },
    });
    let mut web = pod("web", "echo from the volume > /data/page; echo serving; exec httpd -f -p 8080 -h /data");
    web["spec"]["volumes"] = json!([{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }]);
    web["spec"]["containers"][0]["volumeMounts"] = json!([{ "name": "data", "mountPath": "/data" }]);
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" },
        "spec": { "selector": { "app": "web" }, "ports": [{ "port": 80, "targetPort": 8080 }] },
    });
    apply(&cluster, &[claim, web, service]).await?;
    eventually("the pod to run", async || expect_phase(&cluster, "web", "Running").await).await?;
    eprintln!("a pod runs {:.1} s after the start", started.elapsed().as_secs_f32());

    eventually("the log", async || {
        let log = kubectl(&cluster, &["logs", "web"]).await?;
        ensure!(log == "serving\n", "{log:?}");
        Ok(())
    })
    .await?;
    assert_eq!(kubectl(&cluster, &["exec", "web", "--", "cat", "/data/page"]).await?, "from the volume\n");

    let volume = kubectl(&cluster, &["get", "pvc", "data", "-o", "jsonpath={.spec.volumeName}"]).await?;
    let directory = kubectl(&cluster, &["get", "pv", &volume, "-o", "jsonpath={.spec.local.path}"]).await?;
    assert_eq!(fs::read_to_string(Path::new(&directory).join("page"))?, "from the volume\n");

    let address = kubectl(&cluster, &["get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"]).await?;
    let script = format!("until wget -q -O - http://{address}/page; do :; done");
    apply(&cluster, &[pod("client", &script)]).await?;
    eventually("the client to get its answer", async || expect_phase(&cluster, "client", "Succeeded").await).await?;
    assert_eq!(kubectl(&cluster, &["logs", "client"]).await?, "from the volume\n");

    kubectl(&cluster, &["delete", "pod/web", "pvc/data"]).await?;
    eventually("the volume's directory to go", async || {
        ensure!(!Path::new(&directory).exists(), "it is there");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_program_of_this_machine_runs_from_an_image_made_of_it() -> Result<()> {
    let Some(_turn) = real_node_turn().await? else { return Ok(()) };
    let cluster = ControlPlane::start(Options::default().real_node().provisioner(false)).await?;
    let image = Image::of_program("docker.io/testbed/uname:1", Path::new("/bin/uname"))?;
    cluster.import_image(&image).await?;
    let mut named = pod("named", "");
    named["spec"]["containers"][0] = json!({ "name": "main", "image": image.name(), "args": ["-n"] });
    apply(&cluster, &[named]).await?;
    eventually("the program to end well", async || expect_phase(&cluster, "named", "Succeeded").await).await?;
    assert_eq!(kubectl(&cluster, &["logs", "named"]).await?, "named\n");

    // The node outlives its kubelet, and the kubelet that comes back finds the pods that ran on without it.
    apply(&cluster, &[pod("patient", "sleep 1000")]).await?;
    eventually("the pod to run", async || expect_phase(&cluster, "patient", "Running").await).await?;
    cluster.kill(Component::Kubelet(1))?;
    cluster.start_component(Component::Kubelet(1)).await?;
    eventually("exec", async || kubectl(&cluster, &["exec", "patient", "--", "true"]).await).await?;
    let restarts = "jsonpath={.status.containerStatuses[0].restartCount}";
    assert_eq!(kubectl(&cluster, &["get", "pod", "patient", "-o", restarts]).await?, "0");
    Ok(())
}
