//! Ties volumes to their home nodes where nobody tells pods where to run: the scheduler then keeps pods with them.
//!
//! ```text
//! Volume, untied ── home node there? ── yes ──> spec.nodeAffinity: topologyKey In [its label on that node]
//!                                       no ───> left: tied to a node that is gone it could never be used again
//! ```
//!
//! Kubernetes takes a volume's node affinity once. Whether it may be changed later, when the volume has moved, depends on the gate
//! `MutablePVNodeAffinity` of the API server: it is tried, and if the server says no it is told once. Only what has exactly our
//! form is changed: whoever says more about a volume knows more about it.

mod controller;
pub mod decision;

pub use controller::Affinity;
