//! The wiring of the webhook's certificate: kept by one replica under a Lease of its own, served by all.

use std::time::Duration;

use kube::{Client, Config as KubeConfig};
use platform::{
    admission::ServedCertificate,
    certificates::{Files, Parts, SelfManaged},
    client::{self, ClientOptions, Fence, FencedClient},
    events::Recorder,
    leader::LeaderConfig,
    metrics::Registry,
    readiness::Readiness,
};
use tokio_util::sync::CancellationToken;

use crate::{
    config::{Config, certificates::Mode},
    election::Election,
};

/// Mounted Secrets change a minute after the Secret at best, so that looking more often would find nothing sooner.
const LOOK_AT_FILES: Duration = Duration::from_secs(10);

/// Where the certificate comes from.
pub(crate) struct Certificates {
    source: Source,
    /// Taken by who keeps the certificate; none if nobody here does.
    pub(crate) election: Option<Election>,
}

enum Source {
    SelfManaged(Box<SelfManaged>),
    Files(Files),
}

impl Certificates {
    /// `leadership` is that of the features; its Lease's name with an ending is that of the certificates.
    pub(crate) fn new(
        config: &Config,
        kube: &KubeConfig,
        leadership: &LeaderConfig,
        recorder: Recorder,
        (registry, readiness): (&Registry, &Readiness),
        served: ServedCertificate,
    ) -> anyhow::Result<Self> {
        let certificates = &config.webhook.certificates;
        let ready = readiness.gate("a certificate that API servers accept");
        let parts = Parts { served, ready, registry: registry.clone() };
        if let (Mode::Files, Some(directory)) = (certificates.mode, &certificates.directory) {
            let source = Source::Files(Files::new(directory.clone(), LOOK_AT_FILES, parts));
            return Ok(Self { source, election: None });
        }
        let (fence, options) = (Fence::new(), ClientOptions::new(registry));
        let reader: Client = client::build(kube.clone(), options.clone())?;
        let writer = FencedClient::build(kube.clone(), options, &fence)?;
        let lease = LeaderConfig { name: format!("{}-certificates", leadership.name), ..leadership.clone() };
        let election = Election::new(&config.leader_election, lease, kube, registry, &fence)?;
        let settings = certificates.settings(&leadership.namespace, &config.webhook_configurations());
        let source = Source::SelfManaged(Box::new(SelfManaged::new(settings, reader, writer, recorder, parts)));
        Ok(Self { source, election: Some(election) })
    }

    /// Serves the certificate for as long as anybody may ask for it: until it is dropped.
    pub(crate) async fn serve(&self) {
        match &self.source {
            Source::SelfManaged(keeper) => keeper.serve().await,
            Source::Files(files) => files.serve().await,
        }
    }

    /// Keeps the certificate, if this replica is the one to do it, until `stop`.
    pub(crate) async fn keep(&self, election: Option<Election>, stop: CancellationToken) {
        if let (Source::SelfManaged(keeper), Some(election)) = (&self.source, election) {
            election.run(stop, |stopping| keeper.keep(stopping)).await;
        }
    }
}
