//! What Kubernetes itself does with claims goes through the webhook, and what it does not is told to who asked.

use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use http::Method;
use rehearsal::STAGEHAND;
use serde_json::{Value, json};
use testbed::{Options, eventually};
use tokio::{io::AsyncWriteExt, process::Command};

use crate::stage::Stage;

const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";

#[tokio::test(flavor = "multi_thread")]
async fn controllers_with_accounts_of_their_own_get_their_claims() -> Result<()> {
    kubernetes_goes_on(Options::default().name("controllers")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn controllers_that_share_one_account_get_their_claims() -> Result<()> {
    let options = Options::default().name("one-account");
    kubernetes_goes_on(options.controller_manager_flag("--use-service-account-credentials=false")).await
}

async fn kubernetes_goes_on(options: Options) -> Result<()> {
    // How soon the controller of volumes looks again at claims that wait for a class.
    let options = options.controllers("*").controller_manager_flag("--pvclaimbinder-sync-period=1s");
    let stage = Stage::on(options).await?;
    // Without accounts of their own, what all controllers need must be granted to the one.
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "all-controllers"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:kube-controller-manager"}],
    });
    stage.actors.make("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).await?;
    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "local"},
                       "provisioner": "localdisk.csi.acstor.io", "volumeBindingMode": "WaitForFirstConsumer"});
    stage.actors.make(CLASSES, &class).await?;
    let namespace = stage.namespace(None).await?;

    let pod = an_ephemeral_volume_gets_its_claim(&stage, &namespace).await?;
    a_bare_claim_is_refused_by_kubectl_with_what_to_do(&stage, &namespace).await?;
    orphaning_is_allowed_and_told(&stage, &namespace, &pod).await?;
    a_class_that_comes_later_is_refused_and_told(&stage, &namespace).await
}

fn spec(class: Option<&str>) -> Value {
    json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": class})
}

async fn an_ephemeral_volume_gets_its_claim(stage: &Stage, namespace: &str) -> Result<String> {
    stage.answers.take();
    let volume = json!({"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": spec(Some("local"))}}});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "build"},
        "spec": {"containers": [{"name": "main", "image": "none"}], "volumes": [volume]},
    });
    let made =
        stage.actors.send("alice", Method::POST, &format!("/api/v1/namespaces/{namespace}/pods"), Some(&pod)).await?;
    ensure!(made.code == 201, "{made:?}");
    let claim = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims/build-scratch");
    eventually("the claim of the pod", async || {
        let found = stage.actors.send(STAGEHAND, Method::GET, &claim, None).await?;
        ensure!(found.code == 200, "{found:?}");
        anyhow::Ok(())
    })
    .await?;
    let answers = stage.answers.take();
    ensure!(answers.iter().any(|answer| answer.reason == "OwnedByPod"), "{answers:?}");
    ensure!(answers.iter().all(|answer| answer.allowed), "{answers:?}");
    Ok("build".to_owned())
}

async fn a_bare_claim_is_refused_by_kubectl_with_what_to_do(stage: &Stage, namespace: &str) -> Result<()> {
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "bare"}, "spec": spec(Some("local"))});
    let mut kubectl = Command::from(stage.cluster.kubectl());
    kubectl.args(["--namespace", namespace, "apply", "-f", "-"]).kill_on_drop(true);
    let mut kubectl = kubectl.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    kubectl.stdin.take().context("kubectl reads nothing")?.write_all(claim.to_string().as_bytes()).await?;
    let output = kubectl.wait_with_output().await?;
    let told = String::from_utf8(output.stderr)?;
    ensure!(!output.status.success(), "it was made");
    for part in [
        "denied the request: only generic ephemeral volumes are allowed for localdisk.csi.acstor.io provisioner",
        "ephemeral: {volumeClaimTemplate: {spec: {storageClassName: local, ",
        "annotation localdisk.csi.acstor.io/accept-ephemeral-storage: \"true\"",
    ] {
        ensure!(told.contains(part), "{part} is not in {told}");
    }
    Ok(())
}

/// The events about a claim with this reason.
async fn events(stage: &Stage, namespace: &str, reason: &str, claim: &str) -> Result<Vec<Value>> {
    let path = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
    let list = stage.actors.send(STAGEHAND, Method::GET, &path, None).await?.body;
    let events = list["items"].as_array().context("no list")?.iter();
    let about = events.filter(|event| event["reason"] == reason && event["regarding"]["name"] == claim);
    Ok(about.cloned().collect())
}

async fn orphaning_is_allowed_and_told(stage: &Stage, namespace: &str, pod: &str) -> Result<()> {
    let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Orphan"});
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}");
    stage.actors.send("alice", Method::DELETE, &path, Some(&options)).await?;
    let claim = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims/{pod}-scratch");
    eventually("the orphaned claim, and its event", async || {
        let found = stage.actors.send(STAGEHAND, Method::GET, &claim, None).await?;
        ensure!(found.code == 200 && found.body["metadata"]["ownerReferences"].is_null(), "{found:?}");
        let told = events(stage, namespace, "ClaimOrphaned", &format!("{pod}-scratch")).await?;
        ensure!(told.len() == 1 && told[0]["type"] == "Warning", "{told:?}");
        anyhow::Ok(())
    })
    .await
}

async fn a_class_that_comes_later_is_refused_and_told(stage: &Stage, namespace: &str) -> Result<()> {
    let claim =
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "early"}, "spec": spec(None)});
    let claims = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims");
    let made = stage.actors.send("alice", Method::POST, &claims, Some(&claim)).await?;
    ensure!(made.code == 201, "{made:?}");
    let mark = json!({"metadata": {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}});
    stage.actors.send(STAGEHAND, Method::PATCH, &format!("{CLASSES}/local"), Some(&mark)).await?;
    eventually("the event about the class that was to come", async || {
        let told = events(stage, namespace, "ClaimDenied", "early").await?;
        ensure!(told.iter().any(|event| event["regarding"]["uid"] == made.body["metadata"]["uid"]), "{told:?}");
        anyhow::Ok(())
    })
    .await?;
    let left = stage.actors.send(STAGEHAND, Method::GET, &format!("{claims}/early"), None).await?;
    ensure!(left.body["spec"]["storageClassName"].is_null(), "{left:?}");
    Ok(())
}
