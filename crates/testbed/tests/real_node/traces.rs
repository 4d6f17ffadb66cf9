//! Whatever happens to a cluster with real nodes, nothing of it stays on the machine.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use testbed::{Cluster, Component, ControlPlane, Options, eventually, real_node_turn, within};

use crate::{apply, expect_phase, pod};

/// By what a cluster with a real node can be recognized on this machine.
#[derive(Debug)]
pub(crate) struct Traces {
    pub(crate) directory: PathBuf,
    network: Option<PathBuf>,
    cgroups_before: BTreeSet<PathBuf>,
}

impl Traces {
    pub(crate) fn expected_in(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), network: None, cgroups_before: cgroups() }
    }

    pub(crate) fn of_network(mut self, keeper: u32) -> Result<Self> {
        self.network = Some(fs::read_link(format!("/proc/{keeper}/ns/net"))?);
        ensure!(self.found().len() >= 4, "a running cluster leaves more traces than {:?}", self.found());
        Ok(self)
    }

    /// Processes, mounts, namespaces, control groups and files that are there.
    pub(crate) fn found(&self) -> Vec<String> {
        let directory = self.directory.display().to_string();
        let mut found = Vec::new();
        for process in fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path()) {
            let read = |file: &str| fs::read(process.join(file)).unwrap_or_default();
            let mentions = |file: &str| String::from_utf8_lossy(&read(file)).contains(&directory);
            if process.join("ns").exists() && process != Path::new(&format!("/proc/{}", std::process::id())) {
                if mentions("cmdline") {
                    found.push(format!("process {}", process.display()));
                }
                if mentions("mountinfo") {
                    found.push(format!("mounts of {}", process.display()));
                }
                if self.network.is_some() && fs::read_link(process.join("ns/net")).ok() == self.network {
                    found.push(format!("network of {}", process.display()));
                }
            }
        }
        found.extend(cgroups().difference(&self.cgroups_before).map(|path| path.display().to_string()));
        found.extend(self.directory.exists().then_some(directory));
        found
    }

    async fn expect_none(&self) -> Result<()> {
        within(Duration::from_secs(30), "all traces to go", async || {
            let found = self.found();
            ensure!(found.is_empty(), "{found:?}");
            Ok(())
        })
        .await
    }
}

fn cgroups() -> BTreeSet<PathBuf> {
    let below = |directory: &Path| fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let root = Path::new("/sys/fs/cgroup");
    let groups = below(root).flat_map(|path| below(&path).chain([path]).collect::<Vec<_>>());
    let is_ours =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("claimkeeper-"));
    groups.filter(is_ours).collect()
}

#[tokio::test]
async fn a_cluster_that_is_dropped_leaves_nothing() -> Result<()> {
    let Some(_turn) = real_node_turn().await? else { return Ok(()) };
    let home = tempfile::tempdir()?;
    let traces = Traces::expected_in(&home.path().join("run"));
    let cluster = ControlPlane::start(Options::default().real_node().directory(&traces.directory)).await?;
    let traces = traces.of_network(cluster.keeper().context("no keeper")?)?;
    apply(&cluster, &[pod("app", "sleep 1000")]).await?;
    eventually("the pod to run", async || expect_phase(&cluster, "app", "Running").await).await?;
    tokio::task::spawn_blocking(|| drop(cluster)).await?;
    let found = traces.found();
    assert!(found.is_empty(), "everything goes before drop returns, but there is {found:?}");
    Ok(())
}

#[tokio::test]
async fn a_panic_leaves_nothing() -> Result<()> {
    let Some(_turn) = real_node_turn().await? else { return Ok(()) };
    let home = tempfile::tempdir()?;
    let traces = Traces::expected_in(&home.path().join("run"));
    let options = Options::default().real_node().directory(&traces.directory);
    let (send_keeper, keeper) = tokio::sync::oneshot::channel();
    let (let_go, may_panic) = tokio::sync::oneshot::channel::<()>();
    let owner = tokio::task::LocalSet::new();
    let task = owner.spawn_local(async move {
        let cluster = ControlPlane::start(options).await.unwrap();
        send_keeper.send(cluster.keeper()).unwrap();
        may_panic.await.unwrap();
        panic!("on purpose, with a cluster in hand");
    });
    owner
        .run_until(async {
            let traces = traces.of_network(keeper.await?.context("no keeper")?)?;
            let_go.send(()).ok().context("it ended before its time")?;
            ensure!(task.await.is_err_and(|ended| ended.is_panic()), "it did not panic");
            traces.expect_none().await
        })
        .await
}

#[tokio::test]
async fn a_start_that_fails_leaves_nothing() -> Result<()> {
    let Some(_turn) = real_node_turn().await? else { return Ok(()) };
    let home = tempfile::tempdir()?;
    let traces = Traces::expected_in(&home.path().join("run"));
    let options = Options::default().real_node().directory(&traces.directory).scheduler_flag("--no-such-flag");
    let Err(error) = ControlPlane::start(options).await else { bail!("it started with a flag that does not exist") };
    assert!(format!("{error:#}").contains("no-such-flag"), "{error:#}");
    traces.expect_none().await
}

#[tokio::test]
async fn a_parent_that_is_killed_leaves_nothing() -> Result<()> {
    let Some(_turn) = real_node_turn().await? else { return Ok(()) };
    let before = Traces::expected_in(Path::new("/nowhere"));
    let mut parent =
        Command::new(env!("CARGO_BIN_EXE_testbed-control-plane")).arg("--real-node").stdout(Stdio::piped()).spawn()?;
    let output = parent.stdout.take().context("no output")?;
    let line = tokio::task::spawn_blocking(move || BufReader::new(output).lines().next()).await?;
    let directory = PathBuf::from(line.context("it ended without a word")??);
    let cluster = Cluster::attach(&directory)?;
    let keeper = cluster.keeper().context("no keeper")?;
    let traces = Traces { directory, ..before }.of_network(keeper)?;
    apply(&cluster, &[pod("app", "sleep 1000")]).await?;
    eventually("the pod to run", async || expect_phase(&cluster, "app", "Running").await).await?;
    // Stopped, its kubelet notices nothing by itself.
    let kubelet = cluster.pid(Component::Kubelet(1)).and_then(|pid| Pid::from_raw(pid.try_into().ok()?));
    kill_process(kubelet.context("no kubelet")?, Signal::STOP)?;
    parent.kill()?;
    parent.wait()?;
    traces.expect_none().await
}

/// A process's parent, by its process id.
fn parent_of(pid: u32) -> Result<Pid> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok());
    parent.and_then(Pid::from_raw).context("it has no parent")
}

/// The name of a cluster's control group.
fn cgroup_of(cluster: &Cluster) -> Result<String> {
    let kubelet = cluster.pid(Component::Kubelet(1)).context("no kubelet")?;
    let groups = fs::read_to_string(format!("/proc/{kubelet}/cgroup"))?;
    let name = groups.split('/').find(|name| name.starts_with("claimkeeper-"));
    name.map(ToOwned::to_owned).with_context(|| format!("the kubelet is in {groups}"))
}

fn exists(cgroup: &str) -> bool {
    cgroups().iter().any(|path| path.ends_with(cgroup))
}

#[tokio::test]
async fn control_groups_that_a_killed_keeper_left_are_swept_by_the_next_and_those_in_use_are_not() -> Result<()> {
    let Some(_turn) = real_node_turn().await? else { return Ok(()) };
    let small = || Options::default().real_node().without_controller_manager().without_scheduler().provisioner(false);
    let killed = ControlPlane::start(small()).await?;
    let left = cgroup_of(&killed)?;
    kill_process(parent_of(killed.keeper().context("no keeper")?)?, Signal::KILL)?;
    tokio::task::spawn_blocking(|| drop(killed)).await?;
    assert!(exists(&left), "a killed keeper can't remove its groups, or this test shows nothing");

    let next = ControlPlane::start(small()).await?;
    assert!(!exists(&left));
    let in_use = cgroup_of(&next)?;
    // As empty as at the moment between a group's making and its first process.
    next.lose_node("node-1").await?;
    let beside = ControlPlane::start(small()).await?;
    assert!(exists(&in_use), "its keeper lives");
    next.recover_node("node-1").await?;
    let besides = cgroup_of(&beside)?;
    tokio::task::spawn_blocking(|| drop((next, beside))).await?;
    assert!(!exists(&in_use) && !exists(&besides));
    Ok(())
}
