//! One of several replicas leads, and the others know when it stops: a Lease with client-go's semantics.
//!
//! ```text
//!            ┌───────────────── lost, or not renewed in time: fence closed, term dropped ────────────────┐
//!            v                                                                                           │
//!        stand by ── free, released or expired: create or replace, guarded by resourceVersion ──>     lead
//!            │  watches the Lease; polls where it may not watch                                          │ renews
//!            │                                                                                           │
//!         shutdown                                               shutdown: term drains, lease released <─┘
//! ```
//!
//! Who may do what is decided in `decision.rs`, which a model checker has walked through. Three things make sure that the
//! writes of two leaders never overlap: the term's future is dropped, and with it everything it was doing; the [`Fence`] of
//! the API client refuses writes, also those of tasks that outlived the term; and both happen a safe margin
//! (`lease_duration - renew_deadline`) before another candidate may start. Losing a lease is not an error: the process
//! stands by again with warm caches.
//!
//! What remains is what every lease without fencing tokens has: a write that left this process in time and arrives at the
//! API server after a minute on the network. Preconditions on every write take care of those.

mod config;
mod decision;
mod duty;
mod elector;
mod lease;
#[cfg(test)]
mod model;
mod trouble;

use tokio_util::sync::CancellationToken;

pub use config::{LeaderConfig, LeaderConfigError, unique_identity};
pub use elector::Elector;

#[cfg(doc)]
use crate::client::Fence;

/// One uninterrupted time of leading.
#[derive(Clone, Debug)]
pub struct Term {
    /// Cancelled when the process shuts down: finish what you are doing and return. The lease is renewed meanwhile and
    /// released afterwards. (When the lease is lost there is nothing to wait for: the term's future is dropped.)
    pub stopping: CancellationToken,
}

/// Who leads, as far as this process knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leadership {
    /// The holder in the Lease when it was last seen; nobody after a release.
    pub holder: Option<String>,
    /// Whether this process leads: it holds the lease and has renewed it in time.
    pub leading: bool,
}
