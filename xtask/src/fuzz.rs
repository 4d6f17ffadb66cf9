//! `cargo xtask fuzz …`: what strangers write, under a coverage-guided fuzzer.
//!
//! The targets are in `fuzz/`, a workspace of its own: libFuzzer is C++, and everything is compiled with its instrumentation.
//! What it has learnt stays in `target/fuzz`, so that the next run begins where this one ended.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, Result};

use self::cases::{EXAMPLE, hostile, with};
use crate::build::{built_by, cargo};

#[path = "../../crates/provisioner/tests/claims/templates.rs"]
mod cases;

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// What cargo-fuzz gives to a nightly compiler; the stable one takes it as well, as it is all LLVM's.
const INSTRUMENTATION: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 --cfg=fuzzing";

/// A little more than the longest template, so that the limit is tried as well; reviews of claims are shorter.
const LONGEST: usize = 17 * 1024;

/// Either is read in far less than a millisecond; the rest is for a busy machine.
const SECONDS_FOR_ONE: u32 = 5;
const MEBIBYTES: u32 = 512;

/// What mutation alone finds late.
const WORDS_OF_TEMPLATES: &str = "apiVersion v1 kind PersistentVolumeClaim metadata spec status name namespace ci labels annotations \
    ownerReferences creationTimestamp finalizers generateName resourceVersion uid managedFields accessModes ReadWriteOnce \
    resources requests limits storage 1Gi storageClassName volumeMode volumeAttributesClassName volumeName selector \
    matchLabels dataSource dataSourceRef kubernetes.io/ .k8s.io/ claimkeeper.dev/ null true .inf 0x1F 1e400 << !!str !!binary \
    !!int !!float !!map !!set !t &a *a --- ... %YAML %TAG ? : - |- >+ [ ] { } ''";

/// The same; each becomes a word with its quotes, as JSON has them.
const WORDS_OF_REVIEWS: &str = "apiVersion admission.k8s.io/v1 admission.k8s.io/v1beta1 kind AdmissionReview request uid \
    PersistentVolumeClaim group version v1 resource subResource name namespace operation CREATE UPDATE DELETE CONNECT userInfo \
    username dryRun object oldObject options metadata annotations ownerReferences Pod controller spec storageClassName volumes persistentVolumeClaim claimName ephemeral nodeName \
    schedulingGates claimkeeper.dev/home-node affinity nodeAffinity requiredDuringSchedulingIgnoredDuringExecution \
    preferredDuringSchedulingIgnoredDuringExecution nodeSelectorTerms matchExpressions matchFields key operator values In Exists \
    weight preference kubernetes.io/hostname metadata.name node-a node-b example.dev/disk claimkeeper.dev/placement ignore resourceVersion";

/// The same.
const WORDS_OF_VOLUMES: &str = "id labels nfs version exports serviceEndpoint csi.storage.k8s.io/pv/name csi.storage.k8s.io/pvc/name \
    csi.storage.k8s.io/pvc/namespace storageos.com/nfs/mount-endpoint 10.1.0.4:25705 [fd00::4]:25705 10.0.0.0/8 fd00::/8 127.0.0.1:1 \
    [::ffff:10.0.0.1]:1 [fe80::1%2]:1 255.255.255.255:65535 0.0.0.0/0 ::/0 ../x a/b";

const SIGNS_OF_JSON: [&str; 9] = ["null", "true", "false", "{}", "[]", r"\\u0000", r"\\ud800", "1e400", "-0"];

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// What is fuzzed
    target: Target,
    /// For how long
    #[arg(long, default_value_t = 10)]
    minutes: u64,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Target {
    /// The way from the body of an admission request to its answer
    Admission,
    /// What the API of StorageOS tells of volumes, and where their servers may be
    Storageos,
    /// The parser of the claims that pods ask for by annotation
    Templates,
}

impl Target {
    fn name(self) -> &'static str {
        match self {
            Self::Admission => "admission",
            Self::Storageos => "storageos",
            Self::Templates => "templates",
        }
    }

    /// Entries of the fuzzer's dictionary.
    fn words(self) -> Vec<String> {
        match self {
            Self::Admission => {
                let quoted = WORDS_OF_REVIEWS.split_whitespace().map(|word| format!(r#""\"{word}\"""#));
                quoted.chain(SIGNS_OF_JSON.map(|sign| format!("\"{sign}\""))).collect()
            }
            Self::Storageos => {
                let quoted = WORDS_OF_VOLUMES.split_whitespace().map(|word| format!(r#""\"{word}\"""#));
                quoted.chain(SIGNS_OF_JSON.map(|sign| format!("\"{sign}\""))).collect()
            }
            Self::Templates => WORDS_OF_TEMPLATES.split_whitespace().map(|word| format!("\"{word}\"")).collect(),
        }
    }

    /// Good and bad inputs to begin with.
    fn seeds(self) -> Vec<String> {
        match self {
            Self::Admission => {
                let claim = r#"{"metadata": {"name": "data", "annotations": {"a": "\u00e9\n"}}, "spec": {"storageClassName": "local"}}"#;
                let owned = r#"{"metadata": {"ownerReferences": [{"kind": "Pod", "controller": true}]}, "spec": {}}"#;
                let terms = r#"[{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["z"]}], "matchFields": null}, {}]"#;
                let wish = r#"[{"weight": 100, "preference": {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-b"]}]}}]"#;
                let pod = format!(
                    r#"{{"metadata": {{"generateName": "web-", "uid": "u1", "resourceVersion": "7", "annotations": {{"claimkeeper.dev/placement": "no"}}}}, "spec": {{
                    "volumes": [{{"name": "data", "persistentVolumeClaim": {{"claimName": "data"}}}}, {{"name": "tmp", "ephemeral": {{}}}}],
                    "schedulingGates": [{{"name": "a"}}], "affinity": {{"nodeAffinity": {{
                    "requiredDuringSchedulingIgnoredDuringExecution": {{"nodeSelectorTerms": {terms}}},
                    "preferredDuringSchedulingIgnoredDuringExecution": {wish}}}}}}}}}"#
                );
                vec![
                    review("CREATE", &pod, "null"),
                    review("CREATE", r#"{"spec": {"affinity": null}}"#, "null"),
                    review("CREATE", claim, "null"),
                    review("UPDATE", claim, claim),
                    review("CREATE", owned, "null"),
                    review("DELETE", "null", owned),
                    review("CREATE", claim, "null").replace("v1\"", "v1beta1\""),
                    review("CREATE", "[[[[]]]]", "5"),
                    r#"{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}"#.to_owned(),
                    "{}".to_owned(),
                ]
            }
            Self::Storageos => {
                let volume = r#"{"id": "v1", "name": "pvc-1", "version": "NQ", "labels": {"csi.storage.k8s.io/pv/name": "pvc-1",
                    "csi.storage.k8s.io/pvc/name": "files", "csi.storage.k8s.io/pvc/namespace": "ci",
                    "storageos.com/nfs/mount-endpoint": "10.0.0.7:2049"}, "nfs": {"exports": [], "serviceEndpoint": "10.1.0.4:25705"}}"#;
                vec![
                    format!("[{volume}]"),
                    format!(r#"[{{"id": 7}}, {volume}, null, {{"id": "v2", "nfs": null, "labels": null}}]"#),
                    "null".to_owned(),
                    "10.1.0.4:25705".to_owned(),
                    "[fd00::4]:25705".to_owned(),
                    "10.0.0.0/8".to_owned(),
                    "fd00::/8".to_owned(),
                ]
            }
            Self::Templates => {
                let good = [
                    EXAMPLE.to_owned(),
                    with("labels: {app: web, example.com/team: ci}, annotations: {note: 'yes'}", ", volumeMode: Block"),
                    with("name: x, namespace: ci, creationTimestamp: null", ", volumeName: '', selector: null"),
                    with("", ", dataSourceRef: {kind: VolumeSnapshot, apiGroup: snapshot.storage.k8s.io, name: a}"),
                    EXAMPLE.replace("1Gi", "1073741824"),
                    r#"{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"annotations":{"a":"\u00e9\n"}},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"limits":{"storage":2.5e3},"requests":{"storage":"1Gi"}}}}"#.to_owned(),
                ];
                good.into_iter().chain(hostile().into_iter().map(|(text, _)| text)).collect()
            }
        }
    }
}

fn review(operation: &str, object: &str, old_object: &str) -> String {
    format!(
        r#"{{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": {{"uid": "705ab4f5",
        "kind": {{"group": "", "version": "v1", "kind": "PersistentVolumeClaim"}}, "subResource": "", "name": "data", "namespace": "shop",
        "operation": "{operation}", "userInfo": {{"username": "jane", "groups": ["dev"]}}, "object": {object}, "oldObject": {old_object},
        "dryRun": false, "options": {{"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"}}}}}}"#
    )
}

pub(crate) fn run(Arguments { target, minutes }: Arguments) -> Result<ExitCode> {
    let directory = Path::new(REPOSITORY).canonicalize()?.join("target/fuzz");
    let program = build(target, &directory)?;
    let own = directory.join(target.name());
    let (corpus, findings, words) = (own.join("corpus"), own.join("findings"), own.join("words"));
    fs::create_dir_all(&corpus)?;
    fs::create_dir_all(&findings)?;
    for (number, seed) in target.seeds().iter().filter(|seed| seed.len() <= LONGEST).enumerate() {
        fs::write(corpus.join(format!("seed-{number:03}")), seed)?;
    }
    fs::write(&words, target.words().join("\n"))?;

    let status = Command::new(&program)
        .arg(format!("-max_total_time={}", minutes * 60))
        .arg(format!("-timeout={SECONDS_FOR_ONE}"))
        .arg(format!("-rss_limit_mb={MEBIBYTES}"))
        .arg(format!("-max_len={LONGEST}"))
        .arg(format!("-dict={}", words.display()))
        .arg(format!("-artifact_prefix={}/", findings.display()))
        .arg("-print_final_stats=1")
        .arg(&corpus)
        .status()
        .with_context(|| format!("cannot run {}", program.display()))?;
    if status.success() {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("It found something: the input is in {}, and once mended it belongs into the tests.", findings.display());
    Ok(ExitCode::FAILURE)
}

fn build(target: Target, directory: &Path) -> Result<PathBuf> {
    let mut command = cargo();
    // With a target named, what runs while compiling is spared the instrumentation, for which it has no runtime.
    command.args(["build", "--release", "--target", "host-tuple", "--bin", target.name()]);
    command.arg("--manifest-path").arg(Path::new(REPOSITORY).join("fuzz/Cargo.toml"));
    command.arg("--target-dir").arg(directory);
    command.env("RUSTFLAGS", INSTRUMENTATION);
    built_by(command, target.name())
}
