//! What is configured.

use std::{path::PathBuf, sync::Arc, time::Duration};

use serde::Deserialize;

use crate::endpoint::Range;

/// The settings of the feature.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The only namespace whose claims are looked after; none if it is all of them.
    pub namespace: Option<Arc<str>>,
    /// How often the source is asked.
    pub poll_interval: Duration,
    /// For how long a verified volume is not read again.
    pub cache_expiry: Duration,
    /// How often something that was created is looked for.
    pub create_poll_interval: Duration,
    /// For how long.
    pub create_wait_duration: Duration,
    /// What new Services are called.
    pub service_name: ServiceName,
    /// Whether there is an Endpoints object beside each slice.
    pub endpoints: bool,
    /// What becomes of the way to a server that is gone.
    pub endpoint_gone: EndpointGone,
    /// Where servers may be; anywhere if it is empty.
    pub allowed_endpoints: Arc<[Range]>,
    /// Whether a server must answer before its address is published.
    pub probe: Probe,
    /// How many volumes are worked on at once, of those that move and of the others each.
    pub concurrency: usize,
}

/// What a new Service is called.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ServiceName {
    /// As the claim, which is what people know.
    #[default]
    Claim,
    /// As the volume, which is what the original's code does.
    Pv,
}

/// What becomes of the way to a server that is gone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EndpointGone {
    /// It is closed: whoever connects is refused, and led to no other server that took its port.
    #[default]
    Withdraw,
    /// It stays as it is.
    Keep,
}

/// What a server must answer before its address is published.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Probe {
    /// Nothing.
    #[default]
    None,
    /// It must accept a connection.
    Tcp,
    /// It must answer NFS's call that does nothing.
    Nfs,
}

/// How StorageOS is reached.
#[derive(Debug, Clone)]
pub struct StorageOsSettings {
    /// Where its API is; `http://` and port 5705 if it does not say.
    pub endpoint: String,
    /// The directory with the files `username` and `password`.
    pub secret_path: PathBuf,
    /// A PEM bundle of the only CAs that are trusted; the system's if there is none.
    pub ca: Option<PathBuf>,
    /// How often a token is refreshed at the least.
    pub refresh_interval: Duration,
    /// The pause after a login that failed.
    pub retry_interval: Duration,
    /// How long one answer may take.
    pub request_timeout: Duration,
}
