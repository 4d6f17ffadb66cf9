//! Command lines that end at once: the same answers, exit codes and last words.

use std::{
    fs,
    process::{Command, Stdio},
};

use tempfile::tempdir;

use super::{NAME, installed};
use crate::home::BINARY;

const USAGE: &str = include_str!("../../../src/dropin/dynamic-pvc-provisioner.usage.txt");

/// Exit code, standard output and standard error.
type Ended = (i32, String, String);

fn ended(command: &mut Command) -> Ended {
    let output = command
        .stdin(Stdio::null())
        .env_remove("KUBECONFIG")
        .env_remove("KUBERNETES_SERVICE_HOST")
        .env("HOME", "/nonexistent")
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn run(arguments: &[&str]) -> Ended {
    let directory = installed();
    ended(Command::new(directory.path().join(NAME)).args(arguments))
}

#[test]
fn both_ways_to_name_it_show_the_usage_and_succeed() {
    let usage = (0, String::new(), USAGE.to_owned());
    assert_eq!(run(&["-h"]), usage);
    assert_eq!(ended(Command::new(BINARY).args([NAME, "--help"])), usage);
}

#[test]
fn an_unknown_flag_is_told_above_the_usage_with_exit_code_2() {
    let text = format!("flag provided but not defined: -nope\n{USAGE}");
    assert_eq!(run(&["-nope"]), (2, String::new(), text));
}

#[test]
fn the_version_is_printed_alone() {
    assert_eq!(run(&["version"]), (0, format!("{}\n", env!("CARGO_PKG_VERSION")), String::new()));
}

#[test]
fn a_command_line_that_is_wrong_ends_with_exit_code_2() {
    for arguments in [
        &["-v=much"][..],
        &["-v", "1.5"],
        &["-log_file_max_size=-1"],
        &["-skip_headers=perhaps"],
        &["-stderrthreshold", "LOUD"],
        &["-controller-id"],
        &["---v=1"],
        &["-disable-automatic-association"],
    ] {
        let (code, output, error) = run(arguments);
        assert_eq!((code, output.as_str()), (2, ""), "{arguments:?}: {error}");
        let sentence = error.strip_suffix(USAGE).unwrap_or_else(|| panic!("{arguments:?}: {error}"));
        assert_eq!(sentence.lines().count(), 1, "{arguments:?}: {error}");
    }
}

#[test]
fn what_is_missing_ends_it_with_klogs_last_line_and_exit_code() {
    let kubeconfig = "-kubeconfig=/nonexistent/config";
    for (arguments, sentence) in [
        (&[][..], "unable to get controller id (missing controller-id flag)."),
        (&["-namespace", "default"], "unable to get controller id (missing controller-id flag)."),
        (
            &["-controller-id=a", "--controller-id=", "-lease-lock-name=b", "-namespace=c"],
            "unable to get controller id (missing controller-id flag).",
        ),
        (
            &["-controller-id", "a", "-namespace=c"],
            "unable to get lease lock resource name (missing lease-lock-name flag).",
        ),
        (
            &["-controller-id", "a", "--lease-lock-name", "b"],
            "unable to get lease lock resource namespace (missing lease-lock-namespace flag).",
        ),
        (
            &["-controller-id=a", "-lease-lock-name=b", "-namespace=c", kubeconfig],
            "--kubeconfig names the kubeconfig /nonexistent/config, which does not exist; name an existing file",
        ),
    ] {
        let (code, output, error) = run(arguments);
        assert_eq!((code, output.as_str()), (255, ""), "{arguments:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{arguments:?}: {error}");
        assert!(error.starts_with('F') && error.ends_with(&format!("] {sentence}\n")), "{arguments:?}: {error}");
    }
}

#[test]
fn a_log_file_that_cannot_be_written_is_one_clear_line() {
    let (code, _, error) = run(&["-logtostderr=false", "-log_file=/nonexistent/log"]);
    assert_eq!(code, 1, "{error}");
    assert!(error.starts_with("dynamic-pvc-provisioner: cannot write the log file /nonexistent/log: "), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
}

#[test]
fn flags_without_effect_cost_one_warning_line_in_total() {
    let (_, _, error) = run(&["-vmodule=a=1", "-add_dir_header", "-log_backtrace_at=a.go:1", "-skip_log_headers"]);
    let warnings: Vec<&str> = error.lines().filter(|line| line.starts_with('W')).collect();
    let [warning] = warnings[..] else { panic!("{error}") };
    let flags = r#"flags="-vmodule -add_dir_header -log_backtrace_at -skip_log_headers""#;
    assert!(warning.ends_with(flags), "{warning}");
}

#[test]
fn log_files_are_where_and_how_klog_has_them() {
    let directory = tempdir().unwrap();
    let log_dir = format!("-log_dir={}", directory.path().display());
    let (_, _, error) = run(&["-logtostderr=false", &log_dir, "-skip_headers", "-vmodule=a=1"]);
    let fatal = "unable to get controller id (missing controller-id flag).\n";
    assert_eq!(error, fatal, "only what is at least an error is on standard error too");
    let read = |severity: &str| fs::read_to_string(directory.path().join(format!("{NAME}.{severity}"))).unwrap();
    let info = read("INFO");
    assert!(info.contains("-vmodule") && info.ends_with(fatal), "{info}");
    assert_eq!(["WARNING", "ERROR", "FATAL"].map(read), [info.as_str(), fatal, fatal]);
}
