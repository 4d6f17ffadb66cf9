//! Which values the chart accepts.

use std::process::Stdio;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use testbed::Cluster;
use tokio::process::Command;

use crate::documents::{CHART, Documents, profiles};

async fn refusal(cluster: &Cluster, values: &Value) -> String {
    match Documents::render(cluster, "storage", values).await {
        Ok(_) => panic!("{values} was accepted"),
        Err(error) => format!("{error:#}"),
    }
}

#[tokio::test]
async fn every_profile_passes_the_linter() -> Result<()> {
    let cluster = testbed::shared().await?;
    let profiles = profiles()?;
    assert!(profiles.len() > 4, "{profiles:?}");
    for (file, _) in profiles {
        let mut helm = Command::new(cluster.helm());
        helm.args(["lint", "--strict", CHART, "--values", &format!("{CHART}/{file}")]).stdin(Stdio::null());
        let output = helm.kill_on_drop(true).output().await?;
        ensure!(output.status.success(), "{file}: {}", String::from_utf8_lossy(&output.stdout));
    }
    Ok(())
}

#[tokio::test]
async fn a_misspelt_value_fails_the_installation_by_name_at_every_level() -> Result<()> {
    let cluster = testbed::shared().await?;
    for path in [
        "replcias",
        "image.repositry",
        "ephemeral.reclaimComplete",
        "provisioner.controllerID",
        "releaser.dryrun",
        "enforcement.polices",
        "placement.nodeGoneAftr",
        "sharedVolumes.probes",
        "sharedVolumes.storageos.endpont",
        "leaderElection.leaseDuratoin",
        "admin.listens",
        "log.levle",
        "webhook.enforcement",
        "webhook.enforceEphemeral.enabld",
        "webhook.hyperconverged.failurePolcy",
        "webhook.hyperconverged.namespaceSelector.matchLabel",
        "webhook.certificates.issuerRef.nmae",
        "webhook.certificates.leafLifetme",
        "networkPolicy.enable",
        "metrics.rules.enable",
    ] {
        let values = path.rsplit('.').fold(json!("true"), |inner, key| json!({ key: inner }));
        let refusal = refusal(&cluster, &values).await;
        let misspelt = path.rsplit('.').next().unwrap_or_default();
        assert!(refusal.contains(&format!("additional properties '{misspelt}' not allowed")), "{path}: {refusal}");
    }
    let driver = json!({"placement": {"drivers": [{"name": "a", "topologykey": "b"}]}});
    assert!(refusal(&cluster, &driver).await.contains("'topologykey' not allowed"));
    Ok(())
}

#[tokio::test]
async fn two_replicas_without_an_election_are_refused() -> Result<()> {
    let cluster = testbed::shared().await?;
    let mut values = json!({"leaderElection": {"enabled": false}});
    assert!(refusal(&cluster, &values).await.contains("set replicas to 1"));
    values["replicas"] = 1.into();
    let documents = Documents::render(&cluster, "storage", &values).await?;
    // A new replica beside the old one would be two as well.
    assert_eq!(documents.of("Deployment")[0]["spec"]["strategy"], json!({"type": "Recreate"}));
    Ok(())
}
