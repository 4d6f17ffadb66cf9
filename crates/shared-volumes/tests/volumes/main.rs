//! The feature against a real control plane and a faithful StorageOS API.

#![allow(clippy::unwrap_used)]

mod conflict;
mod drift;
mod names;
mod operations;
mod ranges;
mod room;
mod seed;
mod source;
mod takeover;
