//! Pods are steered to their volumes: by the rules alone, and behind a real API server with the chart's webhook and rights.

#![allow(clippy::unwrap_used, clippy::panic)] // clippy knows test functions but not their helpers

mod decided;
mod properties;
mod rows;
mod scheduler;
mod short;
mod stage;
mod table;
mod told;
