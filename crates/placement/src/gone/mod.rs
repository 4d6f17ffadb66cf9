//! Cleans up after nodes that are gone.
//!
//! ```text
//! Volume pvc-1 ── tied to ──> Node a            first seen in use: which machine `a` is, is noted on the volume
//!    │                          x gone          since when, too
//!    │ Bound: Claim data-web-0                  deleted, if StatefulSet web makes it again, or it asks us to
//!    └ Released: nobody can clean the disk      deleted, without waiting for its provisioner
//! ```
//!
//! * Why: a pod whose volume is tied to a machine that is gone waits for ever, and so does the volume's end.
//! * What is gone: a machine without Node object. One that is not Ready, cordoned or powered off is not; one that comes back under
//!   its name is known by what its firmware and system call themselves ([`identity`]).
//! * Who writes what: only the leader. It notes the machine and since when it is gone on the volume, deletes claims, pods that wait
//!   in vain on the machine that took the name, and volumes; each for the very version that was read live. Retained volumes and
//!   their claims are only told of.
//! * What can go wrong: somebody deletes Node objects of machines that live. So nothing happens for a while, and nothing at all if
//!   many vanish together ([`brake`]). A crash between the end of a claim and its new beginning is outlived by what is written
//!   on the volume ([`recreate`]).

mod act;
pub mod audit;
pub mod brake;
mod controller;
pub mod decision;
pub mod identity;
mod live;
#[cfg(test)]
mod model;
pub mod policy;
pub mod recreate;
#[cfg(test)]
mod sample;
mod wake;
pub mod why;

pub use controller::Gone;
pub use wake::BY_TIE;
