//! Creates the claim of every generic ephemeral volume in a pod (KEP-1698).
//!
//! ```text
//! Pod ns/web  (uid 1)                                Claim ns/web-scratch
//!   volumes: scratch: ephemeral: template ──────────> labels, annotations, spec of the template
//!                                                     ownerReferences: Pod web, uid 1, controller
//! ```
//!
//! * Who writes what: we create claims, nothing else. The garbage collector deletes a claim after its pod, users may change
//!   it, the volume controller binds it.
//! * Identity: a claim belongs to a pod if the pod's uid is that of the claim's controlling owner. Scheduler and kubelet check
//!   the same, so a claim that merely has the right name would never be used and is never touched.
//! * What can go wrong: the name is taken (an event on the pod, repeated while it lasts), the API server refuses the claim (an
//!   event with its words, retried with growing pauses), our cache is behind (a create then meets what is already there, we
//!   read it live and decide again), the pod is replaced by one of the same name (the new uid counts).
//! * A pod that ended or is being deleted gets no claim any more.

mod claim;
mod controller;
pub mod decision;

pub use controller::{Ephemeral, INDEXES_OF_PODS, interesting};
