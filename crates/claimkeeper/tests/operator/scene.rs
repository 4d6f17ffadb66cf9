//! The whole program behind the chart's own webhook configuration, with a certificate that it keeps by itself.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    admissionregistration::v1::ValidatingWebhookConfiguration, core::v1::PersistentVolumeClaim,
    storage::v1::StorageClass,
};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::{Value, json};
use testbed::{Cluster, Service, eventually};
use tokio::time::timeout;

use crate::home::{Home, Prepared, Replica, ask};

/// What the original says, and ours begins with.
pub(crate) const REFUSAL: &str =
    "denied the request: only generic ephemeral volumes are allowed for localdisk.csi.acstor.io provisioner: ";

/// An address that API servers do not take for their own machine's, so that they ask over HTTP/1.1 as they do through a Service;
/// the kernel knows better.
pub(crate) const HOST: &str = "0.0.0.0";

/// A release in a namespace of its own, and the shop whose claims it judges.
pub(crate) struct Scene {
    pub(crate) home: Home,
    pub(crate) shop: Home,
    pub(crate) service: Service,
    pub(crate) class: String,
}

impl Scene {
    pub(crate) async fn open(prefix: &str, lag: Duration) -> Result<Self> {
        Self::on(testbed::shared().await?, prefix, lag).await
    }

    pub(crate) async fn on(cluster: Cluster, prefix: &str, lag: Duration) -> Result<Self> {
        let home = Home::on(cluster, prefix).await?;
        let shop = Home::on(home.cluster.clone(), &format!("{prefix}-shop")).await?;
        let class = format!("local-{}", shop.namespace);
        let local = json!({"metadata": {"name": class}, "provisioner": "localdisk.csi.acstor.io"});
        let classes: Api<StorageClass> = Api::all(shop.cluster.admin().await?);
        classes.create(&PostParams::default(), &serde_json::from_value(local)?).await?;
        Ok(Self { home, shop, service: Service::start(lag).await?, class })
    }

    /// A replica that can be started: the chart with its account, and the configuration that belongs to it.
    pub(crate) async fn install(&self, replica: &str, drain_delay: &str) -> Result<Prepared> {
        let (release, judged) = (&self.home.namespace, &self.shop.namespace);
        let url = format!("https://{HOST}:{}", self.service.address().port());
        let values = json!({
            "features": ["ephemeral", "enforcement"],
            "namespace": judged,
            "leaderElection": {"name": "shared"},
            "webhook": {
                "url": url,
                // A busy machine is no failure.
                "enforceEphemeral": {"configuration": release, "failurePolicy": "Fail", "timeoutSeconds": 30},
                "certificates": {"secret": "shared"},
            },
        });
        let config = json!({
            "features": ["ephemeral", "enforcement"],
            "namespace": judged,
            "webhook": {
                "listen": "127.0.0.1:0",
                "requestTimeout": "25s",
                "drainDelay": drain_delay,
                "certificates": {"secret": "shared", "names": [HOST], "configurations": [release]},
            },
        });
        self.home.install(replica, &values, config).await
    }

    /// Starts a replica, to which the Service sends requests as soon as it is ready.
    pub(crate) async fn start(&mut self, replica: &Prepared) -> Result<Replica> {
        let replica = replica.start().await?;
        let (admin, webhook) = (replica.admin, replica.webhook.context("it answers no API server")?);
        self.service.add(webhook, move || async move {
            matches!(timeout(Duration::from_secs(30), ask(admin, "/readyz")).await, Ok(Ok((200, _))))
        });
        Ok(replica)
    }

    pub(crate) async fn until_ready(&self, replicas: usize) -> Result<()> {
        eventually("the Service to know which replicas are ready", async || {
            let ready = self.service.ready();
            ensure!(ready == replicas, "{ready} are");
            Ok(())
        })
        .await
    }

    /// The API server takes a moment to see a new webhook configuration.
    pub(crate) async fn until_asked(&self) -> Result<()> {
        eventually("the API server to ask", async || {
            let answer = self.rehearsal().make().await;
            ensure!(answer.as_ref().is_err_and(|error| error.contains(REFUSAL)), "{answer:?}");
            Ok(())
        })
        .await
    }

    pub(crate) fn rehearsal(&self) -> Rehearsal {
        let claim = serde_json::from_value(self.claim("rehearsal", &json!({}))).unwrap();
        Rehearsal { claims: self.shop.claims.clone(), claim }
    }

    pub(crate) fn claim(&self, name: &str, annotations: &Value) -> Value {
        json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "annotations": annotations},
            "spec": self.claim_spec(),
        })
    }

    pub(crate) fn claim_spec(&self) -> Value {
        let storage = json!({"requests": {"storage": "1Gi"}});
        json!({"storageClassName": self.class, "accessModes": ["ReadWriteOnce"], "resources": storage})
    }

    /// Nobody answers after the test: a webhook that must be asked would hold up what Kubernetes does with the claims.
    pub(crate) async fn close(self) -> Result<()> {
        let configurations: Api<ValidatingWebhookConfiguration> = Api::all(self.shop.cluster.admin().await?);
        configurations.delete(&self.home.namespace, &DeleteParams::default()).await?;
        Ok(())
    }
}

/// A claim that breaks the rule, and is never made.
#[derive(Clone)]
pub(crate) struct Rehearsal {
    claims: Api<PersistentVolumeClaim>,
    claim: PersistentVolumeClaim,
}

impl Rehearsal {
    /// What becomes of it.
    pub(crate) async fn make(&self) -> Result<(), String> {
        let rehearsal = PostParams { dry_run: true, ..PostParams::default() };
        self.claims.create(&rehearsal, &self.claim).await.map(drop).map_err(|error| error.to_string())
    }
}
