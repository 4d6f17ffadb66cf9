//! The feature behind a real API server, with the chart's rights.

#![allow(clippy::unwrap_used, clippy::panic)] // clippy knows test functions but not their helpers

mod kubernetes;
mod rows;
mod stage;
#[path = "../table/mod.rs"]
mod table;
mod told;
