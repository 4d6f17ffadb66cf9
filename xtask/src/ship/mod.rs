//! `cargo xtask image` and `cargo xtask release`: what others get, made so that they can make the same and compare.
//!
//! ```text
//! claimkeeper-VERSION-linux-ARCH.oci.tar     the image: program, shared libraries, their licenses
//! claimkeeper-VERSION-linux-ARCH.cdx.json    the bill of materials: every package that the image has something of
//! claimkeeper-VERSION-linux-ARCH.tar.gz      for people: program, links, completions, manual
//! claimkeeper-VERSION.tgz                    the chart
//! SHA256SUMS
//! ```
//!
//! The program is linked to the C library, not statically: the allocator's background threads, which give memory back after a burst, and
//! looking up names both need a C library that is loaded, and musl has no room for the former.

mod debian;
pub(crate) mod image;
pub(crate) mod release;
mod sbom;
#[cfg(test)]
mod tests;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};
use jiff::Timestamp;
use sha2::{Digest, Sha256};

use crate::build;

/// Of everything that is shipped together.
const VERSION: &str = env!("CARGO_PKG_VERSION");
const LICENSE: &str = env!("CARGO_PKG_LICENSE");
const REPOSITORY: &str = env!("CARGO_PKG_REPOSITORY");

/// What it is all made of.
struct Source {
    /// The commit, with a mark if the checkout differs from it; none outside of a repository.
    revision: Option<String>,
    /// The commit's, or as is usual elsewhere what `SOURCE_DATE_EPOCH` says; never the time of the build.
    time: Option<Timestamp>,
}

impl Source {
    fn of_checkout() -> Result<Self> {
        let changed = git(&["status", "--porcelain"])?.is_some_and(|changes| !changes.is_empty());
        let revision = git(&["rev-parse", "HEAD"])?;
        let chosen = env::var("SOURCE_DATE_EPOCH").ok();
        let seconds = chosen.or(git(&["show", "--no-patch", "--format=%ct", "HEAD"])?);
        let time = seconds.and_then(|seconds| Timestamp::from_second(seconds.parse().ok()?).ok());
        Ok(Self { revision: revision.map(|commit| if changed { commit + "-changed" } else { commit }), time })
    }
}

/// What git says about the checkout; none if it is none.
fn git(arguments: &[&str]) -> Result<Option<String>> {
    let Ok(output) = Command::new("git").args(arguments).current_dir(build::workspace()?).output() else {
        return Ok(None);
    };
    Ok(output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned()))
}

/// The directory that is asked for, or `target/ship`, there and empty of what an earlier run may have left.
fn output_directory(chosen: Option<PathBuf>) -> Result<PathBuf> {
    let directory = chosen.map_or_else(|| build::workspace().map(|home| home.join("target/ship")), Ok)?;
    fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    Ok(directory)
}

/// What the names of all files begin with that are for one architecture.
fn platform_name() -> String {
    format!("claimkeeper-{VERSION}-linux-{}", testbed::architecture())
}

fn sha256(content: &[u8]) -> String {
    format!("{:x}", Sha256::digest(content))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

fn write(path: &Path, content: &[u8]) -> Result<()> {
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}

/// In the units that registries tell.
fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}
