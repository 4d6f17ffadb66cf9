//! The webhook's certificate: where it comes from, and how it is renewed without one failed call.
//!
//! ```text
//! self-managed   keeper (one replica, under a Lease of its own)
//!                   │ writes                       │ writes
//!                   v                              v
//!                Secret: authorities, leaf      caBundle of our webhook configurations
//!                   │                              │
//!                   └──watch──> every replica <────┘     ──> ServedCertificate ──> TLS server
//!
//! files          directory with tls.crt and tls.key ──poll──> ServedCertificate ──> TLS server
//! ```
//!
//! A rotation of the authority takes five steps, each of which may be the last before a crash: the new authority is put beside
//! the old one in the Secret; both are put into every caBundle; after the time that API servers may take to notice, the
//! new one signs a leaf, and the replicas change over to it; after the time that they may take, the old authority leaves the
//! Secret; and then the caBundles. What comes next is decided in `decision.rs` from what is there, and a model checker has
//! walked through every interleaving (`model.rs`).
//!
//! What can go wrong, and what becomes of it: a Secret that was deleted or damaged is made anew with an authority that is
//! published beside those that the caBundles have, and the replicas serve what they have until that is done. A Secret that
//! somebody replaced is taken over in the same order. A caBundle that was changed is put back. Entries of the Secret that are not
//! ours are left alone. The key of an authority is in the Secret and nowhere else; that of an authority which is replaced is
//! thrown away at once, since all it could do is sign.

mod configurations;
mod decision;
mod files;
mod keeper;
mod metrics;
#[cfg(test)]
mod model;
mod secret;
mod serving;
mod watching;
mod x509;

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use parking_lot::Mutex;
use tokio::sync::Notify;

pub use configurations::{ConfigurationName, InvalidConfigurationName};
pub use files::Files;

use self::{configurations::Callee, decision::Patience, metrics::Metrics, serving::Serving};
use crate::{
    admission::tls::ServedCertificate, client::FencedClient, events::Recorder, metrics::Registry, readiness::Gate,
};

/// How the certificate is made and where it is kept.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The Secret's name.
    pub secret: String,
    /// The namespace of the Secret and of the Service.
    pub namespace: String,
    /// The Service by which API servers call us.
    pub service: String,
    /// Other names and addresses by which we are called.
    pub names: Vec<String>,
    /// The webhook configurations that call us.
    pub configurations: Vec<ConfigurationName>,
    /// For how long a leaf is made out.
    pub leaf_lifetime: Duration,
    /// For how long an authority is made out.
    pub authority_lifetime: Duration,
    /// How long an API server may use a configuration after it was changed.
    pub settle: Duration,
    /// How long a replica may serve a leaf after it was replaced.
    pub grace: Duration,
}

impl Settings {
    /// Everything that the certificate is made out to.
    fn all_names(&self) -> BTreeSet<String> {
        let Self { service, namespace, .. } = self;
        let by_service = ["", ".svc", ".svc.cluster.local"].map(|suffix| format!("{service}.{namespace}{suffix}"));
        by_service.into_iter().chain(self.names.iter().cloned()).collect()
    }

    fn patience(&self) -> Patience {
        Patience { settle: self.settle, grace: self.grace }
    }
}

/// What both ways of getting a certificate are given.
pub struct Parts {
    /// Where the certificate goes.
    pub served: ServedCertificate,
    /// Met while what is served can be accepted.
    pub ready: Gate,
    /// Where expiry, rotations and errors are counted.
    pub registry: Registry,
}

/// Certificates that we make ourselves.
pub struct SelfManaged {
    settings: Settings,
    callee: Callee,
    reader: Client,
    writer: FencedClient,
    recorder: Recorder,
    parts: Parts,
    metrics: Metrics,
    /// What this replica serves.
    serving: Mutex<Option<Serving>>,
    /// Something that the keeper looks at has changed.
    changed: Notify,
}

impl SelfManaged {
    /// `writer` is behind the fence of the certificates' own Lease.
    #[must_use]
    pub fn new(settings: Settings, reader: Client, writer: FencedClient, recorder: Recorder, parts: Parts) -> Self {
        let Settings { service, namespace, .. } = settings.clone();
        let callee = Callee { service, namespace, names: settings.all_names() };
        let metrics = Metrics::new(&parts.registry);
        let (serving, changed) = (Mutex::default(), Notify::new());
        Self { settings, callee, reader, writer, recorder, parts, metrics, serving, changed }
    }

    fn secrets(&self, client: &Client) -> Api<Secret> {
        Api::namespaced(client.clone(), &self.settings.namespace)
    }
}
