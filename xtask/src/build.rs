//! Building the operator, and what it is measured beside.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};

/// How the operator is compiled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    /// Quickly.
    Dev,
    /// As it is shipped.
    Release,
}

/// The cargo that runs us, so that the toolchain stays the same.
pub(crate) fn cargo() -> Command {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Builds `claimkeeper`, with cargo's own progress on standard error, and tells where it is.
pub(crate) fn claimkeeper(profile: Profile) -> Result<PathBuf> {
    program("claimkeeper", profile)
}

/// Builds the program of a package of this workspace.
pub(crate) fn program(package: &str, profile: Profile) -> Result<PathBuf> {
    let mut command = cargo();
    command.args(["build", "--package", package]);
    if profile == Profile::Release {
        as_shipped(&mut command)?;
    }
    built_by(command, package)
}

/// The directory of the workspace.
pub(crate) fn workspace() -> Result<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    directory.canonicalize().context("the workspace that xtask was built in is gone")
}

/// Where cargo keeps the sources of other packages.
pub(crate) fn cargo_home() -> Result<PathBuf> {
    let chosen = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = chosen.or_else(|| env::home_dir().map(|home| home.join(".cargo")));
    home.context("cargo has no home: set CARGO_HOME")
}

/// Makes a `cargo build` one whose outcome is the same wherever it is done: messages of panics would name the directories of
/// whoever built it.
fn as_shipped(command: &mut Command) -> Result<()> {
    let remap = |from: &Path, to: &str| format!("--remap-path-prefix={}={to}", from.display());
    // The last that fits counts, so that a home of cargo inside of the checkout is still cargo's home.
    let ours = [remap(&workspace()?, "/claimkeeper"), remap(&cargo_home()?, "/cargo")];
    command.args(["--release", "--locked"]).env("CARGO_ENCODED_RUSTFLAGS", ours.join("\u{1f}"));
    Ok(())
}

/// Runs a `cargo build` and tells where the program is.
pub(crate) fn built_by(mut command: Command, program: &str) -> Result<PathBuf> {
    command.arg("--message-format=json-render-diagnostics");
    let output = command.stderr(Stdio::inherit()).output().context("cannot run cargo")?;
    ensure!(output.status.success(), "{program} does not build; cargo's messages above say why");
    let messages = String::from_utf8_lossy(&output.stdout);
    let executable = messages.lines().rev().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        message["executable"].as_str().map(PathBuf::from)
    });
    executable.with_context(|| format!("cargo built {program} but did not say where it put it"))
}

/// Builds the program of a Go module and tells where it is.
pub(crate) fn go(sources: &str, program: &str) -> Result<PathBuf> {
    let status = Command::new("go")
        // As the testbed builds the control plane, which has compiled most of the same packages already.
        .args(["build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", program, "."])
        .current_dir(sources)
        .env("GOWORK", "off")
        .status()
        .context("cannot run go")?;
    ensure!(status.success(), "{sources} does not build; go's messages above say why");
    Ok(Path::new(program).canonicalize()?)
}
