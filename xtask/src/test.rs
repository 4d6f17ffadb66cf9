//! `cargo xtask test`: everything, on one shared control plane.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Command, ExitCode, Stdio},
};

use anyhow::{Context, Result};
use testbed::{
    ControlPlane, Options, TESTBED_VARIABLE, real_node_unavailable,
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
    /// Also tells how often each right that the chart grants was used
    #[arg(long)]
    rights: bool,
    /// Only the tests of this package; may be repeated
    #[arg(long, value_name = "NAME")]
    package: Vec<String>,
    /// Only the tests whose names have this in them
    #[arg(value_name = "TEST")]
    test: Option<String>,
    /// Passed on to the tests' own runner, such as --exact
    #[arg(last = true, value_name = "FLAG")]
    flags: Vec<String>,
}

pub(crate) async fn run(Arguments { rights, package, test, flags }: Arguments) -> Result<ExitCode> {
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
        runner
            .args(&test)
            .arg("--")
            .args(&flags)
            .env(RIGHTS_VARIABLE, &collected)
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
    rights::collect(control_plane.directory(), &collected)?;
    let every_test_ran =
        passed && package.is_empty() && test.is_none() && flags.is_empty() && real_node_unavailable().await.is_none();
    let fit = tell_rights(&collected, rights, every_test_ran)?;
    drop(control_plane);
    Ok(if passed && fit { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Least privilege in both directions: what was asked for is granted, and what is granted was asked for, which can be said only where
/// every test ran. Who has nothing to complain about is silent unless asked, so that the summary of the tests comes last.
fn tell_rights(collected: &Path, asked_to: bool, every_test_ran: bool) -> Result<bool> {
    let asked = rights::asked(collected)?;
    let mut missing: BTreeMap<(&[String], &Right), &str> = BTreeMap::new();
    for found in asked.keys() {
        if let Some(path) = &found.missing {
            missing.entry((&found.features, &found.right)).or_insert(path);
        }
    }
    for ((features, Right { group, resource, verb }), path) in &missing {
        eprintln!("missing: {} may not {verb} {resource} {group}: {path}", features.join(","));
    }
    let uses = rights::uses(&rights::granted()?, &asked);
    let (mut unused, told) = (0, asked_to || every_test_ran);
    for (role, right, times) in &uses {
        let Right { group, resource, verb } = right;
        let is_unused = *times == 0 && !NEVER_ASKED_FOR.iter().any(|known| is(right, known));
        unused += usize::from(is_unused);
        match is_unused {
            true if told => eprintln!("unused: {role} grants {verb} {resource} {group}"),
            false if asked_to => eprintln!("used {times} times: {role} grants {verb} {resource} {group}"),
            _ => {}
        }
    }
    let fit = missing.is_empty() && (unused == 0 || !every_test_ran);
    if asked_to || !fit {
        eprintln!("Rights: {} missing, {unused} unused.", missing.len());
    }
    Ok(fit)
}

fn is(right: &Right, (resource, verb): &(&str, &str)) -> bool {
    right.resource == *resource && right.verb == *verb
}

fn has_nextest() -> bool {
    let asked = cargo().args(["nextest", "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    asked.is_ok_and(|status| status.success())
}
