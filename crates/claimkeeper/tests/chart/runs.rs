//! The program runs with exactly what the chart gives it, and needs no more.

use std::fs;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{core::v1::Secret, storage::v1::StorageClass};
use kube::{Api, api::PostParams};
use serde_json::json;
use testbed::eventually;

use crate::{
    documents::{Documents, profiles},
    home::Home,
    release::Release,
};

#[tokio::test(flavor = "multi_thread")]
async fn every_profile_makes_replicas_that_become_ready_and_lead() -> Result<()> {
    for (profile, values) in profiles()? {
        let release = Release::install(&values).await?;
        release.check_configurations().with_context(|| profile.clone())?;
        let pod = release.start("claimkeeper").await.with_context(|| profile.clone())?;
        release.until_leads(&pod).await.with_context(|| profile.clone())?;
        release.requests(pod).await.with_context(|| profile.clone())?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_feature_at_once_becomes_ready_and_leads() -> Result<()> {
    let values = json!({
        "features": ["ephemeral", "provisioner", "releaser", "enforcement", "placement", "shared-volumes"],
        // As YAML has off without quotes.
        "ephemeral": {"authorize": false, "reclaimCompleted": "byClass"},
        "releaser": {"scrub": true},
        "placement": {"nodeGone": "delete"},
        "webhook": {"url": "https://127.0.0.1:9"},
    });
    let release = Release::install(&values).await?;
    release.check_configurations()?;
    let pod = release.start("claimkeeper").await?;
    release.until_leads(&pod).await?;
    let log = pod.replica.leash.output();
    assert!(log.contains("ephemeral,provisioner,releaser,enforcement,placement,shared-volumes"), "{log}");
    // The host of the url is one that the certificate is made out to, though nobody said so twice.
    let secrets: Api<Secret> = Api::namespaced(release.cluster.admin().await?, &release.namespace);
    assert!(secrets.get_opt("claimkeeper-webhook").await?.is_some());
    release.requests(pod).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_any_webhook_the_features_run_all_the_same() -> Result<()> {
    let shop = Home::on(testbed::shared().await?, "shop").await?;
    let class = json!({"metadata": {"name": shop.namespace}, "provisioner": "localdisk.csi.acstor.io"});
    let classes: Api<StorageClass> = Api::all(shop.cluster.admin().await?);
    classes.create(&PostParams::default(), &serde_json::from_value(class)?).await?;
    let claim = json!({"metadata": {"name": "data"}, "spec": {
        "storageClassName": shop.namespace, "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
    }});
    shop.claims.create(&PostParams::default(), &serde_json::from_value(claim)?).await?;
    let off = json!({"enabled": false});
    let webhook = json!({"enforceEphemeral": off, "hyperconverged": off});
    let release = Release::install(&json!({"namespace": shop.namespace, "webhook": webhook})).await?;
    release.check_configurations()?;
    let pod = release.start("claimkeeper").await?;
    release.until_leads(&pod).await?;
    assert_eq!(pod.replica.webhook, None);
    // What is there is counted, though nobody is asked about what is new.
    let series = format!(r#"claimkeeper_enforcement_violations{{class="{}",reason="NotEphemeral"}}"#, shop.namespace);
    eventually("the claim to be counted", async || {
        ensure!(pod.replica.metric(&series).await? == 1, "it is not");
        Ok(())
    })
    .await?;
    release.requests(pod).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_others_make_is_mounted() -> Result<()> {
    for mode in ["files", "cert-manager"] {
        let cluster = testbed::shared().await?;
        let pki = cluster.directory().join("pki");
        let authorities = fs::read_to_string(pki.join("ca.crt"))?;
        // The objects of cert-manager are of kinds that are not there.
        let values = json!({"webhook": {"certificates": {"mode": "files", "caBundle": authorities}}});
        let mut release = Release::install(&values).await?;
        if mode == "cert-manager" {
            let values = json!({
                "namespace": release.namespace, "admin": {"listen": "127.0.0.1:0"}, "webhook": {
                    "listen": "127.0.0.1:0", "drainDelay": "0s", "certificates": {"mode": mode},
                },
            });
            release.documents = Documents::render(&release.cluster, &release.namespace, &values).await?;
        }
        let secret = if mode == "files" { "claimkeeper-webhook" } else { "claimkeeper-webhook-tls" };
        let files = [("serving.crt", "tls.crt"), ("serving.key", "tls.key")];
        let files = files.map(|(from, to)| anyhow::Ok((to.to_owned(), fs::read(pki.join(from))?)));
        release.secrets.insert(secret.to_owned(), files.into_iter().collect::<Result<_>>()?);
        let pod = release.start("claimkeeper").await.context(mode)?;
        let asked = release.requests(pod).await?;
        assert!(!asked.iter().any(|(_, resource)| resource == "secrets"), "{asked:?}");
    }
    Ok(())
}
