//! A control plane of its own, because nodes and classes are everybody's; an admission server with the feature behind the chart's
//! webhook configuration; and whoever asks.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use anyhow::{Context, Result, ensure};
use cluster::{ObjectKey, server::ListMode, watch::Watches};
use http::{Method, Request};
use jiff::{Timestamp, ToSpan};
use kube::{Client, client::Body};
use placement::{Caches, Settings, Steering};
use platform::{
    admission::{self, AdmissionServer, Answer, Answering, ServedCertificate, Webhook},
    client::{self, ClientOptions},
    events::Recorder,
    metrics::Registry,
    readiness::Readiness,
};
use rustls::{crypto::aws_lc_rs, pki_types::PrivateKeyDer, sign::CertifiedKey};
use serde_json::{Value, json};
use testbed::{Cluster, ControlPlane, Options, eventually};
use tokio::{sync::MutexGuard, task::AbortHandle};
use tokio_util::sync::CancellationToken;

use crate::{decided::stores, table::claim};

/// What the API server calls the webhook.
pub(crate) const NAME: &str = "pods.placement.claimkeeper.dev";

/// Whose requests the webhook does not see: who sets the scene.
pub(crate) const STAGEHAND: &str = "stagehand";

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
    pub(crate) answers: Arc<Switch>,
    pub(crate) namespace: String,
    client: Client,
    recorder: Recorder,
    users: tokio::sync::Mutex<HashMap<String, Client>>,
    tasks: Vec<AbortHandle>,
    _control_plane: ControlPlane,
    _turn: MutexGuard<'static, ()>,
}

/// What the API server says.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) code: u16,
    pub(crate) body: Value,
    pub(crate) warnings: Vec<String>,
}

/// The feature with the settings of the moment, and what it answered.
pub(crate) struct Switch {
    current: Mutex<Option<Arc<Steering>>>,
    answers: Mutex<Vec<Answer>>,
}

impl Switch {
    pub(crate) fn take(&self) -> Vec<Answer> {
        std::mem::take(&mut *self.answers.lock().unwrap())
    }
}

impl Webhook for Switch {
    fn path(&self) -> &'static str {
        "/mutate-pod"
    }

    fn review<'a>(&'a self, request: &'a admission::Request<'a>) -> Answering<'a> {
        let current = self.current.lock().unwrap().clone().unwrap();
        Box::pin(async move {
            let answer = current.review(request).await;
            self.answers.lock().unwrap().push(answer.clone());
            answer
        })
    }
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
        let (certificate, authority) = certificate()?;
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
        let answers = Arc::new(Switch { current: Mutex::default(), answers: Mutex::default() });
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
        let users = tokio::sync::Mutex::default();
        let stage = Self {
            cluster,
            caches,
            registry,
            answers,
            namespace,
            client,
            recorder,
            users,
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
        *self.answers.current.lock().unwrap() = Some(Arc::new(feature));
        self.answers.take();
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
        self.send("alice", Method::POST, &format!("{}?dryRun=All", self.path("pods")), Some(pod)).await
    }

    /// A path in the namespace of the stage.
    pub(crate) fn path(&self, resource: &str) -> String {
        format!("/api/v1/namespaces/{}/{resource}", self.namespace)
    }

    /// A volume with its claim; whoever wants the caches to know waits for it.
    pub(crate) async fn bind(&self, (claim, volume): (Value, Option<Value>)) -> Result<()> {
        if let Some(volume) = volume {
            self.make(VOLUMES, &volume).await?;
        }
        self.make(&self.path("persistentvolumeclaims"), &claim).await.map(drop)
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

    /// Sets the scene with an object.
    pub(crate) async fn make(&self, path: &str, object: &Value) -> Result<Value> {
        let made = self.send(STAGEHAND, Method::POST, path, Some(object)).await?;
        ensure!(made.code == 201, "{made:?}");
        Ok(made.body)
    }

    /// Asks the API server as somebody who may do everything.
    pub(crate) async fn send(&self, user: &str, method: Method, path: &str, body: Option<&Value>) -> Result<Outcome> {
        let client = self.user(user).await?;
        let content = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let request = Request::builder().method(method).uri(path).header("Content-Type", content);
        let body = body.map_or_else(Vec::new, |body| body.to_string().into_bytes());
        let answer = client.send(request.body(Body::from(body))?).await?;
        let warnings = answer.headers().get_all("Warning").iter().map(|text| text.to_str().unwrap().to_owned());
        let (code, warnings) = (answer.status().as_u16(), warnings.collect());
        let body = answer.into_body().collect_bytes().await?;
        Ok(Outcome { code, body: serde_json::from_slice(&body)?, warnings })
    }

    async fn user(&self, user: &str) -> Result<Client> {
        let mut users = self.users.lock().await;
        if let Some(client) = users.get(user) {
            return Ok(client.clone());
        }
        let kubeconfig = self.cluster.user_kubeconfig(user, &["system:masters"]).await?;
        let client = self.cluster.client(&kubeconfig).await?;
        users.insert(user.to_owned(), client.clone());
        Ok(client)
    }

    pub(crate) async fn events(&self) -> Result<Vec<Value>> {
        let path = format!("/apis/events.k8s.io/v1/namespaces/{}/events", self.namespace);
        let list = self.send(STAGEHAND, Method::GET, &path, None).await?.body;
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

/// A certificate that vouches for itself.
fn certificate() -> Result<(ServedCertificate, String)> {
    let signed = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()])?;
    let key = PrivateKeyDer::Pkcs8(signed.signing_key.serialize_der().into());
    let certified = CertifiedKey::from_der(vec![signed.cert.der().clone()], key, &aws_lc_rs::default_provider())?;
    let served = ServedCertificate::default();
    served.replace(certified, Timestamp::now() + 24.hours());
    Ok((served, signed.cert.pem()))
}
