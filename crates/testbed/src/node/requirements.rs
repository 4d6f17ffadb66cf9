//! What a machine must have for a real node, and how it gets what can be installed.

use std::{
    env,
    fs::File,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use tokio::sync::OnceCell;

use super::keeper;
use crate::{
    binaries::{Binaries, NodeBinaries, cache_directory},
    progress::Progress,
};

const INSTALL_PACKAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/node/install-packages");
/// Where Debian puts CNI plugins, and where most others do.
const CNI_DIRECTORIES: [&str; 2] = ["/usr/lib/cni", "/opt/cni/bin"];

/// What a package is needed for, by the file that shows that it is there.
const PACKAGES: [(&str, &str); 6] = [
    ("runc", "runc"),
    ("nftables", "nft"),
    ("iproute2", "ip"),
    ("util-linux", "nsenter"),
    ("busybox-static", "busybox"),
    ("containernetworking-plugins", "ptp"),
];

static POSSIBLE: OnceCell<Result<(), String>> = OnceCell::const_new();

/// Why no real node can run on this machine, if so.
///
/// Installs missing packages, builds what is to be built and tries the kernel out, so the first call takes its time.
pub async fn real_node_unavailable() -> Option<String> {
    ensure_possible().await.err().map(|error| format!("{error:#}"))
}

/// Holds the turn for a test that needs real nodes, until it is dropped: a whole cluster at a time is enough for a small machine,
/// and what one leaves could hide behind another. None, with the reason printed, where no real node can run.
pub async fn real_node_turn() -> Result<Option<File>> {
    if let Some(reason) = real_node_unavailable().await {
        eprintln!("skipped: {reason}");
        return Ok(None);
    }
    // A file, because a test runner may give every test a process of its own.
    let turn = File::create(cache_directory()?.join("real-node-tests.lock"))?;
    tokio::task::spawn_blocking(move || turn.lock().map(|()| turn)).await?.map(Some).context("cannot wait for the turn")
}

/// Whether one can, as an error; the answer is found once.
pub(crate) async fn ensure_possible() -> Result<()> {
    let answer = POSSIBLE.get_or_init(async || check().await.map_err(|error| format!("{error:#}"))).await;
    answer.clone().map_err(|reason| anyhow::anyhow!("no real node can run here: {reason}"))
}

async fn check() -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "it takes root, for namespaces, mounts and control groups: run this as root"
    );
    let programs = || install_packages().and_then(|()| Ok((Binaries::get()?, NodeBinaries::get()?)));
    let (binaries, _) = tokio::task::spawn_blocking(programs).await??;
    keeper::try_out(&binaries).await
}

fn missing_packages() -> Vec<&'static str> {
    PACKAGES.iter().filter(|(_, file)| find(file).is_none()).map(|(package, _)| *package).collect()
}

/// Finds a program, or a CNI plugin.
pub(super) fn find(file: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let directories = env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    directories
        .chain(CNI_DIRECTORIES.map(PathBuf::from))
        .map(|directory| directory.join(file))
        .find(|file| file.is_file())
}

fn install_packages() -> Result<()> {
    let missing = missing_packages();
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(", ");
    ensure!(find("apt-get").is_some(), "these packages are missing (by their names in Debian): {list}; install them");
    let progress = Progress::start(&format!("installing {list}"));
    let output = Command::new(Path::new(INSTALL_PACKAGES))
        .args(&missing)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {INSTALL_PACKAGES}"))?;
    progress.finish(if output.status.success() { "finished" } else { "failed" });
    let still_missing = missing_packages();
    if !still_missing.is_empty() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        bail!("{} could not be installed, install them by hand: {}", still_missing.join(", "), complaint.trim());
    }
    Ok(())
}
