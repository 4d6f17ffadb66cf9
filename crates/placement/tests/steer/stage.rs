//! A control plane of its own, because nodes and classes are everybody's; an admission server with the feature behind the chart's
//! webhook configuration; and whoever asks.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use cluster::{ObjectKey, server::ListMode, watch::Watches};
use http::Method;
use kube::Client;
use placement::{Caches, Settings, Steering};
use platform::{
    admission::{self, AdmissionServer, Webhook},
    client::{self, ClientOptions},
    events::Recorder,
    metrics::Registry,
    readiness::Readiness,
};
use rehearsal::{Actors, Outcome, STAGEHAND, Understudy, self_signed};
use serde_json::{Value, json};
use testbed::{Cluster, ControlPlane, Options, eventually};
use tokio::{sync::MutexGuard, task::AbortHandle};
use tokio_util::sync::CancellationToken;

use crate::{decided::stores, table::claim};

/// What the API server calls the webhook.
pub(crate) const NAME: &str = "pods.placement.claimkeeper.dev";

const HOME: &str = "claimkeeper-system";

/// Who the feature is.
pub(crate) const ACCOUNT: &str = "system:serviceaccount:claimkeeper-system:claimkeeper";

pub(crate) const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";
pub(crate) const VOLUMES: &str = "/api/v1/persistentvolumes";
pub(crate) const NODES: &str = "/api/v1/nodes";

/// A control plane takes half a gigabyte, and half a core while it starts: one after the other.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// The feature on its stage.
pub(crate) struct Stage {
    pub(crate) cluster: Cluster,
    pub(crate) caches: Caches,
    pub(crate) registry: Registry,
    pub(crate) answers: Arc<Understudy>,
    pub(crate) namespace: String,
    client: Client,
    recorder: Recorder,
    pub(crate) actors: Actors,
    tasks: Vec<AbortHandle>,
    _control_plane: ControlPlane,
    _turn: MutexGuard<'static, ()>,
}

impl Stage {
    /// Without controllers: nobody but the test moves anything.
    pub(crate) async fn open(name: &str) -> Result<Self> {
        Self::on(Options::default().name(name).without_scheduler().nodes(0)).await
    }

    pub(crate) async fn on(options: Options) -> Result<Self> {
        let turn = TURN.lock().await;
        let options = options.without_controller_manager().provisioner(false);
        // What is deleted is gone, although no controller takes the finalizers off.
        let control_plane =
            ControlPlane::start(options.apiserver_flag("--disable-admission-plugins=StorageObjectInUseProtection"))
                .await?;
        let cluster = control_plane.cluster();
        let (registry, readiness) = (Registry::default(), Readiness::default());
        let (certificate, authority) = self_signed()?;
        let listen = admission::Settings { listen: ([127, 0, 0, 1], 0).into(), ..admission::Settings::default() };
        let server = AdmissionServer::bind(listen, certificate, &registry, &readiness).await?;
        let values = values(&format!("https://{}", server.address()?), &authority);
        let kubeconfig = cluster.install_chart("claimkeeper", HOME, &values).await?;
        let config = client::load_config(Some(&kubeconfig))?;
        let reader = client::build(config.clone(), ClientOptions::new(&registry))?;
        let (recorder, worker) = Recorder::new(reader.clone(), "claimkeeper.dev/placement", "test", &registry);
        let client = {
            let _guard = server.enter();
            client::build(config, ClientOptions { retry: false, ..ClientOptions::new(&registry) })?
        };
        let (caches, registry_of_watches) = (stores(), registry.clone());
        let watches = Watches {
            client: reader,
            namespace: None,
            list_mode: ListMode::Streamed,
            readiness,
            registry: registry_of_watches,
        };
        let answers = Understudy::of("/mutate-pod");
        let webhooks: Vec<Arc<dyn Webhook>> = vec![Arc::clone(&answers) as Arc<dyn Webhook>];
        let tasks = vec![
            tokio::spawn(watches.feed(&caches.claims)).abort_handle(),
            tokio::spawn(watches.feed_cluster_scoped(&caches.classes)).abort_handle(),
            tokio::spawn(watches.feed_cluster_scoped(&caches.volumes)).abort_handle(),
            tokio::spawn(watches.feed_cluster_scoped(&caches.nodes)).abort_handle(),
            tokio::spawn(worker.run(CancellationToken::new())).abort_handle(),
            tokio::spawn(async move { server.serve(webhooks, CancellationToken::new()).await }).abort_handle(),
        ];
        let namespace = cluster.create_namespace("steer").await?;
        let stage = Self {
            actors: Actors::on(cluster.clone()),
            cluster,
            caches,
            registry,
            answers,
            namespace,
            client,
            recorder,
            tasks,
            _control_plane: control_plane,
            _turn: turn,
        };
        stage.set(Settings::default());
        stage.until_asked().await?;
        Ok(stage)
    }

    /// From now on these settings count.
    pub(crate) fn set(&self, settings: Settings) {
        let (caches, client, recorder) = (self.caches.clone(), self.client.clone(), self.recorder.clone());
        let feature = Steering::new(caches, Arc::new(settings), client, recorder, &self.registry);
        self.answers.play(Arc::new(feature));
    }

    /// The API server takes a moment to see a new webhook configuration.
    async fn until_asked(&self) -> Result<()> {
        let probe = pod("probe", &["no-such-claim"]);
        eventually("the API server asks the webhook", async || {
            let answer = self.rehearse(&probe).await?;
            ensure!(!self.answers.take().is_empty(), "it does not yet: {answer:?}");
            anyhow::Ok(())
        })
        .await
    }

    /// What would become of a pod.
    pub(crate) async fn rehearse(&self, pod: &Value) -> Result<Outcome> {
        self.actors.send("alice", Method::POST, &format!("{}?dryRun=All", self.path("pods")), Some(pod)).await
    }

    /// A path in the namespace of the stage.
    pub(crate) fn path(&self, resource: &str) -> String {
        format!("/api/v1/namespaces/{}/{resource}", self.namespace)
    }

    /// A volume with its claim; whoever wants the caches to know waits for it.
    pub(crate) async fn bind(&self, (claim, volume): (Value, Option<Value>)) -> Result<()> {
        if let Some(volume) = volume {
            self.actors.make(VOLUMES, &volume).await?;
        }
        self.actors.make(&self.path("persistentvolumeclaims"), &claim).await.map(drop)
    }

    /// A claim with a volume that was made on a node.
    pub(crate) async fn local(&self, name: &str, node: &str, mode: &str) -> Result<()> {
        self.bind(local(&self.namespace, name, node, mode)).await?;
        eventually("the caches know the claim and its volume", async || {
            let (claim, volume) =
                (ObjectKey::new(&self.namespace, name), ObjectKey::new("", &format!("volume-of-{name}")));
            ensure!(self.caches.claims.get(&claim).is_some() && self.caches.volumes.get(&volume).is_some(), "not yet");
            anyhow::Ok(())
        })
        .await
    }

    pub(crate) async fn events(&self) -> Result<Vec<Value>> {
        let path = format!("/apis/events.k8s.io/v1/namespaces/{}/events", self.namespace);
        let list = self.actors.send(STAGEHAND, Method::GET, &path, None).await?.body;
        let ours = |event: &&Value| event["reportingController"] == "claimkeeper.dev/placement";
        Ok(list["items"].as_array().context("no list")?.iter().filter(ours).cloned().collect())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

/// The chart with its own webhook, but for the one who sets the scene. A webhook that cannot be reached fails the test.
fn values(url: &str, authority: &str) -> Value {
    let condition = json!({
        "name": "not-the-stagehand", "expression": format!("request.userInfo.username != '{STAGEHAND}'"),
    });
    json!({
        "features": ["placement"],
        "webhook": {
            "url": url,
            "hyperconverged": {"failurePolicy": "Fail", "timeoutSeconds": 30, "matchConditions": [condition]},
            "certificates": {"mode": "files", "caBundle": authority},
        },
    })
}

/// A claim with a volume that was made on a node.
pub(crate) fn local(namespace: &str, name: &str, node: &str, mode: &str) -> (Value, Option<Value>) {
    let volume = format!("volume-of-{name}");
    let object = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": "local",
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": name},
            "csi": {"driver": "localdisk.csi.acstor.io", "volumeHandle": format!("containerstorage#{volume}"), "volumeAttributes": {
                "localdisk.csi.acstor.io/selected-initial-node": node, "localdisk.csi.acstor.io/failover-mode": mode,
            }},
        },
    });
    (claim(name, namespace, "local", Some(&volume)), Some(object))
}

/// A pod that uses these claims.
pub(crate) fn pod(name: &str, claims: &[&str]) -> Value {
    let volume = |name: &&str| json!({"name": name, "persistentVolumeClaim": {"claimName": name}});
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": "none"}], "volumes": claims.iter().map(volume).collect::<Value>()},
    })
}
