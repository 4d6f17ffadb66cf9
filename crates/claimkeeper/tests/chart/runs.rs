//! The program runs with exactly what the chart gives it, and needs no more.

use std::{collections::BTreeSet, fs};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{core::v1::Secret, storage::v1::StorageClass};
use kube::{Api, api::PostParams};
use serde_json::{Value, json};
use testbed::{Cluster, PATIENCE, eventually, storageos::StorageOs};

use crate::{
    documents::{Documents, over, profiles},
    home::{BINARY, Home},
    pod::{self, PodOfChart, Secrets},
};

/// A release in a namespace of its own. It looks after that one, unless the values name another, so that the other tests' claims are
/// left alone.
struct Release {
    cluster: Cluster,
    namespace: String,
    documents: Documents,
    secrets: Secrets,
    /// Answers as long as the release is there.
    _storageos: StorageOs,
}

impl Release {
    async fn install(values: &Value) -> Result<Self> {
        let cluster = testbed::shared().await?;
        let namespace = cluster.create_namespace("chart").await?;
        let storageos = StorageOs::start().await?;
        let chosen = values;
        let mut values = json!({"namespace": namespace});
        over(&mut values, chosen);
        // Nobody is asked about anything: who is behind the Service is not there.
        let nothing = json!({"objectSelector": {"matchLabels": {"asked": "never"}}});
        over(
            &mut values,
            &json!({
                "webhook": {"drainDelay": "0s"},
                "sharedVolumes": {"storageos": {"endpoint": storageos.url()}},
            }),
        );
        for webhook in ["enforceEphemeral", "hyperconverged"] {
            let name = format!("{webhook}.{namespace}").to_lowercase();
            over(&mut values["webhook"][webhook], &nothing);
            values["webhook"][webhook]["configuration"] = name.into();
        }
        cluster.install_chart("claimkeeper", &namespace, &values).await?;
        // Many tests run on this machine. A Service could not lead to port 0.
        over(&mut values, &json!({"admin": {"listen": "127.0.0.1:0"}, "webhook": {"listen": "127.0.0.1:0"}}));
        let documents = Documents::render(&cluster, &namespace, &values).await?;
        let credentials = ["username", "password"]
            .map(|name| anyhow::Ok((name.to_owned(), fs::read(storageos.secret_path().join(name))?)));
        let credentials = credentials.into_iter().collect::<Result<_>>()?;
        let secrets = Secrets::from([("storageos-api".to_owned(), credentials)]);
        Ok(Self { cluster, namespace, documents, secrets, _storageos: storageos })
    }

    /// Starts a replica of this Deployment and waits until it is ready.
    async fn start(&self, deployment: &str) -> Result<PodOfChart> {
        let pod = pod::start(&self.cluster, &self.namespace, &self.documents, deployment, &self.secrets).await?;
        pod.replica.until_ready().await.with_context(|| pod.replica.leash.output())?;
        Ok(pod)
    }

    /// What `claimkeeper check-config` says about the configurations.
    fn check_configurations(&self) -> Result<()> {
        let directory = tempfile::tempdir()?;
        for map in self.documents.of("ConfigMap") {
            let file = directory.path().join("config.yaml");
            fs::write(&file, map["data"]["config.yaml"].as_str().context("no file")?)?;
            let output = std::process::Command::new(BINARY).arg("check-config").arg(&file).output()?;
            ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    }

    async fn until_leads(&self, pod: &PodOfChart) -> Result<()> {
        let config = self.documents.get("ConfigMap", "claimkeeper").context("no configuration")?;
        let config: Value = serde_saphyr::from_str(config["data"]["config.yaml"].as_str().context("no file")?)?;
        let lease = config["leaderElection"]["name"].as_str().context("no Lease")?;
        let series = format!("leader_election_master_status{{name=\"{lease}\"}}");
        eventually("the replica to lead", async || {
            ensure!(pod.replica.metric(&series).await? == 1, "it does not");
            Ok(())
        })
        .await
    }

    /// What its account has asked for, as verb and resource, once the replica has ended.
    async fn requests(&self, mut pod: PodOfChart) -> Result<BTreeSet<(String, String)>> {
        pod.replica.leash.terminate()?;
        let ended = pod.replica.leash.ended(PATIENCE).await?;
        ensure!(ended.success(), "it ended badly: {}", pod.replica.leash.output());
        let requests = self.cluster.audit_log().user(&pod.replica.user).requests()?;
        let refused: Vec<_> = requests.iter().filter(|request| request.code() == Some(403)).collect();
        ensure!(refused.is_empty(), "the chart grants too little: {refused:?}");
        let objects = requests.into_iter().filter_map(|request| Some((request.verb, request.object_ref?.resource)));
        Ok(objects.collect())
    }
}

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

#[tokio::test(flavor = "multi_thread")]
async fn replicas_that_only_answer_become_ready_and_write_nothing() -> Result<()> {
    let release = Release::install(&json!({"split": true})).await?;
    release.check_configurations()?;
    let controller = release.start("claimkeeper").await?;
    let observer = release.start("claimkeeper-webhook").await?;
    assert!(observer.replica.webhook.is_some());
    release.until_leads(&controller).await?;
    let asked = release.requests(observer).await?;
    let reads = ["get", "list", "watch"];
    let written: Vec<_> = asked.iter().filter(|(verb, _)| !reads.contains(&verb.as_str())).collect();
    // Who it is, it asks; whether it may, nobody else's rights decide.
    let told = ["selfsubjectreviews", "events"];
    assert!(written.iter().all(|(_, resource)| told.contains(&resource.as_str())), "{written:?}");
    assert!(!asked.iter().any(|(_, resource)| resource == "leases"), "{asked:?}");
    release.requests(controller).await?;
    Ok(())
}
