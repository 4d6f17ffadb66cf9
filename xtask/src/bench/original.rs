//! A client with the limits of the originals, from the Go module beside this file. The originals' own programs cannot be had from
//! a package registry.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/bench/original");
const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/bench/original");

/// Builds it and tells where it is.
pub(crate) fn build() -> Result<PathBuf> {
    eprintln!("Building a client with the original's limits …");
    let status = Command::new("go")
        // As the testbed builds the control plane, which has compiled most of the same packages already.
        .args(["build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", PROGRAM, "."])
        .current_dir(SOURCES)
        .env("GOWORK", "off")
        .status()
        .context("cannot run go")?;
    ensure!(status.success(), "it does not build; go's messages above say why");
    Ok(Path::new(PROGRAM).canonicalize()?)
}
