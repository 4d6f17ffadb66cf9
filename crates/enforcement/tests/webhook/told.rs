//! What is told and counted besides the answer, and that answering costs the API server nothing.

use anyhow::{Result, ensure};
use enforcement::{
    Settings,
    settings::{OnError, Told},
};
use http::Method;
use jiff::Timestamp;
use rehearsal::{Outcome, STAGEHAND};
use serde_json::{Value, json};
use testbed::eventually;

use crate::stage::{ACCOUNT, Stage};

const ACCEPT: &str = "localdisk.csi.acstor.io/accept-ephemeral-storage";

fn claim(metadata: &Value, class: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata,
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": class},
    })
}

struct Scene {
    stage: Stage,
    namespace: String,
}

impl Scene {
    async fn open() -> Result<Self> {
        let stage = Stage::open("told").await?;
        for (name, provisioner) in [("local", "localdisk.csi.acstor.io"), ("network", "disks.example.dev")] {
            let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name}, "provisioner": provisioner});
            stage.actors.make("/apis/storage.k8s.io/v1/storageclasses", &class).await?;
        }
        let namespace = stage.namespace(None).await?;
        let scene = Self { stage, namespace };
        eventually("the caches are warm", async || {
            let caches = &scene.stage.caches;
            ensure!(caches.classes.len() == 2, "{} classes", caches.classes.len());
            let namespace = cluster::ObjectKey::new("", &scene.namespace);
            ensure!(caches.namespaces.get(&namespace).is_some(), "the namespace is not known");
            anyhow::Ok(())
        })
        .await?;
        Ok(scene)
    }

    async fn apply(&self, query: &str, claim: &Value) -> Result<Outcome> {
        let path = format!("/api/v1/namespaces/{}/persistentvolumeclaims{query}", self.namespace);
        self.stage.actors.send("alice", Method::POST, &path, Some(claim)).await
    }

    async fn events(&self) -> Result<Vec<Value>> {
        let path = format!("/apis/events.k8s.io/v1/namespaces/{}/events", self.namespace);
        let list = self.stage.actors.send(STAGEHAND, Method::GET, &path, None).await?.body;
        Ok(list["items"].as_array().unwrap().clone())
    }

    /// Type, reason and claim of the events, sorted.
    async fn told(&self) -> Result<Vec<(String, String, String)>> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let events = self.events().await?;
        let told = events
            .iter()
            .map(|event| (text(&event["type"]), text(&event["reason"]), text(&event["regarding"]["name"])));
        let mut told: Vec<_> = told.collect();
        told.sort();
        Ok(told)
    }

    fn metric(&self, series: &str) -> Option<String> {
        let text = self.stage.registry.encode();
        text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ').map(str::to_owned))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_looks_is_told_and_the_api_server_is_not_bothered() -> Result<()> {
    let scene = Scene::open().await?;
    decisions_are_told_as_events(&scene).await?;
    everything_is_told_if_so_configured(&scene).await?;
    requests_are_counted_as_the_original_documents(&scene);
    warm_caches_answer_without_the_api_server(&scene).await?;
    what_a_new_namespace_says_is_read_live(&scene).await?;
    errors_are_told_and_refuse_nobody(&scene).await
}

async fn decisions_are_told_as_events(scene: &Scene) -> Result<()> {
    for _ in 0..2 {
        ensure!(scene.apply("", &claim(&json!({"name": "bare"}), "local")).await?.code == 403);
        ensure!(scene.apply("", &claim(&json!({"generateName": "made-up-"}), "local")).await?.code == 403);
    }
    ensure!(
        scene.apply("", &claim(&json!({"name": "knows", "annotations": {ACCEPT: "true"}}), "local")).await?.code == 201
    );
    ensure!(scene.apply("", &claim(&json!({"name": "network"}), "network")).await?.code == 201);
    ensure!(scene.apply("?dryRun=All", &claim(&json!({"name": "only-asks"}), "local")).await?.code == 403);
    let expected = [
        ("Normal", "ClaimAllowed", "knows"),
        ("Warning", "ClaimDenied", "bare"),
        ("Warning", "ClaimDenied", "made-up-"),
    ]
    .map(|(kind, reason, name)| (kind.to_owned(), reason.to_owned(), name.to_owned()));
    eventually("the events", async || {
        let told = scene.told().await?;
        ensure!(told == expected, "{told:?}");
        anyhow::Ok(())
    })
    .await?;
    for event in scene.events().await? {
        let made = event["regarding"]["name"] == "knows";
        ensure!(event["regarding"]["uid"].is_string() == made, "who is not made has no uid: {event}");
        ensure!(
            made || event["note"].as_str().unwrap().contains("only generic ephemeral volumes are allowed"),
            "{event}"
        );
    }
    Ok(())
}

async fn everything_is_told_if_so_configured(scene: &Scene) -> Result<()> {
    scene.stage.set(Settings { events: Told::None, ..Settings::default() });
    ensure!(scene.apply("", &claim(&json!({"name": "silent"}), "local")).await?.code == 403);
    scene.stage.set(Settings { events: Told::All, ..Settings::default() });
    ensure!(scene.apply("", &claim(&json!({"name": "loud"}), "network")).await?.code == 201);
    eventually("the event of a claim of another driver", async || {
        let told = scene.told().await?;
        ensure!(told.iter().any(|(_, reason, name)| reason == "ClaimAllowed" && name == "loud"), "{told:?}");
        ensure!(told.iter().all(|(_, _, name)| name != "silent"), "{told:?}");
        anyhow::Ok(())
    })
    .await?;
    scene.stage.set(Settings::default());
    Ok(())
}

fn requests_are_counted_as_the_original_documents(scene: &Scene) {
    let text = scene.stage.registry.encode();
    for line in [
        "# HELP pvc_total Number of processed pvc requests, partitioned by operation and whether it was allowed.",
        "# TYPE pvc_total counter",
        "# HELP pvc_duration_seconds Distribution of the length of time to handle pvc requests.",
        "# TYPE pvc_duration_seconds histogram",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
    }
    let bounds: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("pvc_duration_seconds_bucket{le=\"")?.split('"').next())
        .collect();
    assert_eq!(bounds, ["0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1", "2.5", "5", "10", "+Inf"]);
    // Twice two, the dry run and the silent one.
    assert_eq!(scene.metric(r#"pvc_total{operation="create",allowed="false"}"#).as_deref(), Some("6"));
    let denied =
        r#"claimkeeper_admission_requests_total{webhook="validate-pvc",decision="deny",reason="NotEphemeral"}"#;
    assert_eq!(scene.metric(denied).as_deref(), Some("6"));
}

async fn warm_caches_answer_without_the_api_server(scene: &Scene) -> Result<()> {
    scene.stage.set(Settings { events: Told::None, ..Settings::default() });
    let began = Timestamp::now();
    for round in 0..20 {
        let name = format!("denied-{round}");
        ensure!(scene.apply("?dryRun=All", &claim(&json!({"name": name}), "local")).await?.code == 403);
        let accepts = json!({"name": format!("accepted-{round}"), "annotations": {ACCEPT: "true"}});
        ensure!(scene.apply("", &claim(&accepts, "local")).await?.code == 201);
        ensure!(scene.apply("", &claim(&json!({"name": format!("network-{round}")}), "network")).await?.code == 201);
    }
    // A class that nobody has heard of is worth one look, and shows that looks would be seen.
    ensure!(scene.apply("", &claim(&json!({"name": "nowhere"}), "nowhere")).await?.code == 201);
    eventually("the one look", async || {
        let asked = scene.stage.cluster.audit_log().user(ACCOUNT).since(began).requests()?;
        // A watch shows up when it ends, and events are still on their way.
        let asked: Vec<String> = asked
            .into_iter()
            .filter(|request| !["watch", "create", "patch"].contains(&request.verb.as_str()))
            .map(|request| format!("{} {}", request.verb, request.request_uri))
            .collect();
        ensure!(asked == ["get /apis/storage.k8s.io/v1/storageclasses/nowhere"], "{asked:?}");
        anyhow::Ok(())
    })
    .await
}

async fn what_a_new_namespace_says_is_read_live(scene: &Scene) -> Result<()> {
    scene.stage.stop_hearing_of_namespaces().await?;
    for (label, code) in [(Some("warn"), 201), (None, 403)] {
        let namespace = scene.stage.namespace(label).await?;
        let path = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims");
        let bare = claim(&json!({"name": "bare"}), "local");
        let outcome = scene.stage.actors.send("alice", Method::POST, &path, Some(&bare)).await?;
        ensure!(outcome.code == code, "{label:?}: {outcome:?}");
    }
    Ok(())
}

async fn errors_are_told_and_refuse_nobody(scene: &Scene) -> Result<()> {
    scene.stage.set(Settings::default());
    let role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/claimkeeper-system:claimkeeper:enforcement";
    let watches = json!({"apiGroups": ["storage.k8s.io"], "resources": ["storageclasses"], "verbs": ["list", "watch"]});
    let taken = scene.stage.actors.send(STAGEHAND, Method::PATCH, role, Some(&json!({"rules": [watches]}))).await?;
    ensure!(taken.code == 200, "{taken:?}");
    let denied = || scene.metric(r#"pvc_total{operation="create",allowed="false"}"#);
    // The API server takes a moment to know who may do what.
    eventually("the event of an error", async || {
        let before = denied();
        let made = scene.apply("", &claim(&json!({"generateName": "unknown-"}), "nowhere")).await?;
        ensure!(made.code == 201, "{made:?}");
        let name = made.body["metadata"]["name"].as_str().unwrap();
        ensure!(denied() != before, "{name} is no error");
        let told = scene.told().await?;
        ensure!(told.iter().any(|(kind, reason, _)| kind == "Warning" && reason == "ClaimErrored"), "{told:?}");
        anyhow::Ok(())
    })
    .await?;
    ensure!(scene.apply("", &claim(&json!({"name": "not-concerned"}), "network")).await?.code == 201);
    scene.stage.set(Settings { on_error: OnError::Deny, ..Settings::default() });
    let refused = scene.apply("", &claim(&json!({"name": "careful"}), "nowhere")).await?;
    ensure!(refused.code == 500 && refused.body["details"]["causes"][0]["reason"] == "ClassUnreadable", "{refused:?}");
    ensure!(scene.apply("", &claim(&json!({"name": "still-not-concerned"}), "network")).await?.code == 201);
    Ok(())
}
