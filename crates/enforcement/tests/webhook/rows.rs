//! The decision table, decided by the API server with the webhook.

use std::collections::HashMap;

use anyhow::{Context, Result, ensure};
use cluster::{ObjectKey, volume::VolumePhase};
use http::Method;
use platform::admission::Answer;
use rehearsal::{Outcome, STAGEHAND};
use serde_json::{Value, json};
use testbed::eventually;

use crate::{
    stage::{NAME, Stage},
    table::{Row, Table},
};

const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";
const VOLUMES: &str = "/api/v1/persistentvolumes";
const IS_DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";

#[tokio::test(flavor = "multi_thread")]
async fn every_row_is_decided_as_the_table_says() -> Result<()> {
    let (stage, table) = (Stage::open("enforcement").await?, Table::load());
    for name in table.classes.keys() {
        stage.actors.make(CLASSES, &table.class(name, false)).await?;
    }
    eventually("the caches know all classes", async || {
        ensure!(stage.caches.classes.len() >= table.classes.len(), "they know {}", stage.caches.classes.len());
        anyhow::Ok(())
    })
    .await?;
    let (mut wrong, mut audited) = (Vec::new(), HashMap::new());
    for row in table.rows.iter().filter(|row| row.in_process.is_none()) {
        let namespace = stage.namespace(row.label.as_deref()).await?;
        let decided = ask(&stage, &table, row, &namespace).await.with_context(|| row.name.clone())?;
        if let Err(error) = compare(row, &decided) {
            wrong.push(format!("{}: {error:#}", row.name));
        }
        audited.insert(namespace, row);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    the_audit_log_has_the_reasons(&stage, &audited).await
}

/// Sets the scene, asks, and clears the scene.
async fn ask(stage: &Stage, table: &Table, row: &Row, namespace: &str) -> Result<(Outcome, Vec<Answer>)> {
    if let Some(class) = &row.default {
        set_default(stage, namespace, class, true).await?;
    }
    for name in &row.volumes {
        offer(stage, name, &table.volume(name, namespace)).await?;
    }
    let mut uids = HashMap::new();
    for name in &row.pods {
        let pod =
            stage.actors.make(&format!("/api/v1/namespaces/{namespace}/pods"), &table.pod(name, namespace)).await?;
        uids.insert(name.as_str(), pod["metadata"]["uid"].as_str().unwrap().to_owned());
    }
    let decided = write(stage, row, namespace, &|pod| uids.get(pod).cloned()).await?;
    for name in &row.volumes {
        withdraw(stage, name).await?;
    }
    if let Some(class) = &row.default {
        set_default(stage, namespace, class, false).await?;
    }
    Ok(decided)
}

async fn write(
    stage: &Stage,
    row: &Row,
    namespace: &str,
    uid: &dyn Fn(&str) -> Option<String>,
) -> Result<(Outcome, Vec<Answer>)> {
    let claims = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims");
    let claim = row.claim(namespace, uid);
    let one = format!("{claims}/{}", claim["metadata"]["name"].as_str().unwrap());
    let dry = if row.dry_run { "?dryRun=All" } else { "" };
    let Some(mut old) = row.old(namespace, uid) else {
        stage.set(row.settings(namespace));
        let outcome = stage.actors.send(&row.user, Method::POST, &format!("{claims}{dry}"), Some(&claim)).await?;
        return Ok((outcome, stage.answers.take()));
    };
    if row.terminating {
        old["metadata"]["finalizers"] = json!(["example.dev/keep"]);
    }
    let mut new = stage.actors.make(&claims, &old).await?;
    if row.terminating {
        stage.actors.send(STAGEHAND, Method::DELETE, &one, None).await?;
        new = stage.actors.send(STAGEHAND, Method::GET, &one, None).await?.body;
        ensure!(new["metadata"]["deletionTimestamp"].is_string(), "{new}");
    }
    for part in ["annotations", "labels", "ownerReferences"] {
        new["metadata"][part] = claim["metadata"][part].clone();
    }
    if !row.terminating {
        new["metadata"]["finalizers"] = claim["metadata"]["finalizers"].clone();
    }
    new["spec"] = claim["spec"].clone();
    stage.set(row.settings(namespace));
    let outcome = stage.actors.send(&row.user, Method::PUT, &format!("{one}{dry}"), Some(&new)).await?;
    Ok((outcome, stage.answers.take()))
}

fn compare(row: &Row, (outcome, answers): &(Outcome, Vec<Answer>)) -> Result<()> {
    let (decision, reason) = row.expected();
    let [answer] = &answers[..] else { anyhow::bail!("{} answers were given, and {outcome:?}", answers.len()) };
    ensure!(answer.reason == reason, "{}: {}", answer.reason, answer.message);
    let warned = outcome.warnings.iter().any(|text| text.contains("only generic ephemeral volumes are allowed for "));
    match decision {
        "deny" => {
            let message = outcome.body["message"].as_str().unwrap_or_default();
            ensure!(outcome.code == 403, "{outcome:?}");
            ensure!(outcome.body["details"]["causes"][0]["reason"] == reason, "{}", outcome.body);
            ensure!(
                message.contains("denied the request: only generic ephemeral volumes are allowed for "),
                "{message}"
            );
        }
        "warn" => ensure!(outcome.code < 300 && warned && outcome.warnings.len() >= 3, "{outcome:?}"),
        _ => ensure!(outcome.code < 300 && !warned, "{outcome:?}"),
    }
    let told = answer.audit.iter().find(|(key, _)| *key == "decision").map(|(_, value)| value.as_str());
    ensure!(told.is_none_or(|told| told == decision), "{told:?}");
    ensure!(told.is_some() || decision == "allow", "the audit log is not told");
    Ok(())
}

/// Of every decision under the rule.
async fn the_audit_log_has_the_reasons(stage: &Stage, rows: &HashMap<String, &Row>) -> Result<()> {
    let (key, told) =
        (format!("{NAME}/reason"), |row: &Row| row.expected().0 != "allow" || row.expected().1 == "Accepted");
    eventually("the audit log has the reasons", async || {
        let log = stage.cluster.audit_log().resource("persistentvolumeclaims").requests()?;
        for (namespace, row) in rows.iter().filter(|(_, row)| told(row)) {
            let in_row = log.iter().filter(|request| {
                request.user.username == row.user
                    && request.object_ref.as_ref().is_some_and(|object| object.namespace == *namespace)
            });
            let reasons: Vec<_> = in_row.filter_map(|request| request.annotations.get(&key)).collect();
            ensure!(reasons == [row.expected().1], "{}: {reasons:?}", row.name);
        }
        Ok(())
    })
    .await
}

/// Makes a class the default one, or not any more, and waits until both the API server and the caches know.
async fn set_default(stage: &Stage, namespace: &str, class: &str, is_default: bool) -> Result<()> {
    let mark = json!({"metadata": {"annotations": {IS_DEFAULT: is_default.then_some("true")}}});
    stage.actors.send(STAGEHAND, Method::PATCH, &format!("{CLASSES}/{class}"), Some(&mark)).await?;
    let claims = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims?dryRun=All");
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "probe"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    eventually("the default class is known", async || {
        let probe = stage.actors.make(&claims, &claim).await?;
        let expected = if is_default { json!(class) } else { Value::Null };
        ensure!(probe["spec"]["storageClassName"] == expected, "the API server chooses another: {probe}");
        let known = stage.caches.classes.get(&ObjectKey::new("", class)).is_some_and(|class| class.is_default);
        ensure!(known == is_default, "the caches do not know");
        anyhow::Ok(())
    })
    .await
}

/// A volume that claims can have, known to the caches.
async fn offer(stage: &Stage, name: &str, volume: &Value) -> Result<()> {
    stage.actors.make(VOLUMES, volume).await?;
    let available = json!({"status": {"phase": "Available"}});
    stage.actors.send(STAGEHAND, Method::PATCH, &format!("{VOLUMES}/{name}/status"), Some(&available)).await?;
    eventually("the caches know the volume", async || {
        let phase = stage.caches.volumes.get(&ObjectKey::new("", name)).map(|volume| volume.phase);
        ensure!(phase == Some(VolumePhase::Available), "it is {phase:?}");
        anyhow::Ok(())
    })
    .await
}

async fn withdraw(stage: &Stage, name: &str) -> Result<()> {
    stage.actors.send(STAGEHAND, Method::DELETE, &format!("{VOLUMES}/{name}"), None).await?;
    eventually("the caches forget the volume", async || {
        ensure!(stage.caches.volumes.get(&ObjectKey::new("", name)).is_none(), "they do not");
        anyhow::Ok(())
    })
    .await
}
