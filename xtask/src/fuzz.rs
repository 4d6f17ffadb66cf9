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

/// A little more than the longest template, so that the limit is tried as well.
const LONGEST: usize = 17 * 1024;

/// A template is read in far less than a millisecond; the rest is for a busy machine.
const SECONDS_FOR_ONE: u32 = 5;
const MEBIBYTES: u32 = 512;

/// What mutation alone finds late.
const WORDS: &str = "apiVersion v1 kind PersistentVolumeClaim metadata spec status name namespace ci labels annotations \
    ownerReferences creationTimestamp finalizers generateName resourceVersion uid managedFields accessModes ReadWriteOnce \
    resources requests limits storage 1Gi storageClassName volumeMode volumeAttributesClassName volumeName selector \
    matchLabels dataSource dataSourceRef kubernetes.io/ .k8s.io/ claimkeeper.dev/ null true .inf 0x1F 1e400 << !!str !!binary \
    !!int !!float !!map !!set !t &a *a --- ... %YAML %TAG ? : - |- >+ [ ] { } ''";

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
    /// The parser of the claims that pods ask for by annotation
    Templates,
}

impl Target {
    fn name(self) -> &'static str {
        match self {
            Self::Templates => "templates",
        }
    }

    /// Good and bad inputs to begin with.
    fn seeds(self) -> Vec<String> {
        match self {
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
    let entries: Vec<String> = WORDS.split_whitespace().map(|word| format!("\"{word}\"")).collect();
    fs::write(&words, entries.join("\n"))?;

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
