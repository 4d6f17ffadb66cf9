//! `cargo xtask cluster`: the testbed's control plane to play with.
//!
//! A *holder*, this program started once more and detached from the terminal, owns the control plane. It keeps a lock for as
//! long as it lives, so that there is one such cluster at a time and a process id read from the lock is never a stranger's:
//!
//! ```text
//! <cache>/cluster/lock        locked by the holder; its content is the holder's process id
//! <cache>/cluster/run-<pid>/  the run directory of that holder's control plane; `ready` appears when it is
//! <cache>/cluster/holder.log  what the holder has to say
//! ```

use std::{
    env,
    ffi::OsString,
    fmt::Write as _,
    fs::{self, File, TryLockError},
    io::{Read, Write},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::{Args, Subcommand};
use rustix::process::{Pid, Signal, kill_process, setsid};
use testbed::{BUSYBOX, Binaries, Cluster, Component, ControlPlane, Options, REAL_NODES, cache_directory};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::sleep,
};

const UP_DEADLINE: Duration = Duration::from_mins(3);
const DOWN_DEADLINE: Duration = Duration::from_secs(30);
const ANSWER_DEADLINE: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
const NO_CLUSTER: &str = "no cluster runs: start one with `cargo xtask cluster up`";

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Start the cluster, unless it runs, and print how to reach it (try `eval "$(cargo xtask cluster up)"`)
    Up(RealNodes),
    /// Open a shell (or run a command) on the real nodes: in their network, with their mounts and processes, KUBECONFIG set
    Enter {
        /// What to run instead of a shell
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
    /// Stop the cluster and remove its data
    Down,
    /// Tell which components run and how much memory they take
    Status,
    /// Print the path of the administrator's kubeconfig
    Kubeconfig,
    /// Print a component's log, or the names of all logs
    Logs {
        #[arg(value_parser = component)]
        component: Option<Component>,
        /// Go on printing what is added
        #[arg(short, long)]
        follow: bool,
    },
    /// Own the cluster until SIGTERM; `up` starts this in the background
    #[command(hide = true)]
    Hold(RealNodes),
}

/// How many real nodes a cluster is to have.
#[derive(Args)]
struct RealNodes {
    /// With a real node, on which pods really run: containerd, kubelet and kube-proxy (takes root)
    #[arg(long)]
    node: bool,
    /// With this many real nodes, 1 to 3
    #[arg(long, value_name = "N", value_parser = number_of_nodes, conflicts_with = "node")]
    nodes: Option<usize>,
}

impl RealNodes {
    /// None for a cluster without.
    fn count(&self) -> Option<usize> {
        self.nodes.or_else(|| self.node.then_some(1))
    }
}

fn number_of_nodes(text: &str) -> Result<usize> {
    let nodes = text.parse()?;
    ensure!(REAL_NODES.contains(&nodes), "a cluster can have {} to {}", REAL_NODES.start(), REAL_NODES.end());
    Ok(nodes)
}

/// Components by the names that they have in `status`.
fn component(name: &str) -> Result<Component> {
    let known = || Component::ALL.map(Component::name).join(", ");
    let component = Component::ALL.into_iter().find(|component| component.name() == name);
    component.with_context(|| format!("it is none of {}", known()))
}

pub(crate) async fn run(arguments: Arguments) -> Result<()> {
    let place = Place::find()?;
    match arguments.action {
        Action::Up(nodes) => up(&place, nodes.count()).await,
        Action::Enter { command } => enter(&place.running()?, command),
        Action::Down => down(&place).await,
        Action::Status => status(&place),
        Action::Kubeconfig => {
            println!("{}", place.running()?.admin_kubeconfig().display());
            Ok(())
        }
        Action::Logs { component, follow } => logs(&place.running()?, component, follow),
        Action::Hold(nodes) => hold(&place, nodes.count()).await,
    }
}

/// The directory in the cache where the cluster's state is.
struct Place {
    directory: PathBuf,
}

impl Place {
    fn find() -> Result<Self> {
        let directory = cache_directory()?.join("cluster");
        fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
        Ok(Self { directory })
    }

    fn lock_file(&self) -> Result<File> {
        let path = self.directory.join("lock");
        let file = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        file.with_context(|| format!("cannot open {}", path.display()))
    }

    /// The process id of the holder, if there is one.
    fn holder(&self) -> Result<Option<i32>> {
        let mut lock = self.lock_file()?;
        match lock.try_lock() {
            Ok(()) => Ok(None),
            Err(TryLockError::WouldBlock) => {
                let mut pid = String::new();
                lock.read_to_string(&mut pid)?;
                // Empty for the moment between the holder's locking and writing.
                Ok(pid.trim().parse().ok())
            }
            Err(TryLockError::Error(error)) => Err(error).context("cannot look at the cluster's lock"),
        }
    }

    fn run_directory(&self, holder: u32) -> PathBuf {
        self.directory.join(format!("run-{holder}"))
    }

    /// The cluster, once it is ready.
    fn ready(&self) -> Result<Option<Cluster>> {
        let Some(holder) = self.holder()? else { return Ok(None) };
        let directory = self.run_directory(u32::try_from(holder)?);
        if directory.join("ready").exists() { Cluster::attach(&directory).map(Some) } else { Ok(None) }
    }

    fn running(&self) -> Result<Cluster> {
        self.ready()?.ok_or_else(|| anyhow!(NO_CLUSTER))
    }

    fn holder_log(&self) -> PathBuf {
        self.directory.join("holder.log")
    }
}

async fn up(place: &Place, real_nodes: Option<usize>) -> Result<()> {
    let started = Instant::now();
    let mut deadline = started + UP_DEADLINE;
    let mut holder: Option<Child> = None;
    let cluster = loop {
        match place.ready()? {
            // A holder that was killed this moment still has its lock, but its API server is gone.
            Some(cluster) if answers(&cluster).await => break cluster,
            _ => {}
        }
        match (place.holder()?, &mut holder) {
            (Some(_), _) => {}
            (None, None) => {
                // Here and not in the holder, because a build of minutes has to be seen.
                if real_nodes.is_some() {
                    ensure_node_is_possible().await?;
                }
                tokio::task::spawn_blocking(Binaries::get).await??;
                let nodes = if real_nodes.is_some() { "containerd, kubelet and kube-proxy" } else { "kwok" };
                eprintln!("starting etcd, kube-apiserver, kube-controller-manager, kube-scheduler, {nodes} …");
                holder = Some(start_holder(place, real_nodes)?);
                deadline = Instant::now() + UP_DEADLINE;
            }
            (None, Some(holder)) => {
                if holder.try_wait()?.is_some() {
                    bail!("the cluster did not start:\n{}", fs::read_to_string(place.holder_log())?.trim());
                }
            }
        }
        if Instant::now() > deadline {
            bail!("the cluster was not ready after {} s; see {}", UP_DEADLINE.as_secs(), place.holder_log().display());
        }
        sleep(POLL_INTERVAL).await;
    };
    let (wanted, found) = (real_nodes.unwrap_or(0), cluster.real_nodes().len());
    ensure!(
        found >= wanted,
        "the cluster that runs has {found} real nodes instead of {wanted}: stop it first with `cargo xtask cluster down`"
    );
    let state = if holder.is_some() { format!("ready after {} s", started.elapsed().as_secs()) } else { "up".into() };
    eprintln!("the cluster is {state}: {}; stop it with `cargo xtask cluster down`", cluster.url());
    eprintln!("kubectl and helm are in {}\n", cluster.directory().join("bin").display());
    if real_nodes.is_some() {
        eprintln!("a shell on the node: `cargo xtask cluster enter`; an image that is there: {BUSYBOX}\n");
    }
    println!("export KUBECONFIG={}", quoted(&cluster.admin_kubeconfig().display().to_string()));
    println!("export PATH={}:\"$PATH\"", quoted(&cluster.directory().join("bin").display().to_string()));
    Ok(())
}

/// Here and not in the holder, because building containerd and installing packages has to be seen.
async fn ensure_node_is_possible() -> Result<()> {
    testbed::real_node_unavailable().await.map_or(Ok(()), |reason| Err(anyhow!(reason)))
}

fn start_holder(place: &Place, real_nodes: Option<usize>) -> Result<Child> {
    let log = File::create(place.holder_log())?;
    Command::new(env::current_exe()?)
        .args(["cluster", "hold"])
        .args(real_nodes.map(|nodes| format!("--nodes={nodes}")))
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("cannot start the process that holds the cluster")
}

async fn answers(cluster: &Cluster) -> bool {
    let Ok(client) = cluster.admin().await else { return false };
    tokio::time::timeout(ANSWER_DEADLINE, client.apiserver_version()).await.is_ok_and(|answer| answer.is_ok())
}

async fn hold(place: &Place, real_nodes: Option<usize>) -> Result<()> {
    // Out of the terminal's session: closing it must not end the cluster. Fails only for one that already is.
    let _ = setsid();
    let mut interrupted = signal(SignalKind::interrupt())?;
    let mut terminated = signal(SignalKind::terminate())?;
    let _lock = take_lock(place).await?;
    remove_old_runs(place)?;
    let directory = place.run_directory(std::process::id());
    let options = Options::default().name("cluster").directory(&directory);
    let starting = ControlPlane::start(match real_nodes {
        Some(nodes) => options.real_nodes(nodes),
        None => options,
    });
    let control_plane = tokio::select! {
        outcome = starting => outcome?,
        _ = interrupted.recv() => return Ok(()),
        _ = terminated.recv() => return Ok(()),
    };
    fs::write(directory.join("ready"), "")?;
    tokio::select! {
        _ = interrupted.recv() => {}
        _ = terminated.recv() => {}
    }
    drop(control_plane);
    Ok(())
}

/// Makes this process the holder. Tries more than once, because whoever looks for a holder has the lock for a moment.
async fn take_lock(place: &Place) -> Result<File> {
    let mut lock = place.lock_file()?;
    for _ in 0..10 {
        if lock.try_lock().is_ok() {
            lock.set_len(0)?;
            write!(lock, "{}", std::process::id())?;
            return Ok(lock);
        }
        sleep(POLL_INTERVAL).await;
    }
    bail!("another process holds the cluster already")
}

/// What a power failure left; a holder that ends in any other way leaves nothing.
fn remove_old_runs(place: &Place) -> Result<()> {
    for entry in fs::read_dir(&place.directory)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("run-") {
            // The components of a killed holder may be removing the same files at this moment.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    Ok(())
}

async fn down(place: &Place) -> Result<()> {
    let Some(holder) = place.holder()? else {
        eprintln!("no cluster runs");
        return Ok(());
    };
    kill_process(Pid::from_raw(holder).context("the cluster's lock holds no process id")?, Signal::TERM)
        .context("cannot stop the process that holds the cluster")?;
    let deadline = Instant::now() + DOWN_DEADLINE;
    while Instant::now() < deadline {
        if place.holder()?.is_none() {
            eprintln!("the cluster is down and its data are gone");
            return Ok(());
        }
        sleep(POLL_INTERVAL).await;
    }
    bail!("the cluster is still up after {} s; see {}", DOWN_DEADLINE.as_secs(), place.holder_log().display())
}

fn status(place: &Place) -> Result<()> {
    let cluster = place.running()?;
    let mut text = format!("{:<25} {:>8} {:>10}\n", "COMPONENT", "PID", "MEMORY");
    for component in components(&cluster) {
        match cluster.pid(component) {
            Some(pid) => writeln!(text, "{:<25} {pid:>8} {:>10}", component.name(), resident_memory(pid))?,
            None => writeln!(text, "{:<25} {:>8} {:>10}", component.name(), "stopped", "-")?,
        }
    }
    writeln!(text, "\nAPI server   {}", cluster.url())?;
    writeln!(text, "kubeconfig   {}", cluster.admin_kubeconfig().display())?;
    writeln!(text, "directory    {}", cluster.directory().display())?;
    print_all(&text);
    Ok(())
}

/// Those that this cluster was made with.
fn components(cluster: &Cluster) -> impl Iterator<Item = Component> {
    Component::ALL.into_iter().filter(|component| cluster.logs(*component).exists())
}

/// Like `print!`, but a reader that has seen enough (`| head`) is no reason to panic.
fn print_all(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

fn resident_memory(pid: u32) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let kilobytes =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse().ok());
    kilobytes.map_or_else(|| "gone".into(), |kilobytes: u64| format!("{} MiB", kilobytes / 1024))
}

fn enter(cluster: &Cluster, command: Vec<OsString>) -> Result<()> {
    let keeper =
        cluster.keeper().context("the cluster has no real node: start one with `cargo xtask cluster up --node`")?;
    let shell = || vec![env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into())];
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths([cluster.directory().join("bin")].into_iter().chain(env::split_paths(&path)))?;
    let mut nsenter = Command::new("nsenter");
    nsenter
        .args(["--target", &keeper.to_string(), "--net", "--mount", "--pid", "--"])
        .args(if command.is_empty() { shell() } else { command })
        .env("KUBECONFIG", cluster.admin_kubeconfig())
        .env("PATH", path);
    // Returns only if it fails.
    Err(nsenter.exec()).context("cannot run `nsenter`")
}

fn logs(cluster: &Cluster, component: Option<Component>, follow: bool) -> Result<()> {
    let Some(component) = component else {
        for component in components(cluster) {
            print_all(&format!("{:<25} {}\n", component.name(), cluster.logs(component).display()));
        }
        return Ok(());
    };
    let mut tail = Command::new("tail");
    tail.args(["-n", "+1"]).args(follow.then_some("-F")).arg(cluster.logs(component));
    // Returns only if it fails; tail handles a closed pipe and Ctrl-C as everyone expects.
    Err(tail.exec()).context("cannot run `tail`")
}

/// Quotes for a shell what needs it.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-:@%+=,".contains(c);
    if text.chars().all(is_plain) { text.to_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_path_survives_the_shell_that_reads_it() {
        assert_eq!(quoted("/home/me/.cache/claimkeeper"), "/home/me/.cache/claimkeeper");
        for path in ["/home/two words/it's", "/tmp/$HOME", "/tmp/a;b"] {
            let echo = Command::new("sh").arg("-c").arg(format!("printf %s {}", quoted(path))).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&echo.stdout), path);
        }
    }
}
