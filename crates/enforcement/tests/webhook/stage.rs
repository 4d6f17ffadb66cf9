//! A control plane of its own, because classes are everybody's; an admission server with the feature; and whoever asks.

use std::sync::Arc;

use anyhow::{Result, ensure};
use cluster::{Store, server::ListMode, watch::Watches};
use enforcement::{
    Caches, Enforcement, Settings,
    observe::{INDEXES_OF_VOLUMES, interesting_pod, interesting_volume},
};
use http::Method;
use k8s_openapi::ByteString;
use kube::Client;
use platform::{
    admission::{self, AdmissionServer, Webhook},
    client::{self, ClientOptions},
    events::Recorder,
    metrics::Registry,
    readiness::Readiness,
};
use rehearsal::{Actors, STAGEHAND, Understudy, self_signed};
use serde_json::json;
use testbed::{Cluster, ControlPlane, Options, eventually};
use tokio::{sync::MutexGuard, task::AbortHandle};
use tokio_util::sync::CancellationToken;

/// What the API server calls the webhook.
pub(crate) const NAME: &str = "enforce-ephemeral.localdisk.csi.acstor.io";

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
    pub(crate) answers: Arc<Understudy>,
    client: Client,
    recorder: Recorder,
    pub(crate) actors: Actors,
    hears_of_namespaces: AbortHandle,
    tasks: Vec<AbortHandle>,
    _control_plane: ControlPlane,
    _turn: MutexGuard<'static, ()>,
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
        let (certificate, bundle) = self_signed()?;
        let listen = admission::Settings { listen: ([127, 0, 0, 1], 0).into(), ..admission::Settings::default() };
        let server = AdmissionServer::bind(listen, certificate, &registry, &readiness).await?;
        let address = server.address()?;
        let client = {
            let _guard = server.enter();
            client::build(config, ClientOptions::new(&registry))?
        };
        let answers = Understudy::of("/validate-pvc");
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
        let stage = Self {
            actors: Actors::on(cluster.clone()),
            cluster,
            caches,
            registry,
            answers,
            client,
            recorder,
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
        self.answers.play(Arc::new(feature));
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
        let made = self.actors.send(STAGEHAND, Method::POST, path, Some(&configuration)).await?;
        ensure!(made.code == 201, "{made:?}");
        let namespace = self.namespace(None).await?;
        let claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "probe"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        });
        eventually("the API server asks the webhook", async || {
            let path = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims?dryRun=All");
            self.actors.send("alice", Method::POST, &path, Some(&claim)).await?;
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
        let made = self.actors.make("/api/v1/namespaces", &namespace).await?;
        let name = made["metadata"]["name"].as_str().unwrap().to_owned();
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
        let path = format!("/api/v1/namespaces/{name}/serviceaccounts");
        let made = self.actors.send(STAGEHAND, Method::POST, &path, Some(&account)).await?;
        // Where there are controllers, one of them may have been quicker.
        ensure!([201, 409].contains(&made.code), "{made:?}");
        Ok(name)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}
