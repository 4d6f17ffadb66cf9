//! What becomes of volumes whose node is gone, on a real control plane.

#![allow(clippy::unwrap_used)]

mod crash;
mod guards;
mod nodes;
mod room;
mod stories;
mod volumes;
