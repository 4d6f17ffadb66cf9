//! `cargo xtask test`: everything, on one shared control plane.

use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result};
use testbed::{ControlPlane, Options, TESTBED_VARIABLE};

use crate::build::cargo;

/// Tests wait much more than they compute, so more of them run at once than there are cores.
const TESTS_AT_ONCE: &str = "8";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Passed on to the test runner, such as the name of a test
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    runner_arguments: Vec<String>,
}

pub(crate) async fn run(Arguments { runner_arguments }: Arguments) -> Result<ExitCode> {
    // Compiled first, so that the control plane does not take the cores away from the compiler.
    let compiled = cargo().args(["test", "--workspace", "--no-run"]).status().context("cannot run cargo")?;
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

    let run = |mut runner: Command| {
        runner
            .args(&runner_arguments)
            .env(TESTBED_VARIABLE, control_plane.directory())
            .env("RUST_TEST_THREADS", TESTS_AT_ONCE);
        runner.status().context("cannot run the test runner").map(|status| status.success())
    };
    let passed = if has_nextest() {
        // nextest does not run the examples in the documentation; its own summary comes last.
        let examples = run(command(&["test", "--workspace", "--doc", "--quiet"]))?;
        run(command(&["nextest", "run", "--workspace", "--no-fail-fast", "--test-threads", TESTS_AT_ONCE]))? && examples
    } else {
        run(command(&["test", "--workspace", "--no-fail-fast"]))?
    };
    drop(control_plane);
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn command(arguments: &[&str]) -> Command {
    let mut command = cargo();
    command.args(arguments);
    command
}

fn has_nextest() -> bool {
    let asked = cargo().args(["nextest", "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    asked.is_ok_and(|status| status.success())
}
