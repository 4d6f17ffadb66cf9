//! Tells new pods where their volumes are.
//!
//! ```text
//! kubectl apply ──> API server ── AdmissionReview ──> AskedPod ── volumes ──> Claim ──> Volume ──> home Node
//!                       ^                                                                   │
//!                       │                                       availability: preferred     │ durability: required,
//!                       └── JSON patch: node affinity, gate <── one term per node      <────┘ or a gate if it is away
//! ```
//!
//! * Who writes what: nobody writes anything but events; the API server applies the patch. Every replica answers, from caches
//!   that are warm before it is ready; only what the caches do not have yet is read live, once ([`observe`], `live`).
//! * What can go wrong: **widening.** One term is enough, so another one beside those of the pod's author would let it run where they
//!   did not want it. What must hold is added to each of theirs ([`crate::patch`]).
//! * And **losing one volume over another**: all of them are looked at, in whatever order, and what is wrong with one says
//!   nothing about the next ([`decision`]).
//! * And **being in the way**: a pod without such volumes must not notice us. An error admits.

pub mod decision;
mod live;
mod metrics;
pub mod observation;
pub mod observe;
mod tell;
mod webhook;

pub(crate) use live::Reader;
pub use webhook::Steering;
