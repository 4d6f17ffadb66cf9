//! The programs a control plane and a node consist of, built from the Go modules in `controlplane/` and `node/` when they
//! are first needed.
//!
//! They are kept outside the checkout, in a directory named after the hash of everything that goes into them, so that a
//! fresh clone, another branch and a second checkout all find what was built before:
//!
//! ```text
//! $CLAIMKEEPER_CACHE (or $XDG_CACHE_HOME/claimkeeper, or ~/.cache/claimkeeper)
//!   binaries/<hash>/controlplane     etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kwok, kubectl
//!   binaries/<hash>/helm
//!   binaries/lock                    held while building: two processes never build the same thing at once
//!   kubelet-binaries/<hash>/kubelet  and kube-proxy in the same file; only for clusters with a real node
//!   node-binaries/<hash>/containerd  and its shim and ctr; likewise
//!   original-binaries/<hash>/        the original that shared volumes come from; only for what runs it
//! ```

use std::{
    env,
    ffi::{OsStr, OsString},
    fs::{self, File},
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::mpsc,
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::progress::Progress;

/// What `go.mod` asks for.
const OLDEST_GO: (u32, u32) = (1, 26);
const INSTALL_GO: &str = "install Go 1.26 or newer (https://go.dev/dl/) and make sure that `go` is in PATH";
/// The version is what `kubectl version` and the API server's `/version` say: without it they claim to be v0.0.0.
const BUILD_FLAGS: [&str; 3] =
    ["-trimpath", "-buildvcs=false", "-ldflags=-s -w -X k8s.io/component-base/version.gitVersion=v1.37.1"];
/// Enough to switch between a few branches without building again; each takes about 300 MB.
const KEPT_BUILDS: usize = 3;
const UNFINISHED: &str = "unfinished-";

/// One of our Go modules and what is built from it.
struct Module {
    sources: &'static str,
    /// The directory of its builds in the cache.
    builds: &'static str,
    packages: &'static [&'static str],
    programs: &'static [&'static str],
    step: &'static str,
}

const CONTROL_PLANE: Module = Module {
    sources: concat!(env!("CARGO_MANIFEST_DIR"), "/controlplane"),
    builds: "binaries",
    packages: &[".", "helm.sh/helm/v4/cmd/helm"],
    programs: &["controlplane", "helm"],
    step: "building the Kubernetes control plane (once, about 6 minutes on two cores)",
};
/// Apart from the control plane, because most tests need no node and should not wait for one.
const KUBELET: Module = Module {
    sources: CONTROL_PLANE.sources,
    builds: "kubelet-binaries",
    packages: &["./kubelet"],
    programs: &["kubelet"],
    step: "building kubelet and kube-proxy (once, about a minute after the control plane)",
};
/// A module of its own, so that containerd gets the versions that it was released with.
const CONTAINERD: Module = Module {
    sources: concat!(env!("CARGO_MANIFEST_DIR"), "/node"),
    builds: "node-binaries",
    packages: &["tool"],
    programs: &["containerd", "containerd-shim-runc-v2", "ctr"],
    step: "building containerd (once, about a minute on two cores)",
};

/// Of the program that the feature shared-volumes follows nothing is kept here but its name and the hashes of what it is made of.
const ORIGINAL: Module = Module {
    sources: concat!(env!("CARGO_MANIFEST_DIR"), "/original"),
    builds: "original-binaries",
    packages: &["tool"],
    programs: &["api-manager"],
    step: "building the original of shared volumes (once, about a minute on two cores)",
};
const ORIGINAL_MODULE: &str = "github.com/storageos/api-manager";

impl Module {
    fn is_complete(&self, build: &Path) -> bool {
        self.programs.iter().all(|program| build.join(program).is_file())
    }

    /// Finds the module's programs in the cache, or builds them, and returns their directory.
    fn get(&self) -> Result<PathBuf> {
        let sources = Path::new(self.sources);
        let go = Go::find(&env::var_os("PATH").unwrap_or_default())?;
        let builds = cache_directory()?.join(self.builds);
        let directory = builds.join(fingerprint(sources, self.packages, &go)?);
        if !self.is_complete(&directory) {
            fs::create_dir_all(&builds).with_context(|| format!("cannot create the cache {}", builds.display()))?;
            let lock = File::create(builds.join("lock"))?;
            if lock.try_lock().is_err() {
                eprintln!("waiting for another process that is building the same …");
                lock.lock().context("cannot lock the cache of built binaries")?;
            }
            // Whoever held the lock before us may have built exactly this.
            if !self.is_complete(&directory) {
                self.build(&go, &builds, &directory)?;
                remove_old_builds(&builds, &directory)?;
            }
        }
        // The time of last use decides which builds are kept; failing to note it only shortens a build's life.
        let _ = fs::write(directory.join("used"), "");
        Ok(directory)
    }

    fn build(&self, go: &Go, builds: &Path, directory: &Path) -> Result<()> {
        let unfinished = tempfile::Builder::new().prefix(UNFINISHED).tempdir_in(builds)?;
        // A trailing slash tells Go that the name is a directory to put several programs into.
        let mut output = OsString::from(unfinished.path());
        output.push("/");
        let mut child = Command::new(&go.program)
            .args(["build", "-v"])
            .args(BUILD_FLAGS)
            .arg("-o")
            .arg(output)
            .args(self.packages)
            .current_dir(self.sources)
            .env("GOWORK", "off")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {}", go.program.display()))?;
        let log = child.stderr.take().context("the build's output is not readable")?;
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(log).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let last_lines = show_build(self.step, &lines);
        if !child.wait().context("cannot wait for the build")?.success() {
            bail!("building the programs of {} failed:\n{}", self.sources, last_lines.join("\n"));
        }
        fs::rename(unfinished.path(), directory)
            .with_context(|| format!("cannot move the built programs to {}", directory.display()))
    }
}

/// The built programs.
#[derive(Debug, Clone)]
pub struct Binaries {
    directory: PathBuf,
}

impl Binaries {
    /// Finds the programs in the cache, or builds them, which takes minutes the first time and shows its progress.
    ///
    /// Blocks; call it from `spawn_blocking` in async code.
    pub fn get() -> Result<Self> {
        Ok(Self { directory: CONTROL_PLANE.get()? })
    }

    /// The multi-call control plane; its first argument chooses the component.
    #[must_use]
    pub fn controlplane(&self) -> PathBuf {
        self.directory.join("controlplane")
    }

    /// The Helm client.
    #[must_use]
    pub fn helm(&self) -> PathBuf {
        self.directory.join("helm")
    }
}

/// What a real node runs: kubelet, kube-proxy, containerd, its shim and its client.
#[derive(Debug, Clone)]
pub(crate) struct NodeBinaries {
    kubelet: PathBuf,
    containerd: PathBuf,
}

impl NodeBinaries {
    /// Like [`Binaries::get`].
    pub(crate) fn get() -> Result<Self> {
        Ok(Self { kubelet: KUBELET.get()?, containerd: CONTAINERD.get()? })
    }

    /// kubelet and kube-proxy; the first argument chooses.
    pub(crate) fn kubelet(&self) -> PathBuf {
        self.kubelet.join("kubelet")
    }

    /// It looks for its shim in the directory it is in.
    pub(crate) fn containerd(&self) -> PathBuf {
        self.containerd.join("containerd")
    }

    pub(crate) fn ctr(&self) -> PathBuf {
        self.containerd.join("ctr")
    }
}

/// The original of shared volumes: its program, and its module's directory with the definitions of its resources.
///
/// Blocks, like [`Binaries::get`].
pub(crate) fn original() -> Result<(PathBuf, PathBuf)> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Downloaded {
        dir: PathBuf,
    }
    let program = ORIGINAL.get()?.join("api-manager");
    let go = Go::find(&env::var_os("PATH").unwrap_or_default())?;
    // Asked of Go every time, because the cache of modules and that of programs are cleaned apart.
    let output = Command::new(&go.program)
        .args(["mod", "download", "-json", ORIGINAL_MODULE])
        .current_dir(ORIGINAL.sources)
        .env("GOWORK", "off")
        .output()
        .with_context(|| format!("cannot run {}", go.program.display()))?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cannot get the module {ORIGINAL_MODULE}: {}", complaint.trim());
    let Downloaded { dir } = serde_json::from_slice(&output.stdout).context("go has not said where a module is")?;
    Ok((program, dir))
}

/// Where everything that outlives a run is kept: built programs, and the state of `cargo xtask cluster`.
pub fn cache_directory() -> Result<PathBuf> {
    let chosen = env::var_os("CLAIMKEEPER_CACHE").map(PathBuf::from);
    let in_xdg = || env::var_os("XDG_CACHE_HOME").map(|cache| PathBuf::from(cache).join("claimkeeper"));
    let in_home = || env::home_dir().map(|home| home.join(".cache/claimkeeper"));
    chosen
        .or_else(in_xdg)
        .or_else(in_home)
        .filter(|directory| directory.is_absolute())
        .context("no place for the cache: set CLAIMKEEPER_CACHE to the absolute path of a directory")
}

/// A Go toolchain that is new enough.
#[derive(Debug)]
struct Go {
    program: PathBuf,
    /// `go1.26.8 linux amd64`: all three change what is built.
    platform: String,
}

impl Go {
    fn find(search_path: &OsStr) -> Result<Self> {
        let program = env::split_paths(search_path)
            .map(|directory| directory.join("go"))
            .find(|candidate| candidate.is_file())
            .ok_or_else(|| {
                anyhow!("Go is needed to build the testbed's control plane and was not found: {INSTALL_GO}")
            })?;
        let output = Command::new(&program)
            .args(["env", "GOVERSION", "GOOS", "GOARCH"])
            // Otherwise an old Go would download a newer one and answer with that one's version.
            .env("GOTOOLCHAIN", "local")
            .current_dir("/")
            .output()
            .with_context(|| format!("cannot run {}: {INSTALL_GO}", program.display()))?;
        ensure!(
            output.status.success(),
            "`{} env` failed: {}",
            program.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
        let platform = String::from_utf8_lossy(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
        if version(&platform).is_none_or(|found| found < OLDEST_GO) {
            let found = platform.split(' ').next().unwrap_or_default();
            bail!("{} is {found}, too old to build the testbed's control plane: {INSTALL_GO}", program.display());
        }
        Ok(Self { program, platform })
    }
}

fn version(platform: &str) -> Option<(u32, u32)> {
    let mut numbers = platform.strip_prefix("go")?.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn fingerprint(sources: &Path, packages: &[&str], go: &Go) -> Result<String> {
    // The packages named by a path are in directories of their own below the module's.
    let directories = packages.iter().filter(|package| package.starts_with("./")).map(|package| sources.join(package));
    let mut files = Vec::new();
    for directory in std::iter::once(sources.to_owned()).chain(directories) {
        let entries = fs::read_dir(&directory).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
        let entries = entries.with_context(|| format!("cannot read the sources in {}", directory.display()))?;
        let is_source = |path: &PathBuf| {
            path.extension().is_some_and(|extension| ["go", "mod", "sum"].map(OsStr::new).contains(&extension))
        };
        files.extend(entries.into_iter().map(|entry| entry.path()).filter(is_source));
    }
    files.sort();
    let mut hash = Sha256::new();
    hash.update(format!("{} {BUILD_FLAGS:?} {packages:?}", go.platform));
    for file in files {
        let content = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        hash.update(file.file_name().unwrap_or_default().as_encoded_bytes());
        hash.update(content.len().to_le_bytes());
        hash.update(content);
    }
    // The first 16 of 64 hex digits tell builds apart and keep the paths in process lists short.
    Ok(format!("{:x}", hash.finalize()).chars().take(16).collect())
}

/// Follows the build until its output ends, and returns the end of it.
fn show_build(step: &str, lines: &mpsc::Receiver<String>) -> Vec<String> {
    let mut progress = Progress::start(step);
    let (mut packages, mut last_lines) = (0_u32, Vec::new());
    loop {
        match lines.recv_timeout(Duration::from_millis(200)) {
            Ok(line) => {
                packages += 1;
                if last_lines.len() == 20 {
                    last_lines.remove(0);
                }
                last_lines.push(line);
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
        progress.update(&format!("{packages} packages compiled"));
    }
    progress.finish("finished");
    last_lines
}

fn remove_old_builds(builds: &Path, newest: &Path) -> Result<()> {
    let mut others = Vec::new();
    for entry in fs::read_dir(builds)? {
        let path = entry?.path();
        let is_unfinished = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(UNFINISHED));
        if is_unfinished {
            // We have the lock, so nobody is building: this one was killed.
            fs::remove_dir_all(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        } else if path.is_dir() && path != newest {
            let used = fs::metadata(path.join("used")).and_then(|file| file.modified());
            others.push((used.unwrap_or(SystemTime::UNIX_EPOCH), path));
        }
    }
    others.sort_by_key(|(used, _)| std::cmp::Reverse(*used));
    for (_, path) in others.into_iter().skip(KEPT_BUILDS - 1) {
        fs::remove_dir_all(&path).with_context(|| format!("cannot remove the old build {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn fake_go(answer: &str) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("go");
        fs::write(&program, format!("#!/bin/sh\nprintf '{answer}'\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        directory
    }

    #[test]
    fn a_missing_go_is_named_together_with_its_fix() {
        let empty = tempfile::tempdir().unwrap();
        let error = Go::find(empty.path().as_os_str()).unwrap_err().to_string();
        assert_eq!(
            error,
            "Go is needed to build the testbed's control plane and was not found: install Go 1.26 or newer \
             (https://go.dev/dl/) and make sure that `go` is in PATH"
        );
    }

    #[test]
    fn a_go_that_is_too_old_is_named_with_its_version_and_the_fix() {
        let old = fake_go("go1.9.7\\nlinux\\namd64\\n");
        let error = Go::find(old.path().as_os_str()).unwrap_err().to_string();
        assert!(error.contains("is go1.9.7, too old"), "{error}");
        assert!(error.contains("install Go 1.26 or newer"), "{error}");
    }

    #[test]
    fn a_new_enough_go_is_accepted_whatever_its_patch_level_is_called() {
        for answer in ["go1.26rc1", "go1.26.8", "go1.30", "go2.0.1 X:experiment"] {
            let go = fake_go(answer);
            assert!(Go::find(go.path().as_os_str()).is_ok(), "{answer}");
        }
    }

    #[test]
    fn the_sources_of_a_package_below_count_for_that_package_only() {
        let sources = tempfile::tempdir().unwrap();
        let go = Go { program: "go".into(), platform: "go1.26.1 linux amd64".into() };
        let below = sources.path().join("kubelet");
        fs::create_dir(&below).unwrap();
        let fingerprints = || [".", "./kubelet"].map(|package| fingerprint(sources.path(), &[package], &go).unwrap());
        let before = fingerprints();
        fs::write(below.join("main.go"), "package main").unwrap();
        let after = fingerprints();
        assert_eq!(before[0], after[0]);
        assert_ne!(before[1], after[1]);
    }

    #[test]
    fn a_change_of_sources_or_toolchain_leads_to_another_build() {
        let sources = tempfile::tempdir().unwrap();
        let go = |platform: &str| Go { program: "go".into(), platform: platform.into() };
        fs::write(sources.path().join("main.go"), "package main").unwrap();
        let first = fingerprint(sources.path(), &["."], &go("go1.26.1 linux amd64")).unwrap();
        assert_ne!(first, fingerprint(sources.path(), &["."], &go("go1.26.2 linux amd64")).unwrap());
        fs::write(sources.path().join("README.md"), "no part of the build").unwrap();
        assert_eq!(first, fingerprint(sources.path(), &["."], &go("go1.26.1 linux amd64")).unwrap());
        fs::write(sources.path().join("main.go"), "package main\n").unwrap();
        assert_ne!(first, fingerprint(sources.path(), &["."], &go("go1.26.1 linux amd64")).unwrap());
    }

    #[test]
    fn only_the_most_recently_used_builds_are_kept() {
        let builds = tempfile::tempdir().unwrap();
        for (age, name) in ["newest", "recent", "older", "oldest"].iter().enumerate() {
            let build = builds.path().join(name);
            fs::create_dir(&build).unwrap();
            let used = File::create(build.join("used")).unwrap();
            used.set_modified(SystemTime::now() - Duration::from_secs(60 * age as u64)).unwrap();
        }
        fs::create_dir(builds.path().join("unfinished-xyz")).unwrap();
        remove_old_builds(builds.path(), &builds.path().join("newest")).unwrap();
        let exists = |name: &str| builds.path().join(name).exists();
        assert_eq!([exists("newest"), exists("recent"), exists("older"), exists("oldest")], [true, true, true, false]);
        assert!(!exists("unfinished-xyz"), "a build that was killed half-way is of no use");
    }
}
