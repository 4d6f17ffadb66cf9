//! From the chart to an operator at work, and back to a cluster without it.

use std::{fs, path::Path, process::Output};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use testbed::{Image, Leash};
use tokio::process::Command;

use super::{FEATURES, HOME, Stage, answer, done, enforcement::Webhook, path, shared_volumes, step};

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/claimkeeper");

/// What the chart asks for unless it is told otherwise: there is no registry to get another from.
const IMAGE: &str = concat!("ghcr.io/claimkeeper/claimkeeper:", env!("CARGO_PKG_VERSION"));

/// What Helm makes, but for Secrets of its own.
const KINDS: &str = "deployments,services,configmaps,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,\
                     networkpolicies,poddisruptionbudgets,validatingwebhookconfigurations,mutatingwebhookconfigurations,\
                     validatingadmissionpolicies,validatingadmissionpolicybindings,leases,secrets";

/// The operator at work.
pub(super) enum Operator {
    /// On the real node, as the chart has it.
    Release,
    /// A process of this machine, with the rights that the chart grants.
    Process(Leash),
}

impl Stage {
    /// Installs the chart with all features.
    pub(super) async fn install(
        &self,
        program: &Path,
        webhook: &Webhook,
        storageos: &shared_volumes::StorageOs,
    ) -> Result<Operator> {
        if !self.has_real_node {
            return self.start_process(program, webhook, storageos).await.map(Operator::Process);
        }
        step("Making an image of claimkeeper, as it is shipped, and giving it to the node");
        self.cluster.import_image(&Image::of_operator(IMAGE, program)?).await?;
        self.kubectl(&["create", "namespace", HOME]).await?;
        self.apply(&shared_volumes::credentials()).await?;
        step("Installing the chart: two replicas with an account that may do what the features need, and nothing else");
        let values = json!({"features": FEATURES, "sharedVolumes": storageos.values()});
        fs::write(self.cluster.directory().join("values.yaml"), values.to_string())?;
        self.helm(&["install", HOME, CHART, "--values", "values.yaml"]).await?;
        println!("  $ helm install claimkeeper charts/claimkeeper --namespace claimkeeper --values values.yaml --wait");
        println!("    features: [{}]\n", FEATURES.join(", "));
        let columns = "custom-columns=POD:.metadata.name,READY:.status.containerStatuses[0].ready,\
                       USER:.spec.securityContext.runAsUser,NODE:.spec.nodeName";
        self.present(&["--namespace", HOME, "get", "pods", "-o", columns]).await?;
        Ok(Operator::Release)
    }

    async fn start_process(
        &self,
        program: &Path,
        webhook: &Webhook,
        storageos: &shared_volumes::StorageOs,
    ) -> Result<Leash> {
        step("Installing the chart: a ServiceAccount that may do what the features need, and nothing else");
        let kubeconfig = self.cluster.install_chart(HOME, HOME, &webhook.values()).await?;
        step("Starting claimkeeper as that ServiceAccount");
        let config = json!({
            "features": FEATURES,
            "admin": {"listen": "127.0.0.1:0"},
            "log": {"format": "text"},
            "webhook": webhook.config(),
            "sharedVolumes": storageos.config(),
        });
        let directory = self.cluster.directory();
        let file = directory.join("claimkeeper.yaml");
        fs::write(&file, config.to_string())?;
        let arguments = ["run", "--config", path(&file)?, "--kubeconfig", path(&kubeconfig)?];
        let leash = Leash::start(directory, "claimkeeper", program, &arguments).await?;
        done(&format!("process {}, log in {}", leash.pid(), leash.log().display()));
        Ok(leash)
    }

    /// Installs the chart once more, with the policies.
    pub(super) async fn add_policies(&self, operator: &Operator, webhook: &Webhook) -> Result<()> {
        if let Operator::Process(_) = operator {
            step("Installing the chart once more, with enforcement.policies=true");
            let mut values: Value = webhook.values();
            values["enforcement"] = json!({"policies": true});
            return self.cluster.install_chart(HOME, HOME, &values).await.map(drop);
        }
        let change = ["--reuse-values", "--set", "enforcement.policies=true"];
        self.helm(&[&["upgrade", HOME, CHART][..], &change].concat()).await?;
        println!("  $ helm upgrade claimkeeper charts/claimkeeper --namespace claimkeeper {}\n", change.join(" "));
        Ok(())
    }

    /// Ends all replicas, but nothing else of the installation.
    pub(super) async fn stop(&self, operator: &mut Option<Operator>) -> Result<()> {
        step("Stopping claimkeeper");
        if let Some(Operator::Release) = operator {
            self.scale("0").await?;
        } else {
            *operator = None;
        }
        Ok(())
    }

    /// How many replicas there are, from now on.
    pub(super) async fn scale(&self, replicas: &str) -> Result<()> {
        self.present(&["--namespace", HOME, "scale", "deployment", HOME, &format!("--replicas={replicas}")]).await?;
        let pods = ["--namespace", HOME, "get", "pods", "-o", "name"];
        if replicas == "0" { self.until("the replicas to end", &pods, "").await } else { Ok(()) }
    }

    /// Removes the release, and looks for what is left of it.
    pub(super) async fn uninstall(&self) -> Result<()> {
        self.helm(&["uninstall", HOME]).await?;
        println!("  $ helm uninstall claimkeeper --namespace claimkeeper --wait\n");
        let marks = "--selector=app.kubernetes.io/instance=claimkeeper";
        let left = ["--namespace", HOME, "get", KINDS, marks, "-o", "name"];
        self.until("all traces to go", &left, "").await?;
        // What the operator made for itself carries no such mark.
        let own = [
            "--namespace",
            HOME,
            "get",
            "lease/claimkeeper",
            "lease/claimkeeper-certificates",
            "secret/claimkeeper-webhook",
        ];
        let own = [&own[..], &["--ignore-not-found", "-o", "name"]].concat();
        self.until("what the operator made to go", &own, "").await?;
        let question = ["--namespace", HOME, "get", KINDS, marks];
        let output = self.kubectl(&question).await?;
        // That there is nothing is no answer to kubectl, but a remark.
        answer(&format!("kubectl {}", question.join(" ")), &[output.stdout, output.stderr].concat());
        Ok(())
    }

    /// Runs Helm and waits until what it does is done.
    async fn helm(&self, arguments: &[&str]) -> Result<Output> {
        let home = self.cluster.directory().join("helm");
        let mut helm = Command::new(self.cluster.helm());
        helm.args(arguments)
            .args(["--namespace", HOME, "--wait", "--timeout=3m"])
            .current_dir(self.cluster.directory());
        // Not the user's own repositories, plugins and caches.
        for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            helm.env(variable, &home);
        }
        let output = helm.env("KUBECONFIG", self.cluster.admin_kubeconfig()).kill_on_drop(true).output().await?;
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "helm {} failed: {}", arguments.join(" "), complaint.trim());
        Ok(output)
    }
}
