use std::{
    collections::BTreeMap,
    env,
    fs::{self, File, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tempfile::{TempDir, tempdir};
use testbed::{Binaries, OPERATOR_LINKS, archive};

use super::{
    Source, image, platform_name,
    release::{self, CHECKSUMS, COMPLETIONS},
};
use crate::build::{self, Profile};

const REVISION: &str = "0123456789abcdef";

/// Any program is as good as ours where only its surroundings matter, and a small one is packed sooner.
fn small_program(directory: &Path, mode: u32, age: Duration) -> Result<PathBuf> {
    let program = directory.join("claimkeeper");
    fs::copy("/bin/true", &program)?;
    File::options().write(true).open(&program)?.set_modified(SystemTime::now() - age)?;
    fs::set_permissions(&program, Permissions::from_mode(mode))?;
    Ok(program)
}

fn make_image(program: &Path, output: &Path) -> Result<image::Shipped> {
    let time = "2026-01-02T03:04:05Z".parse().ok();
    image::make(program, None, &Source { revision: Some(REVISION.into()), time }, output)
}

/// The files of an OCI archive, by their names in it.
fn blobs(path: &Path) -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    Ok(archive::files(&fs::read(path)?)?.into_iter().collect())
}

/// An image's configuration, and its only layer, uncompressed.
fn open(path: &Path) -> Result<(Value, Vec<u8>)> {
    let blobs = blobs(path)?;
    let blob = |descriptor: &Value| {
        let digest = descriptor["digest"].as_str().context("a part has no digest")?;
        let name = Path::new("blobs").join(digest.replace(':', "/"));
        blobs.get(&name).with_context(|| format!("{} is missing", name.display()))
    };
    let index: Value = serde_json::from_slice(blobs.get(Path::new("index.json")).context("there is no index")?)?;
    let manifest: Value = serde_json::from_slice(blob(&index["manifests"][0])?)?;
    let config = serde_json::from_slice(blob(&manifest["config"])?)?;
    Ok((config, archive::uncompress(blob(&manifest["layers"][0])?)?))
}

#[test]
fn the_same_program_makes_the_same_image_whoever_built_it_where_and_when() {
    let (here, there) = (tempdir().unwrap(), tempdir().unwrap());
    let first = small_program(here.path(), 0o755, Duration::ZERO).unwrap();
    let second = small_program(there.path(), 0o700, Duration::from_hours(1)).unwrap();
    let first = make_image(&first, here.path()).unwrap();
    let second = make_image(&second, there.path()).unwrap();
    assert_eq!(first.image, second.image);
    assert_eq!(fs::read(first.archive).unwrap(), fs::read(second.archive).unwrap());
    assert_eq!(fs::read(first.bill).unwrap(), fs::read(second.bill).unwrap());
}

#[test]
fn another_program_makes_another_image() {
    let directory = tempdir().unwrap();
    let program = small_program(directory.path(), 0o755, Duration::ZERO).unwrap();
    let first = make_image(&program, directory.path()).unwrap();
    fs::copy("/bin/false", &program).unwrap();
    let second = make_image(&program, directory.path()).unwrap();
    assert_ne!(first.image.digest, second.image.digest);
}

#[test]
fn the_image_has_the_program_its_libraries_their_licenses_and_nothing_else() {
    let directory = tempdir().unwrap();
    let program = small_program(directory.path(), 0o755, Duration::ZERO).unwrap();
    let shipped = make_image(&program, directory.path()).unwrap();
    let (_, layer) = open(&shipped.archive).unwrap();
    let mut files: Vec<String> =
        archive::files(&layer).unwrap().into_iter().map(|(path, _)| path.display().to_string()).collect();
    files.retain(|file| !file.contains(".so."));
    files.retain(|file| !(file.starts_with("usr/share/doc/lib") && file.ends_with("/copyright")));
    assert_eq!(files, ["usr/bin/claimkeeper", "usr/share/doc/claimkeeper/copyright"]);
    let links: Vec<String> = archive::links(&layer)
        .unwrap()
        .into_iter()
        .map(|(path, target)| format!("{} -> {}", path.display(), target.display()))
        .collect();
    assert_eq!(links, OPERATOR_LINKS.map(|link| format!("usr/bin/{link} -> claimkeeper")));
}

#[test]
fn the_image_says_what_it_is_and_runs_as_nobody() {
    let directory = tempdir().unwrap();
    let program = small_program(directory.path(), 0o755, Duration::ZERO).unwrap();
    let shipped = make_image(&program, directory.path()).unwrap();
    let (config, _) = open(&shipped.archive).unwrap();
    assert_eq!(config["created"], "2026-01-02T03:04:05Z");
    assert_eq!(config["config"]["User"], "65532:65532");
    assert_eq!(config["config"]["Entrypoint"], serde_json::json!(["/usr/bin/claimkeeper"]));
    let labels = &config["config"]["Labels"];
    assert_eq!(labels["org.opencontainers.image.revision"], REVISION);
    for label in ["title", "description", "version", "source", "licenses"] {
        assert!(labels[format!("org.opencontainers.image.{label}")].is_string(), "{label} is missing in {labels}");
    }
}

#[test]
fn every_shared_library_is_in_the_bill_with_its_hash() {
    let directory = tempdir().unwrap();
    let program = small_program(directory.path(), 0o755, Duration::ZERO).unwrap();
    let shipped = make_image(&program, directory.path()).unwrap();
    let (_, layer) = open(&shipped.archive).unwrap();
    let bill: Value = serde_json::from_slice(&fs::read(&shipped.bill).unwrap()).unwrap();
    let components = bill["components"].as_array().unwrap();
    let files: Vec<&Value> =
        components.iter().filter_map(|component| component["components"].as_array()).flatten().collect();
    let libraries = archive::files(&layer).unwrap();
    let libraries: Vec<_> = libraries.iter().filter(|(path, _)| path.to_string_lossy().contains(".so.")).collect();
    assert!(!libraries.is_empty(), "the program needs a C library");
    for (path, content) in libraries {
        let name = Path::new("/").join(path);
        let entry = files.iter().find(|file| file["name"].as_str().map(Path::new) == Some(&name));
        let entry = entry.unwrap_or_else(|| panic!("{} is in no package", name.display()));
        assert_eq!(entry["hashes"][0]["content"].as_str(), Some(super::sha256(content).as_str()));
    }
}

#[test]
fn a_program_that_tells_where_it_was_built_is_not_shipped() {
    let directory = tempdir().unwrap();
    let program = directory.path().join("claimkeeper");
    fs::write(&program, "panicked at /cargo/registry/src/lib.rs").unwrap();
    image::ensure_nothing_of_this_machine(&program).unwrap();
    for place in [build::workspace().unwrap(), build::cargo_home().unwrap()] {
        fs::write(&program, format!("panicked at {}/src/lib.rs", place.display())).unwrap();
        let error = image::ensure_nothing_of_this_machine(&program).unwrap_err().to_string();
        assert!(error.contains(&format!("was built in {}", place.display())), "{error}");
    }
}

#[test]
fn the_packed_chart_is_the_same_each_time_and_helm_reads_it() {
    let (here, there) = (tempdir().unwrap(), tempdir().unwrap());
    let chart = release::chart(here.path()).unwrap();
    assert_eq!(fs::read(&chart).unwrap(), fs::read(release::chart(there.path()).unwrap()).unwrap());
    let helm = Binaries::get().unwrap().helm();
    let shown = text(Command::new(helm).args(["show", "chart"]).arg(&chart)).unwrap();
    assert!(shown.contains("name: claimkeeper"), "{shown}");
    let left: Vec<_> = fs::read_dir(here.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "only the chart is left: {left:?}");
}

/// What people download, unpacked. One for all that is looked at in it, because the program is big.
#[test]
fn an_unpacked_release_runs_under_all_names_completes_and_explains_itself() {
    let release = Unpacked::release().unwrap();
    release.every_link_runs().unwrap();
    release.shells_read_the_completions().unwrap();
    release.every_command_has_a_page_that_man_can_show().unwrap();
    release.the_checksums_hold().unwrap();
}

struct Unpacked {
    directory: TempDir,
    tarball: PathBuf,
}

impl Unpacked {
    fn release() -> Result<Self> {
        let directory = tempdir()?;
        let program = operator(directory.path())?;
        let tarball = directory.path().join("release.tar");
        // Compressed it would only take longer.
        fs::write(&tarball, release::tarball(&program, directory.path())?)?;
        let unpacked = Command::new("tar").arg("-xf").arg(&tarball).arg("-C").arg(directory.path()).status()?;
        ensure!(unpacked.success(), "tar does not read it");
        Ok(Self { directory, tarball })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(platform_name()).join(name)
    }

    fn every_link_runs(&self) -> Result<()> {
        let version = env!("CARGO_PKG_VERSION");
        let answer = text(Command::new(self.path("bin/kubectl-claimkeeper")).arg("version"))?;
        ensure!(answer == format!("claimkeeper {version}\n"), "{answer}");
        for link in OPERATOR_LINKS.iter().filter(|link| **link != "kubectl-claimkeeper") {
            // Go's programs explain themselves on standard error.
            let Output { status, stderr, .. } = Command::new(self.path("bin").join(link)).arg("--help").output()?;
            let usage = String::from_utf8_lossy(&stderr);
            ensure!(status.success() && usage.contains("-kubeconfig"), "{link}: {status} {usage}");
        }
        // All that the program can stand in for has a link.
        let help = text(Command::new(self.path("bin/claimkeeper")).arg("--help"))?;
        let (_, names) = help.split_once("Drop-in names").context("the help names no drop-ins")?;
        for name in names.lines().skip(1).map(str::trim).filter(|name| !name.is_empty()) {
            ensure!(OPERATOR_LINKS.contains(&name), "{name} has no link");
        }
        Ok(())
    }

    fn shells_read_the_completions(&self) -> Result<()> {
        for (shell, path) in COMPLETIONS {
            let script = fs::read_to_string(self.path(path))?;
            ensure!(script.contains("check-config"), "{shell} does not know a command");
        }
        let script = "set -eu; source \"$0\"; complete -p claimkeeper; COMP_WORDS=(claimkeeper chec); COMP_CWORD=1; \
                      _claimkeeper claimkeeper chec claimkeeper; echo \"${COMPREPLY[@]}\"";
        let (_, completion) = COMPLETIONS[0];
        let answer = text(Command::new("bash").args(["-c", script]).arg(self.path(completion)))?;
        ensure!(answer.lines().last() == Some("check-config"), "bash completes chec to {answer:?}");
        Ok(())
    }

    fn every_command_has_a_page_that_man_can_show(&self) -> Result<()> {
        let pages = self.path("share/man/man1");
        let names: Vec<String> = fs::read_dir(&pages)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<Result<_>>()?;
        for command in ["", "-run", "-why", "-audit", "-check-config", "-render", "-render-policy", "-completion"] {
            let page = format!("claimkeeper{command}.1");
            ensure!(names.contains(&page), "{page} is missing in {names:?}");
        }
        ensure!(!names.contains(&"claimkeeper-manual.1".to_owned()), "what makes the manual is nobody's business");
        for page in &names {
            let mut groff = Command::new("groff");
            groff.args(["-man", "-Tutf8", "-ww", "-z"]).arg(pages.join(page));
            // Not every machine has it.
            let Ok(Output { status, stderr, .. }) = groff.output() else { break };
            let complaint = String::from_utf8_lossy(&stderr);
            ensure!(status.success() && complaint.is_empty(), "groff says of {page}: {status} {complaint}");
        }
        Ok(())
    }

    fn the_checksums_hold(&self) -> Result<()> {
        let sums = release::checksums(std::slice::from_ref(&self.tarball))?;
        fs::write(self.directory.path().join(CHECKSUMS), sums)?;
        let check = |file: &Path| -> Result<bool> {
            let mut command = Command::new("sha256sum");
            command.args(["--check", "--status", CHECKSUMS]).current_dir(file);
            Ok(command.status()?.success())
        };
        ensure!(check(self.directory.path())?, "they are wrong");
        File::options().append(true).open(&self.tarball)?.set_len(1)?;
        ensure!(!check(self.directory.path())?, "they hold for anything");
        Ok(())
    }
}

/// The operator as it was compiled with the tests, without what only debuggers need.
fn operator(directory: &Path) -> Result<PathBuf> {
    let tests = env::current_exe()?;
    let beside = tests.ancestors().nth(2).map(|target| target.join("claimkeeper"));
    // Building it again while other tests run it would pull it away from under them.
    let built = beside.filter(|program| program.is_file()).map_or_else(|| build::claimkeeper(Profile::Dev), Ok)?;
    let program = directory.join("claimkeeper");
    let stripped = Command::new("strip").arg("-o").arg(&program).arg(&built).status().context("cannot run strip")?;
    ensure!(stripped.success(), "{} can't be stripped", built.display());
    Ok(program)
}

fn text(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {} {complaint}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}
