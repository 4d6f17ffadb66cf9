//! What the leader does about pods and volumes, against a real control plane with the real scheduler.

#![allow(clippy::unwrap_used)]

mod affinity;
mod failover;
mod gate;
mod room;
