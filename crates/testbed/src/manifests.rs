//! The project's chart as plain manifests, for those who do without Helm: `deploy/`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

use crate::Binaries;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const NAMESPACE: &str = "claimkeeper";

/// A file of `deploy/`, and what belongs into it.
#[derive(Debug)]
pub struct Manifest {
    /// Where it is.
    pub file: PathBuf,
    /// What it is to contain.
    pub text: String,
}

/// Renders a file for the chart's own values and one for each of its profiles.
pub fn manifests() -> Result<Vec<Manifest>> {
    let root = Path::new(ROOT).canonicalize()?;
    let chart = root.join("charts/claimkeeper");
    let mut profiles = vec![None];
    for entry in fs::read_dir(&chart)? {
        let name = entry?.file_name().into_string().ok().context("a file of the chart has a strange name")?;
        let profile = name.strip_prefix("values-").and_then(|rest| rest.strip_suffix(".yaml"));
        profiles.extend(profile.map(|profile| Some(profile.to_owned())));
    }
    profiles.sort();
    let helm = Binaries::get()?.helm();
    profiles.iter().map(|profile| render(&helm, &root, profile.as_deref())).collect()
}

fn render(helm: &Path, root: &Path, profile: Option<&str>) -> Result<Manifest> {
    let values = profile.map(|profile| format!("charts/claimkeeper/values-{profile}.yaml"));
    let mut command = Command::new(helm);
    command.args(["template", "claimkeeper", "charts/claimkeeper", "--namespace", NAMESPACE, "--kube-version=v1.37.1"]);
    command.args(values.iter().flat_map(|file| ["--values", file])).current_dir(root);
    let output = command.output().with_context(|| format!("cannot run {}", helm.display()))?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "the chart cannot be rendered: {}", complaint.trim());
    let rendered = String::from_utf8(output.stdout)?;
    // Nobody's release: whoever applies these manages them.
    let lines = rendered.lines().filter(|line| {
        !line.trim_start().starts_with("app.kubernetes.io/managed-by:") && !line.starts_with("# Source: ")
    });
    let lines = lines.collect::<Vec<_>>().join("\n");
    let from = values.map(|file| format!(" with {file}")).unwrap_or_default();
    let text = format!(
        "# Made by `cargo xtask deploy` from charts/claimkeeper{from}: change that instead. kubectl apply -f THIS-FILE\n\
         apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {NAMESPACE}\n  labels:\n    \
         pod-security.kubernetes.io/enforce: restricted\n{lines}\n"
    );
    let name = profile.map_or_else(|| "claimkeeper".to_owned(), |profile| format!("claimkeeper-{profile}"));
    Ok(Manifest { file: root.join("deploy").join(format!("{name}.yaml")), text })
}
