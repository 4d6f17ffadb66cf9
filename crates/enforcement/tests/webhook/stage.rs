//! A control plane of its own, because classes are everybody's; an admission server with the feature; and whoever asks.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use anyhow::{Result, ensure};
use cluster::{Store, server::ListMode, watch::Watches};
use enforcement::{
    Caches, Enforcement, Settings,
    observe::{INDEXES_OF_VOLUMES, interesting_pod, interesting_volume},
};
use http::{Method, Request};
use jiff::{Timestamp, ToSpan};
use k8s_openapi::ByteString;
use kube::{Client, client::Body};
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

/// What the API server calls the webhook.
pub(crate) const NAME: &str = "enforce-ephemeral.localdisk.csi.acstor.io";

/// Whose requests the webhook does not see: who sets the scene.
pub(crate) const STAGEHAND: &str = "stagehand";

const HOME: &str = "claimkeeper-system";

/// Who the feature is.
pub(crate) const ACCOUNT: &str = "system:serviceaccount:claimkeeper-system:claimkeeper";

/// A control plane takes half a gigabyte, and half a core while it starts: one after the other.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// The feature on its stage.
pub(crate) struct Stage {
    pub(crate) cluster: Cluster,
    pub(crate) caches: Caches,
    pub(crate) registry: Registry,
    pub(crate) answers: Arc<Switch>,
    client: Client,
    recorder: Recorder,
    users: tokio::sync::Mutex<HashMap<String, Client>>,
    hears_of_namespaces: AbortHandle,
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
    current: Mutex<Option<Arc<Enforcement>>>,
    answers: Mutex<Vec<Answer>>,
}

impl Switch {
    pub(crate) fn take(&self) -> Vec<Answer> {
        std::mem::take(&mut *self.answers.lock().unwrap())
    }
}

impl Webhook for Switch {
    fn path(&self) -> &'static str {
        "/validate-pvc"
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
        Self::on(Options::default().name(name).without_controller_manager()).await
    }

    pub(crate) async fn on(options: Options) -> Result<Self> {
        let turn = TURN.lock().await;
        let options = options.without_scheduler().nodes(0).provisioner(false);
        // What is deleted is gone, although no controller takes the finalizers off.
        let control_plane =
            ControlPlane::start(options.apiserver_flag("--disable-admission-plugins=StorageObjectInUseProtection"))
                .await?;
        let cluster = control_plane.cluster();
        let kubeconfig = cluster.install_chart("claimkeeper", HOME, &json!({"features": ["enforcement"]})).await?;
        let config = client::load_config(Some(&kubeconfig))?;
        let (registry, readiness) = (Registry::default(), Readiness::default());
        let reader = client::build(config.clone(), ClientOptions::new(&registry))?;
        let (recorder, worker) = Recorder::new(reader.clone(), "claimkeeper.dev/enforcement", "test", &registry);
        let caches = Caches {
            pods: Store::new(vec![interesting_pod], vec![]),
            classes: Store::new(vec![|_| true], vec![]),
            namespaces: Store::new(vec![|_| true], vec![]),
            volumes: Store::new(vec![interesting_volume], INDEXES_OF_VOLUMES.into()),
        };
        let (certificate, bundle) = certificate()?;
        let listen = admission::Settings { listen: ([127, 0, 0, 1], 0).into(), ..admission::Settings::default() };
        let server = AdmissionServer::bind(listen, certificate, &registry, &readiness).await?;
        let address = server.address()?;
        let client = {
            let _guard = server.enter();
            client::build(config, ClientOptions::new(&registry))?
        };
        let answers = Arc::new(Switch { current: Mutex::default(), answers: Mutex::default() });
        let watches = Watches {
            client: reader,
            namespace: None,
            list_mode: ListMode::Streamed,
            readiness,
            registry: registry.clone(),
        };
        let webhooks: Vec<Arc<dyn Webhook>> = vec![Arc::clone(&answers) as Arc<dyn Webhook>];
        let hears_of_namespaces = tokio::spawn(watches.feed_namespaces(&caches.namespaces)).abort_handle();
        let tasks = vec![
            hears_of_namespaces.clone(),
            tokio::spawn(watches.feed(&caches.pods)).abort_handle(),
            tokio::spawn(watches.feed_cluster_scoped(&caches.classes)).abort_handle(),
            tokio::spawn(watches.feed_cluster_scoped(&caches.volumes)).abort_handle(),
            tokio::spawn(worker.run(CancellationToken::new())).abort_handle(),
            tokio::spawn(async move { server.serve(webhooks, CancellationToken::new()).await }).abort_handle(),
        ];
        let users = tokio::sync::Mutex::default();
        let stage = Self {
            cluster,
            caches,
            registry,
            answers,
            client,
            recorder,
            users,
            hears_of_namespaces,
            tasks,
            _control_plane: control_plane,
            _turn: turn,
        };
        stage.set(Settings::default());
        stage.register(&format!("https://{address}/validate-pvc"), &bundle).await?;
        Ok(stage)
    }

    /// From now on these settings count.
    pub(crate) fn set(&self, settings: Settings) {
        let (caches, client, recorder) = (self.caches.clone(), self.client.clone(), self.recorder.clone());
        let feature = Enforcement::new(caches, settings, client, recorder, &self.registry);
        *self.answers.current.lock().unwrap() = Some(Arc::new(feature));
        self.answers.take();
    }

    /// From now on the cache of namespaces stays as it is.
    pub(crate) async fn stop_hearing_of_namespaces(&self) -> Result<()> {
        self.hears_of_namespaces.abort();
        eventually("the watch to end", async || {
            ensure!(self.hears_of_namespaces.is_finished(), "it goes on");
            anyhow::Ok(())
        })
        .await
    }

    /// A webhook that cannot be reached fails the test, not the check.
    async fn register(&self, url: &str, bundle: &str) -> Result<()> {
        let bundle = ByteString(bundle.as_bytes().to_vec());
        let not_the_stagehand = format!("request.userInfo.username != '{STAGEHAND}'");
        let configuration = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "enforcement"},
            "webhooks": [{
                "name": NAME, "admissionReviewVersions": ["v1"], "sideEffects": "NoneOnDryRun", "failurePolicy": "Fail",
                "clientConfig": {"url": url, "caBundle": bundle},
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["persistentvolumeclaims"],
                           "operations": ["CREATE", "UPDATE"], "scope": "Namespaced"}],
                "matchConditions": [{"name": "not-the-stagehand", "expression": not_the_stagehand}],
            }],
        });
        let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
        let made = self.send(STAGEHAND, Method::POST, path, Some(&configuration)).await?;
        ensure!(made.code == 201, "{made:?}");
        let namespace = self.namespace(None).await?;
        let claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "probe"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        });
        eventually("the API server asks the webhook", async || {
            let path = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims?dryRun=All");
            self.send("alice", Method::POST, &path, Some(&claim)).await?;
            ensure!(!self.answers.take().is_empty(), "it does not yet");
            anyhow::Ok(())
        })
        .await
    }

    /// A new namespace with this word about enforcement.
    pub(crate) async fn namespace(&self, label: Option<&str>) -> Result<String> {
        let labels = label.map(|label| json!({"claimkeeper.dev/enforcement": label}));
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "row-", "labels": labels}});
        let made = self.make("/api/v1/namespaces", &namespace).await?;
        let name = made["metadata"]["name"].as_str().unwrap().to_owned();
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
        let path = format!("/api/v1/namespaces/{name}/serviceaccounts");
        let made = self.send(STAGEHAND, Method::POST, &path, Some(&account)).await?;
        // Where there are controllers, one of them may have been quicker.
        ensure!([201, 409].contains(&made.code), "{made:?}");
        Ok(name)
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
        let merges = method == Method::PATCH;
        let content = if merges { "application/merge-patch+json" } else { "application/json" };
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
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
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
