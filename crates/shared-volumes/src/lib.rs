//! Keeps one stable address in front of an NFS server that moves.
//!
//! ```text
//! source (StorageOS) ──poll──> volumes: id, claim, endpoint, published address        claim ci/files ──owns──┐
//!        ▲                        │                                                                         v
//!        └── published address ── address ◄── Service ci/files 10.0.0.7:2049 ──> EndpointSlice ──> 10.1.0.4:25705
//!                                                    └── Endpoints of its name, for who still reads them
//! ```
//!
//! * Why: clients of NFS hold on to an address. The server of a volume moves from node to node, and the address must not.
//! * Who writes what: we write the Service, its one slice, the Endpoints object beside it, a note on the claim, and the address
//!   that the source publishes. Kubernetes' garbage collector removes them with the claim.
//! * What can go wrong: **a client is led to another volume's server.** Ports are used again, by the servers of other tenants,
//!   which let everybody in. So an address leads to exactly one endpoint, that of its own volume as it was told last
//!   ([`decision`]), no two addresses lead to one (`state`), and where a server is gone its address leads nowhere.
//! * **A client has an address that changes.** Its mounts hang for good. So the address is remembered where tenants cannot write, and asked
//!   for again ([`address`]); nothing is published that was not read back.
//! * Slices that others add to our Service would share its connections: they are removed ([`way`]).
//! * A source that does not answer changes nothing: what is missing is not gone ([`source`]).

pub mod address;
pub mod audit;
mod controller;
pub mod decision;
pub mod endpoint;
mod lead;
mod leads;
mod live;
mod metrics;
#[cfg(test)]
mod model;
pub mod names;
pub mod objects;
mod poll;
mod probe;
mod round;
#[cfg(test)]
mod sample;
mod serve;
pub mod settings;
pub mod source;
mod state;
pub mod storageos;
mod tell;
mod trouble;
mod wake;
pub mod way;
pub mod why;
mod withdraw;
mod write;

pub use controller::{Caches, SharedVolumes};
pub use settings::{EndpointGone, Probe, ServiceName, Settings, StorageOsSettings};
pub use storageos::StorageOs;
