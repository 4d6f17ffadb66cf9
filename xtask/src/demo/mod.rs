//! `cargo xtask demo`: a real cluster, the real operator, and each feature at work.
//!
//! Where the machine allows it there is a real node, the chart runs the operator on it, and pods write real files. Elsewhere
//! nodes are objects, the operator is a process of this machine, and the demo says so.

mod enforcement;
mod installation;
mod placement;
mod provisioner;
mod releaser;
mod shared_volumes;
mod story;

use std::{fs, path::Path, process::Output, time::Duration};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::PostParams};
use serde_json::json;
use testbed::{BUSYBOX, Cluster, ControlPlane, LocalDisks, Options, within};

use self::{enforcement::Webhook, installation::Operator, shared_volumes::StorageOs, story::Story};
use crate::build::{self, Profile};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Leave everything running afterwards, until Ctrl-C
    #[arg(long)]
    keep: bool,
}

const FEATURES: [&str; 6] = ["ephemeral", "provisioner", "releaser", "enforcement", "placement", "shared-volumes"];
const HOME: &str = "claimkeeper";
const SHOP: &str = "shop";

/// The part of the pod that matters, as a person would write it.
const ASKED_FOR: &str = "  $ kubectl apply -f web.yaml
    kind: Pod
    metadata: {name: web}
    spec:
      containers:
        - command: [sh, -c, \"echo 'written by the pod web' > /scratch/note; …\"]
          volumeMounts: [{name: scratch, mountPath: /scratch}]
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
    let unavailable = testbed::real_node_unavailable().await;
    let options = Options::default().name("demo");
    let (nodes, options) = match unavailable {
        None => {
            let nodes = "a real node with containerd, kubelet and kube-proxy, three more without machines";
            (nodes, options.real_node().nodes(3))
        }
        Some(_) => ("three nodes without machines", options),
    };
    step(&format!("Starting Kubernetes: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, {nodes}"));
    if let Some(reason) = &unavailable {
        done(&format!("{reason}; so pods are only said to run"));
    }
    let control_plane = ControlPlane::start(options).await?;
    let stage = Stage { cluster: control_plane.cluster(), has_real_node: unavailable.is_none() };
    done(&stage.kubernetes_version().await?);
    stage.reserve_nodes().await?;

    let storageos = StorageOs::start(&stage).await?;
    let webhook = Webhook::new(stage.has_real_node)?;
    let mut story = Story::default();
    let _at_work = stage.act(&mut story, &operator, &storageos, &webhook, keep).await?;
    story.tell();
    if keep {
        return std::future::pending().await;
    }
    println!();
    step("Cleaning up");
    drop(control_plane);
    done("nothing is left behind");
    Ok(())
}

struct Stage {
    cluster: Cluster,
    has_real_node: bool,
}

impl Stage {
    async fn kubernetes_version(&self) -> Result<String> {
        let version = self.cluster.admin().await?.apiserver_version().await?;
        Ok(format!("Kubernetes {} at {}", version.git_version, self.cluster.url()))
    }

    /// Everything, from the installation to its end; with `keep` the operator stays. Returns what is at work as long as it lives.
    async fn act(
        &self,
        story: &mut Story,
        program: &Path,
        storageos: &StorageOs,
        webhook: &Webhook,
        keep: bool,
    ) -> Result<(Option<Operator>, LocalDisks)> {
        let installed = self.install(program, webhook, storageos);
        let mut operator = Some(story.play("", "installed from the chart, with all features", installed).await?);

        // Whoever was refused is looked at again after some seconds; something else is worth watching meanwhile.
        let refused = self.a_ci_pod_is_refused();
        story.play("provisioner", "a pod gets no claim that its account may not make", refused).await?;
        let shown = "a pod's claim is made, somebody else's is left alone, and it ends with its pod";
        story.play("ephemeral", shown, self.ephemeral(program)).await?;
        let has_claim = self.the_ci_pod_has_its_claim();
        story.play("provisioner", "it gets it as soon as its account may", has_claim).await?;
        let kept = self.the_volume_of_the_ci_pod_is_kept(program);
        let volume = story.play("releaser", "the volume of an ended build is kept", kept).await?;
        let again = self.the_next_ci_pod_has_that_volume(&volume);
        story.play("releaser", "the next build finds its cache", again).await?;
        let refused = self.a_bare_claim_is_refused();
        story.play("enforcement", "a claim on storage that is lost with its node is refused", refused).await?;
        let accepted = self.who_accepts_the_risk_gets_the_claim();
        story.play("enforcement", "who accepts the risk gets it", accepted).await?;
        story.play("enforcement", "a pod has its own", self.a_pod_gets_its_own()).await?;
        let follows = self.a_pod_follows_its_volume(program);
        let disks = story.play("placement", "a pod runs where its volume is", follows).await?;
        let lost = self.what_was_lost_is_recorded();
        story.play("placement", "a node is lost; the pod starts anew, and that is recorded", lost).await?;
        let address = self.a_shared_volume_has_an_address(storageos);
        story.play("shared-volumes", "a volume of many pods has an address", address).await?;
        let gone = self.a_server_that_is_gone(storageos, program);
        story.play("shared-volumes", "its server is gone, and nobody is led astray", gone).await?;
        let back = self.a_server_that_is_back_elsewhere(storageos);
        story.play("shared-volumes", "its server is elsewhere, its address is the same", back).await?;
        let rule = self.the_rule_holds_without_the_operator(&mut operator, webhook);
        story.play("enforcement", "the rule holds while nobody answers", rule).await?;

        if keep {
            let operator = match operator {
                Some(operator) => {
                    self.scale("2").await?;
                    operator
                }
                None => self.install(program, webhook, storageos).await?,
            };
            self.say_how_to_reach_it(&operator);
            return Ok((Some(operator), disks));
        }
        if operator.is_some() {
            title("The end: what Helm made it removes, and what the operator made for itself goes with it");
            story.play("", "uninstalled without a trace", self.uninstall()).await?;
        }
        Ok((None, disks))
    }

    async fn ephemeral(&self, operator: &Path) -> Result<()> {
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
        if self.has_real_node {
            self.until("the file", &["exec", "web", "--", "ls", "/scratch"], "note").await?;
            self.present(&["exec", "web", "--", "cat", "/scratch/note"]).await?;
        }

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
        self.ask_why(operator, &["pod/api", "--namespace", SHOP]).await?;

        title("ephemeral: a namespace may keep ephemeral volumes out");
        self.present(&["label", "namespace", SHOP, "claimkeeper.dev/ephemeral-volumes=deny"]).await?;
        let refusal = self.until_refused(&pod("late")).await?;
        println!("  $ kubectl apply -f late.yaml\n    {refusal}\n");

        title("ephemeral: the claim ends with its pod");
        self.kubectl(&["delete", "pod", "web", "--wait=true"]).await?;
        println!("  $ kubectl delete pod web");
        let gone = ["get", "pvc", "web-scratch", "--ignore-not-found", "-o", "name"];
        self.until("the claim to go", &gone, "").await?;
        self.present(&["get", "pvc", "-o", "custom-columns=CLAIM:.metadata.name,STATUS:.status.phase"]).await
    }

    /// Asks the operator's own binary what it decides, as a person would.
    async fn ask_why(&self, operator: &Path, arguments: &[&str]) -> Result<()> {
        let mut command = tokio::process::Command::new(operator);
        command.arg("why").args(arguments).env("KUBECONFIG", self.cluster.admin_kubeconfig());
        let output = command.output().await?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
        answer(&format!("claimkeeper why {}", arguments.join(" ")), &output.stdout);
        Ok(())
    }

    /// The API server's answer to a pod that its policy turns away; a label counts after a moment.
    async fn until_refused(&self, pod: &serde_json::Value) -> Result<String> {
        let pods: Api<Pod> = Api::namespaced(self.cluster.admin().await?, SHOP);
        let pod = serde_json::from_value(pod.clone())?;
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        within(PATIENCE, "the pod to be refused", async || match pods.create(&dry_run, &pod).await {
            Err(kube::Error::Api(status)) => Ok(status.message.clone()),
            Err(error) => Err(error.into()),
            Ok(_) => anyhow::bail!("it was admitted"),
        })
        .await
    }

    fn say_how_to_reach_it(&self, claimkeeper: &Operator) {
        title("It keeps running until you press Ctrl-C");
        let directory = self.cluster.directory().display();
        println!("  export KUBECONFIG={} PATH={directory}/bin:$PATH", self.cluster.admin_kubeconfig().display());
        println!("  kubectl --namespace {SHOP} get pods,pvc,events");
        match claimkeeper {
            Operator::Release => println!("  kubectl --namespace {HOME} logs --follow deployment/{HOME}"),
            Operator::Process(leash) => println!("  tail -f {}", leash.log().display()),
        }
    }

    /// Runs a command in the demo's namespace and shows both, as a person would see them.
    async fn present(&self, arguments: &[&str]) -> Result<()> {
        let output = self.kubectl(arguments).await?;
        let shown = arguments.iter().take_while(|argument| **argument != "-o").copied().collect::<Vec<_>>().join(" ");
        answer(&format!("kubectl {shown}"), &output.stdout);
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
        let namespace = manifest["metadata"]["namespace"].as_str().unwrap_or(SHOP);
        self.kubectl(&["apply", "--namespace", namespace, "-f", path(&file)?]).await?;
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
            // A shell that is the first process of its container ignores SIGTERM.
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "main", "image": BUSYBOX,
                "command": ["sh", "-c", format!("echo 'written by the pod {name}' > /scratch/note; sleep 1000000")],
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

/// A command, and what it printed.
fn answer(command: &str, output: &[u8]) {
    println!("  $ {command}");
    for line in String::from_utf8_lossy(output).lines() {
        println!("    {line}");
    }
    println!();
}

fn step(text: &str) {
    println!("· {text} …");
}

fn done(text: &str) {
    println!("  {text}");
}
