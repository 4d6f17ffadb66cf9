//! A release of the chart, and replicas that run as its Deployments say.

use std::{collections::BTreeSet, fs};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testbed::{Cluster, PATIENCE, Service, eventually, storageos::StorageOs};

use crate::{
    documents::{Documents, over},
    home::BINARY,
    pod::{self, PodOfChart, Secrets},
};

/// An address that API servers do not take for their own machine's, so that they ask over HTTP/1.1 as they do through a Service.
const HOST: &str = "0.0.0.0";

/// A release in a namespace of its own. It looks after that one, unless the values name another, so that the other tests' claims are
/// left alone.
pub(crate) struct Release {
    pub(crate) cluster: Cluster,
    pub(crate) namespace: String,
    pub(crate) documents: Documents,
    pub(crate) secrets: Secrets,
    /// Answers as long as the release is there.
    pub(crate) storageos: StorageOs,
}

impl Release {
    pub(crate) async fn install(values: &Value) -> Result<Self> {
        Self::on(testbed::shared().await?, values).await
    }

    /// Nobody is asked about anything: who is behind the Service is not there.
    pub(crate) async fn on(cluster: Cluster, values: &Value) -> Result<Self> {
        let nothing = json!({"objectSelector": {"matchLabels": {"asked": "never"}}});
        Self::with(cluster, values, &json!({"webhook": {"enforceEphemeral": nothing, "hyperconverged": nothing}})).await
    }

    /// API servers ask through this Service, about what is in namespaces with this label.
    pub(crate) async fn asked(service: &Service, label: &str, values: &Value) -> Result<Self> {
        // A busy machine is no failure.
        let patient = json!({
            "failurePolicy": "Fail", "timeoutSeconds": 30, "namespaceSelector": {"matchLabels": {label: "yes"}},
        });
        let webhook = json!({
            "url": format!("https://{HOST}:{}", service.address().port()), "requestTimeout": "25s",
            "enforceEphemeral": patient, "hyperconverged": patient,
        });
        Self::with(testbed::shared().await?, values, &json!({"webhook": webhook})).await
    }

    async fn with(cluster: Cluster, chosen: &Value, more: &Value) -> Result<Self> {
        let namespace = cluster.create_namespace("chart").await?;
        let storageos = StorageOs::start().await?;
        let mut values = json!({"namespace": namespace});
        over(&mut values, chosen);
        over(&mut values, more);
        over(
            &mut values,
            &json!({
                "webhook": {"drainDelay": "0s"},
                "sharedVolumes": {"storageos": {"endpoint": storageos.url()}},
            }),
        );
        for webhook in ["enforceEphemeral", "hyperconverged"] {
            values["webhook"][webhook]["configuration"] = format!("{webhook}.{namespace}").to_lowercase().into();
        }
        cluster.install_chart("claimkeeper", &namespace, &values).await?;
        // Many tests run on this machine. A Service could not lead to port 0.
        over(&mut values, &json!({"admin": {"listen": "127.0.0.1:0"}, "webhook": {"listen": "127.0.0.1:0"}}));
        let documents = Documents::render(&cluster, &namespace, &values).await?;
        let credentials = ["username", "password"]
            .map(|name| anyhow::Ok((name.to_owned(), fs::read(storageos.secret_path().join(name))?)));
        let credentials = credentials.into_iter().collect::<Result<_>>()?;
        let secrets = Secrets::from([("storageos-api".to_owned(), credentials)]);
        Ok(Self { cluster, namespace, documents, secrets, storageos })
    }

    /// Starts a replica of this Deployment and waits until it is ready.
    pub(crate) async fn start(&self, deployment: &str) -> Result<PodOfChart> {
        let pod = pod::start(&self.cluster, &self.namespace, &self.documents, deployment, &self.secrets).await?;
        pod.replica.until_ready().await.with_context(|| pod.replica.leash.output())?;
        Ok(pod)
    }

    /// What `claimkeeper check-config` says about the configurations.
    pub(crate) fn check_configurations(&self) -> Result<()> {
        let directory = tempfile::tempdir()?;
        for map in self.documents.of("ConfigMap") {
            let file = directory.path().join("config.yaml");
            fs::write(&file, map["data"]["config.yaml"].as_str().context("no file")?)?;
            let output = std::process::Command::new(BINARY).arg("check-config").arg(&file).output()?;
            ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    }

    pub(crate) async fn until_leads(&self, pod: &PodOfChart) -> Result<()> {
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
    pub(crate) async fn requests(&self, mut pod: PodOfChart) -> Result<BTreeSet<(String, String)>> {
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
