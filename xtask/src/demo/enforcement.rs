//! Storage that is lost with its node: only for pods that want nothing else, or for who accepts it. Also while the operator is away.

use std::{fs, net::TcpListener};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testbed::{PROVISIONER, within};

use super::{FEATURES, PATIENCE, Stage, installation::Operator, pod, title};

const NAMESPACE: &str = "lab";
const CLASS: &str = "local";
const CLAIM: &str = "results";

/// The parts that matter, as an administrator and a user would write them.
const ASKED_FOR: &str = "  $ kubectl apply -f local.yaml
    kind: StorageClass
    metadata: {name: local, annotations: {claimkeeper.dev/ephemeral-only: \"true\"}}
  $ kubectl --namespace lab apply -f results.yaml
    kind: PersistentVolumeClaim
    metadata: {name: results}
    spec: {storageClassName: local, …, storage: 1Gi}
";

const ACCEPTED: &str = "  $ kubectl --namespace lab apply -f results.yaml
    kind: PersistentVolumeClaim
    metadata: {name: results, annotations: {claimkeeper.dev/accept-ephemeral-storage: \"true\"}}
    spec: {storageClassName: local, …, storage: 1Gi}
";

/// Where API servers ask: the chart's Service, or an address of this machine where nothing is behind a Service.
pub(super) struct Webhook {
    address: Option<String>,
}

impl Webhook {
    pub(super) fn new(has_real_node: bool) -> Result<Self> {
        let free = || TcpListener::bind("127.0.0.1:0")?.local_addr();
        let address = if has_real_node { None } else { Some(free().context("no port is free")?.to_string()) };
        Ok(Self { address })
    }

    /// What the chart is installed with.
    pub(super) fn values(&self) -> Value {
        let url = self.address.as_ref().map(|address| format!("https://{address}")).unwrap_or_default();
        json!({"features": FEATURES, "webhook": {"url": url}})
    }

    /// What a process is configured with; a pod finds everything where the chart has it.
    pub(super) fn config(&self) -> Value {
        json!({"listen": self.address, "certificates": {"names": ["127.0.0.1"]}})
    }
}

impl Stage {
    pub(super) async fn a_bare_claim_is_refused(&self) -> Result<()> {
        title("enforcement: a claim outlives its pod, but this storage does not outlive its node");
        self.kubectl(&["create", "namespace", NAMESPACE]).await?;
        self.apply(&json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {"name": CLASS, "annotations": {"claimkeeper.dev/ephemeral-only": "true"}},
            "provisioner": PROVISIONER, "volumeBindingMode": "WaitForFirstConsumer",
        }))
        .await?;
        println!("{ASKED_FOR}");
        self.refused(&claim(&json!({}))).await
    }

    pub(super) async fn who_accepts_the_risk_gets_the_claim(&self) -> Result<()> {
        title("enforcement: the refusal names two ways; one is to accept that the data can be lost");
        println!("{ACCEPTED}");
        self.apply(&claim(&json!({"claimkeeper.dev/accept-ephemeral-storage": "true"}))).await?;
        let columns = "custom-columns=CLAIM:.metadata.name,CLASS:.spec.storageClassName,\
                       ACCEPTED:.metadata.annotations.claimkeeper\\.dev/accept-ephemeral-storage";
        self.present(&["--namespace", NAMESPACE, "get", "pvc", CLAIM, "-o", columns]).await
    }

    pub(super) async fn a_pod_gets_its_own(&self) -> Result<()> {
        title("enforcement: the other is to let a pod have the volume, for as long as the pod is there");
        let mut pod = pod("simulation");
        pod["metadata"]["namespace"] = NAMESPACE.into();
        pod["spec"]["volumes"][0]["ephemeral"]["volumeClaimTemplate"]["spec"]["storageClassName"] = CLASS.into();
        println!("  $ kubectl --namespace {NAMESPACE} apply -f simulation.yaml\n");
        self.apply(&pod).await?;
        let phase = ["--namespace", NAMESPACE, "get", "pod", "simulation", "-o", "jsonpath={.status.phase}"];
        self.until("the simulation to run", &phase, "Running").await?;
        let columns = "custom-columns=CLAIM:.metadata.name,STATUS:.status.phase,CLASS:.spec.storageClassName,\
                       OWNER:.metadata.ownerReferences[0].kind,OF:.metadata.ownerReferences[0].name";
        self.present(&["--namespace", NAMESPACE, "get", "pvc", "-o", columns]).await?;
        let ours = "involvedObject.kind=PersistentVolumeClaim,reportingComponent=claimkeeper.dev/claimkeeper";
        let events = ["--namespace", NAMESPACE, "get", "events", "--field-selector", ours, "-o"];
        let with = |output| [&events[..], &[output]].concat();
        self.until("the last event", &with("jsonpath={.items[*].involvedObject.name}"), "simulation-scratch").await?;
        self.present(&with("custom-columns=TYPE:.type,REASON:.reason,CLAIM:.involvedObject.name")).await
    }

    /// The end of the operator.
    pub(super) async fn the_rule_holds_without_the_operator(
        &self,
        operator: &mut Option<Operator>,
        webhook: &Webhook,
    ) -> Result<()> {
        title("enforcement: as policies the API server keeps the rule, also while nobody answers");
        if let Some(operator) = operator {
            self.add_policies(operator, webhook).await?;
        }
        self.kubectl(&["--namespace", NAMESPACE, "delete", "pvc", CLAIM]).await?;
        self.stop(operator).await?;
        println!("  $ kubectl --namespace {NAMESPACE} apply -f {CLAIM}.yaml");
        self.refused(&claim(&json!({}))).await
    }

    /// Shows how kubectl is refused; what was installed a moment ago counts a moment later.
    async fn refused(&self, claim: &Value) -> Result<()> {
        let directory = self.cluster.directory();
        let file = format!("{CLAIM}.yaml");
        fs::write(directory.join(&file), claim.to_string())?;
        let apply = async |more: &[&str]| {
            let mut command = tokio::process::Command::from(self.cluster.kubectl());
            command.current_dir(directory).args(["--namespace", NAMESPACE, "apply", "-f", &file]).args(more);
            let output = command.kill_on_drop(true).output().await?;
            ensure!(!output.status.success(), "it was admitted");
            Ok(String::from_utf8_lossy(&output.stderr).trim().to_owned())
        };
        within(PATIENCE, "the claim to be refused", async || apply(&["--dry-run=server"]).await).await?;
        println!("    {}\n", apply(&[]).await?);
        Ok(())
    }
}

fn claim(annotations: &Value) -> Value {
    let storage = json!({"requests": {"storage": "1Gi"}});
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": CLAIM, "namespace": NAMESPACE, "annotations": annotations},
        "spec": {"storageClassName": CLASS, "accessModes": ["ReadWriteOnce"], "resources": storage},
    })
}
