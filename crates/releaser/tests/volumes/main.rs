//! The feature against a real control plane.

#![allow(clippy::unwrap_used)]

mod guards;
mod laundry;
mod modes;
mod options;
mod room;
mod scrub;
mod seed;
