//! Replicas that only answer API servers.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
    core::v1::{Namespace, PersistentVolumeClaim, Pod},
    storage::v1::StorageClass,
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use testbed::{Service, eventually};
use tokio::time::timeout;

use crate::{
    home::{Home, ask},
    pod::PodOfChart,
    release::Release,
};

#[tokio::test(flavor = "multi_thread")]
async fn replicas_that_only_answer_become_ready_and_write_nothing() -> Result<()> {
    let release = Release::install(&json!({"split": true})).await?;
    release.check_configurations()?;
    let controller = release.start("claimkeeper").await?;
    let observer = release.start("claimkeeper-webhook").await?;
    assert!(observer.replica.webhook.is_some());
    release.until_leads(&controller).await?;
    let asked = release.requests(observer).await?;
    let reads = ["get", "list", "watch"];
    let written: Vec<_> = asked.iter().filter(|(verb, _)| !reads.contains(&verb.as_str())).collect();
    // Who it is, it asks; whether it may, nobody else's rights decide.
    let told = ["selfsubjectreviews", "events"];
    assert!(written.iter().all(|(_, resource)| told.contains(&resource.as_str())), "{written:?}");
    assert!(!asked.iter().any(|(_, resource)| resource == "leases"), "{asked:?}");
    release.requests(controller).await?;
    Ok(())
}

/// What the right is for, as verb and resource: what the caches do not know is read live, and what was decided is told.
const LIVE: [(&str, &str); 7] = [
    ("get", "storageclasses"),
    ("get", "persistentvolumes"),
    ("get", "pods"),
    ("get", "namespaces"),
    ("get", "persistentvolumeclaims"),
    ("create", "events"),
    ("patch", "events"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_that_only_answer_read_what_they_do_not_know_and_tell_what_they_decided() -> Result<()> {
    let scene = Scene::open().await?;
    let mut service = Service::start(Duration::ZERO).await?;
    let values = json!({"split": true, "namespace": scene.shop.namespace});
    let release = Release::asked(&service, &scene.label, &values).await?;
    let controller = release.start("claimkeeper").await?;
    let observer = release.start("claimkeeper-webhook").await?;
    let (admin, webhook) = (observer.replica.admin, observer.replica.webhook.context("it answers nobody")?);
    service.add(webhook, move || async move {
        matches!(timeout(Duration::from_secs(30), ask(admin, "/readyz")).await, Ok(Ok((200, _))))
    });
    eventually("the API server to ask", async || {
        let refused = scene.claim(&scene.shop, &json!({"name": "rehearsal"}), &scene.local, true).await;
        ensure!(refused.as_ref().is_err_and(is_by_rule), "{refused:?}");
        Ok(())
    })
    .await?;

    scene.ask_about_what_is_not_known().await?;
    until_asked_for(&release, &observer, &LIVE).await?;
    let written: BTreeSet<_> = release.requests(observer).await?;
    let reads = ["get", "list", "watch"];
    let others = written.iter().filter(|(verb, _)| !reads.contains(&verb.as_str()));
    let others: BTreeSet<&str> = others.map(|(_, resource)| resource.as_str()).collect();
    assert_eq!(others, BTreeSet::from(["events", "selfsubjectreviews"]));
    release.requests(controller).await?;
    scene.close(&release).await
}

/// A namespace that is looked after, and one about which API servers ask all the same, so that nothing of it is ever cached.
struct Scene {
    shop: Home,
    annex: Home,
    /// Both have it.
    label: String,
    /// A class under the rule.
    local: String,
}

impl Scene {
    async fn open() -> Result<Self> {
        let cluster = testbed::shared().await?;
        let shop = Home::on(cluster.clone(), "shop").await?;
        let annex = Home::on(cluster.clone(), "annex").await?;
        let admin = cluster.admin().await?;
        let (label, local) = (format!("asked-{}", shop.namespace), format!("local-{}", shop.namespace));
        let labelled = Patch::Merge(json!({"metadata": {"labels": {&label: "yes"}}}));
        for home in [&shop, &annex] {
            let namespaces: Api<Namespace> = Api::all(admin.clone());
            namespaces.patch(&home.namespace, &PatchParams::default(), &labelled).await?;
        }
        let class = json!({"metadata": {"name": local}, "provisioner": "localdisk.csi.acstor.io"});
        let classes: Api<StorageClass> = Api::all(admin);
        classes.create(&PostParams::default(), &serde_json::from_value(class)?).await?;
        Ok(Self { shop, annex, label, local })
    }

    /// Tries to make a claim.
    async fn claim(
        &self,
        home: &Home,
        metadata: &Value,
        class: &str,
        dry_run: bool,
    ) -> kube::Result<PersistentVolumeClaim> {
        let spec = json!({
            "storageClassName": class, "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
            // Only where the class does not say it all.
            "volumeName": (class != self.local).then_some(class),
        });
        let claim =
            serde_json::from_value(json!({"metadata": metadata, "spec": spec})).map_err(kube::Error::SerdeError)?;
        home.claims.create(&PostParams { dry_run, ..PostParams::default() }, &claim).await
    }

    async fn ask_about_what_is_not_known(&self) -> Result<()> {
        let nowhere = format!("nowhere-{}", self.shop.namespace);
        self.claim(&self.shop, &json!({"name": "data"}), &nowhere, false).await?;
        let owner = json!([{
            "apiVersion": "v1", "kind": "Pod", "name": "gone", "uid": "00000000-0000-0000-0000-000000000000",
            "controller": true,
        }]);
        let orphan = json!({"name": "gone-data", "ownerReferences": owner});
        ensure!(self.claim(&self.shop, &orphan, &self.local, true).await.is_err_and(|error| is_by_rule(&error)));
        ensure!(
            self.claim(&self.annex, &json!({"name": "bare"}), &self.local, true).await.is_err_and(|e| is_by_rule(&e))
        );
        // The second time it is the same event, with another count.
        for _ in 0..2 {
            let bare = json!({"name": "bare"});
            ensure!(self.claim(&self.shop, &bare, &self.local, false).await.is_err_and(|error| is_by_rule(&error)));
        }
        for claim in ["data", "nobody-made-it"] {
            let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": {
                "containers": [{"name": "main", "image": "registry.example/main"}],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
            }}))?;
            self.shop.pods.create(&PostParams { dry_run: true, ..PostParams::default() }, &pod).await?;
        }
        Ok(())
    }

    /// Nobody answers after the test: a webhook that must be asked would hold up what Kubernetes does with the claims.
    async fn close(self, release: &Release) -> Result<()> {
        let admin = self.shop.cluster.admin().await?;
        let (validating, mutating): (Api<ValidatingWebhookConfiguration>, Api<MutatingWebhookConfiguration>) =
            (Api::all(admin.clone()), Api::all(admin));
        let name = |webhook: &str| format!("{webhook}.{}", release.namespace);
        validating.delete(&name("enforceephemeral"), &DeleteParams::default()).await?;
        mutating.delete(&name("hyperconverged"), &DeleteParams::default()).await?;
        Ok(())
    }
}

fn is_by_rule(error: &kube::Error) -> bool {
    error.to_string().contains("only generic ephemeral volumes are allowed")
}

/// Events are on their way for a moment, and the audit log is written after the answer.
async fn until_asked_for(release: &Release, replica: &PodOfChart, wanted: &[(&str, &str)]) -> Result<()> {
    eventually("everything to be asked for", async || {
        let requests = release.cluster.audit_log().user(&replica.replica.user).requests()?;
        let asked: BTreeSet<(String, String)> =
            requests.into_iter().filter_map(|request| Some((request.verb, request.object_ref?.resource))).collect();
        let left: Vec<_> =
            wanted.iter().filter(|(verb, kind)| !asked.contains(&((*verb).to_owned(), (*kind).to_owned()))).collect();
        ensure!(left.is_empty(), "{left:?} are left");
        Ok(())
    })
    .await
}
