//! A real Kubernetes control plane on one machine, for tests, demo and benchmarks.
//!
//! ```text
//! this process ──lifeline──► etcd ◄── kube-apiserver ◄── kube-controller-manager, kube-scheduler
//!      │                                    ▲   ▲
//!      ├── provisioner (a task) ────────────┘   └── kwok (nodes are Ready, their pods run)
//!      └── run directory: data, certificates, kubeconfigs, logs, audit log, bin/kubectl, bin/helm
//! ```
//!
//! - [`ControlPlane::start`] starts one and owns it: its parts can be stopped, killed, paused and restarted. It ends with
//!   its owner, whichever way that one ends, and leaves nothing behind.
//! - [`Cluster`] is what everyone else holds: addresses, clients, kubeconfigs, namespaces, nodes, the audit log.
//! - [`shared`] is the one that the tests of a run have in common; nearly all tests want this:
//!
//! ```no_run
//! # async fn test() -> anyhow::Result<()> {
//! let cluster = testbed::shared().await?;
//! let namespace = cluster.create_namespace("my-test").await?;
//! let client = cluster.admin().await?;
//! # Ok(())
//! # }
//! ```
//!
//! Where volumes have to be local disks that are lost with their node, [`LocalDisks`] stands in for a CSI driver of such disks.
//!
//! Where pods have to run for real, [`Options::real_node`] adds a node with containerd, kubelet and kube-proxy in namespaces of its
//! own, on machines that allow it ([`real_node_unavailable`]); its images are made of files ([`Image`], [`archive`]). With
//! [`Options::real_nodes`] there are several, of which [`ControlPlane::lose_node`] takes one away.
//!
//! [`storageos`] is the control plane of a storage system, for what keeps its shared volumes reachable, and
//! [`original`] is the program that has done so before.
//!
//! The programs are built from the Go modules in `controlplane/` and `node/` when they are first needed ([`Binaries`]).

pub mod archive;
mod audit;
mod binaries;
mod chart;
mod cluster;
mod control_plane;
mod flags;
mod history;
mod image;
mod kubeconfig;
mod leash;
mod localdisk;
mod manifests;
mod node;
mod nodes;
mod options;
pub mod original;
mod pki;
mod ports;
mod probe;
mod process;
mod progress;
mod provisioner;
pub mod rights;
mod service;
mod shared;
pub mod storageos;
mod wait;

pub use audit::{AuditLog, AuditedObject, AuditedRequest, AuditedResponse, AuditedUser};
pub use binaries::{Binaries, cache_directory};
pub use cluster::Cluster;
pub use control_plane::ControlPlane;
pub use history::{History, Revision};
pub use image::{BUSYBOX, Image, OPERATOR_LINKS, WrittenImage, architecture};
pub use leash::Leash;
pub use localdisk::{Content, LOCALDISK, LocalDisks, MODE};
pub use manifests::{Manifest, manifests};
pub use node::{REAL_NODES, real_node_turn, real_node_unavailable};
pub use options::Options;
pub use process::{Component, ComponentFailed};
pub use progress::Progress;
pub use provisioner::PROVISIONER;
pub use service::Service;
pub use shared::{TESTBED_VARIABLE, shared};
pub use wait::{PATIENCE, eventually, within};
