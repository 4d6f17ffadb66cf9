//! The cluster, as an administrator handles it.

use std::{collections::BTreeSet, path::Path, process::Stdio, time::Duration};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testbed::{Cluster, Image, within};
use tokio::{io::AsyncWriteExt, process::Command};

/// Of the release, and of its namespace.
pub(crate) const RELEASE: &str = "claimkeeper";
/// Where users have their pods and claims.
pub(crate) const SHOP: &str = "shop";
/// Two replicas, kubelet and containerd on a small machine, which may be busy with other things.
pub(crate) const PATIENCE: Duration = Duration::from_mins(4);
const HELM_PATIENCE: &str = "--timeout=4m";

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/claimkeeper");
/// What the chart asks for unless it is told otherwise: there is no registry to get another from.
const IMAGE: &str = concat!("ghcr.io/claimkeeper/claimkeeper:", env!("CARGO_PKG_VERSION"));

pub(crate) struct Place {
    cluster: Cluster,
}

impl Place {
    /// Gives the node the image, and makes the namespaces. In that of the release nothing may run that has any right on its node.
    pub(crate) async fn prepare(cluster: Cluster) -> Result<Self> {
        let program = cluster.directory().join("claimkeeper");
        // What debuggers need is most of a program that is built for tests.
        let built = env!("CARGO_BIN_EXE_claimkeeper");
        let stripped = Command::new("strip").arg("-o").arg(&program).arg(built).status().await?;
        ensure!(stripped.success(), "{built} can't be stripped");
        cluster.import_image(&Image::of_operator(IMAGE, &program)?).await?;
        let place = Self { cluster };
        let restricted = json!({"pod-security.kubernetes.io/enforce": "restricted"});
        for (name, labels) in [(RELEASE, restricted), (SHOP, json!({}))] {
            place
                .apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}))
                .await?;
        }
        place.prepare_shop().await?;
        Ok(place)
    }

    pub(crate) async fn the_image_runs_as_nobody_without_rights_or_a_disk(&self) -> Result<()> {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "version", "namespace": RELEASE},
            "spec": {
                "restartPolicy": "Never",
                "automountServiceAccountToken": false,
                // Who it runs as is the image's to say.
                "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
                "containers": [{
                    "name": "main", "image": IMAGE, "args": ["version"],
                    "securityContext": {
                        "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]},
                    },
                }],
            },
        });
        self.apply(&pod).await?;
        let phase = ["-n", RELEASE, "get", "pod/version", "-o", "jsonpath={.status.phase} {.status.containerStatuses}"];
        within(PATIENCE, "the pod to end well", async || {
            let phase = self.kubectl(&phase).await?;
            ensure!(phase.starts_with("Succeeded"), "{phase}");
            Ok(())
        })
        .await?;
        let said = self.kubectl(&["-n", RELEASE, "logs", "version"]).await?;
        ensure!(said == concat!("claimkeeper ", env!("CARGO_PKG_VERSION"), "\n"), "{said}");
        self.kubectl(&["-n", RELEASE, "delete", "pod/version"]).await.map(drop)
    }

    /// Runs Helm on our chart, and waits until what it did is done.
    pub(crate) async fn helm(&self, arguments: &[&str]) -> Result<String> {
        let home = self.cluster.directory().join("helm");
        let mut helm = Command::new(self.cluster.helm());
        helm.args(arguments).args(["--namespace", RELEASE, "--wait", HELM_PATIENCE]);
        if arguments.first() != Some(&"uninstall") {
            helm.arg(Path::new(CHART).canonicalize()?);
        }
        helm.env("KUBECONFIG", self.cluster.admin_kubeconfig())
            // Not the user's own repositories, plugins and caches.
            .env("HELM_CACHE_HOME", &home)
            .env("HELM_CONFIG_HOME", &home)
            .env("HELM_DATA_HOME", &home)
            .kill_on_drop(true);
        let output = helm.output().await.context("cannot run helm")?;
        let complaint = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            let pods = self.kubectl(&["-n", RELEASE, "describe", "pods"]).await.unwrap_or_default();
            let logs = ["-n", RELEASE, "logs", "--selector=app.kubernetes.io/name=claimkeeper", "--tail=30"];
            let logs = self.kubectl(&logs).await.unwrap_or_default();
            anyhow::bail!("helm {arguments:?}: {}\n{pods}\n{logs}", complaint.trim());
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// The names of the operator's pods that are ready and not about to end.
    pub(crate) async fn ready_pods(&self) -> Result<BTreeSet<String>> {
        let selector = "--selector=app.kubernetes.io/name=claimkeeper";
        let pods: Value =
            serde_json::from_str(&self.kubectl(&["-n", RELEASE, "get", "pods", selector, "-o", "json"]).await?)?;
        let pods = pods["items"].as_array().context("kubectl tells no list")?.iter();
        let ready = pods.filter(|pod| {
            let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
            let is_ready =
                conditions.clone().any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
            is_ready && pod["metadata"]["deletionTimestamp"].is_null()
        });
        Ok(ready.filter_map(|pod| pod["metadata"]["name"].as_str().map(str::to_owned)).collect())
    }

    /// Every object of every kind that the API server has, but those of users, and those that come and go by themselves.
    pub(crate) async fn everything(&self) -> Result<BTreeSet<String>> {
        let kinds = self.kubectl(&["api-resources", "--verbs=list", "-o", "name"]).await?;
        let kinds: Vec<&str> = kinds
            .lines()
            .filter(|kind| !kind.starts_with("events") && !kind.starts_with("componentstatuses"))
            .collect();
        let columns = "custom-columns=:.kind,:.metadata.namespace,:.metadata.name";
        let list = self.kubectl(&["get", &kinds.join(","), "--all-namespaces", "-o", columns]).await?;
        let objects = list.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).filter_map(|object| {
            let [kind, namespace, name] = object[..] else { return None };
            // Kubernetes goes on making things of its own, such as the leases of nodes.
            let is_kubernetes = namespace.starts_with("kube-") && !name.contains(RELEASE);
            let counts = namespace != SHOP && kind != "PersistentVolume" && !is_kubernetes;
            counts.then(|| format!("{kind} {namespace}/{name}"))
        });
        Ok(objects.collect())
    }

    /// Helm removes what it made; what the operator keeps for itself goes with its account.
    pub(crate) async fn until_nothing_is_left_since(&self, before: &BTreeSet<String>) -> Result<()> {
        within(PATIENCE, "all traces to go", async || {
            let after = self.everything().await?;
            let left: Vec<&String> = after.difference(before).collect();
            let gone: Vec<&String> = before.difference(&after).collect();
            ensure!(left.is_empty() && gone.is_empty(), "{left:?} is left, {gone:?} is gone");
            Ok(())
        })
        .await
    }

    pub(crate) async fn apply(&self, object: &Value) -> Result<String> {
        self.kubectl_with(&["apply", "-f", "-"], object).await
    }

    /// What kubectl prints; its complaints are the error.
    pub(crate) async fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.kubectl_with(arguments, &Value::Null).await
    }

    pub(crate) async fn kubectl_with(&self, arguments: &[&str], input: &Value) -> Result<String> {
        let mut command = Command::from(self.cluster.kubectl());
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut kubectl = command.spawn().context("cannot run kubectl")?;
        let mut stdin = kubectl.stdin.take().context("kubectl takes no input")?;
        stdin.write_all(input.to_string().as_bytes()).await?;
        drop(stdin);
        let output = kubectl.wait_with_output().await?;
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "kubectl {arguments:?}: {}", complaint.trim());
        Ok(String::from_utf8(output.stdout)?)
    }
}
