//! The releaser in the binary: what it must be allowed to read, and what a person is told who asks why.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{Api, api::PostParams};
use serde_json::json;
use testbed::{eventually, within};

use crate::home::Home;

#[tokio::test]
async fn it_does_not_start_where_it_could_not_tell_whether_volumes_are_attached() -> Result<()> {
    let home = Home::on(testbed::shared().await?, "blind").await?;
    // The rights of another feature.
    let values = json!({"features": ["provisioner"], "leaderElection": {"name": "shared"}});
    let prepared = home.install("blind", &values, json!({"features": ["releaser"]})).await?;
    home.cluster.expect_refusals(&prepared.user, ("storage.k8s.io", "volumeattachments", "list"))?;
    let mut command = prepared.command()?;
    let ended = tokio::time::timeout(std::time::Duration::from_mins(1), command.status()).await??;
    let log = std::fs::read_to_string(prepared.log())?;
    assert_eq!(ended.code(), Some(1), "{log}");
    let last = log.lines().last().context("no log")?;
    assert!(last.starts_with("claimkeeper: the releaser cannot tell whether volumes are attached"), "{last}");
    assert!(last.ends_with("grant list on volumeattachments.storage.k8s.io"), "{last}");
    Ok(())
}

const WHY: &str = "\
releaser: release of volume NS-pv
  leave, NotManaged: neither its class nor a label says that it is to be released
    yes its claim was in a namespace that is looked after
    NO  its class or a label says that this releaser releases it
    -   the volume is Released
";

#[tokio::test]
async fn it_tells_why_a_volume_is_or_is_not_released() -> Result<()> {
    let home = Home::on(testbed::shared().await?, "why").await?;
    let volumes: Api<PersistentVolume> = Api::all(home.cluster.admin().await?);
    let name = format!("{}-pv", home.namespace);
    let volume = json!({
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": home.namespace, "hostPath": {"path": "/nonexistent"},
            "claimRef": {"namespace": home.namespace, "name": "gone", "uid": "00000000-0000-0000-0000-000000000000"},
        },
    });
    volumes.create(&PostParams::default(), &serde_json::from_value(volume)?).await?;
    let object = format!("pv/{name}");
    eventually("the volume to be Released", async || {
        let status = volumes.get(&name).await?.status;
        ensure!(status.and_then(|status| status.phase).as_deref() == Some("Released"), "not yet");
        Ok(())
    })
    .await?;
    let (code, text) = home.why(&[&object]);
    assert!(code == 0 && text.starts_with(WHY), "{text}");

    let labelled = json!({"metadata": {"labels": {"reclaimable-pv-releaser.kubernetes.io/managed-by": "claimkeeper"}}});
    let patch = kube::api::Patch::Merge(labelled);
    volumes.patch(&name, &kube::api::PatchParams::default(), &patch).await?;
    let (_, text) = home.why(&[&object]);
    assert!(text.contains("\n  release, Released: PV released successfully\n") && !text.contains("NO "), "{text}");
    let (code, text) = home.why(&["pv/missing"]);
    assert_eq!((code, text.as_str()), (1, "claimkeeper: there is no volume missing\n"));
    Ok(())
}

#[tokio::test]
async fn provisioner_and_releaser_run_in_one_process_and_say_if_their_ids_differ() -> Result<()> {
    let home = Home::on(testbed::shared().await?, "both").await?;
    let values = json!({"features": ["provisioner", "releaser"], "leaderElection": {"name": "shared"}});
    let config = json!({"features": ["provisioner", "releaser"], "releaser": {"controllerId": "other"}});
    let replica = home.install("both", &values, config).await?.start().await?;
    replica.until_ready().await?;
    within(std::time::Duration::from_secs(30), "the warning", async || {
        let output = replica.leash.output();
        ensure!(
            output.contains("releaser.controllerId is `other`, but provisioner.controllerId is `claimkeeper`"),
            "{output}"
        );
        Ok(())
    })
    .await
}
