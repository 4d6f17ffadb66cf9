//! Servers of shared volumes that move all the time: the real binary with the rights that the chart grants, beside a StorageOS that
//! has bad days, and beside the program that it replaces.
//!
//! A program of its own, because it takes the API server away and so has control planes to itself.

#![allow(clippy::unwrap_used)] // helpers are tests too

#[allow(dead_code)] // shared with the tests of the operator; this takes what it needs
#[path = "../operator/home.rs"]
mod home;

mod differential;
mod script;
mod side;
mod soak;
mod stage;
mod trouble;
mod verdict;
