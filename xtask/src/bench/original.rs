//! A client with the limits of the originals, from the Go module beside this file. The originals' own programs cannot be had from
//! a package registry.

use std::path::PathBuf;

use anyhow::Result;

use crate::build;

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/bench/original");
const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/bench/original");

/// Builds it and tells where it is.
pub(crate) fn build() -> Result<PathBuf> {
    eprintln!("Building a client with the original's limits …");
    build::go(SOURCES, PROGRAM)
}
