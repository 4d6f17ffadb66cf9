//! A real Job on a real node.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use ephemeral::reclaim::ReclaimCompleted;
use k8s_openapi::api::batch::v1::Job;
use kube::{
    Api,
    api::{ListParams, LogParams, PostParams},
};
use serde_json::json;
use testbed::{BUSYBOX, ControlPlane, Options, eventually, real_node_turn};

use crate::room::{Room, Sight};

#[tokio::test]
async fn the_volume_of_a_completed_job_goes_and_its_pod_and_log_stay() -> Result<()> {
    let Some(_turn) = real_node_turn().await? else { return Ok(()) };
    let control_plane = ControlPlane::start(Options::default().real_node()).await?;
    let room = Room::on(control_plane.cluster(), "job").await?;
    let room = room.start(ReclaimCompleted::Delete, &["kubernetes.io/local-volume"], Sight::Full).await?;
    let spec = json!({
        "accessModes": ["ReadWriteOnce"], "storageClassName": "testbed-wait",
        "resources": {"requests": {"storage": "1Gi"}},
    });
    // It ends when the test has seen what it wrote.
    let script = "echo written > /scratch/result; until [ -e /scratch/seen ]; do sleep 0.1; done; cat /scratch/result";
    let job = json!({"metadata": {"name": "build"}, "spec": {"template": {"spec": {
        "restartPolicy": "Never",
        "containers": [{
            "name": "main", "image": BUSYBOX, "command": ["sh", "-c", script],
            "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
        }],
        "volumes": [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": spec}}}],
    }}}});
    let jobs: Api<Job> = Api::namespaced(control_plane.admin().await?, &room.namespace);
    jobs.create(&PostParams::default(), &serde_json::from_value(job)?).await?;

    let directory = eventually("the file in the volume", async || {
        let claim = room.claims.list(&ListParams::default()).await?.items.pop().context("no claim")?;
        let volume = claim.spec.and_then(|spec| spec.volume_name).context("no volume")?;
        let local = room.volumes.get(&volume).await?.spec.and_then(|spec| spec.local).context("not local")?;
        let directory = PathBuf::from(local.path);
        ensure!(directory.join("result").exists(), "nothing written");
        Ok(directory)
    })
    .await?;
    std::fs::write(directory.join("seen"), "")?;

    eventually("claim, volume and directory to go", async || {
        ensure!(room.claims.list(&ListParams::default()).await?.items.is_empty(), "the claim is there");
        ensure!(room.volumes.list(&ListParams::default()).await?.items.is_empty(), "the volume is there");
        ensure!(!directory.exists(), "the directory is there");
        Ok(())
    })
    .await?;
    let pod = room.pods.list(&ListParams::default()).await?.items.pop().context("the pod is gone")?;
    assert_eq!(pod.status.and_then(|status| status.phase).as_deref(), Some("Succeeded"));
    let log = room.pods.logs(&pod.metadata.name.unwrap_or_default(), &LogParams::default()).await?;
    assert_eq!(log, "written\n");
    eventually("the Job to be complete", async || {
        let status = jobs.get("build").await?.status.unwrap_or_default();
        ensure!(status.completion_time.is_some(), "{status:?}");
        Ok(())
    })
    .await
}
