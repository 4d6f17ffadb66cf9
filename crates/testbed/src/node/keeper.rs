//! The process that holds the namespaces of a cluster's nodes.

use std::{
    fs::{self, File},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};

use super::RealNode;
use crate::{
    binaries::Binaries,
    process::{LIFELINE_REMOVES, STOP_DEADLINE},
    within,
};

const START_DEADLINE: Duration = Duration::from_secs(20);

/// The keeper's outer process. Dropping it ends everything in the namespaces and removes what the kernel does not.
#[derive(Debug)]
pub(super) struct Keeper {
    outer: Child,
    /// Of the inner process, by whose `/proc/<pid>/ns` the namespaces are found.
    pub(super) pid: u32,
    /// The control group, below the root of each hierarchy, that the nodes' own groups are in.
    pub(super) cgroup: String,
}

impl Keeper {
    /// Makes the namespaces. These ports of theirs can be reached on this side's 127.0.0.1 too.
    pub(super) async fn start(
        directory: &Path,
        binaries: &Binaries,
        nodes: &[RealNode],
        ports: &[u16],
    ) -> Result<Self> {
        // The keeper takes only names that start like this, by which it finds the groups of killed ones.
        let cgroup = format!("claimkeeper-nodes-{:08x}", rand::random::<u32>());
        let nodes = nodes.iter().map(|node| format!("{}={}/24", node.name(), node.address())).collect::<Vec<_>>();
        let log = directory.join("logs/keeper.log");
        let output = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let outer = Command::new(binaries.controlplane())
            .arg("keeper")
            .arg(directory)
            .args([&cgroup, &nodes.join(",")])
            .args(ports.iter().map(ToString::to_string))
            .env(LIFELINE_REMOVES, directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(output)
            .process_group(0)
            .spawn()
            .context("cannot start the keeper of a node")?;
        let mut keeper = Self { outer, pid: 0, cgroup };
        let pid_file = directory.join("pids/keeper");
        let pid = within(START_DEADLINE, "the namespaces of a node", async || {
            if let Some(status) = keeper.outer.try_wait()? {
                let reason = fs::read_to_string(&log).unwrap_or_default();
                return Ok(Err(anyhow::anyhow!("the keeper of a node ended ({status}): {}", reason.trim())));
            }
            // Empty for the moment between the file's creation and its writing.
            let pid = fs::read_to_string(&pid_file)?;
            ensure!(!pid.is_empty(), "the keeper writes its process id");
            anyhow::Ok(Ok(pid))
        })
        .await??;
        keeper.pid = pid.parse().context("the keeper left no process id")?;
        Ok(keeper)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // The end of its input ends it. Waiting fails only if it is gone already, which is what it is for.
        drop(self.outer.stdin.take());
        let _ = crate::process::wait_or_kill(&mut self.outer, STOP_DEADLINE);
    }
}

/// Whether namespaces like a node's can be made here at all: tries it.
pub(super) async fn try_out(binaries: &Binaries) -> Result<()> {
    let directory = tempfile::Builder::new().prefix("claimkeeper-keeper-").tempdir()?;
    for part in ["logs", "pids"] {
        fs::create_dir(directory.path().join(part))?;
    }
    match Keeper::start(directory.path(), binaries, &[RealNode::FIRST], &[]).await {
        Ok(_) => Ok(()),
        Err(error) => bail!("this machine does not allow the namespaces of a node: {error:#}"),
    }
}
