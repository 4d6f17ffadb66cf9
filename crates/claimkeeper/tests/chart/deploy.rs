//! The plain manifests are those of the chart.

use std::fs;

use anyhow::{Context, Result, ensure};

#[test]
fn the_plain_manifests_are_current() -> Result<()> {
    let manifests = testbed::manifests()?;
    let directory = manifests.first().and_then(|manifest| manifest.file.parent()).context("no manifests")?;
    ensure!(fs::read_dir(directory)?.count() == manifests.len(), "{} has other files, too", directory.display());
    for testbed::Manifest { file, text } in &manifests {
        let found = fs::read_to_string(file).with_context(|| format!("{} is missing", file.display()))?;
        ensure!(found == *text, "{} is not what the chart makes: run cargo xtask deploy", file.display());
    }
    Ok(())
}
