//! The wiring: which parts run, what each of them is given, and in which order they end.
//!
//! ```text
//!                 ┌── admin server: metrics and probes, from the first moment to the last
//! signal ──> run ─┼── watches: feed the stores on every replica, so that a standby is warm
//!                 ├── election ── term ──> features: act only while this replica leads
//!                 ├── certificates: one replica keeps them under a Lease of their own, every one serves them
//!                 ├── admission server: answers on every replica, on a thread of its own, until its requests are drained
//!                 └── events: outlive the features, so that the last ones are told
//! ```
//!
//! Admin server, events and each of the watches are tasks of their own, so that what wakes one is not everybody's business. The
//! features are not: they must stop the moment their term ends, and a future that is dropped does.

use std::{path::Path, time::Duration};

use anyhow::Context;
use cluster::{
    server::{self, ListMode, Version},
    watch::Watches,
};
use kube::{Client, Config as KubeConfig};
use platform::{
    admin::AdminServer,
    admission::{AdmissionServer, ServedCertificate, ServerError},
    client::{self, ClientOptions, Fence, FencedClient},
    events::{Recorder, Worker},
    leader::unique_identity,
    logging,
    metrics::{self, Registry},
    readiness::{Gate, Readiness},
    shutdown,
    trouble::causes,
};
use tokio::{task::JoinSet, time::sleep};
use tokio_util::sync::CancellationToken;

use crate::{
    certificates::Certificates,
    config::Config,
    election::Election,
    features::{Features, Tools},
};

/// Kubernetes gives a pod 30 s to end; this leaves time to release the lease and to send the last events.
const DRAIN_DEADLINE: Duration = Duration::from_secs(20);

/// The longest pause between two tries to reach the API server for the first time.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Who reports, in every event.
const REPORTER: &str = "claimkeeper.dev/claimkeeper";

/// Runs the operator until a signal ends it.
pub(crate) fn run(config: Config, kubeconfig: Option<&Path>) -> anyhow::Result<()> {
    logging::start(config.log.format, &config.log.level)?;
    run_logged(config, kubeconfig)
}

/// The same for who has started the log already.
pub(crate) fn run_logged(config: Config, kubeconfig: Option<&Path>) -> anyhow::Result<()> {
    // One thread: decisions take microseconds and the API server is what everything waits for. A second thread costs more
    // CPU time than it saves.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start the runtime")?.block_on(operate(config, kubeconfig))
}

async fn operate(config: Config, kubeconfig: Option<&Path>) -> anyhow::Result<()> {
    let stop = shutdown::on_signal().context("cannot listen for signals")?;
    let (registry, readiness) = (Registry::default(), Readiness::default());
    metrics::observe_process(&registry);
    tell_build(&registry);
    let kube = client::load_config(kubeconfig)?;
    let admin = AdminServer::bind(config.admin.listen, registry.clone(), readiness.clone()).await?;
    let address = admin.address().context("cannot tell the admin server's address")?;
    let certificate = ServedCertificate::default();
    let admission = bind_admission(&config, &certificate, &registry, &readiness).await?;
    let webhook = admission.as_ref().map(AdmissionServer::address).transpose();
    let webhook = webhook.context("cannot tell the admission server's address")?;
    let operator = Operator::new(&config, &kube, registry, readiness, (admission, certificate))?;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        features = config.features.iter().map(|feature| feature.name()).collect::<Vec<_>>().join(","),
        cluster = %kube.cluster_url,
        admin = %address,
        webhook = webhook.map(tracing::field::display),
        "claimkeeper starts"
    );
    for (feature, warning) in config.warnings() {
        tracing::warn!(feature = feature.name(), "{warning}");
    }

    // Probes and metrics are served to the very end: a process that drains is alive.
    let admin = tokio::spawn(admin.serve(CancellationToken::new()));
    tokio::select! {
        result = admin => result.context("the admin server panicked")?.context("the admin server failed")?,
        result = operator.run(stop) => result?,
    }
    tracing::info!("claimkeeper has ended");
    Ok(())
}

/// The admission server, if a feature has something to answer.
async fn bind_admission(
    config: &Config,
    certificate: &ServedCertificate,
    registry: &Registry,
    readiness: &Readiness,
) -> Result<Option<AdmissionServer>, ServerError> {
    if !config.answers_admission() {
        return Ok(None);
    }
    AdmissionServer::bind(config.webhook.settings(), certificate.clone(), registry, readiness).await.map(Some)
}

fn tell_build(registry: &Registry) {
    let help = "The version of this build; always 1.";
    registry.gauges("claimkeeper_build_info", help, &["version"]).with(&[env!("CARGO_PKG_VERSION")]).set(1.0);
}

/// Everything that runs while the process does.
struct Operator {
    client: Client,
    registry: Registry,
    readiness: Readiness,
    /// Met once the API server has said which Kubernetes it is; until then nothing can be known.
    reached: Gate,
    namespace: Option<String>,
    features: Features,
    /// Answers the API server; taken when it starts.
    admission: Option<AdmissionServer>,
    /// What that server shows.
    certificates: Option<Certificates>,
    /// Writes the events; taken when it starts.
    events: Option<Worker>,
    /// Says when this replica acts; taken when it starts.
    election: Option<Election>,
}

impl Operator {
    fn new(
        config: &Config,
        kube: &KubeConfig,
        registry: Registry,
        readiness: Readiness,
        (admission, certificate): (Option<AdmissionServer>, ServedCertificate),
    ) -> anyhow::Result<Self> {
        let fence = Fence::new();
        let options = ClientOptions::new(&registry);
        let client = client::build(kube.clone(), options.clone())?;
        let writer = FencedClient::build(kube.clone(), options, &fence)?;

        let leadership = config.leader_election.resolve(&kube.default_namespace, unique_identity);
        let home = leadership.namespace.clone();
        let (recorder, events) = Recorder::new(client.clone(), REPORTER, &leadership.identity, &registry);
        let certificates = admission.as_ref().map(|_| {
            let watched = (&registry, &readiness);
            Certificates::new(config, kube, &leadership, recorder.clone(), watched, certificate)
        });
        let certificates = certificates.transpose()?;
        let election = Election::new(&config.leader_election, leadership, kube, &registry, &fence)?;

        let tools = Tools { client: client.clone(), writer, recorder, registry: registry.clone() };
        let features = Features::new(config, kube, &home, admission.as_ref(), &tools)?;
        let reached = readiness.gate("the API server");
        let namespace = config.namespace.clone();
        Ok(Self {
            client,
            registry,
            readiness,
            reached,
            namespace,
            features,
            admission,
            certificates,
            events: Some(events),
            election: Some(election),
        })
    }

    async fn run(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        let (election, events) = (self.election.take(), self.events.take());
        let (admission, webhooks) = (self.admission.take(), self.features.webhooks());
        let mut certificates = self.certificates.take();
        let keeper = certificates.as_mut().and_then(|certificates| certificates.election.take());
        let told = CancellationToken::new();
        let act = async {
            if let Some(election) = election {
                election.run(stop.clone(), |stopping| self.term(stopping)).await;
            }
            Ok(())
        };
        // It is asked, and has events to tell, for a while longer than the features act.
        let admit = async {
            match admission {
                Some(server) => server.serve(webhooks, stop.clone()).await,
                None => Ok(()),
            }
        };
        let keep = async {
            if let Some(certificates) = &certificates {
                certificates.keep(keeper, stop.clone()).await;
            }
            Ok(())
        };
        let certify = async {
            match &certificates {
                Some(certificates) => certificates.serve().await,
                None => std::future::pending().await,
            }
        };
        let work = async {
            let ended = tokio::try_join!(act, admit, keep);
            told.cancel();
            ended.map(|_| ())
        };
        let mut tell = JoinSet::new();
        if let Some(events) = events {
            tell.spawn(events.run(told.clone()));
        }
        tokio::select! {
            (ended, _) = async { tokio::join!(work, tell.join_all()) } => ended.map_err(Into::into),
            error = self.watch() => Err(error),
            () = certify => Err(anyhow::anyhow!("nobody looks after the webhook's certificate any more")),
        }
    }

    /// What this replica does while it leads.
    async fn term(&self, stopping: CancellationToken) {
        let drained = async {
            stopping.cancelled().await;
            sleep(DRAIN_DEADLINE).await;
        };
        tokio::select! {
            () = self.features.act(&stopping) => {}
            () = drained => tracing::warn!(deadline = ?DRAIN_DEADLINE, "work was still under way at the deadline and is cut off"),
        }
    }

    /// Keeps the caches warm, whoever leads. Returns only if it is pointless to go on.
    async fn watch(&self) -> anyhow::Error {
        let version = self.wait_for_server().await;
        if let Err(error) = self.features.prepare(&self.client).await {
            return error;
        }
        let watches = Watches {
            client: self.client.clone(),
            namespace: self.namespace.clone(),
            list_mode: version.map_or(ListMode::Paged, Version::list_mode),
            readiness: self.readiness.clone(),
            registry: self.registry.clone(),
        };
        let feeds = self.features.feed(&watches);
        // Only now: from here on readiness waits for the caches.
        self.reached.open();
        feeds.join_all().await;
        anyhow::anyhow!("all watches have ended")
    }

    /// An API server that is down or not yet up is waited for, however long it takes.
    async fn wait_for_server(&self) -> Option<Version> {
        let mut pause = Duration::from_millis(250);
        loop {
            match self.client.apiserver_version().await {
                Ok(info) => {
                    let version = Version::parse(&info);
                    tell_version(version, &info.git_version);
                    return version;
                }
                Err(error) => {
                    tracing::warn!(error = %causes(&error), retry_in = ?pause, "the API server cannot be reached");
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

fn tell_version(version: Option<Version>, git_version: &str) {
    match version {
        Some(version) if version >= server::MINIMUM => {
            tracing::info!(kubernetes = git_version, lists = version.list_mode().name(), "the API server answers");
        }
        _ => tracing::warn!(
            kubernetes = git_version,
            minimum = %server::MINIMUM,
            "this Kubernetes is older than what is tested and supported"
        ),
    }
}
