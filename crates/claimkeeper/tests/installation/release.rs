//! One installation of the chart, from its first replica to its last trace.

use std::{collections::BTreeMap, path::Path};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testbed::within;
use tokio::process::Command;

use crate::place::{PATIENCE, Place};

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/claimkeeper");
/// Three replicas, one after the other.
const HELM_PATIENCE: &str = "--timeout=8m";
/// That a machine is busy is no failure; and whoever is not asked in time is passed over.
const UNHURRIED: &str =
    "webhook.requestTimeout=25s,webhook.enforceEphemeral.timeoutSeconds=30,webhook.hyperconverged.timeoutSeconds=30";

pub(crate) struct Release<'a> {
    place: &'a Place,
    /// Of the release, and of its namespace.
    name: &'static str,
    /// The ready replicas, with their nodes.
    pub(crate) replicas: BTreeMap<String, String>,
}

impl Place {
    /// Installs the chart with these values, and waits until that many replicas are ready.
    pub(crate) async fn install(&self, name: &'static str, replicas: usize, values: &[&str]) -> Result<Release<'_>> {
        let mut release = Release { place: self, name, replicas: BTreeMap::new() };
        release.helm(&[&["install", name, &chart("")?], values].concat()).await?;
        release.replicas = release.until_ready(replicas).await?;
        Ok(release)
    }
}

impl Release<'_> {
    /// Upgrades it to these values, for which the replicas have to be replaced.
    pub(crate) async fn upgrade(&mut self, values: &[&str]) -> Result<()> {
        self.helm(&[&["upgrade", self.name, &chart("")?], values].concat()).await?;
        self.replicas = self.until_ready(self.replicas.len()).await?;
        Ok(())
    }

    /// Waits for so many replicas that are ready, and were not before. Helm has done so, but a busy machine may be late again.
    async fn until_ready(&self, count: usize) -> Result<BTreeMap<String, String>> {
        within(PATIENCE, "the replicas to be ready", async || {
            let ready = self.ready_replicas().await?;
            let are_new = ready.keys().all(|name| !self.replicas.contains_key(name));
            ensure!(are_new && ready.len() == count, "of {count} there are {ready:?}, and were {:?}", self.replicas);
            Ok(ready)
        })
        .await
    }

    /// Removes it. From that moment nobody waits for an answer.
    pub(crate) async fn uninstall(self) -> Result<()> {
        self.helm(&["uninstall", self.name]).await?;
        self.place.nobody_is_asked_about_claims().await
    }

    /// Says how many replicas there are from now on, past Helm.
    pub(crate) async fn scale(&self, replicas: usize) -> Result<()> {
        let (deployment, replicas) = (format!("deployment/{}", self.name), format!("--replicas={replicas}"));
        self.place.kubectl(&["-n", self.name, "scale", &deployment, &replicas]).await.map(drop)
    }

    /// The pods of the operator.
    pub(crate) async fn pods(&self) -> Result<Vec<Value>> {
        let selector = format!("--selector=app.kubernetes.io/instance={}", self.name);
        let pods = self.place.kubectl(&["-n", self.name, "get", "pods", &selector, "-o", "json"]).await?;
        let mut pods: Value = serde_json::from_str(&pods)?;
        pods["items"].as_array_mut().map(std::mem::take).context("kubectl tells no list")
    }

    async fn ready_replicas(&self) -> Result<BTreeMap<String, String>> {
        let pods = self.pods().await?;
        let ready = pods.iter().filter(|pod| {
            let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
            let is_ready =
                conditions.clone().any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
            is_ready && pod["metadata"]["deletionTimestamp"].is_null()
        });
        let text = |value: &Value| value.as_str().map(str::to_owned);
        Ok(ready.filter_map(|pod| Some((text(&pod["metadata"]["name"])?, text(&pod["spec"]["nodeName"])?))).collect())
    }

    /// Runs Helm, and waits until what it did is done.
    async fn helm(&self, arguments: &[&str]) -> Result<()> {
        let cluster = &self.place.cluster;
        let home = cluster.directory().join("helm");
        let mut helm = Command::new(cluster.helm());
        helm.args(arguments).args(["--namespace", self.name, "--wait", HELM_PATIENCE]);
        if arguments.first() != Some(&"uninstall") {
            helm.args(["--set", UNHURRIED]);
        }
        helm.env("KUBECONFIG", cluster.admin_kubeconfig())
            // Not the user's own repositories, plugins and caches.
            .env("HELM_CACHE_HOME", &home)
            .env("HELM_CONFIG_HOME", &home)
            .env("HELM_DATA_HOME", &home)
            .kill_on_drop(true);
        let output = helm.output().await.context("cannot run helm")?;
        let complaint = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            let pods = self.place.kubectl(&["-n", self.name, "describe", "pods"]).await.unwrap_or_default();
            let logs = self.place.logs().await;
            anyhow::bail!("helm {arguments:?}: {}\n{pods}\n{logs}", complaint.trim());
        }
        Ok(())
    }
}

/// A file of the chart, or the chart.
fn chart(file: &str) -> Result<String> {
    let path = Path::new(CHART).join(file).canonicalize().with_context(|| format!("the chart has no {file:?}"))?;
    path.into_os_string().into_string().map_err(|path| anyhow::anyhow!("{} is not UTF-8", path.display()))
}

/// What tells Helm to take a profile of the chart.
pub(crate) fn profile(name: &str) -> Result<String> {
    Ok(format!("--values={}", chart(&format!("values-{name}.yaml"))?))
}
