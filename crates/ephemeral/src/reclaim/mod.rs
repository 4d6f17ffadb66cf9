//! Frees the claims of pods that have ended, without waiting for the pods themselves to go. Off unless somebody asks for it.
//!
//! ```text
//! Pod ns/build (Succeeded) <──owns── Claim ns/build-scratch ──> Volume pv-1 <── VolumeAttachment   gone?
//!   node-1                             │   ^                                <── Node node-1: status.volumesInUse   not in it?
//!   └── never starts again             │   └── pods that call it by name   gone?
//!                                      └── 1. DELETE (uid, resourceVersion)
//!                                          2. PATCH: test uid, deletionTimestamp, owner; remove the owner
//!                                          3. the protection controller drops its finalizer, unless another pod uses the claim
//! ```
//!
//! * Why: a claim lives as long as its pod object, and completed Jobs are kept for their logs and history. Their volumes
//!   are paid for and count against quotas although nobody can ever use them again.
//! * When: only if nothing can still be mounted. A pod's phase does not tell, because the kubelet unmounts later. For volumes
//!   that are attached, two others do: the `VolumeAttachment` is gone, and the node does not list the volume as in use (or
//!   there is no such node any more). For volumes that are mounted without being attached nobody tells; they are freed only
//!   if the node is gone or the configuration vouches for their plugin.
//! * Who writes what: we delete the claim and take the pod out of its owners. The second step is needed because the protection
//!   controller counts a pod as a user of the claim that it owns, ended or not. Its finalizer is never touched: it still looks
//!   for other pods by itself. If the claim has finalizers of others, it stays until they are done.
//! * What can go wrong: we crash between the two writes (the claim is found being deleted, and is disowned), something changes
//!   after it was read (the write's precondition fails, and it is decided again), the controller in Kubernetes makes the claim
//!   again because its pod exists (told once, not fought), a user deletes the claim by hand (it is disowned under the same
//!   conditions, so that it can go).
//! * What is remembered (what was told, what was freed) is lost with the leader; then it is told once more.

mod act;
mod controller;
pub mod decision;
pub mod facts;
mod memory;
mod mode;
mod wake;

pub use controller::{Caches, INDEXES_OF_PODS, Reclaim, Settings, uses_claims};
pub use facts::PLUGINS_WITHOUT_ATTACH;
pub use mode::{Mode, ReclaimCompleted};
