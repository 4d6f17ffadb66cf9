//! `cargo xtask deploy`: the chart as plain manifests.

use std::fs;

use anyhow::{Context, Result};

/// Writes `deploy/`.
pub(crate) fn run() -> Result<()> {
    for testbed::Manifest { file, text } in testbed::manifests()? {
        if let Some(directory) = file.parent() {
            fs::create_dir_all(directory)?;
        }
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        println!("{}", file.display());
    }
    Ok(())
}
