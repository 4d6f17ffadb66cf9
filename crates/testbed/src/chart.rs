//! The project's own chart, installed as a user would install it, because tests run with the rights it grants.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client,
    api::{DynamicObject, Patch, PatchParams},
    core::{GroupVersionKind, TypeMeta},
    discovery::{self, Scope},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt, process::Command};

use crate::{Cluster, rights};

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/claimkeeper");
/// What makes pods of the program.
const OF_PODS: [&str; 4] = ["Deployment", "ConfigMap", "PodDisruptionBudget", "NetworkPolicy"];
const FIELD_MANAGER: &str = "testbed-helm";

impl Cluster {
    /// Installs `charts/claimkeeper` with these values into a namespace (created if need be) and returns the kubeconfig
    /// of the chart's `ServiceAccount`. Installing a release again updates it.
    ///
    /// All but its pods and what they need: tests run the program themselves, with configurations of their own.
    pub async fn install_chart(&self, release: &str, namespace: &str, values: &Value) -> Result<PathBuf> {
        let mut values = values.clone();
        // Behind Services there is no network here: a webhook that is called through one would hold up every claim and pod. Who
        // wants one says where it is.
        if let Some(values) = values.as_object_mut() {
            values.entry("webhook").or_insert_with(
                || json!({ "enforceEphemeral": { "enabled": false }, "hyperconverged": { "enabled": false } }),
            );
        }
        let documents = self.render_chart(release, namespace, &values).await?;
        let client = self.admin().await?;
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        let home = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } });
        Api::<Namespace>::all(client.clone()).patch(namespace, &parameters, &Patch::Apply(home)).await?;
        for document in documents.iter().filter(|document| !OF_PODS.iter().any(|kind| document["kind"] == *kind)) {
            apply(&client, namespace, document).await?;
        }
        rights::note_accounts(self.directory(), namespace, &documents)?;
        let account = documents.iter().find(|document| document["kind"] == "ServiceAccount");
        let account = account.and_then(|account| account["metadata"]["name"].as_str());
        let account = account.context("the chart has no ServiceAccount, so nothing can run with its rights")?;
        self.service_account_kubeconfig(namespace, account).await
    }

    /// The objects of `charts/claimkeeper` with these values.
    pub async fn render_chart(&self, release: &str, namespace: &str, values: &Value) -> Result<Vec<Value>> {
        let chart = Path::new(CHART).canonicalize().with_context(|| format!("there is no chart at {CHART}"))?;
        let mut helm = Command::new(self.helm())
            .args(["template", release, "--namespace", namespace, "--include-crds", "--kube-version=v1.37.1"])
            .arg("--values=-")
            .arg(chart)
            // Not the user's own repositories, plugins and caches.
            .env("HELM_CACHE_HOME", self.directory().join("helm"))
            .env("HELM_CONFIG_HOME", self.directory().join("helm"))
            .env("HELM_DATA_HOME", self.directory().join("helm"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot run {}", self.helm().display()))?;
        let mut input = helm.stdin.take().context("helm takes no values")?;
        input.write_all(values.to_string().as_bytes()).await?;
        drop(input);
        let output = helm.wait_with_output().await?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "the chart cannot be rendered: {}", error.trim());
        let text = String::from_utf8(output.stdout)?;
        let documents = serde_saphyr::from_multiple::<Value>(&text).context("the rendered chart is no YAML")?;
        Ok(documents.into_iter().filter(|document| !document.is_null()).collect())
    }
}

async fn apply(client: &Client, namespace: &str, document: &Value) -> Result<()> {
    let types = TypeMeta::deserialize(document).context("the chart has a document without apiVersion and kind")?;
    let Some(name) = document["metadata"]["name"].as_str() else {
        bail!("the chart has a {} without a name", types.kind);
    };
    let gvk = GroupVersionKind::try_from(&types)?;
    let (resource, capabilities) = discovery::pinned_kind(client, &gvk)
        .await
        .with_context(|| format!("the API server knows no {} of {}", types.kind, types.api_version))?;
    let namespace = document["metadata"]["namespace"].as_str().unwrap_or(namespace);
    let api: Api<DynamicObject> = match capabilities.scope {
        Scope::Namespaced => Api::namespaced_with(client.clone(), namespace, &resource),
        Scope::Cluster => Api::all_with(client.clone(), &resource),
    };
    api.patch(name, &PatchParams::apply(FIELD_MANAGER).force(), &Patch::Apply(document))
        .await
        .with_context(|| format!("cannot apply the chart's {} {name}", types.kind))?;
    Ok(())
}
