//! Whatever happens to the process that started a control plane, nothing of it stays.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, getpid, kill_process, set_child_subreaper};
use testbed::eventually;

struct Parent {
    process: Child,
    directory: PathBuf,
    children: Vec<i32>,
}

impl Parent {
    /// A program that starts a control plane and a program on a leash, and waits.
    async fn start() -> Result<Self> {
        let mut process = Command::new(env!("CARGO_BIN_EXE_testbed-control-plane")).stdout(Stdio::piped()).spawn()?;
        let output = process.stdout.take().context("no output")?;
        let line = tokio::task::spawn_blocking(move || BufReader::new(output).lines().next()).await?;
        let directory = PathBuf::from(line.context("it ended without a word")??);
        let pid_files = fs::read_dir(directory.join("pids"))?;
        let children =
            pid_files.map(|file| Ok(fs::read_to_string(file?.path())?.parse()?)).collect::<Result<Vec<_>>>()?;
        assert_eq!(
            children.len(),
            6,
            "etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kwok, a leashed one"
        );
        Ok(Self { process, directory, children })
    }

    async fn assert_nothing_is_left(mut self) -> Result<()> {
        self.process.wait()?;
        eventually("all components and their directory to go", async || {
            ensure!(self.children.iter().copied().all(is_gone), "a component is there");
            ensure!(!self.directory.exists(), "the directory is there");
            Ok(())
        })
        .await
    }
}

/// Gone, or dead and only waiting for its adoptive parent (this process, see below) to take note.
fn is_gone(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "))
}

impl Drop for Parent {
    fn drop(&mut self) {
        // For a test that failed half-way; otherwise it is gone already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn signal(pid: i32, signal: Signal) -> Result<()> {
    Ok(kill_process(Pid::from_raw(pid).context("no pid")?, signal)?)
}

#[tokio::test]
async fn a_killed_parent_leaves_no_process_and_no_directory() -> Result<()> {
    let mut parent = Parent::start().await?;
    parent.process.kill()?;
    parent.assert_nothing_is_left().await
}

#[tokio::test]
async fn a_killed_parent_leaves_nothing_even_if_components_were_paused_or_gone() -> Result<()> {
    // The kernel wakes a stopped child of a dead parent, but not if its next parent is in the same session, as in a container
    // whose first process is a shell. So this process adopts the orphans.
    set_child_subreaper(Some(getpid()))?;
    let mut parent = Parent::start().await?;
    let pid =
        |name: &str| -> Result<i32> { Ok(fs::read_to_string(parent.directory.join("pids").join(name))?.parse()?) };
    signal(pid("kube-apiserver")?, Signal::STOP)?;
    signal(pid("etcd")?, Signal::KILL)?;
    parent.process.kill()?;
    parent.assert_nothing_is_left().await
}

#[tokio::test]
async fn an_interrupted_parent_cleans_up_itself() -> Result<()> {
    let parent = Parent::start().await?;
    signal(i32::try_from(parent.process.id())?, Signal::INT)?;
    parent.assert_nothing_is_left().await
}
