//! Creates the claims that pods ask for by annotation.
//!
//! ```text
//! Pod ci/build (uid 1, Pending)                                       Claim ci/cache-1
//!   annotations: claimkeeper.dev/cache.claim: <template> ───────────> spec, labels, annotations of the template
//!   volumes: cache: persistentVolumeClaim: claimName: cache-1 ──────> name
//!   serviceAccountName: builder ── may it create claims? ──           label managed-by: <controllerId>
//!                                                                     ownerReferences: Pod build, uid 1, controller
//! ```
//!
//! * Why: pod templates of CI systems cannot create claims, and generic ephemeral volumes cannot be given a name.
//! * Who writes what: we create claims, nothing else. The garbage collector deletes a claim after its pod.
//! * Who may: a template is written by whoever may create pods, so it may say only what is harmless ([`template`]), and the
//!   pod's `ServiceAccount` must be allowed to create claims itself.
//! * Identity: a claim belongs to a pod if the pod's uid is that of its controlling owner. A claim that merely has the right name
//!   is reported and never touched, although the pod will use it: its spec says so.
//! * What can go wrong: the template is wrong (an event with the place and the fix), the name is taken, the API server refuses (an
//!   event with its words, retried with growing pauses), our cache is behind (a create then meets what is already there, we read
//!   it live and decide again), the pod is replaced by one of the same name (the new uid counts).

mod authorization;
mod claim;
mod controller;
pub mod decision;
pub mod request;
pub mod template;
mod told;
pub mod why;

pub use controller::{Caches, INDEXES_OF_PODS, Provisioner, Settings, interesting};
