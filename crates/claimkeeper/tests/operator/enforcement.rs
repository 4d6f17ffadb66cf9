//! Enforcement as those meet it who make claims, and those who look after the cluster.

use std::{process::Output, time::Duration};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{core::v1::PersistentVolumeClaim, events::v1::Event};
use kube::{
    Api, ResourceExt,
    api::{ListParams, PostParams},
};
use serde_json::{Value, json};
use testbed::eventually;
use tokio::process::Command;

use crate::{
    audit::found,
    home::{Replica, file},
    scene::{REFUSAL, Scene},
};

const ACCEPT: &str = "localdisk.csi.acstor.io/accept-ephemeral-storage";

impl Scene {
    async fn kubectl_apply(&self, manifest: &str) -> Result<Output> {
        let mut kubectl = Command::from(self.shop.cluster.kubectl());
        kubectl.args(["--namespace", &self.shop.namespace, "apply", "-f", manifest]).kill_on_drop(true);
        Ok(kubectl.output().await?)
    }

    /// Type, reason and claim of what was told, sorted.
    async fn told(&self) -> Result<Vec<[String; 3]>> {
        let events: Api<Event> = Api::namespaced(self.shop.cluster.admin().await?, &self.shop.namespace);
        let events = events.list(&ListParams::default()).await?.into_iter();
        let ours = events.filter(|event| event.reason.as_deref().is_some_and(|reason| reason.starts_with("Claim")));
        let mut told: Vec<_> = ours
            .map(|event| {
                let regarding = event.regarding.and_then(|claim| claim.name);
                [event.type_, event.reason, regarding].map(Option::unwrap_or_default)
            })
            .collect();
        told.sort();
        Ok(told)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_make_claims_and_those_who_look_after_them_are_told_the_same() -> Result<()> {
    let mut scene = Scene::open("enforcement", Duration::ZERO).await?;
    let old = serde_json::from_value(scene.claim("older-than-the-rule", &json!({})))?;
    scene.shop.claims.create(&PostParams::default(), &old).await?;
    let prepared = scene.install("first", "0s").await?;
    let replica = scene.start(&prepared).await?;
    scene.until_ready(1).await?;
    scene.until_asked().await?;
    let created =
        async |allowed: bool| replica.metric(&format!(r#"pvc_total{{operation="create",allowed="{allowed}"}}"#)).await;
    let before = (created(true).await?, created(false).await?);

    a_bare_claim_is_refused_with_what_to_do(&scene, &replica).await?;
    the_claim_of_somebody_who_accepts_the_risk_is_made(&scene).await?;
    the_claim_of_an_ephemeral_volume_is_made(&scene).await?;

    assert_eq!((created(true).await?, created(false).await?), (before.0 + 2, before.1 + 1));
    for (decision, reason) in [("deny", "NotEphemeral"), ("allow", "Accepted"), ("allow", "OwnedByPod")] {
        let labels = format!(r#"webhook="validate-pvc",decision="{decision}",reason="{reason}""#);
        let counted = replica.metric(&format!("claimkeeper_admission_requests_total{{{labels}}}")).await?;
        assert!(counted > 0, "{reason}");
    }
    events_tell_of_all_three(&scene).await?;
    what_is_older_is_found_and_explained(&scene, &replica).await?;

    let requests = scene.shop.cluster.audit_log().user(&replica.user).requests()?;
    let refused: Vec<_> = requests.into_iter().filter(|request| request.code() == Some(403)).collect();
    assert!(refused.is_empty(), "the chart grants too little: {refused:?}");
    scene.close().await
}

async fn a_bare_claim_is_refused_with_what_to_do(scene: &Scene, replica: &Replica) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let manifest = file(&directory, "my-pvc.yaml", &scene.claim("bare", &json!({})).to_string());
    let manifest = manifest.to_str().unwrap();
    let output = scene.kubectl_apply(manifest).await?;
    let said = String::from_utf8(output.stderr)?.replace(&scene.shop.namespace, "NS");
    assert!(!output.status.success(), "it was made");
    assert!(said.starts_with("Error from server (Forbidden): error when creating"), "{said}");
    assert!(said.contains(&format!("admission webhook \"claims.enforcement.claimkeeper.dev\" {REFUSAL}")), "{said}");
    assert!(said.contains("ephemeral: {volumeClaimTemplate: {spec: {storageClassName: local-NS, "), "{said}");
    assert!(said.contains(&format!("annotation {ACCEPT}: \"true\"")), "{said}");

    // Who asks before is told in the same words.
    let (code, why) = scene.shop.why(&["-f", manifest, "-o", "json"]);
    assert_eq!(code, 0, "{why}");
    let why: Value = serde_json::from_str(&why)?;
    assert_eq!((&why[0]["decision"], &why[0]["reason"]), (&json!("deny"), &json!("NotEphemeral")));
    let message = why[0]["message"].as_str().context("no message")?;
    assert!(said.contains(message), "{said}\n{why}");

    // So is who reads the log.
    eventually("the log to have the sentence", async || {
        let log = replica.leash.output().replace(&scene.shop.namespace, "NS");
        let mut lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        ensure!(lines.any(|line| line["claim"] == "NS/bare" && line["message"] == message), "{log}");
        Ok(())
    })
    .await
}

async fn the_claim_of_somebody_who_accepts_the_risk_is_made(scene: &Scene) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let manifest = file(&directory, "my-pvc.yaml", &scene.claim("accepted", &json!({ ACCEPT: "true" })).to_string());
    let output = scene.kubectl_apply(manifest.to_str().unwrap()).await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

async fn the_claim_of_an_ephemeral_volume_is_made(scene: &Scene) -> Result<()> {
    let volume = json!({"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": scene.claim_spec()}}});
    let containers = json!([{"name": "main", "image": "registry.example/main"}]);
    let pod = json!({"metadata": {"name": "web"}, "spec": {"containers": containers, "volumes": [volume]}});
    scene.shop.pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    let claim: PersistentVolumeClaim = scene.shop.claim_of("web").await?;
    assert_eq!(claim.owner_references()[0].name, "web");
    Ok(())
}

async fn events_tell_of_all_three(scene: &Scene) -> Result<()> {
    let told = [
        ["Normal", "ClaimAllowed", "accepted"],
        ["Normal", "ClaimAllowed", "web-scratch"],
        ["Warning", "ClaimDenied", "bare"],
    ];
    eventually("the events", async || {
        let seen = scene.told().await?;
        ensure!(seen == told, "{seen:?}");
        Ok(())
    })
    .await
}

async fn what_is_older_is_found_and_explained(scene: &Scene, replica: &Replica) -> Result<()> {
    let listed = found(&scene.shop.audit(&["-o", "json"]))?;
    assert_eq!(listed, [("older-than-the-rule".to_owned(), "NotEphemeral".to_owned())]);
    let series = format!(r#"claimkeeper_enforcement_violations{{class="{}",reason="NotEphemeral"}}"#, scene.class);
    eventually("the leader to count it", async || {
        let counted = replica.metric(&series).await?;
        ensure!(counted == 1, "{counted} are counted");
        Ok(())
    })
    .await?;
    for (claim, decided) in [
        ("older-than-the-rule", "deny, NotEphemeral: "),
        ("accepted", "allow, Accepted: "),
        ("web-scratch", "allow, OwnedByPod: "),
    ] {
        let (code, why) = scene.shop.why(&[&format!("pvc/{claim}")]);
        let head = format!("enforcement: claim NS/{claim}\n  {decided}");
        assert!(code == 0 && why.contains(&head), "{why}");
    }
    Ok(())
}
