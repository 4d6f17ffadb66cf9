//! The cluster, as an administrator handles it.

use std::{collections::BTreeSet, process::Stdio, time::Duration};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testbed::{Cluster, Image, LocalDisks, storageos::StorageOs, within};
use tokio::{io::AsyncWriteExt, process::Command};

/// The releases, which have a namespace of that name each: with all features, and one for each profile. So the next one need not wait
/// for the last replicas of the one before, which take their time to end.
const RELEASES: [&str; 5] = [EVERYTHING, CAREFUL, LOCAL_CSI, RECLAIMABLE_PV, STORAGEOS];
pub(crate) const EVERYTHING: &str = "claimkeeper";
pub(crate) const CAREFUL: &str = "careful";
pub(crate) const LOCAL_CSI: &str = "local-csi";
pub(crate) const RECLAIMABLE_PV: &str = "reclaimable-pv";
/// Where `StorageOS` is, too.
pub(crate) const STORAGEOS: &str = "storageos";
/// Where users have their pods and claims.
pub(crate) const SHOP: &str = "shop";
/// Some replicas, kubelets and containerds on a small machine, which may be busy with other things.
pub(crate) const PATIENCE: Duration = Duration::from_mins(4);

/// What the chart asks for unless it is told otherwise: there is no registry to get another from.
const IMAGE: &str = concat!("ghcr.io/claimkeeper/claimkeeper:", env!("CARGO_PKG_VERSION"));

pub(crate) struct Place {
    pub(crate) cluster: Cluster,
    /// What the cluster has of storage before anybody installs us.
    pub(crate) storageos: StorageOs,
    _disks: LocalDisks,
    /// All that there was before anything was installed.
    before: BTreeSet<String>,
}

impl Place {
    /// Gives the nodes the image, and makes namespaces, storage and users. Where releases are nothing may run that has any right on its
    /// node.
    pub(crate) async fn prepare(cluster: Cluster) -> Result<Self> {
        let program = cluster.directory().join("claimkeeper");
        // What debuggers need is most of a program that is built for tests.
        let built = env!("CARGO_BIN_EXE_claimkeeper");
        let stripped = Command::new("strip").arg("-o").arg(&program).arg(built).status().await?;
        ensure!(stripped.success(), "{built} can't be stripped");
        cluster.import_image(&Image::of_operator(IMAGE, &program)?).await?;
        let storageos = Self::start_storageos(&cluster).await?;
        let disks = LocalDisks::start(&cluster, SHOP).await?;
        let mut place = Self { cluster, storageos, _disks: disks, before: BTreeSet::new() };
        for name in RELEASES {
            place.make_namespace(name, &json!({"pod-security.kubernetes.io/enforce": "restricted"})).await?;
        }
        place.make_namespace(SHOP, &json!({})).await?;
        place.prepare_storageos().await?;
        place.prepare_shop().await?;
        place.before = place.everything().await?;
        Ok(place)
    }

    async fn make_namespace(&self, name: &str, labels: &Value) -> Result<()> {
        let metadata = json!({"name": name, "labels": labels});
        self.apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})).await?;
        // What Kubernetes puts into each namespace is there before anybody looks for what others leave.
        let furniture = ["serviceaccount/default", "configmap/kube-root-ca.crt"];
        let wait = ["-n", name, "wait", "--for=create", "--timeout=4m"];
        self.kubectl(&[&wait[..], &furniture].concat()).await.map(drop)
    }

    pub(crate) async fn the_image_runs_as_nobody_without_rights_or_a_disk(&self) -> Result<()> {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "version", "namespace": EVERYTHING},
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
        let phase =
            ["-n", EVERYTHING, "get", "pod/version", "-o", "jsonpath={.status.phase} {.status.containerStatuses}"];
        within(PATIENCE, "the pod to end well", async || {
            let phase = self.kubectl(&phase).await?;
            ensure!(phase.starts_with("Succeeded"), "{phase}");
            Ok(())
        })
        .await?;
        let said = self.kubectl(&["-n", EVERYTHING, "logs", "version"]).await?;
        ensure!(said == concat!("claimkeeper ", env!("CARGO_PKG_VERSION"), "\n"), "{said}");
        self.kubectl(&["-n", EVERYTHING, "delete", "pod/version"]).await.map(drop)
    }

    /// Every object of every kind that the API server has, but those of users, and those that come and go by themselves.
    async fn everything(&self) -> Result<BTreeSet<String>> {
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
            let is_kubernetes =
                namespace.starts_with("kube-") && !RELEASES.iter().any(|release| name.contains(release));
            // Users have these as well, and they are of no namespace; that of an address is its Service's, which counts.
            let may_be_of_users = ["PersistentVolume", "IPAddress"].contains(&kind);
            let counts = namespace != SHOP && !may_be_of_users && !is_kubernetes;
            counts.then(|| format!("{kind} {namespace}/{name}"))
        });
        Ok(objects.collect())
    }

    /// Helm has removed what it made, and what the operator kept for itself goes with its account.
    pub(crate) async fn until_nothing_is_left(&self) -> Result<()> {
        within(PATIENCE, "all traces to go", async || {
            let after = self.everything().await?;
            let left: Vec<&String> = after.difference(&self.before).collect();
            let gone: Vec<&String> = self.before.difference(&after).collect();
            ensure!(left.is_empty() && gone.is_empty(), "{left:?} is left, {gone:?} is gone");
            Ok(())
        })
        .await
    }

    /// The last words of all operators.
    pub(crate) async fn logs(&self) -> String {
        let mut logs = String::new();
        for namespace in RELEASES {
            let selector = "--selector=app.kubernetes.io/name=claimkeeper";
            logs += &self.kubectl(&["-n", namespace, "logs", selector, "--tail=50"]).await.unwrap_or_default();
        }
        logs
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
