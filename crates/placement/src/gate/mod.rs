//! Pods that must not run without their volume wait behind a gate until its node is back.
//!
//! ```text
//! Pod, gated ── claims ──> volumes ── home node there? ── no ──> waits (told once), until it is back or given up
//!                                          └── yes ──> read live ──> one patch: required terms in, gate off
//! ```
//!
//! Kubernetes lets a gated pod's node affinity only get narrower, and only while the gate is there: that is why the terms come
//! with the gate's end, in one write. A pod without our gate that insists on a node which is gone cannot be helped that way. It is
//! told, with the command that makes it anew.

mod controller;
pub mod decision;
pub mod stranded;
mod wake;

pub use controller::Gate;
