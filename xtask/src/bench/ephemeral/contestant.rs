//! Who competes, and how each is started.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use parking_lot::Mutex;
use testbed::{Binaries, Leash};
use tokio::task::JoinHandle;

use super::scene::Scene;
use crate::{
    bench::sample::{mebibytes, memory_of, processor_time_of},
    build::{self, Profile},
};

/// As many as the operator has by default (`ephemeral.concurrency`); each request has its own connection there, too.
pub(crate) const CONNECTIONS: usize = 32;

/// A program that makes claims, or what stands for the best that any could do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contestant {
    /// The operator out of the box.
    Claimkeeper,
    /// The controller in Kubernetes with its own limit of requests.
    PeerAtDefaults,
    /// The same without that limit.
    PeerUnlimited {
        /// `--concurrent-ephemeralvolume-syncs`; 5 by default.
        workers: u32,
    },
    /// The bare load generator.
    Ceiling,
}

impl Contestant {
    /// The setting of the peer that others are measured against where only one is.
    pub(crate) const BEST_PEER: Self = Self::PeerUnlimited { workers: 50 };

    pub(crate) fn label(self) -> String {
        match self {
            Self::Claimkeeper => "claimkeeper".into(),
            Self::PeerAtDefaults => "kube-controller-manager, defaults".into(),
            Self::PeerUnlimited { workers } => format!("kube-controller-manager, unlimited, {workers} workers"),
            Self::Ceiling => "ceiling: bare load generator".into(),
        }
    }

    pub(crate) fn is_peer(self) -> bool {
        matches!(self, Self::PeerAtDefaults | Self::PeerUnlimited { .. })
    }

    /// As whom it talks to the API server.
    pub(crate) fn users(self) -> &'static [&'static str] {
        match self {
            Self::Claimkeeper | Self::Ceiling => &["system:serviceaccount:claimkeeper:claimkeeper"],
            Self::PeerAtDefaults | Self::PeerUnlimited { .. } => {
                &["system:serviceaccount:kube-system:ephemeral-volume-controller", "system:kube-controller-manager"]
            }
        }
    }

    fn peer_flags(self) -> Vec<String> {
        match self {
            Self::PeerUnlimited { workers } => {
                vec!["--kube-api-qps=-1".into(), format!("--concurrent-ephemeralvolume-syncs={workers}")]
            }
            _ => Vec::new(),
        }
    }
}

/// Where the programs are.
#[derive(Clone)]
pub(crate) struct Programs {
    /// The operator.
    pub operator: PathBuf,
    load_generator: Option<PathBuf>,
}

impl Programs {
    /// Builds what is needed, as it is shipped.
    pub(crate) async fn build(with_load_generator: bool) -> Result<Self> {
        tokio::task::spawn_blocking(move || {
            let operator = build::claimkeeper(Profile::Release)?;
            let load_generator = with_load_generator.then(|| build::program("xtask", Profile::Release)).transpose()?;
            Ok(Self { operator, load_generator })
        })
        .await?
    }
}

/// A contestant at work.
pub(crate) struct Running {
    leash: Leash,
    /// When it was started.
    pub since: Timestamp,
    clock: ProcessorClock,
}

/// What a contestant has used since it was started.
pub(crate) struct Used {
    /// In MiB, at the most.
    pub memory: f64,
    pub processor: Duration,
}

impl Scene {
    /// Starts a contestant.
    pub(crate) async fn start(&self, contestant: Contestant) -> Result<Running> {
        let Programs { operator, load_generator } = &self.programs;
        let (program, arguments) = match contestant {
            Contestant::Claimkeeper => (operator.clone(), self.operator.arguments.clone()),
            Contestant::Ceiling => {
                let kubeconfig = self.operator.kubeconfig.display();
                let arguments = ["bench".into(), "load".into(), format!("--kubeconfig={kubeconfig}")];
                let program = load_generator.clone().context("the load generator was not built")?;
                (program, [&arguments[..], &[format!("--connections={CONNECTIONS}")]].concat())
            }
            peer => (Binaries::get()?.controlplane(), self.peer_arguments(peer)),
        };
        self.launch(&program, &arguments).await
    }

    /// Starts a program to be measured.
    pub(crate) async fn launch(&self, program: &Path, arguments: &[String]) -> Result<Running> {
        let since = Timestamp::now();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let leash = Leash::start(self.control_plane.directory(), "contestant", program, &arguments).await?;
        let clock = ProcessorClock::start(u32::try_from(leash.pid())?);
        Ok(Running { leash, since, clock })
    }

    fn peer_arguments(&self, peer: Contestant) -> Vec<String> {
        let directory = self.control_plane.directory();
        let kubeconfig = directory.join("kubeconfigs/kube-controller-manager.kubeconfig");
        let mut arguments = vec![
            "kube-controller-manager".into(),
            format!("--kubeconfig={}", kubeconfig.display()),
            "--controllers=ephemeral-volume-controller".into(),
            // As kubeadm sets it up; without, it lacks the right to create claims.
            "--use-service-account-credentials".into(),
            // It serves no metrics here, which can only be to its advantage.
            "--secure-port=0".into(),
        ];
        arguments.extend(peer.peer_flags());
        arguments
    }
}

impl Running {
    pub(crate) fn used(&self) -> Result<Used> {
        let pid = u32::try_from(self.leash.pid())?;
        Ok(Used { memory: mebibytes(memory_of(pid)?.peak), processor: processor_time_of(pid)? })
    }

    /// The processor time it had used at some moment.
    pub(crate) fn processor_time_at(&self, time: Timestamp) -> Duration {
        self.clock.at(time)
    }

    /// What it says if it has ended although nobody asked it to.
    pub(crate) fn check(&mut self) -> Result<()> {
        ensure!(!self.leash.has_ended()?, "it ended by itself: {}", tail(&self.leash.output()));
        Ok(())
    }
}

fn tail(output: &str) -> String {
    let lines: Vec<&str> = output.lines().collect();
    lines[lines.len().saturating_sub(5)..].join("\n")
}

/// Looks at a process's processor time so often that it can be told afterwards for any moment.
struct ProcessorClock {
    readings: Arc<Mutex<Vec<(Timestamp, Duration)>>>,
    reading: JoinHandle<()>,
}

impl ProcessorClock {
    fn start(pid: u32) -> Self {
        let readings = Arc::new(Mutex::new(Vec::new()));
        let written = Arc::clone(&readings);
        let reading = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(Duration::from_millis(20));
            while let Ok(used) = processor_time_of(pid) {
                written.lock().push((Timestamp::now(), used));
                ticks.tick().await;
            }
        });
        Self { readings, reading }
    }

    fn at(&self, time: Timestamp) -> Duration {
        let readings = self.readings.lock();
        // On a busy machine the first look may come late; it is then the nearest.
        let before = readings.iter().rev().find(|(read, _)| *read <= time).or_else(|| readings.first());
        before.map_or(Duration::ZERO, |(_, used)| *used)
    }
}

impl Drop for ProcessorClock {
    fn drop(&mut self) {
        self.reading.abort();
    }
}
