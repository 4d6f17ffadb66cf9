//! The servers, and how each is started.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::ValueEnum;
use testbed::{Leash, eventually};
use tokio::{net::TcpStream, time::Instant};

use super::{
    load::Outcome,
    reviews::{Rules, Webhook},
    scene::Scene,
};
use crate::{
    bench::{
        local::{free_address, is_ready},
        sample::{mebibytes, memory_of, processor_time_of_threads},
    },
    build::{self, Profile},
};

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/bench/admission/webhook");
const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/bench/webhook");

/// A server that has used next to nothing for this long has read what there is.
const CALM_FOR: Duration = Duration::from_millis(500);

const END_DEADLINE: Duration = Duration::from_secs(30);

/// A server that answers, or what stands for the best that any could do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Contestant {
    /// The operator
    Claimkeeper,
    /// The operator without events, of which the webhook in Go writes none either
    Silent,
    /// A webhook made with controller-runtime
    Go,
    /// A server that answers constant bytes
    Floor,
}

impl std::fmt::Display for Contestant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.to_possible_value().map_or(Ok(()), |value| f.write_str(value.get_name()))
    }
}

impl Contestant {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Claimkeeper => "claimkeeper",
            Self::Silent => "claimkeeper, `events: none`",
            Self::Go => "controller-runtime",
            Self::Floor => "floor: constant bytes",
        }
    }

    pub(crate) fn is_ours(self) -> bool {
        matches!(self, Self::Claimkeeper | Self::Silent)
    }

    /// Whether there is a difference to the others: about pods, events are told only if something is wrong.
    pub(crate) fn answers(self, webhook: Webhook) -> bool {
        self != Self::Silent || webhook == Webhook::Claims
    }

    fn rules(self) -> Rules {
        match self {
            Self::Claimkeeper | Self::Silent => Rules::Ours,
            Self::Go => Rules::Originals,
            Self::Floor => Rules::Any,
        }
    }
}

/// Where the programs are.
#[derive(Clone)]
pub(crate) struct Programs {
    operator: PathBuf,
    /// Floor and load generator are modes of the program that you run, compiled as the operator is.
    xtask: PathBuf,
    webhook: PathBuf,
}

impl Programs {
    /// Builds them, as they are shipped.
    pub(crate) async fn build() -> Result<Self> {
        tokio::task::spawn_blocking(|| {
            let (operator, xtask) = (build::claimkeeper(Profile::Release)?, build::program("xtask", Profile::Release)?);
            Ok(Self { operator, xtask, webhook: build_webhook()? })
        })
        .await?
    }
}

/// Builds the webhooks in Go.
pub(crate) fn build_webhook() -> Result<PathBuf> {
    eprintln!("Building webhooks with controller-runtime …");
    build::go(SOURCES, PROGRAM)
}

/// A contestant that answers.
pub(crate) struct Running {
    leash: Leash,
    contestant: Contestant,
    address: SocketAddr,
}

impl Scene {
    /// Starts a contestant and waits until it knows the cluster and has nothing else to do.
    pub(crate) async fn start(&self, contestant: Contestant) -> Result<Running> {
        let log = self.audit()?;
        let (address, admin) = (free_address()?, free_address()?);
        let Programs { operator, xtask, webhook } = &self.programs;
        let certificates = self.ground.certificates.display();
        let (program, arguments) = match contestant {
            Contestant::Claimkeeper => (operator, self.ground.operator(address, admin, "")?),
            Contestant::Silent => (operator, self.ground.operator(address, admin, "enforcement: {events: none}\n")?),
            Contestant::Go => (webhook, self.ground.go(address, &self.webhook.to_string())),
            Contestant::Floor => {
                let at = [format!("--address={address}"), format!("--certificates={certificates}")];
                (xtask, [vec!["bench".to_owned(), "admission-floor".to_owned()], at.to_vec()].concat())
            }
        };
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut leash = Leash::start(self.ground.control_plane.directory(), "contestant", program, &arguments).await?;
        let ready = eventually("the server to be ready", async || {
            if leash.has_ended()? {
                return Ok(Err(anyhow!("{} ended by itself: {}", contestant.label(), leash.output())));
            }
            match contestant {
                Contestant::Claimkeeper | Contestant::Silent => is_ready(admin).await?,
                Contestant::Go => ensure!(leash.output().contains("ready"), "it has not said so"),
                Contestant::Floor => drop(TcpStream::connect(address).await?),
            }
            Ok(Ok(()))
        });
        ready.await??;
        if contestant.is_ours() {
            eventually("the operator to lead and to begin its work", async || {
                let begun = match self.webhook {
                    Webhook::Claims => log.clone().verb("list").resource("persistentvolumeclaims").requests()?,
                    Webhook::Pods => log.clone().resource("leases").requests()?,
                };
                ensure!(begun.iter().any(|request| request.verb != "get"), "it has not");
                Ok(())
            })
            .await?;
        }
        let running = Running { leash, contestant, address };
        running.calm().await?;
        Ok(running)
    }
}

impl Running {
    /// Lets the load generator ask it and tells what that has measured.
    pub(crate) async fn measure(&mut self, scene: &Scene, load: &str, seconds: u64) -> Result<Outcome> {
        let pid = self.pid()?;
        let mut generator = tokio::process::Command::new(&scene.programs.xtask);
        generator.args(["bench", "admission-load", load]).kill_on_drop(true);
        generator.arg(format!("--address={}", self.address)).arg(format!("--pid={pid}"));
        generator.arg(format!("--authority={}", scene.ground.authority.display())).arg(format!("--seconds={seconds}"));
        generator.arg(format!("--webhook={}", scene.webhook)).arg(format!("--claims={}", scene.claims));
        generator.arg(format!("--rules={}", self.contestant.rules()));
        let output = generator.output().await.context("cannot run the load generator")?;
        if !output.status.success() {
            bail!("{}: {}", self.contestant.label(), String::from_utf8_lossy(&output.stderr).trim());
        }
        ensure!(!self.leash.has_ended()?, "{} ended by itself: {}", self.contestant.label(), self.leash.output());
        serde_json::from_slice(&output.stdout).context("the load generator tells nothing")
    }

    /// MiB that it has in memory.
    pub(crate) fn memory(&self) -> Result<f64> {
        Ok(mebibytes(memory_of(self.pid()?)?.resident))
    }

    /// Ends it, and lets it give its Lease back, so that the next one leads at once.
    pub(crate) async fn end(mut self) -> Result<()> {
        self.leash.terminate()?;
        self.leash.ended(END_DEADLINE).await?;
        Ok(())
    }

    /// Waits until it has nothing to do.
    async fn calm(&self) -> Result<()> {
        let pid = self.pid()?;
        let mut reading = (Instant::now(), processor_time_of_threads(pid)?);
        eventually("the server to calm down", async || {
            let (since, before) = reading;
            ensure!(since.elapsed() >= CALM_FOR, "not watched for long enough");
            reading = (Instant::now(), processor_time_of_threads(pid)?);
            let busy = reading.1.saturating_sub(before).div_duration_f64(since.elapsed());
            ensure!(busy < 0.05, "{:.0} % of a core", busy * 100.0);
            Ok(())
        })
        .await
    }

    fn pid(&self) -> Result<u32> {
        Ok(u32::try_from(self.leash.pid())?)
    }
}
