//! The way to the API server: which cluster, as whom, and with which manners.
//!
//! ```text
//! flag | KUBECONFIG | pod | home ── load_config ──> kube::Config ── build ──> kube::Client
//!
//!    each request:  fence ──> time limits ──> retry, if that is safe ──> kube's own stack (credentials, TLS)
//!                     └── metrics by verb, resource and code, for every try
//! ```
//!
//! kube's defaults are unbounded where an operator must not be: no time limit on answers, fifteen retries of any verb. Here
//! every request that is not a watch ends within [`Timeouts::request`], nothing that the server may have carried out is
//! sent twice, and a client that was built with a [`Fence`] refuses to write while this process does not lead.

mod account;
pub mod binary;
mod fence;
mod kubeconfig;
mod metrics;
mod request;
mod retry;
mod service;
mod unread;

use std::{ops::Deref, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, header::USER_AGENT};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder},
};
use tower::{BoxError, Layer, Service};

pub use account::owner_in;
pub use fence::Fence;
pub use kubeconfig::{ClientError, load_config};
pub use service::RequestError;
pub use unread::send_unread;

use crate::metrics::Registry;

/// How this process calls itself in the API server's audit log.
pub const USER_AGENT_VALUE: &str = concat!("claimkeeper/", env!("CARGO_PKG_VERSION"));

/// How long the API server may take.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// To open a connection.
    pub connect: Duration,
    /// To send the header of its answer, connecting included. A watch is answered at once, so this holds for watches too.
    pub response_header: Duration,
    /// For everything from the first try to the last byte. Watches have no such limit: they are meant to last.
    pub request: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            response_header: Duration::from_secs(10),
            request: Duration::from_secs(30),
        }
    }
}

/// What distinguishes the clients of one process.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Where the requests are counted.
    pub registry: Registry,
    /// If given, writes pass only while it is open. Events and Leases go through clients without one.
    pub fence: Option<Fence>,
    /// Whether requests are repeated where that is safe. The elector has its own rhythm and does without.
    pub retry: bool,
    /// How long the API server may take.
    pub timeouts: Timeouts,
}

impl ClientOptions {
    /// A client that may read and write, repeats what is safe and waits as long as is usual.
    #[must_use]
    pub fn new(registry: &Registry) -> Self {
        Self { registry: registry.clone(), fence: None, retry: true, timeouts: Timeouts::default() }
    }
}

/// A client with our manners for the cluster that `config` describes.
pub fn build(mut config: Config, options: ClientOptions) -> Result<Client, ClientError> {
    config.default_retry = false;
    config.connect_timeout = Some(options.timeouts.connect);
    config.headers.push((USER_AGENT, HeaderValue::from_static(USER_AGENT_VALUE)));
    let server = config.cluster_url.to_string();
    let builder = ClientBuilder::try_from(config)
        .map_err(|error| ClientError::Unusable { server, reason: kubeconfig::why_unusable(&error) })?;
    Ok(builder.with_layer(&service::ApiLayer { options }).build())
}

/// A client that refuses to write while this process does not lead. Features take this one and no other, so that the compiler
/// sees to it that their writes are fenced.
#[derive(Clone)]
pub struct FencedClient(Client, Fence);

impl FencedClient {
    /// A client like that of [`build`], behind `fence`.
    pub fn build(config: Config, options: ClientOptions, fence: &Fence) -> Result<Self, ClientError> {
        let client = build(config, ClientOptions { fence: Some(fence.clone()), ..options })?;
        Ok(Self(client, fence.clone()))
    }

    /// Whether this process may write now: for writes to others than the API server, which no client refuses.
    #[must_use]
    pub fn may_write(&self) -> bool {
        self.1.is_open()
    }
}

impl Deref for FencedClient {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.0
    }
}

/// The same client over any service that answers requests: how faults are rehearsed that no real server shows on demand.
pub fn over<S, B>(service: S, options: ClientOptions) -> Client
where
    S: Service<Request<Body>, Response = Response<B>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    Client::new(service::ApiLayer { options }.layer(service), "default")
}
