//! Admits claims on local, unreplicated storage only if they are ephemeral or if their author accepts the risk.
//!
//! ```text
//! kubectl apply ──> API server ── AdmissionReview ──> Claim data, class local ──> Class local, driver localdisk.csi.acstor.io
//!                       ^                                  │ ownerReferences           │ pool, copies, annotations
//!                       │                                  v                           v
//!                       └── allow | warn | deny <──── a pod's? accepted?  <──── lost with its node?
//! ```
//!
//! * Why: what is written to a disk of a node is gone with the node. Who asks for a claim expects it to last; who asks for an
//!   ephemeral volume does not. Whoever wants the former on such a disk is to say that they know.
//! * Who writes what: nobody writes anything but events. Every replica answers, from caches that are warm before it is ready;
//!   only what the caches do not have yet is read live, once ([`observe`], `live`).
//! * What can go wrong: **a way round.** A class by its old name or by default, a class that is set later, an owner that is
//!   forged, dead or takes itself away, a volume that waits for the claim: the rule ([`decision`]) sees all of them. It cannot
//!   keep the garbage collector from orphaning a claim; it tells.
//! * And **refusing what is not ours**: whoever uses another driver must not notice us. An error allows.
//! * An older claim is left alone: of a change only what changes is judged (`change`).

pub mod audit;
mod change;
pub mod claim;
pub mod decision;
pub mod governed;
mod live;
mod message;
mod metrics;
pub mod observation;
pub mod observe;
pub mod policy;
pub mod settings;
mod tell;
mod webhook;
pub mod why;

pub use observe::Caches;
pub use settings::Settings;
pub use webhook::Enforcement;
