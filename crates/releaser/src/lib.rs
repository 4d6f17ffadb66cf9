//! Makes Released, retained volumes available again.
//!
//! ```text
//! Claim ci/cache (uid 1) ──gone──┐                       soft       claimRef: ci/cache, no uid    the next claim of that name
//!                                v                       namespace  claimRef: ci/other, its uid   a claim of that namespace
//! Volume pv-1  Bound ──> Released, claimRef: uid 1 ──>   pool       no claimRef                   any claim, with the data
//!   class fast: claimkeeper.dev/release: <mode>          never      stays Released
//! ```
//!
//! * Why: Kubernetes keeps a retained volume for a claim that never comes back, until somebody edits it by hand.
//! * Who writes what: we patch volumes, nothing else (but for what a scrub needs): the label of the association while the claim is there, `claimRef` when
//!   it is gone. Kubernetes does the rest: phases and binding.
//! * What can go wrong: **the next claim reads what the last one wrote.** So a volume is released only if its class or a label
//!   says so, to as few as its class says, and never while anybody could still use it: what has changed is read live right
//!   before the write ([`decision`]), and the write is refused if the volume is not the one that was decided about.
//! * A namespace that was deleted and made anew may be another tenant's: volumes that are kept for a claim of that namespace
//!   ([`reservation`]) are taken back.
//! * Who wants no data to be passed on has each volume cleaned on its way to the pool ([`scrub`]).
//! * A claim's wish is lost with the claim. It is written onto the volume while the claim is there ([`association`]); the
//!   class's word ([`policy`]) needs no such luck.

pub mod association;
mod backlog;
mod controller;
pub mod decision;
mod fit;
mod fresh;
mod live;
#[cfg(test)]
mod model;
mod pending;
pub mod policy;
pub mod previous;
mod release;
pub mod reservation;
#[cfg(test)]
mod sample;
pub mod scrub;
pub mod seen;
mod wake;
pub mod why;
mod write;

pub use controller::{Caches, INDEXES_OF_VOLUMES, Releaser, Settings};
pub use live::{MissingRight, Rights};
pub use scrub::Scrub;
