//! Creates the claim of every generic ephemeral volume in a pod (KEP-1698).
//!
//! ```text
//! Pod ns/web  (uid 1)                                Claim ns/web-scratch
//!   volumes: scratch: ephemeral: template ──────────> labels, annotations, spec of the template
//!                                                     ownerReferences: Pod web, uid 1, controller
//! ```
//!
//! * Who writes what: we create claims, nothing else, unless [`reclaim`] is switched on. The garbage collector deletes a claim
//!   after its pod, users may change it, the volume controller binds it.
//! * Identity: a claim belongs to a pod if the pod's uid is that of the claim's controlling owner. Scheduler and kubelet check
//!   the same, so a claim that merely has the right name would never be used and is never touched.
//! * What can go wrong: the name is taken (an event on the pod, repeated while it lasts), the API server refuses the claim (an
//!   event with its words, retried with growing pauses), our cache is behind (a create then meets what is already there, we
//!   read it live and decide again), the pod is replaced by one of the same name (the new uid counts).
//! * A pod that ended or is being deleted gets no claim any more, and no pod does in a namespace whose label keeps ephemeral
//!   volumes out. An admission policy turns such pods away already; the rule here is for those that were there before it.
//! * A claim that does not fit into a quota waits in line until the quota leaves more room.

mod claim;
mod controller;
pub mod decision;
mod quota_line;
pub mod reclaim;
pub mod why;

pub use controller::{Caches, Ephemeral, INDEXES_OF_PODS, interesting};
