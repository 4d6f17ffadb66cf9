//! `cargo xtask demo`: a real control plane, the real operator, and each feature at work.

use std::{fs, path::Path, process::Output, time::Duration};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use testbed::{Cluster, ControlPlane, Leash, Options, within};

use crate::build::{self, Profile};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Leave everything running afterwards, until Ctrl-C
    #[arg(long)]
    keep: bool,
}

const HOME: &str = "claimkeeper";
const SHOP: &str = "shop";

/// The part of the pod that matters, as a person would write it.
const ASKED_FOR: &str = "  $ kubectl apply -f web.yaml
    kind: Pod
    metadata: {name: web}
    spec:
      volumes:
        - name: scratch
          ephemeral: {volumeClaimTemplate: {spec: {storageClassName: testbed-wait, …, storage: 1Gi}}}
";

/// Long enough for a busy laptop; a demo that hangs is worse than one that fails.
const PATIENCE: Duration = Duration::from_mins(1);

pub(crate) async fn run(Arguments { keep }: Arguments) -> Result<()> {
    tokio::select! {
        result = show(keep) => result,
        // Dropping the demo ends everything that it started.
        _ = tokio::signal::ctrl_c() => {
            eprintln!("\nStopping.");
            Ok(())
        }
    }
}

async fn show(keep: bool) -> Result<()> {
    title("Claimkeeper");
    step("Building the operator");
    let operator = tokio::task::spawn_blocking(|| build::claimkeeper(Profile::Dev)).await??;
    step("Starting Kubernetes: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, three nodes");
    let control_plane = ControlPlane::start(Options::default().name("demo")).await?;
    let stage = Stage { cluster: control_plane.cluster() };
    done(&stage.kubernetes_version().await?);

    step("Installing the chart: a ServiceAccount that may do what the features need, and nothing else");
    let values = json!({"features": ["ephemeral"]});
    let kubeconfig = stage.cluster.install_chart(HOME, HOME, &values).await?;
    step("Starting claimkeeper as that ServiceAccount");
    let claimkeeper = stage.start(&operator, &kubeconfig).await?;
    done(&format!("process {}, log in {}", claimkeeper.pid(), claimkeeper.log().display()));

    stage.ephemeral().await?;

    if keep {
        stage.say_how_to_reach_it(&claimkeeper);
        return std::future::pending().await;
    }
    println!();
    step("Cleaning up");
    drop(claimkeeper);
    drop(control_plane);
    done("nothing is left behind");
    Ok(())
}

struct Stage {
    cluster: Cluster,
}

impl Stage {
    async fn kubernetes_version(&self) -> Result<String> {
        let version = self.cluster.admin().await?.apiserver_version().await?;
        Ok(format!("Kubernetes {} at {}", version.git_version, self.cluster.url()))
    }

    async fn start(&self, operator: &Path, kubeconfig: &Path) -> Result<Leash> {
        let directory = self.cluster.directory();
        let config = directory.join("claimkeeper.yaml");
        fs::write(&config, "features: [ephemeral]\nadmin: {listen: '127.0.0.1:0'}\nlog: {format: text}\n")?;
        let (config, kubeconfig) = (path(&config)?, path(kubeconfig)?);
        Leash::start(directory, "claimkeeper", operator, &["run", "--config", config, "--kubeconfig", kubeconfig]).await
    }

    async fn ephemeral(&self) -> Result<()> {
        title("ephemeral: a pod describes a volume, Claimkeeper makes the claim");
        self.kubectl(&["create", "namespace", SHOP]).await?;
        println!("{ASKED_FOR}");
        self.apply(&pod("web")).await?;
        self.until("the pod to run", &["get", "pod", "web", "-o", "jsonpath={.status.phase}"], "Running").await?;
        self.present(&[
            "get",
            "pod",
            "web",
            "-o",
            "custom-columns=POD:.metadata.name,STATUS:.status.phase,NODE:.spec.nodeName",
        ])
        .await?;
        self.present(&[
            "get",
            "pvc",
            "web-scratch",
            "-o",
            "custom-columns=CLAIM:.metadata.name,STATUS:.status.phase,CLASS:.spec.storageClassName,\
             SIZE:.status.capacity.storage,OWNER:.metadata.ownerReferences[0].kind,OF:.metadata.ownerReferences[0].name",
        ])
        .await?;

        title("ephemeral: a claim of that name is somebody else's, so it is left alone and the pod's owner is told");
        self.apply(&foreign_claim("api-scratch")).await?;
        self.apply(&pod("api")).await?;
        let about = "involvedObject.name=api,reason=FailedBinding";
        let events = ["get", "events", "--field-selector", about];
        let mut count = events.to_vec();
        count.extend(["-o", "jsonpath={.items[*].reason}"]);
        self.until("the event", &count, "FailedBinding").await?;
        self.present(&[
            "get",
            "events",
            "--field-selector",
            about,
            "-o",
            "custom-columns=TYPE:.type,REASON:.reason,POD:.involvedObject.name,MESSAGE:.message",
        ])
        .await?;

        title("ephemeral: the claim ends with its pod");
        self.kubectl(&["delete", "pod", "web", "--wait=true"]).await?;
        println!("  $ kubectl delete pod web");
        let gone = ["get", "pvc", "web-scratch", "--ignore-not-found", "-o", "name"];
        self.until("the claim to go", &gone, "").await?;
        self.present(&["get", "pvc", "-o", "custom-columns=CLAIM:.metadata.name,STATUS:.status.phase"]).await
    }

    fn say_how_to_reach_it(&self, claimkeeper: &Leash) {
        title("It keeps running until you press Ctrl-C");
        let directory = self.cluster.directory().display();
        println!("  export KUBECONFIG={} PATH={directory}/bin:$PATH", self.cluster.admin_kubeconfig().display());
        println!("  kubectl --namespace {SHOP} get pods,pvc,events");
        println!("  tail -f {}", claimkeeper.log().display());
    }

    /// Runs a command in the demo's namespace and shows both, as a person would see them.
    async fn present(&self, arguments: &[&str]) -> Result<()> {
        let output = self.kubectl(arguments).await?;
        let shown = arguments.iter().take_while(|argument| **argument != "-o").copied().collect::<Vec<_>>().join(" ");
        println!("  $ kubectl {shown}");
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            println!("    {line}");
        }
        println!();
        Ok(())
    }

    async fn until(&self, what: &str, arguments: &[&str], wanted: &str) -> Result<()> {
        within(PATIENCE, what, async || {
            let output = self.kubectl(arguments).await?;
            let seen = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            let met = if wanted.is_empty() { seen.is_empty() } else { seen.contains(wanted) };
            ensure!(met, "{seen:?}");
            Ok(())
        })
        .await
    }

    async fn apply(&self, manifest: &serde_json::Value) -> Result<()> {
        let file = self.cluster.directory().join("manifest.json");
        fs::write(&file, manifest.to_string())?;
        self.kubectl(&["apply", "-f", path(&file)?]).await?;
        Ok(())
    }

    async fn kubectl(&self, arguments: &[&str]) -> Result<Output> {
        let mut command = self.cluster.kubectl();
        command.args(["--namespace", SHOP]).args(arguments);
        let output = tokio::process::Command::from(command).kill_on_drop(true).output().await?;
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "kubectl {} failed: {}", arguments.join(" "), complaint.trim());
        Ok(output)
    }
}

fn path(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is not valid UTF-8", path.display()))
}

fn pod(name: &str) -> serde_json::Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "containers": [{
                "name": "main", "image": "registry.example/main",
                "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
            }],
            "volumes": [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": claim_spec()}}}],
        },
    })
}

fn foreign_claim(name: &str) -> serde_json::Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": claim_spec()})
}

fn claim_spec() -> serde_json::Value {
    json!({
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "testbed-wait",
        "resources": {"requests": {"storage": "1Gi"}},
    })
}

fn title(text: &str) {
    println!("\n{text}\n{}", "─".repeat(text.chars().count()));
}

fn step(text: &str) {
    println!("· {text} …");
}

fn done(text: &str) {
    println!("  {text}");
}
