//! The wiring of the webhook's certificate: kept by one replica under a Lease of its own, served by all.

use std::time::Duration;

use kube::{Client, Config as KubeConfig};
use platform::{
    admission::ServedCertificate,
    certificates::{Files, Parts, SelfManaged},
    client::{self, ClientOptions, Fence, FencedClient},
    events::Recorder,
    leader::{Elector, LeaderConfig},
    metrics::Registry,
    readiness::Readiness,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::config::{Config, certificates::Mode};

/// Mounted Secrets change a minute after the Secret at best, so that looking more often would find nothing sooner.
const LOOK_AT_FILES: Duration = Duration::from_secs(10);

/// Where the certificate comes from.
pub(crate) struct Certificates {
    source: Source,
    /// Taken by who keeps the certificate; without it this is the only replica.
    pub(crate) elector: Option<Elector>,
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
            return Ok(Self { source, elector: None });
        }
        let (fence, options) = (Fence::new(), ClientOptions::new(registry));
        let reader: Client = client::build(kube.clone(), options.clone())?;
        let writer = FencedClient::build(kube.clone(), options.clone(), &fence)?;
        let elector = if config.leader_election.enabled {
            let name = format!("{}-certificates", leadership.name);
            let client = client::build(kube.clone(), ClientOptions { retry: false, ..options })?;
            Some(Elector::new(client, LeaderConfig { name, ..leadership.clone() }, registry, fence)?)
        } else {
            fence.open_until(Instant::now() + Duration::from_hours(24 * 365 * 30));
            None
        };
        let settings = certificates.settings(&leadership.namespace, &config.webhook_configurations());
        let source = Source::SelfManaged(Box::new(SelfManaged::new(settings, reader, writer, recorder, parts)));
        Ok(Self { source, elector })
    }

    /// Serves the certificate for as long as anybody may ask for it: until it is dropped.
    pub(crate) async fn serve(&self) {
        match &self.source {
            Source::SelfManaged(keeper) => keeper.serve().await,
            Source::Files(files) => files.serve().await,
        }
    }

    /// Keeps the certificate, if this replica is the one to do it, until `stop`.
    pub(crate) async fn keep(&self, elector: Option<Elector>, stop: CancellationToken) {
        let Source::SelfManaged(keeper) = &self.source else { return };
        match elector {
            Some(elector) => drop(elector.run(stop, |term| keeper.keep(term.stopping)).await),
            None => keeper.keep(stop).await,
        }
    }
}
