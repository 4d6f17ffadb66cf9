//! `cargo xtask test`: everything, on one shared control plane.

use std::{
    fs,
    path::Path,
    process::{Command, ExitCode, Stdio},
};

use anyhow::{Context, Result};
use testbed::{
    ControlPlane, Options, TESTBED_VARIABLE,
    rights::{self, RIGHTS_VARIABLE, Right},
};

use crate::build::cargo;

/// What is granted for others to see: the API server looks whether who makes an object for an owner might do this to the owner, or
/// to the object.
const NEVER_ASKED_FOR: [(&str, &str); 2] = [("pods/finalizers", "update"), ("services", "delete")];

/// Tests wait much more than they compute, so more of them run at once than there are cores.
const TESTS_AT_ONCE: &str = "8";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Also tells which rights of the chart nobody has used, and which were missing
    #[arg(long)]
    rights: bool,
    /// Only the tests of this package; may be repeated
    #[arg(long, value_name = "NAME")]
    package: Vec<String>,
    /// Passed on to the test runner, such as the name of a test
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    passed_on: Vec<String>,
}

pub(crate) async fn run(Arguments { rights, package, passed_on }: Arguments) -> Result<ExitCode> {
    let chosen: Vec<String> = match package.as_slice() {
        [] => vec!["--workspace".to_owned()],
        names => names.iter().map(|name| format!("--package={name}")).collect(),
    };
    let command = |subcommand: &[&str]| {
        let mut command = cargo();
        command.args(subcommand).args(&chosen);
        command
    };
    // Compiled first, so that the control plane does not take the cores away from the compiler.
    let compiled = command(&["test", "--no-run"]).status().context("cannot run cargo")?;
    if !compiled.success() {
        return Ok(ExitCode::FAILURE);
    }
    eprintln!("Starting the control plane that the tests share …");
    let control_plane = ControlPlane::start(Options::default().name("test")).await?;
    eprintln!(
        "It answers at {}; its logs are in {} as long as it runs.",
        control_plane.url(),
        control_plane.directory().display()
    );

    let collected = control_plane.directory().join("rights");
    fs::create_dir_all(&collected)?;
    let run = |mut runner: Command| {
        if rights {
            runner.env(RIGHTS_VARIABLE, &collected);
        }
        runner
            .args(&passed_on)
            .env(TESTBED_VARIABLE, control_plane.directory())
            .env("RUST_TEST_THREADS", TESTS_AT_ONCE);
        runner.status().context("cannot run the test runner").map(|status| status.success())
    };
    let passed = if has_nextest() {
        // nextest does not run the examples in the documentation; its own summary comes last.
        let examples = run(command(&["test", "--doc", "--quiet"]))?;
        run(command(&["nextest", "run", "--no-fail-fast", "--test-threads", TESTS_AT_ONCE]))? && examples
    } else {
        run(command(&["test", "--no-fail-fast"]))?
    };
    if rights {
        rights::collect(control_plane.directory(), &collected)?;
    }
    let fits = !rights || tell_rights(&collected)?;
    drop(control_plane);
    Ok(if passed && fits { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Least privilege in both directions: what was granted is used, and what was used is granted.
fn tell_rights(collected: &Path) -> Result<bool> {
    let asked = rights::asked(collected)?;
    let denied: Vec<_> = asked.iter().filter(|asked| asked.denied).collect();
    for asked in &denied {
        let Right { group, resource, verb } = &asked.right;
        eprintln!("missing: {} may not {verb} {resource} {group}", asked.features.join(","));
    }
    let unused = rights::unused(&rights::granted()?, &asked);
    let unused: Vec<_> =
        unused.iter().filter(|(_, right)| !NEVER_ASKED_FOR.iter().any(|known| is(right, known))).collect();
    for (role, Right { group, resource, verb }) in &unused {
        eprintln!("unused: {role} grants {verb} {resource} {group}");
    }
    eprintln!("Rights: {} missing, {} unused.", denied.len(), unused.len());
    Ok(denied.is_empty() && unused.is_empty())
}

fn is(right: &Right, (resource, verb): &(&str, &str)) -> bool {
    right.resource == *resource && right.verb == *verb
}

fn has_nextest() -> bool {
    let asked = cargo().args(["nextest", "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    asked.is_ok_and(|status| status.success())
}
