//! What is told and counted besides the answer, that answering costs the API server nothing, and what is new to the caches.

use anyhow::{Context, Result, ensure};
use cluster::ObjectKey;
use http::Method;
use jiff::Timestamp;
use placement::{Settings, settings::OnError};
use rehearsal::STAGEHAND;
use serde_json::{Value, json};
use testbed::eventually;

use crate::{
    decided::slim,
    short::Wishes,
    stage::{ACCOUNT, CLASSES, NAME, NODES, Stage, VOLUMES, local, pod},
    table::claim,
};

#[tokio::test(flavor = "multi_thread")]
async fn who_looks_is_told_and_the_api_server_is_not_bothered() -> Result<()> {
    let stage = Stage::open("steer-told").await?;
    for name in ["node-a", "node-b"] {
        let labels = json!({"kubernetes.io/hostname": name});
        stage.actors.make(NODES, &json!({"metadata": {"name": name, "labels": labels}})).await?;
    }
    for (name, node, mode) in
        [("one", "node-a", "availability"), ("kept", "node-a", "durability"), ("apart", "node-b", "durability")]
    {
        stage.local(name, node, mode).await?;
    }
    eventually("the caches know the nodes", async || {
        ensure!(stage.caches.nodes.len() == 2, "{}", stage.caches.nodes.len());
        anyhow::Ok(())
    })
    .await?;
    contradictions_are_told_unless_nothing_is_made(&stage).await?;
    warm_caches_answer_without_the_api_server(&stage).await?;
    what_was_made_a_moment_ago_is_followed(&stage).await?;
    asked_twice_a_pod_is_steered_once(&stage).await?;
    errors_are_told_and_refuse_nobody_who_is_not_concerned(&stage).await
}

fn metric(stage: &Stage, decision: &str, reason: &str) -> Option<String> {
    let labels = format!(r#"{{webhook="mutate-pod",decision="{decision}",reason="{reason}"}} "#);
    let series = format!("claimkeeper_admission_requests_total{labels}");
    stage.registry.encode().lines().find_map(|line| line.strip_prefix(&series).map(str::to_owned))
}

async fn make_pod(stage: &Stage, pod: &Value) -> Result<Value> {
    let made = stage.actors.send("alice", Method::POST, &stage.path("pods"), Some(pod)).await?;
    ensure!(made.code == 201, "{made:?}");
    Ok(made.body)
}

async fn contradictions_are_told_unless_nothing_is_made(stage: &Stage) -> Result<()> {
    let began = Timestamp::now();
    ensure!(stage.rehearse(&pod("only-asks", &["kept", "apart"])).await?.code == 201);
    make_pod(stage, &pod("content", &["one", "kept"])).await?;
    let mut torn = pod("", &["kept", "apart"]);
    torn["metadata"] = json!({"generateName": "torn-"});
    make_pod(stage, &torn).await?;
    make_pod(stage, &torn).await?;
    eventually("the event about the pods that are torn", async || {
        let events = stage.events().await?;
        let [event] = &events[..] else { anyhow::bail!("{events:?}") };
        ensure!(event["reason"] == "HomesContradict" && event["type"] == "Warning", "{event}");
        ensure!(event["regarding"]["name"] == "torn-" && event["regarding"]["uid"].is_null(), "{event}");
        let note = event["note"].as_str().unwrap();
        ensure!(note.contains("kept on node-a, apart on node-b; give each its own pod"), "{note}");
        // Who makes it again and again is told once.
        ensure!(event["series"]["count"] == 2, "{event}");
        anyhow::Ok(())
    })
    .await?;
    assert_eq!(metric(stage, "steer", "HomesContradict").as_deref(), Some("3"));
    assert_eq!(metric(stage, "steer", "AtHome").as_deref(), Some("1"));
    eventually("the audit log has the reason", async || {
        let log = stage.cluster.audit_log().user("alice").resource("pods").since(began).requests()?;
        let reasons: Vec<_> =
            log.iter().filter_map(|request| request.annotations.get(&format!("{NAME}/reason"))).collect();
        ensure!(reasons == ["HomesContradict", "AtHome", "HomesContradict", "HomesContradict"], "{reasons:?}");
        anyhow::Ok(())
    })
    .await
}

async fn warm_caches_answer_without_the_api_server(stage: &Stage) -> Result<()> {
    let began = Timestamp::now();
    for round in 0..20 {
        make_pod(stage, &pod(&format!("warm-{round}"), &["one"])).await?;
    }
    // A claim that nobody has heard of is worth one look, and shows that looks would be seen.
    make_pod(stage, &pod("cold", &["one", "nowhere"])).await?;
    eventually("the one look", async || {
        let asked = stage.cluster.audit_log().user(ACCOUNT).since(began).requests()?;
        // A watch shows up when it ends, and events are still on their way.
        let asked: Vec<String> = asked
            .into_iter()
            .filter(|request| !["watch", "create", "patch"].contains(&request.verb.as_str()))
            .map(|request| format!("{} {}", request.verb, request.request_uri))
            .collect();
        ensure!(asked == [format!("get {}/nowhere", stage.path("persistentvolumeclaims"))], "{asked:?}");
        anyhow::Ok(())
    })
    .await
}

/// Each round it is anybody's guess whether the caches are quicker than the pod; it must not matter.
async fn what_was_made_a_moment_ago_is_followed(stage: &Stage) -> Result<()> {
    for round in 0..20 {
        let name = format!("new-{round}");
        stage.bind(local(&stage.namespace, &name, "node-a", "durability")).await?;
        let made = make_pod(stage, &pod(&format!("user-of-{name}"), &[&name])).await?;
        let required = Wishes::of(&made).required;
        ensure!(required == Some(vec![vec!["host=node-a".to_owned()]]), "round {round}: {required:?}");
    }
    // Nor if the caches never learn of it.
    let (claim, volume) = local(&stage.namespace, "unseen", "node-a", "durability");
    stage.actors.make(VOLUMES, &volume.context("no volume")?).await?;
    stage.actors.make(&stage.path("persistentvolumeclaims"), &claim).await?;
    eventually("the caches know the newest claim, so that it can be taken from them", async || {
        let (claim, volume) = (ObjectKey::new(&stage.namespace, "unseen"), ObjectKey::new("", "volume-of-unseen"));
        ensure!(stage.caches.claims.get(&claim).is_some() && stage.caches.volumes.get(&volume).is_some(), "not yet");
        stage.caches.claims.delete(&claim);
        stage.caches.volumes.delete(&volume);
        anyhow::Ok(())
    })
    .await?;
    let made = make_pod(stage, &pod("user-of-unseen", &["unseen"])).await?;
    ensure!(Wishes::of(&made).required == Some(vec![vec!["host=node-a".to_owned()]]), "{made}");
    Ok(())
}

/// Somebody who changes pods after us makes the API server ask again.
async fn asked_twice_a_pod_is_steered_once(stage: &Stage) -> Result<()> {
    let policies = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies";
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy", "metadata": {"name": "zealous"},
        "spec": {
            "reinvocationPolicy": "IfNeeded", "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]},
            ]},
            "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {
                "expression": "Object{metadata: Object.metadata{labels: {'steered': string(has(object.spec.affinity))}}}",
            }}],
        },
    });
    stage.actors.make(policies, &policy).await?;
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": "zealous"}, "spec": {"policyName": "zealous"},
    });
    stage.actors.make("/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings", &binding).await?;
    eventually("the API server to ask twice about one pod", async || {
        stage.answers.take();
        let outcome = stage.rehearse(&pod("twice", &["one", "apart"])).await?;
        ensure!(outcome.code == 201, "{outcome:?}");
        let answers = stage.answers.take();
        ensure!(answers.len() == 2, "it asks {} times: {}", answers.len(), outcome.body["metadata"]["labels"]);
        ensure!(outcome.body["metadata"]["labels"]["steered"] == "true", "{}", outcome.body);
        ensure!(answers[0].patch.is_some() && answers[1].patch.is_none(), "{answers:?}");
        let wishes = Wishes::of(&outcome.body);
        ensure!(wishes.required == Some(vec![vec!["host=node-b".to_owned()]]), "{wishes:?}");
        ensure!(wishes.preferred == Some(vec![(100, vec!["host=node-a".to_owned()])]), "{wishes:?}");
        anyhow::Ok(())
    })
    .await?;
    let gone = stage.actors.send(STAGEHAND, Method::DELETE, &format!("{policies}/zealous"), None).await?;
    ensure!(gone.code == 200, "{gone:?}");
    Ok(())
}

async fn errors_are_told_and_refuse_nobody_who_is_not_concerned(stage: &Stage) -> Result<()> {
    let role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/claimkeeper-system:claimkeeper:placement";
    let watches = json!({"apiGroups": ["", "storage.k8s.io"], "resources": ["*"], "verbs": ["list", "watch"]});
    let taken = stage.actors.send(STAGEHAND, Method::PATCH, role, Some(&json!({"rules": [watches]}))).await?;
    ensure!(taken.code == 200, "{taken:?}");
    // The API server takes a moment to know who may do what.
    eventually("the event of an error", async || {
        let mut blind = pod("", &["nowhere", "kept"]);
        blind["metadata"] = json!({"generateName": "blind-"});
        let made = stage.actors.send("alice", Method::POST, &stage.path("pods"), Some(&blind)).await?;
        ensure!(made.code == 201, "{made:?}");
        // The other volume is followed nevertheless.
        ensure!(Wishes::of(&made.body).required == Some(vec![vec!["host=node-a".to_owned()]]), "{made:?}");
        ensure!(
            made.warnings.iter().any(|text| text.contains("claim nowhere or its volume cannot be read")),
            "{made:?}"
        );
        let events = stage.events().await?;
        let told = |event: &Value| event["reason"] == "VolumeUnreadable" && event["regarding"]["name"] == "blind-";
        ensure!(events.iter().any(told), "{events:?}");
        anyhow::Ok(())
    })
    .await?;
    stage.set(Settings { on_error: OnError::Deny, ..Settings::default() });
    let refused = stage.rehearse(&pod("careful", &["nowhere"])).await?;
    ensure!(refused.code == 500 && refused.body["details"]["causes"][0]["reason"] == "VolumeUnreadable", "{refused:?}");
    ensure!(stage.rehearse(&pod("not-concerned", &["one"])).await?.code == 201);
    what_a_class_tells_is_believed(stage, role).await
}

/// Claims can be read again, but no volumes.
async fn what_a_class_tells_is_believed(stage: &Stage, role: &str) -> Result<()> {
    let word = "localdisk.csi.acstor.io/failover-mode";
    for (name, provisioner, parameters) in [
        ("network", "disks.example.dev", json!({})),
        ("local", "localdisk.csi.acstor.io", json!({})),
        ("local-kept", "localdisk.csi.acstor.io", json!({word: "durability"})),
        ("by-hand", "kubernetes.io/no-provisioner", json!({})),
    ] {
        let class = json!({"metadata": {"name": name}, "provisioner": provisioner, "parameters": parameters});
        stage.actors.make(CLASSES, &class).await?;
        let claim = claim(&format!("lost-{name}"), &stage.namespace, name, Some("never-made"));
        stage.actors.make(&stage.path("persistentvolumeclaims"), &claim).await?;
    }
    let watches = json!({"apiGroups": ["", "storage.k8s.io"], "resources": ["*"], "verbs": ["list", "watch"]});
    let gets = json!({"apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["get"]});
    let given = stage.actors.send(STAGEHAND, Method::PATCH, role, Some(&json!({"rules": [watches, gets]}))).await?;
    ensure!(given.code == 200, "{given:?}");
    eventually("each class to be believed", async || {
        ensure!(stage.caches.classes.len() == 4, "the caches do not know all classes");
        for (class, code) in [("network", 201), ("local", 201), ("local-kept", 500), ("by-hand", 500)] {
            let name = format!("lost-{class}");
            let key = ObjectKey::new(&stage.namespace, &name);
            ensure!(stage.caches.claims.get(&key).is_some(), "the caches do not know the claim");
            stage.caches.claims.delete(&key);
            let outcome = stage.rehearse(&pod("user", &[&name])).await?;
            // For the next try, if there is one.
            stage.caches.claims.apply(slim(claim(&name, &stage.namespace, class, Some("never-made"))));
            ensure!(outcome.code == code, "{class}: {outcome:?}");
        }
        anyhow::Ok(())
    })
    .await
}
