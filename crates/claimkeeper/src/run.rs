//! The wiring: which parts run, what each of them is given, and in which order they end.
//!
//! ```text
//!                 ┌── admin server: metrics and probes, from the first moment to the last
//! signal ──> run ─┼── watches: feed the stores on every replica, so that a standby is warm
//!                 ├── elector ── term ──> features: act only while this replica leads
//!                 ├── certificates: one replica keeps them under a Lease of their own, every one serves them
//!                 ├── admission server: answers on every replica, on a thread of its own, until its requests are drained
//!                 └── events: outlive the features, so that the last ones are told
//! ```
//!
//! Admin server, events and each of the watches are tasks of their own, so that what wakes one is not everybody's business. The
//! features are not: they must stop the moment their term ends, and a future that is dropped does.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::Context;
use cluster::{
    server::{self, ListMode, Version},
    watch::Watches,
};
use enforcement::{Enforcement, audit::Audit};
use ephemeral::{
    Caches, Ephemeral,
    reclaim::{self, Reclaim},
};
use futures::future::join_all;
use kube::{Client, Config as KubeConfig};
use platform::{
    admin::AdminServer,
    admission::{AdmissionServer, ServedCertificate, ServerError, Webhook},
    client::{self, ClientOptions, Fence, FencedClient},
    events::{Recorder, Worker},
    leader::{Elector, unique_identity},
    logging,
    metrics::{self, Registry},
    readiness::{Gate, Readiness},
    shutdown,
    trouble::causes,
};
use provisioner::Provisioner;
use releaser::{Releaser, Scrub, scrub::SCRUB};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use crate::{
    certificates::Certificates,
    config::{Config, Feature},
    stores::Stores,
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
    if !config.features.iter().any(|feature| feature.answers_admission()) {
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
    stores: Stores,
    ephemeral: Option<Ephemeral>,
    reclaim: Option<Reclaim>,
    provisioner: Option<Provisioner>,
    releaser: Option<Releaser>,
    enforcement: Option<Arc<Enforcement>>,
    audit: Option<Audit>,
    /// Answers the API server; taken when it starts.
    admission: Option<AdmissionServer>,
    webhooks: Vec<Arc<dyn Webhook>>,
    /// What that server shows.
    certificates: Option<Certificates>,
    /// Writes the events; taken when it starts.
    events: Option<Worker>,
    fence: Fence,
    elector: Option<Elector>,
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
        let writer = FencedClient::build(kube.clone(), options.clone(), &fence)?;

        let leadership = config.leader_election.resolve(&kube.default_namespace, unique_identity);
        let home = leadership.namespace.clone();
        let (recorder, events) = Recorder::new(client.clone(), REPORTER, &leadership.identity, &registry);
        let certificates = admission.as_ref().map(|_| {
            let watched = (&registry, &readiness);
            Certificates::new(config, kube, &leadership, recorder.clone(), watched, certificate)
        });
        let certificates = certificates.transpose()?;
        let elector = if config.leader_election.enabled {
            let impatient = ClientOptions { retry: false, ..options };
            let client = client::build(kube.clone(), impatient)?;
            Some(Elector::new(client, leadership, &registry, fence.clone())?)
        } else {
            None
        };

        let runs = |feature| config.features.contains(&feature);
        let reclaim = config.ephemeral.reclaim().filter(|_| runs(Feature::Ephemeral));
        let stores = Stores::new(&config.features, reclaim.is_some());
        let Stores { pods, claims, classes, namespaces, volumes } = &stores;
        let reclaim = reclaim.map(|settings| {
            let caches = reclaim::Caches::beside(pods, claims, classes);
            Reclaim::new(caches, writer.clone(), recorder.clone(), &registry, settings)
        });
        let provisioner = runs(Feature::Provisioner).then(|| {
            let caches = provisioner::Caches { pods: pods.clone(), claims: claims.clone() };
            let (writer, reader, recorder) = (writer.clone(), client.clone(), recorder.clone());
            Provisioner::new(caches, writer, reader, recorder, &registry, config.provisioner.settings())
        });
        let releaser = runs(Feature::Releaser).then(|| {
            let caches = releaser::Caches {
                volumes: volumes.clone(),
                claims: claims.clone(),
                classes: classes.clone(),
                namespaces: namespaces.clone(),
            };
            let settings = config.releaser.settings(config.namespace.as_deref());
            let releaser = Releaser::new(caches, writer.clone(), recorder.clone(), &registry, settings);
            if config.releaser.scrub { releaser.with_scrub(Scrub::new(&home)) } else { releaser }
        });
        let enforcement = admission.as_ref().filter(|_| runs(Feature::Enforcement)).map(|server| {
            let caches = enforcement::Caches {
                pods: pods.clone(),
                classes: classes.clone(),
                namespaces: namespaces.clone(),
                volumes: volumes.clone(),
            };
            // Where a kubeconfig names no namespace it is `default`: that is nobody's own.
            let home = Some(home.clone()).filter(|home| home != "default");
            let settings = enforcement::Settings { home, ..config.enforcement.clone() };
            let _guard = server.enter();
            let reader = client::build(kube.clone(), ClientOptions { retry: false, ..ClientOptions::new(&registry) })?;
            anyhow::Ok(Arc::new(Enforcement::new(caches, settings, reader, recorder.clone(), &registry)))
        });
        let enforcement = enforcement.transpose()?;
        let audit = enforcement.as_ref().map(|feature| {
            let settings = Arc::new(enforcement::Settings { home: Some(home.clone()), ..config.enforcement.clone() });
            let caches = feature.caches().clone();
            Audit::new(client.clone(), caches, settings, config.namespace.clone(), &registry)
        });
        let ephemeral = runs(Feature::Ephemeral).then(|| {
            let caches = Caches::beside(pods, claims, namespaces);
            Ephemeral::new(caches, writer, recorder, &registry, config.ephemeral.concurrency)
        });
        let reached = readiness.gate("the API server");
        let namespace = config.namespace.clone();
        Ok(Self {
            client,
            registry,
            readiness,
            reached,
            namespace,
            stores,
            ephemeral,
            reclaim,
            provisioner,
            releaser,
            webhooks: enforcement.iter().map(|feature| Arc::clone(feature) as Arc<dyn Webhook>).collect(),
            enforcement,
            audit,
            admission,
            certificates,
            events: Some(events),
            fence,
            elector,
        })
    }

    async fn run(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        let (elector, events) = (self.elector.take(), self.events.take());
        let (admission, webhooks) = (self.admission.take(), std::mem::take(&mut self.webhooks));
        let mut certificates = self.certificates.take();
        let keeper = certificates.as_mut().and_then(|certificates| certificates.elector.take());
        let told = CancellationToken::new();
        let act = async {
            if let Some(elector) = elector {
                elector.run(stop.clone(), |term| self.term(term.stopping)).await;
            } else {
                self.fence.open_until(far_future());
                self.term(stop.clone()).await;
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
        let make = self.ephemeral.iter().map(|feature| feature.run(stopping.clone()));
        let free = self.reclaim.iter().map(|feature| feature.run(stopping.clone()));
        let provision = self.provisioner.iter().map(|feature| feature.run(stopping.clone()));
        let release = self.releaser.iter().map(|feature| feature.run(stopping.clone()));
        let audit = self.audit.iter().map(|audit| audit.run(stopping.clone()));
        let work = async {
            tokio::join!(join_all(make), join_all(free), join_all(provision), join_all(release), join_all(audit));
        };
        tokio::select! {
            () = work => {}
            () = drained => tracing::warn!(deadline = ?DRAIN_DEADLINE, "work was still under way at the deadline and is cut off"),
        }
    }

    /// Keeps the caches warm, whoever leads. Returns only if it is pointless to go on.
    async fn watch(&self) -> anyhow::Error {
        let version = self.wait_for_server().await;
        if let Some(releaser) = &self.releaser
            && let Err(error) = releaser.check_rights().await
        {
            return anyhow::anyhow!("{error}");
        }
        if let Some(enforcement) = &self.enforcement {
            enforcement.introduce(&self.client).await;
        }
        let watches = Watches {
            client: self.client.clone(),
            namespace: self.namespace.clone(),
            list_mode: version.map_or(ListMode::Paged, Version::list_mode),
            readiness: self.readiness.clone(),
            registry: self.registry.clone(),
        };
        let feeds = self.feeds(&watches);
        // Only now: from here on readiness waits for the caches.
        self.reached.open();
        feeds.join_all().await;
        anyhow::anyhow!("all watches have ended")
    }

    /// One watch per kind that an enabled feature needs.
    fn feeds(&self, watches: &Watches) -> JoinSet<()> {
        let Self { stores, ephemeral, reclaim, provisioner, releaser, enforcement, .. } = self;
        let enforces = enforcement.is_some();
        let mut feeds = JoinSet::new();
        if ephemeral.is_some() || provisioner.is_some() || releaser.is_some() {
            feeds.spawn(watches.feed(&stores.claims));
        }
        if ephemeral.is_some() || provisioner.is_some() || enforces {
            feeds.spawn(watches.feed(&stores.pods));
        }
        if ephemeral.is_some() || enforces || releaser.as_ref().is_some_and(Releaser::watches_namespaces) {
            feeds.spawn(watches.feed_namespaces(&stores.namespaces));
        }
        if reclaim.is_some() || releaser.is_some() || enforces {
            feeds.spawn(watches.feed_cluster_scoped(&stores.classes));
        }
        if releaser.is_some() || enforces {
            feeds.spawn(watches.feed_cluster_scoped(&stores.volumes));
        }
        if let Some(scrub) = releaser.as_ref().and_then(Releaser::scrubs) {
            feeds.spawn(watches.feed_labelled(scrub.namespace(), SCRUB, scrub.jobs()));
        }
        if let Some(ephemeral) = ephemeral {
            feeds.spawn(watches.feed(&ephemeral.caches().quotas));
        }
        if let Some(reclaim) = reclaim {
            feeds.spawn(watches.feed_cluster_scoped(&reclaim.caches().drivers));
            feeds.spawn(watches.feed_cluster_scoped(&reclaim.caches().attachments));
        }
        feeds
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

/// Without a Lease nobody ever closes the fence.
fn far_future() -> Instant {
    Instant::now() + Duration::from_hours(24 * 365 * 30)
}
