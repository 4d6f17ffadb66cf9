//! Bad input gets one clear line and the right exit code, never a panic.

use std::{net::TcpListener, path::Path, process::Command};

use crate::home::{BINARY, file};
use tempfile::tempdir;

/// Exit code and standard error of a run that is expected to end by itself.
fn run(arguments: &[&str]) -> (i32, String) {
    let output = Command::new(BINARY)
        .args(arguments)
        .env_remove("KUBECONFIG")
        .env_remove("KUBERNETES_SERVICE_HOST")
        .env("HOME", "/nonexistent")
        .output()
        .unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[track_caller]
fn assert_one_line(arguments: &[&str], code: i32, parts: &[&str]) {
    let (exit, error) = run(arguments);
    assert_eq!(exit, code, "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(error.starts_with("claimkeeper: "), "{error}");
    for part in parts {
        assert!(error.contains(part), "{part:?} is not in {error:?}");
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn without_a_feature_it_says_which_exist() {
    assert_one_line(&["run"], 2, &["no feature is named", "--features", "ephemeral"]);
}

#[test]
fn an_unknown_feature_on_the_command_line_is_a_usage_error() {
    assert_one_line(&["run", "--features", "ephemral"], 2, &["`ephemral`", "did you mean `ephemeral`?"]);
}

#[test]
fn an_unknown_feature_in_the_file_names_file_line_and_the_nearest() {
    let directory = tempdir().unwrap();
    let config = file(&directory, "ck.yaml", "features: [ephemral]\n");
    assert_one_line(&["run", "--config", text(&config)], 1, &["ck.yaml", "line 1", "did you mean `ephemeral`?"]);
}

#[test]
fn an_unknown_key_names_file_line_and_the_nearest_known_key() {
    let directory = tempdir().unwrap();
    let config = file(&directory, "ck.yaml", "features: [ephemeral]\nleaderElecton:\n  enabled: true\n");
    for arguments in [["check-config", text(&config)].as_slice(), &["run", "--config", text(&config)]] {
        assert_one_line(arguments, 1, &["ck.yaml", "line 2", "`leaderElecton`", "did you mean `leaderElection`?"]);
    }
}

#[test]
fn a_configuration_that_is_not_there_is_named() {
    assert_one_line(&["check-config", "/nonexistent/ck.yaml"], 1, &["/nonexistent/ck.yaml", "does not exist"]);
}

#[test]
fn a_kubeconfig_that_is_not_there_or_no_kubeconfig_is_named() {
    let missing = ["run", "--features", "ephemeral", "--kubeconfig", "/nonexistent/kubeconfig"];
    assert_one_line(&missing, 1, &["/nonexistent/kubeconfig", "does not exist"]);
    let directory = tempdir().unwrap();
    let broken = file(&directory, "kubeconfig", "this: [is not\n");
    assert_one_line(&["run", "--features", "ephemeral", "--kubeconfig", text(&broken)], 1, &["is not a kubeconfig"]);
    assert_one_line(&["run", "--features", "ephemeral"], 1, &["no cluster is configured", "--kubeconfig"]);
}

#[test]
fn a_port_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap();
    let directory = tempdir().unwrap();
    let config = file(&directory, "ck.yaml", &format!("features: [ephemeral]\nadmin: {{listen: '{listen}'}}\n"));
    // Nobody ever connects there.
    let kubeconfig = file(
        &directory,
        "kubeconfig",
        "{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}], \
         contexts: [{name: c, context: {cluster: c, user: u}}], users: [{name: u, user: {}}]}\n",
    );
    let arguments = ["run", "--config", text(&config), "--kubeconfig", text(&kubeconfig)];
    assert_one_line(&arguments, 1, &[&listen.to_string(), "in use", "admin.listen"]);
}

#[test]
fn a_good_configuration_is_called_valid() {
    let directory = tempdir().unwrap();
    let config = file(&directory, "ck.yaml", "features: [ephemeral]\n");
    let output = Command::new(BINARY).args(["check-config", text(&config)]).output().unwrap();
    assert!(output.status.success());
    assert!(String::from_utf8(output.stdout).unwrap().contains("is valid; features: ephemeral"));
}

#[test]
fn the_version_is_told() {
    let output = Command::new(BINARY).arg("version").output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("claimkeeper {}\n", env!("CARGO_PKG_VERSION")));
}
