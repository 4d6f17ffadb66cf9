//! One component as a process: how it starts, how it ends, and how it never outlives us.
//!
//! Each child's standard input is a pipe whose other end this process holds and never writes to: the *lifeline*. The
//! kernel closes our end whichever way we go (exit, panic, SIGKILL), the child reads the end of its input, removes the
//! run directory and exits. (`PR_SET_PDEATHSIG` would watch the thread that spawned the child, not the process.)

use std::{
    borrow::Cow,
    fmt,
    fs::{self, File},
    io::{Read, Seek, SeekFrom},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

/// Tells a child which directory to remove when its lifeline ends.
pub(crate) const LIFELINE_REMOVES: &str = "CLAIMKEEPER_LIFELINE_REMOVE";
/// Freezing takes microseconds, unless the machine is very busy.
const PAUSE_DEADLINE: Duration = Duration::from_secs(5);
/// How long a component may take to shut down before it is killed.
pub(crate) const STOP_DEADLINE: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Enough to hold the reason: the components print their flags and a stack first.
const LOG_TAIL_LINES: usize = 15;
const LOG_TAIL_BYTES: u64 = 64 * 1024;

/// A part of the control plane that runs as its own process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Component {
    /// The store behind the API server.
    Etcd,
    /// kube-apiserver.
    ApiServer,
    /// kube-controller-manager.
    ControllerManager,
    /// kube-scheduler.
    Scheduler,
    /// kwok, which plays the kubelets of all nodes that are not real.
    Kwok,
    /// The container runtime of the real node with this number, which is 1 for `node-1`.
    Containerd(usize),
    /// The kubelet of the real node with this number.
    Kubelet(usize),
    /// kube-proxy, one for all real nodes.
    KubeProxy,
}

impl Component {
    /// All of them, in the order in which they start.
    pub const ALL: [Self; 12] = [
        Self::Etcd,
        Self::ApiServer,
        Self::ControllerManager,
        Self::Scheduler,
        Self::Kwok,
        Self::Containerd(1),
        Self::Containerd(2),
        Self::Containerd(3),
        Self::Kubelet(1),
        Self::Kubelet(2),
        Self::Kubelet(3),
        Self::KubeProxy,
    ];

    /// The name that the component is known by, in logs and on command lines.
    #[must_use]
    pub fn name(self) -> Cow<'static, str> {
        match self {
            Self::Etcd => "etcd".into(),
            Self::ApiServer => "kube-apiserver".into(),
            Self::ControllerManager => "kube-controller-manager".into(),
            Self::Scheduler => "kube-scheduler".into(),
            Self::Kwok => "kwok".into(),
            Self::Containerd(node) => format!("containerd-{node}").into(),
            Self::Kubelet(node) => format!("kubelet-{node}").into(),
            Self::KubeProxy => "kube-proxy".into(),
        }
    }
}

impl fmt::Display for Component {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.name())
    }
}

/// What it takes to start a component, the first time and again.
#[derive(Debug, Clone)]
pub(crate) struct Launch {
    pub(crate) component: Component,
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
    pub(crate) directory: PathBuf,
    pub(crate) place: Place,
}

/// Where a component runs.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    /// Where we run.
    Here,
    /// In the network of the real nodes, whose namespaces this process holds.
    Network { keeper: u32 },
    /// In all namespaces of the real nodes, and in this control group unless it is empty; `enter` is the program that knows the
    /// way.
    Node { keeper: u32, cgroup: String, enter: PathBuf },
}

impl Launch {
    fn command(&self, pid_file: &Path) -> Command {
        let mut command = match &self.place {
            Place::Here => Command::new(&self.program),
            Place::Network { keeper } => {
                // It becomes the component, so that the process id is the component's.
                let mut command = Command::new("nsenter");
                command.arg(format!("--net=/proc/{keeper}/ns/net")).arg("--").arg(&self.program);
                command
            }
            Place::Node { keeper, cgroup, enter } => {
                let mut command = Command::new(enter);
                command.args(["enter", &keeper.to_string(), cgroup]).arg(pid_file).arg(&self.program);
                // Where `nft` and `mount` are, which are run by name; not every root has these in its path.
                let path = std::env::var_os("PATH").unwrap_or_default();
                let path = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
                command.envs(std::env::join_paths(path).ok().map(|path| ("PATH", path)));
                command
            }
        };
        command.args(&self.arguments);
        command
    }
}

/// A running component.
#[derive(Debug)]
pub(crate) struct Process {
    component: Component,
    child: Child,
    _lifeline: Option<ChildStdin>,
    /// Whether the child stands for a component in other namespaces, whose process id only the child knows.
    stands_for_another: bool,
    log: PathBuf,
    pid_file: PathBuf,
}

impl Process {
    pub(crate) fn start(launch: &Launch) -> Result<Self> {
        let Launch { component, program, directory, place, .. } = launch;
        let pid_file = pid_file(directory, *component);
        let log = log_file(directory, *component);
        let output = File::options().create(true).append(true).open(&log);
        let output = output.with_context(|| format!("cannot write {}", log.display()))?;
        let mut child = launch
            .command(&pid_file)
            .env("CLAIMKEEPER_LIFELINE", "1")
            .env(LIFELINE_REMOVES, directory)
            // kwok would otherwise read the user's own ~/.kwok.
            .env("KWOK_WORKDIR", directory.join("kwok"))
            .env_remove("KUBECONFIG")
            .current_dir(directory)
            .stdin(Stdio::piped())
            .stdout(output.try_clone()?)
            .stderr(output)
            // Ctrl-C is for the program that runs us, which then ends its components in its own order.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot run {} ({})", component, program.display()))?;
        let lifeline = child.stdin.take();
        let stands_for_another = matches!(place, Place::Node { .. });
        let process = Self { component: *component, child, _lifeline: lifeline, stands_for_another, log, pid_file };
        if !stands_for_another {
            fs::write(&process.pid_file, process.child.id().to_string())?;
        }
        Ok(process)
    }

    pub(crate) fn component(&self) -> Component {
        self.component
    }

    pub(crate) fn exited(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().with_context(|| format!("cannot look after {}", self.component))
    }

    /// Of the component itself, if it is known already, and else of the child that stands for it.
    fn pid(&self) -> Pid {
        let written = fs::read_to_string(&self.pid_file).ok().filter(|_| self.stands_for_another);
        let component = written.and_then(|pid| Pid::from_raw(pid.parse().ok()?));
        component.unwrap_or_else(|| Pid::from_child(&self.child))
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(self.pid(), signal).with_context(|| format!("cannot send {signal:?} to {}", self.component))
    }

    /// Freezes the component, and returns when none of its threads runs any more: the signal alone only asks for that.
    pub(crate) fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)?;
        let deadline = Instant::now() + PAUSE_DEADLINE;
        while Instant::now() < deadline {
            if threads_are_stopped(self.pid()) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        bail!("{} did not stop within {} s of SIGSTOP", self.component, PAUSE_DEADLINE.as_secs())
    }

    /// Asks the component to shut down and waits until it has, killing it when it takes too long.
    pub(crate) async fn stop(mut self) -> Result<()> {
        self.signal(Signal::TERM)?;
        let deadline = Instant::now() + STOP_DEADLINE;
        while Instant::now() < deadline {
            if self.exited()?.is_some() {
                return Ok(());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        // Dropping kills.
        Ok(())
    }

    /// The end of the component's log, for error messages.
    pub(crate) fn log_tail(&self) -> String {
        tail(&self.log).unwrap_or_else(|error| format!("(no log: {error})"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // All fail only if the process is already gone, which is what they are for.
        let has_ended = self.child.try_wait().is_ok_and(|status| status.is_some());
        if self.stands_for_another && !has_ended {
            // The child ends with the component, after it has waited for it as nobody else can.
            let _ = self.signal(Signal::KILL);
            let _ = wait_or_kill(&mut self.child, STOP_DEADLINE);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.pid_file);
    }
}

/// Waits until a child that was asked to end has ended, and kills it if it takes too long.
pub(crate) fn wait_or_kill(child: &mut Child, patience: Duration) -> std::io::Result<ExitStatus> {
    let deadline = Instant::now() + patience;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    child.kill()?;
    child.wait()
}

/// Where the process id of a running component is written, for siblings and other processes.
pub(crate) fn pid_file(directory: &Path, component: Component) -> PathBuf {
    directory.join("pids").join(component.name().as_ref())
}

/// Where a component writes what it has to say.
pub(crate) fn log_file(directory: &Path, component: Component) -> PathBuf {
    directory.join("logs").join(format!("{component}.log"))
}

fn tail(log: &Path) -> std::io::Result<String> {
    let mut file = File::open(log)?;
    let start = file.metadata()?.len().saturating_sub(LOG_TAIL_BYTES);
    file.seek(SeekFrom::Start(start))?;
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    let lines = text.lines().collect::<Vec<_>>();
    Ok(lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n"))
}

/// A component that did not come up: which, how it failed, and what it said last.
#[derive(Debug)]
pub struct ComponentFailed {
    component: Component,
    outcome: String,
    last_lines: String,
}

impl ComponentFailed {
    pub(crate) fn new(process: &Process, outcome: impl Into<String>) -> Self {
        Self { component: process.component(), outcome: outcome.into(), last_lines: process.log_tail() }
    }

    /// Whether another program took a port between our choosing it and the component's using it.
    pub(crate) fn is_port_conflict(&self) -> bool {
        self.last_lines.contains("address already in use")
    }
}

impl std::error::Error for ComponentFailed {}

impl fmt::Display for ComponentFailed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { component, outcome, last_lines } = self;
        write!(formatter, "{component} {outcome}; the last lines of its log:\n{last_lines}")
    }
}

fn threads_are_stopped(pid: Pid) -> bool {
    let stopped = |thread: fs::DirEntry| {
        // A thread that has ended meanwhile does not run either.
        fs::read_to_string(thread.path().join("stat")).map_or(true, |stat| stat.contains(") T "))
    };
    fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).is_ok_and(|threads| threads.flatten().all(stopped))
}
