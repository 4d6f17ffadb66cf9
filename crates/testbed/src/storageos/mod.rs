//! The control plane of StorageOS (later Ondat), as far as its API v2 tells of shared volumes: a real server on a real port.
//!
//! ```text
//! test ──changes──► Store ──answers──► server ◄──HTTP── client under test
//!   ▲                 │ namespaces, volumes with versions, tokens
//!   └──asks what──────┘ faults, scripts, a log of requests, what was told of each volume and when
//! ```
//!
//! - [`StorageOs::start`] starts one. It ends with its owner.
//! - [`Store`] is what it holds, and [`StorageOs`] dereferences to it: [`add_volume`](Store::add_volume),
//!   [`failover`](Store::failover), [`fault`](Store::fault), [`run`](Store::run), [`requests`](Store::requests),
//!   [`published`](Store::published), [`reports`](Store::reports) …
//!
//! ```no_run
//! # use testbed::storageos::{Endpoint, Fault, Route, StorageOs, Volume};
//! # async fn test() -> anyhow::Result<()> {
//! let server = StorageOs::start().await?;
//! let id = server.add_volume(Volume::shared("team", "data", "pvc-1").at("10.0.0.1:25705"));
//! // … start a client with server.url() and server.secret_path() …
//! server.failover(&id, Endpoint::Null)?; // the NFS server is gone
//! server.failover(&id, "10.0.0.2:25705")?; // and back elsewhere
//! server.fault(Fault::status(503).on(Route::Volumes).namespace("team").times(2));
//! assert_eq!(server.published(&id)?.as_deref(), Some("10.96.0.7:2049"));
//! # Ok(())
//! # }
//! ```
//!
//! Its rules are those of the API's own description, releases 2.4.0 and 2.8.0 ([`Spec`]): all but the login take a token that
//! expires; a write carries the version that it was made from, and a stale one is refused (412); errors are
//! `{"error": "…"}`. The published address is the label [`MOUNT_ENDPOINT`]. That it is like the real one is shown by the
//! original client, which takes it for that.

mod answer;
mod call;
mod fault;
mod file;
mod memory;
mod script;
mod server;
mod session;
mod store;
mod volume;

use std::{
    fs,
    net::SocketAddr,
    ops::Deref,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result};
use call::Call;
pub use call::{Request, Route};
pub use fault::Fault;
pub use memory::Report;
pub use script::Script;
pub use session::{Sessions, TokenHeader};
pub use store::Store;
use tempfile::TempDir;
use tokio::{net::TcpListener, task::JoinHandle};
pub use volume::{Endpoint, MOUNT_ENDPOINT, PV_NAME, PVC_NAME, PVC_NAMESPACE, Spec, Volume};

use crate::Cluster;

/// The user that may log in.
pub const USERNAME: &str = "storageos";
/// The user's password at first.
pub const PASSWORD: &str = "storageos-password";

/// A running server. Dropping it closes all its connections.
pub struct StorageOs {
    store: Arc<Store>,
    address: SocketAddr,
    secret: TempDir,
    /// The cluster in whose real nodes' network it is, if not in this process's.
    cluster: Option<Cluster>,
    task: Option<JoinHandle<()>>,
}

impl StorageOs {
    /// On a free port of the loopback interface.
    pub async fn start() -> Result<Self> {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], 0)), USERNAME, PASSWORD).await
    }

    /// On an address of one's own, for this user.
    pub async fn start_at(address: SocketAddr, username: &str, password: &str) -> Result<Self> {
        Self::start_in(None, address, username, password).await
    }

    /// On an address of the real nodes of a cluster, whose pods reach nothing else.
    pub async fn start_on_nodes(cluster: &Cluster, address: SocketAddr) -> Result<Self> {
        Self::start_in(Some(cluster.clone()), address, USERNAME, PASSWORD).await
    }

    async fn start_in(cluster: Option<Cluster>, address: SocketAddr, username: &str, password: &str) -> Result<Self> {
        let store = Arc::new(Store::new(username, password));
        let secret = tempfile::Builder::new().prefix("claimkeeper-storageos-").tempdir()?;
        let mut server = Self { store, address, secret, cluster, task: None };
        server.write_secret(username, password)?;
        server.open().await?;
        Ok(server)
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The same as a URL, for clients: without the API's `/v2`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A directory with the files `username` and `password`, as a mounted Secret has them. It goes with the server.
    #[must_use]
    pub fn secret_path(&self) -> &Path {
        self.secret.path()
    }

    /// Writes other credentials into these files; what the server takes stays what it is ([`Store::set_password`]).
    pub fn write_secret(&self, username: &str, password: &str) -> Result<()> {
        for (name, content) in [("username", username), ("password", password)] {
            let path: PathBuf = self.secret.path().join(name);
            // In one step, because a client may be reading.
            let unfinished = path.with_extension("unfinished");
            fs::write(&unfinished, content)
                .and_then(|()| fs::rename(&unfinished, &path))
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }

    /// Closes the port and all connections: clients are refused. All that the server holds stays, but scripts stand still.
    pub async fn close(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
            // It has ended, which is what is waited for.
            let _ = task.await;
        }
    }

    /// Listens again where it did before.
    pub async fn open(&mut self) -> Result<()> {
        self.close().await;
        let listener = match &self.cluster {
            Some(cluster) => Ok(TcpListener::from_std(cluster.listen(self.address)?)?),
            None => TcpListener::bind(self.address).await,
        };
        let listener = listener.with_context(|| format!("cannot listen on {}", self.address))?;
        self.address = listener.local_addr()?;
        self.task = Some(tokio::spawn(server::serve(listener, Arc::clone(&self.store))));
        Ok(())
    }
}

impl Deref for StorageOs {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

impl Drop for StorageOs {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}
