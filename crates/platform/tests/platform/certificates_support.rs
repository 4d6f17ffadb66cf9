//! Replicas that serve a webhook, whoever keeps its certificate, and the API server that calls them.

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::{
    ByteString,
    api::{
        admissionregistration::v1::ValidatingWebhookConfiguration,
        core::v1::{PersistentVolumeClaim, Secret},
    },
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use parking_lot::Mutex;
use platform::{
    admission::{AdmissionServer, Answer, Answering, Request, ServedCertificate, Settings as ServerSettings, Webhook},
    certificates::{Parts, SelfManaged, Settings},
    client::{self, ClientOptions, Fence, FencedClient},
    events::Recorder,
    leader::{Elector, LeaderConfig},
    metrics::Registry,
    readiness::Readiness,
};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use serde_json::json;
use testbed::{Cluster, eventually};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinHandle},
    time::{Instant, sleep, timeout},
};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

pub(crate) const SECRET: &str = "claimkeeper-webhook";
pub(crate) const DAY: Duration = Duration::from_hours(24);

/// A namespace with the chart in it, and the door through which API servers reach its replicas.
pub(crate) struct Stage {
    pub(crate) cluster: Cluster,
    pub(crate) namespace: String,
    pub(crate) secrets: Api<Secret>,
    pub(crate) configurations: Api<ValidatingWebhookConfiguration>,
    pub(crate) claims: Api<PersistentVolumeClaim>,
    pub(crate) user: String,
    kubeconfig: PathBuf,
    door: Door,
}

impl Stage {
    pub(crate) async fn new() -> Result<Self> {
        let cluster = testbed::shared().await?;
        let namespace = cluster.create_namespace("certificates").await?;
        let door = Door::open().await?;
        let values = json!({
            "features": ["enforcement"],
            "namespace": namespace,
            "webhook": {
                "url": format!("https://{}", door.address),
                "enforceEphemeral": {"configuration": namespace, "failurePolicy": "Fail", "timeoutSeconds": 10},
            },
        });
        let kubeconfig = cluster.install_chart("claimkeeper", &namespace, &values).await?;
        let admin = cluster.admin().await?;
        Ok(Self {
            secrets: Api::namespaced(admin.clone(), &namespace),
            claims: Api::namespaced(admin.clone(), &namespace),
            configurations: Api::all(admin),
            user: format!("system:serviceaccount:{namespace}:claimkeeper"),
            cluster,
            namespace,
            kubeconfig,
            door,
        })
    }

    /// Long lives, and little patience.
    pub(crate) fn settings(&self) -> Settings {
        Settings {
            secret: SECRET.to_owned(),
            namespace: self.namespace.clone(),
            service: "claimkeeper-webhook".to_owned(),
            names: vec!["127.0.0.1".to_owned()],
            configurations: self.namespace.parse().into_iter().collect(),
            leaf_lifetime: 30 * DAY,
            authority_lifetime: 365 * DAY,
            settle: Duration::from_secs(1),
            grace: Duration::from_secs(2),
        }
    }

    pub(crate) async fn start(&self, identity: &str, settings: Settings) -> Result<Replica> {
        Replica::start(self, identity, settings).await
    }

    /// Asks for a claim that is not kept; whether it is answered depends on the webhook.
    pub(crate) async fn ask(&self) -> kube::Result<()> {
        ask(&self.claims).await
    }

    /// The authorities that API servers are told to trust.
    pub(crate) async fn bundle(&self) -> Result<Vec<u8>> {
        bundle(&self.configurations, &self.namespace).await
    }

    pub(crate) async fn entry(&self, key: &str) -> Result<Vec<u8>> {
        let secret = self.secrets.get(SECRET).await?;
        let entry = secret.data.unwrap_or_default().remove(key);
        Ok(entry.with_context(|| format!("the Secret has no {key}"))?.0)
    }

    /// Until the Secret has one authority, every bundle has it, and the leaf is newer than this one.
    pub(crate) async fn until_changed_over(&self, old_authority: &[u8]) -> Result<()> {
        eventually("the rotation to end", async || {
            let (authorities, bundle) = (self.entry("ca.crt").await?, self.bundle().await?);
            ensure!(authorities != old_authority, "the authority is the old one");
            ensure!(count(&authorities) == 1, "the Secret has {} authorities", count(&authorities));
            ensure!(bundle == authorities, "the bundle has {} authorities", count(&bundle));
            self.handshake(&bundle).await?;
            Ok(())
        })
        .await
    }

    pub(crate) async fn change_secret(&self, change: serde_json::Value) -> Result<()> {
        self.secrets.patch(SECRET, &PatchParams::default(), &Patch::Merge(change)).await?;
        Ok(())
    }

    pub(crate) fn handshake(&self, bundle: &[u8]) -> impl Future<Output = Result<CertificateDer<'static>>> + use<> {
        handshake(self.door.address, bundle.to_vec())
    }

    /// Where API servers reach the replicas.
    pub(crate) fn address(&self) -> SocketAddr {
        self.door.address
    }

    /// Until whoever keeps the certificates has looked once more after the last write, and waits for something to happen.
    pub(crate) async fn until_at_rest(&self) -> Result<()> {
        eventually("the keeper to rest", async || {
            let requests = self.cluster.audit_log().user(&self.user).requests()?;
            let last = requests.iter().rfind(|request| {
                let resource = request.object_ref.as_ref().map(|object| object.resource.as_str());
                request.verb == "patch" || request.verb == "get" && resource == Some("secrets")
            });
            ensure!(last.is_some_and(|last| last.verb == "get"), "the last request was {last:?}");
            Ok(())
        })
        .await
    }

    /// What was refused to the chart's account.
    pub(crate) fn refused(&self) -> Result<Vec<String>> {
        let requests = self.cluster.audit_log().user(&self.user).requests()?;
        let refused = requests.into_iter().filter(|request| request.code() == Some(403));
        Ok(refused.map(|request| format!("{} {:?}", request.verb, request.object_ref)).collect())
    }
}

pub(crate) fn count(bundle: &[u8]) -> usize {
    CertificateDer::pem_slice_iter(bundle).count()
}

pub(crate) async fn ask(claims: &Api<PersistentVolumeClaim>) -> kube::Result<()> {
    let claim = json!({
        "metadata": {"name": "asked"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    let claim = serde_json::from_value(claim).map_err(kube::Error::SerdeError)?;
    claims.create(&PostParams { dry_run: true, ..PostParams::default() }, &claim).await.map(drop)
}

/// New connections as API servers make them whose configuration is a moment old. One that took longer than they may use an old
/// configuration proves nothing, and is not counted.
pub(crate) struct Handshakes {
    stop: CancellationToken,
    task: JoinHandle<Result<(u64, Vec<String>)>>,
}

impl Handshakes {
    pub(crate) fn begin(stage: &Stage, address: SocketAddr, behind: Duration, settle: Duration) -> Self {
        let (stop, name) = (CancellationToken::new(), stage.namespace.clone());
        let (configurations, stopped) = (stage.configurations.clone(), stop.clone());
        let task = tokio::spawn(async move {
            let (mut made, mut refused) = (0, Vec::new());
            while !stopped.is_cancelled() {
                let read = Instant::now();
                let bundle = bundle(&configurations, &name).await?;
                for wait in [Duration::ZERO, behind] {
                    sleep(wait).await;
                    let shaken = handshake(address, bundle.clone()).await;
                    if read.elapsed() < settle {
                        made += 1;
                        refused.extend(shaken.err().map(|error| format!("{error:#}")));
                    }
                }
            }
            Ok((made, refused))
        });
        Self { stop, task }
    }

    /// How many were made, and why some were refused.
    pub(crate) async fn end(self) -> Result<(u64, Vec<String>)> {
        self.stop.cancel();
        self.task.await?
    }
}

async fn bundle(configurations: &Api<ValidatingWebhookConfiguration>, name: &str) -> Result<Vec<u8>> {
    let webhook =
        configurations.get(name).await?.webhooks.and_then(|mut webhooks| webhooks.pop()).context("no webhook")?;
    Ok(webhook.client_config.ca_bundle.map(|ByteString(bytes)| bytes).unwrap_or_default())
}

/// A new connection, as an API server makes it that trusts this; returns what was shown.
pub(crate) async fn handshake(address: SocketAddr, bundle: Vec<u8>) -> Result<CertificateDer<'static>> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&bundle) {
        roots.add(certificate?)?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connect = async {
        let stream = TcpStream::connect(address).await?;
        let name = ServerName::from(address.ip());
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
        let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first).context("nothing was shown")?;
        anyhow::Ok(shown.clone().into_owned())
    };
    timeout(testbed::PATIENCE, connect).await?
}

/// A port that leads to each of the replicas in turn, as a Service does.
struct Door {
    address: SocketAddr,
    replicas: Arc<Mutex<Vec<SocketAddr>>>,
    task: AbortHandle,
}

impl Door {
    async fn open() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let replicas = Arc::new(Mutex::new(Vec::<SocketAddr>::new()));
        let (known, turn) = (Arc::clone(&replicas), AtomicUsize::new(0));
        let task = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let replicas = known.lock().clone();
                let next = replicas.get(turn.fetch_add(1, Ordering::Relaxed) % replicas.len().max(1)).copied();
                let Some(next) = next else { continue };
                tokio::spawn(async move {
                    if let Ok(mut replica) = TcpStream::connect(next).await {
                        // Either side may hang up.
                        let _ = copy_bidirectional(&mut stream, &mut replica).await;
                    }
                });
            }
        });
        Ok(Self { address, replicas, task: task.abort_handle() })
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Allows everything and counts.
struct Yes {
    asked: Arc<AtomicU64>,
}

impl Webhook for Yes {
    fn path(&self) -> &'static str {
        "/validate-pvc"
    }

    fn review<'a>(&'a self, _: &'a Request<'a>) -> Answering<'a> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        Box::pin(async { Answer::allow("Yes", "of course") })
    }
}

/// One replica: server, certificate, and the election of who keeps it.
pub(crate) struct Replica {
    pub(crate) served: ServedCertificate,
    pub(crate) readiness: Readiness,
    pub(crate) registry: Registry,
    pub(crate) address: SocketAddr,
    asked: Arc<AtomicU64>,
    stop: CancellationToken,
    keeping: JoinHandle<()>,
    tasks: Vec<AbortHandle>,
}

impl Replica {
    async fn start(stage: &Stage, identity: &str, settings: Settings) -> Result<Self> {
        let (registry, readiness, served) = (Registry::default(), Readiness::default(), ServedCertificate::default());
        let listen = ServerSettings { listen: "127.0.0.1:0".parse()?, ..ServerSettings::default() };
        let admission = AdmissionServer::bind(listen, served.clone(), &registry, &readiness).await?;
        let address = admission.address()?;
        stage.door.replicas.lock().push(address);

        let config = client::load_config(Some(&stage.kubeconfig))?;
        let options = ClientOptions::new(&registry);
        let (fence, reader) = (Fence::new(), client::build(config.clone(), options.clone())?);
        let writer = FencedClient::build(config.clone(), options.clone(), &fence)?;
        let (recorder, events) = Recorder::new(reader.clone(), "claimkeeper.dev/certificates", identity, &registry);
        let parts = Parts {
            served: served.clone(),
            ready: readiness.gate("an accepted certificate"),
            registry: registry.clone(),
        };
        let certificates = Arc::new(SelfManaged::new(settings, reader, writer, recorder, parts));

        let quick = LeaderConfig {
            lease_duration: Duration::from_secs(3),
            renew_deadline: Duration::from_secs(2),
            retry_period: Duration::from_millis(500),
            ..LeaderConfig::new("claimkeeper-certificates", &stage.namespace, identity)
        };
        let elector: Client = client::build(config, ClientOptions { retry: false, ..options })?;
        let elector = Elector::new(elector, quick, &registry, fence)?;
        let (stop, asked) = (CancellationToken::new(), Arc::new(AtomicU64::new(0)));
        let (keeper, stopping) = (Arc::clone(&certificates), stop.clone());
        let keeping = tokio::spawn(async move {
            elector.run(stopping, |term| keeper.keep(term.stopping)).await;
        });
        let yes: Arc<dyn Webhook> = Arc::new(Yes { asked: Arc::clone(&asked) });
        let tasks = vec![
            tokio::spawn(async move { certificates.serve().await }).abort_handle(),
            tokio::spawn(events.run(CancellationToken::new())).abort_handle(),
            tokio::spawn(admission.serve(vec![yes], CancellationToken::new())).abort_handle(),
        ];
        Ok(Self { served, readiness, registry, address, asked, stop, keeping, tasks })
    }

    pub(crate) fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }

    pub(crate) async fn until_ready(&self) -> Result<()> {
        eventually("the replica to be ready", async || {
            ensure!(self.readiness.is_ready(), "{}", self.readiness.report());
            Ok(())
        })
        .await
    }

    /// The value of a series; 0 if there is none yet.
    pub(crate) fn metric(&self, series: &str) -> u64 {
        let text = self.registry.encode();
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.map_or(0, |value| value.parse().unwrap())
    }

    /// What it shows now.
    pub(crate) fn shown(&self) -> Option<CertificateDer<'static>> {
        self.served.current().and_then(|served| served.key.cert.first().cloned())
    }

    /// Gives up keeping the certificates, as at the end of a process, and goes on serving.
    pub(crate) async fn retire(&self) -> Result<()> {
        self.stop.cancel();
        let ended = async || if self.keeping.is_finished() { Ok(()) } else { Err("it still keeps") };
        eventually("the replica to give up keeping", ended).await
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.keeping.abort();
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}
