//! The real binary on a real control plane, with the rights that the chart grants.

#![allow(clippy::unwrap_used)] // helpers are tests too

mod bad_input;
mod home;
mod lifetime;
mod outage;
mod replicas;
