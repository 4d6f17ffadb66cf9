//! Watches of a real API server.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use cluster::{
    Claim, ObjectKey, Pod, Store, Template,
    creation::{self, NewClaim},
    live,
    server::ListMode,
    store::{Change, Slim, Subscription},
    watch::Watches,
};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod as FullPod};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use parking_lot::Mutex;
use platform::{
    client::{self, ClientOptions},
    metrics::Registry,
    readiness::Readiness,
};
use serde_json::json;
use testbed::{Cluster, Component, ControlPlane, Options, eventually};
use tokio::task::JoinHandle;

/// A namespace, a store of its claims, and what a subscriber heard.
struct Scene {
    claims: Api<PersistentVolumeClaim>,
    namespace: String,
    store: Store<Claim>,
    watches: Watches,
    deleted: Arc<Mutex<Vec<String>>>,
    _subscription: Subscription<Claim>,
}

impl Scene {
    async fn on(cluster: &Cluster, list_mode: ListMode) -> Result<Self> {
        let namespace = cluster.create_namespace("watch").await?;
        let registry = Registry::default();
        let config = client::load_config(Some(cluster.admin_kubeconfig()))?;
        let watches = Watches {
            client: client::build(config, ClientOptions::new(&registry))?,
            namespace: Some(namespace.clone()),
            list_mode,
            readiness: Readiness::default(),
            registry,
        };
        let store: Store<Claim> = Store::new(vec![|_| true], vec![]);
        let deleted = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&deleted);
        let subscription = store.subscribe(move |change| {
            if let Change::Deleted { old } = change {
                heard.lock().push(old.key.name().to_owned());
            }
        });
        let claims = Api::namespaced(cluster.admin().await?, &namespace);
        Ok(Self { claims, namespace, store, watches, deleted, _subscription: subscription })
    }

    fn feed(&self) -> JoinHandle<()> {
        tokio::spawn(self.watches.feed(&self.store))
    }

    async fn create(&self, name: &str) -> Result<()> {
        let claim = json!({
            "metadata": {"name": name},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "none", "resources": {"requests": {"storage": "1Gi"}}},
        });
        self.claims.create(&PostParams::default(), &serde_json::from_value(claim)?).await?;
        Ok(())
    }

    async fn delete(&self, name: &str) -> Result<()> {
        self.claims.delete(name, &DeleteParams::default()).await?;
        let gone = async || match self.claims.get_opt(name).await? {
            Some(_) => anyhow::bail!("it is still there"),
            None => Ok(()),
        };
        eventually("the claim to be gone", gone).await
    }

    async fn until_known(&self, name: &str) -> Result<()> {
        let key = ObjectKey::new(&self.namespace, name);
        eventually(&format!("{name} in the store"), async || {
            ensure!(self.store.get(&key).is_some(), "not there");
            Ok(())
        })
        .await
    }

    fn metric(&self, line: &str) -> bool {
        self.watches.registry.encode().lines().any(|printed| printed == line)
    }
}

#[tokio::test]
async fn both_ways_of_listing_fill_the_store_and_follow_changes() -> Result<()> {
    let cluster = testbed::shared().await?;
    for mode in [ListMode::Streamed, ListMode::Paged] {
        let scene = Scene::on(&cluster, mode).await?;
        scene.create("early").await?;
        let feed = scene.feed();
        scene.store.synced().await;
        assert_eq!(scene.store.len(), 1);
        assert!(scene.watches.readiness.is_ready());
        scene.create("late").await?;
        scene.until_known("late").await?;
        scene.delete("early").await?;
        eventually("the deletion to be heard", async || {
            ensure!(*scene.deleted.lock() == ["early"], "{:?}", scene.deleted.lock());
            Ok(())
        })
        .await?;
        feed.abort();
    }
    Ok(())
}

#[tokio::test]
async fn what_was_deleted_while_nobody_watched_is_reported_by_the_next_list() -> Result<()> {
    let scene = Scene::on(&testbed::shared().await?, ListMode::Streamed).await?;
    scene.create("kept").await?;
    scene.create("lost").await?;
    let feed = scene.feed();
    scene.until_known("kept").await?;
    scene.until_known("lost").await?;
    feed.abort();
    assert!(feed.await.is_err_and(|error| error.is_cancelled()));

    scene.delete("lost").await?;
    scene.create("new").await?;
    let _feed = scene.feed();
    scene.until_known("new").await?;
    eventually("the missed deletion to be heard", async || {
        ensure!(*scene.deleted.lock() == ["lost"], "{:?}", scene.deleted.lock());
        Ok(())
    })
    .await
}

/// Objects come in the binary format and are read live as text: nobody may be able to tell.
#[tokio::test]
async fn a_pod_and_a_claim_are_the_same_in_both_formats() -> Result<()> {
    let cluster = testbed::shared().await?;
    let scene = Scene::on(&cluster, ListMode::Streamed).await?;
    let (admin, namespace) = (cluster.admin().await?, scene.namespace.clone());
    let pods: Api<FullPod> = Api::namespaced(admin.clone(), &namespace);
    let annotations = json!({"claimkeeper.dev/cache.claim": "x", "other.example.dev/note": "y".repeat(300)});
    let template = json!({
        "metadata": {"labels": {"team": "ci"}},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    let spec = json!({
        "schedulingGates": [{"name": "claimkeeper.dev/home-node"}],
        "serviceAccountName": "default",
        "containers": [{"name": "main", "image": "none", "env": [{"name": "A", "value": "b"}]}],
        "volumes": [
            {"name": "tmp", "emptyDir": {"sizeLimit": "1Mi"}},
            {"name": "data", "persistentVolumeClaim": {"claimName": "data", "readOnly": true}},
            {"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}},
        ],
    });
    let ended = json!({"status": {"phase": "Succeeded"}});
    for (name, patch) in [("waits", None), ("ended", Some(ended))] {
        let metadata = json!({"name": name, "annotations": annotations, "labels": {"app": "x"}, "finalizers": ["example.dev/stay"]});
        let pod = serde_json::from_value(json!({"metadata": metadata, "spec": spec}))?;
        let owner = pods.create(&PostParams::default(), &pod).await?;
        if let Some(status) = patch {
            pods.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await?;
            // Somebody asked for its end, and somebody else holds it.
            pods.delete(name, &DeleteParams::default().grace_period(0)).await?;
        }
        let claim = json!({
            "metadata": {
                "name": format!("{name}-scratch"),
                "labels": {"reclaimable-pv-releaser.kubernetes.io/managed-by": "x", "app": "y"},
                "annotations": {"claimkeeper.dev/blank-recreations": "3"},
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "ConfigMap", "name": "bystander", "uid": "u0"},
                    {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": owner.metadata.uid, "controller": true},
                ],
            },
            "spec": {"accessModes": ["ReadWriteOnce"], "volumeName": "pv-1", "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}}},
        });
        scene.claims.create(&PostParams::default(), &serde_json::from_value(claim)?).await?;
    }
    let watched: Store<Pod> = Store::new(vec![|_| true], vec![]);
    let _feeds = [scene.feed(), tokio::spawn(scene.watches.feed(&watched))];
    let synced = async { tokio::join!(watched.synced(), scene.store.synced()) };
    tokio::time::timeout(testbed::PATIENCE, synced).await.context("the lists are not complete")?;

    let live: Api<<Claim as Slim>::Wire> = Api::namespaced(admin.clone(), &namespace);
    for read in live::list::<Claim>(&live).await? {
        let told = scene.store.get(&read.key).context("a claim is not known")?;
        assert_eq!(*told, read);
        assert!(read.release_labels.is_some() && read.owned_by_pod && read.volume.is_some(), "{read:?}");
    }
    let live: Api<<Pod as Slim>::Wire> = Api::namespaced(admin, &namespace);
    let read = live::list::<Pod>(&live).await?;
    assert_eq!(read.len(), 2);
    for read in read {
        let told = watched.get(&read.key).context("a pod is not known")?;
        assert!(matches!(told.ephemeral_volumes[0].template, Template::Binary(_)), "it came as text");
        assert!(matches!(read.ephemeral_volumes[0].template, Template::Json(_)));
        assert_eq!(without_templates(&told), without_templates(&read));
    }
    assert_eq!(scene.store.len(), 2);
    for pod in ["waits", "ended"] {
        pods.patch(pod, &PatchParams::default(), &Patch::Merge(json!({"metadata": {"finalizers": null}}))).await?;
    }
    Ok(())
}

/// Whoever may make a claim may write what is no text into it, which in JSON is replaced, and in the binary format is not.
#[tokio::test]
async fn an_object_that_nobody_can_read_does_not_keep_the_others_from_being_known() -> Result<()> {
    let cluster = testbed::shared().await?;
    let scene = Scene::on(&cluster, ListMode::Streamed).await?;
    let _feed = scene.feed();
    scene.create("early").await?;
    scene.until_known("early").await?;
    let admin = cluster.admin().await?;
    let key = ObjectKey::new(&scene.namespace, "broken");
    creation::create(&admin, &key, NewClaim::Binary(claim_that_is_no_text("broken"))).await?;
    scene.create("late").await?;
    scene.until_known("late").await?;
    scene.until_known("broken").await?;
    scene.delete("early").await?;
    eventually("the deletion to be heard", async || {
        ensure!(*scene.deleted.lock() == ["early"], "{:?}", scene.deleted.lock());
        Ok(())
    })
    .await?;
    // As well from the beginning.
    let store: Store<Claim> = Store::new(vec![|_| true], vec![]);
    let _feed = tokio::spawn(scene.watches.feed(&store));
    tokio::time::timeout(testbed::PATIENCE, store.synced()).await.context("the list is not complete")?;
    assert_eq!(store.len(), 2);
    // Others who look at all claims of this cluster would have to do without the binary format as well.
    scene.delete("broken").await
}

/// A claim with an annotation that is not UTF-8.
fn claim_that_is_no_text(name: &str) -> Vec<u8> {
    let field = |tag: u8, content: &[u8]| {
        let length = u8::try_from(content.len()).expect("short fields");
        [&[tag << 3 | 2, length][..], content].concat()
    };
    let annotation = [field(1, b"example.dev/note"), field(2, b"\xff\xfe")].concat();
    let metadata = [field(1, name.as_bytes()), field(12, &annotation)].concat();
    let storage = [field(1, b"storage"), field(2, &field(1, b"1Gi"))].concat();
    let spec = [field(1, b"ReadWriteOnce"), field(2, &field(2, &storage)), field(5, b"none")].concat();
    let raw = [field(1, &metadata), field(2, &spec)].concat();
    let of = [field(1, b"v1"), field(2, b"PersistentVolumeClaim")].concat();
    [b"k8s\0".to_vec(), field(1, &of), field(2, &raw)].concat()
}

fn without_templates(pod: &Pod) -> String {
    let volumes: Vec<_> = pod.ephemeral_volumes.iter().map(|volume| &volume.name).collect();
    // All fields by name, so that a new one cannot be forgotten.
    let Pod {
        key,
        uid,
        created,
        being_deleted,
        phase,
        running,
        ephemeral_volumes: _,
        used_claims,
        node,
        waits_for_home,
        claim_requests,
    } = pod;
    format!(
        "{key} {uid} {created} {being_deleted} {phase:?} {running} {volumes:?} {used_claims:?} {node:?} {waits_for_home} {claim_requests:?}"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_refuses_to_stream_lists_is_asked_for_pages() -> Result<()> {
    let options = Options::default().name("pages").nodes(0).provisioner(false).without_scheduler();
    let control_plane = ControlPlane::start(options.apiserver_flag("--feature-gates=WatchList=false")).await?;
    let scene = Scene::on(&control_plane.cluster(), ListMode::Streamed).await?;
    scene.create("early").await?;
    let _feed = scene.feed();
    scene.until_known("early").await?;
    assert!(scene.metric(r#"claimkeeper_cache_list_mode_total{kind="persistentvolumeclaims",mode="streamed"} 1"#));
    assert!(scene.metric(r#"claimkeeper_cache_list_mode_total{kind="persistentvolumeclaims",mode="paged"} 1"#));

    control_plane.kill(Component::ApiServer)?;
    control_plane.start_component(Component::ApiServer).await?;
    scene.create("after-the-restart").await?;
    scene.until_known("after-the-restart").await
}
