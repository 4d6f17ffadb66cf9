//! `StatefulSet`s on local disks, whose nodes are lost: the real binary with the rights that the chart grants, among the real
//! controllers and the real scheduler.
//!
//! A program of its own, because each story takes nodes away and so has a control plane to itself.

#![allow(clippy::unwrap_used)] // helpers are tests too

#[allow(dead_code)] // shared with the tests of the operator; this takes what it needs
#[path = "../operator/home.rs"]
mod home;

mod blank;
mod ledger;
mod overlapping;
mod stage;
mod tied;
