//! The cluster in which contestants meet: API server and etcd, and nobody else who could disturb them.
//!
//! A state of the cluster can be saved and brought back as often as needed: the files of etcd are copied while nothing runs.
//! So every run of every contestant starts with the very same objects and with a fresh API server, which is both quicker and
//! fairer than to clean up after the run before.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use testbed::{AuditLog, AuditedRequest, Component, ControlPlane, Options, eventually, within};
use tokio::time::Instant;

use super::contestant::Programs;
use crate::bench::{
    operator::{self, Installed},
    sample::processor_time_of,
};

/// An API server that has just started is busy with itself for a few seconds.
const CALM_DEADLINE: Duration = Duration::from_mins(2);
const CALM_FOR: Duration = Duration::from_secs(1);

/// A log in which nothing has changed for this long is complete.
pub(crate) const STILL: Duration = Duration::from_secs(2);

/// The cluster.
pub(crate) struct Scene {
    pub(crate) control_plane: ControlPlane,
    pub(super) programs: Programs,
    pub(crate) operator: Installed,
}

impl Scene {
    /// A cluster with nothing but the operator's chart in it.
    pub(crate) async fn open(programs: &Programs) -> Result<Self> {
        let options = Options::default().nodes(0).provisioner(false).without_scheduler().without_controller_manager();
        Self::open_with(programs, options).await
    }

    /// The same in a cluster in which more happens.
    pub(crate) async fn open_with(programs: &Programs, options: Options) -> Result<Self> {
        let control_plane = ControlPlane::start(options.name("bench")).await?;
        let operator = operator::install(&control_plane, "ephemeral").await?;
        Ok(Self { control_plane, programs: programs.clone(), operator })
    }

    /// A client for what the contestants are given to do. Each restart of the API server needs a new one.
    pub(crate) async fn client(&self) -> Result<Client> {
        self.control_plane.admin().await
    }

    /// What the API server is asked from now on.
    pub(crate) fn audit(&self) -> Result<AuditLog> {
        self.control_plane.audit_log().from_now()
    }

    /// Keeps the state of the cluster under this name.
    pub(crate) async fn save(&self, name: &str) -> Result<()> {
        self.while_stopped(|data| copy(data, &Self::saved(data, name))).await
    }

    /// Brings a saved state back.
    pub(crate) async fn restore(&self, name: &str) -> Result<()> {
        self.while_stopped(|data| {
            fs::remove_dir_all(data)?;
            copy(&Self::saved(data, name), data)
        })
        .await?;
        self.calm().await
    }

    fn saved(data: &Path, name: &str) -> PathBuf {
        data.with_file_name(format!("etcd-{name}"))
    }

    async fn while_stopped(&self, work: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        // Nobody is connected, so there is nothing to wait for politely.
        self.control_plane.kill(Component::ApiServer)?;
        self.control_plane.stop(Component::Etcd).await?;
        work(&self.control_plane.directory().join("etcd"))?;
        self.control_plane.start_component(Component::Etcd).await?;
        self.control_plane.start_component(Component::ApiServer).await
    }

    /// The processor time that API server and etcd have used since they were started.
    pub(crate) fn server_time(&self) -> Result<Duration> {
        let components = [Component::ApiServer, Component::Etcd].into_iter();
        let pids =
            components.map(|component| self.control_plane.pid(component).context("the control plane does not run"));
        pids.map(|pid| processor_time_of(pid?)).sum()
    }

    /// Waits until API server and etcd have nothing to do.
    pub(crate) async fn calm(&self) -> Result<()> {
        let mut reading = (Instant::now(), self.server_time()?);
        within(CALM_DEADLINE, "the control plane to calm down", async || {
            let (since, before) = reading;
            ensure!(since.elapsed() >= CALM_FOR, "not watched for long enough");
            reading = (Instant::now(), self.server_time()?);
            let busy = reading.1.saturating_sub(before).div_duration_f64(since.elapsed());
            ensure!(busy < 0.1, "{:.0} % of a core", busy * 100.0);
            Ok(())
        })
        .await
    }
}

/// Waits until the log has this many claims that were created; it is written a moment after the answer is out. If it stays a
/// little short of that, which was seen once on a very busy machine and not explained, the run goes on with what there is. Those
/// that are missing may be the slowest, so whoever tells waiting times must tell their number too.
pub(crate) async fn created_claims(log: &AuditLog, wanted: usize) -> Result<Vec<AuditedRequest>> {
    let log = log.clone().verb("create").resource("persistentvolumeclaims");
    let mut seen = (Instant::now(), 0);
    eventually("the audit log to be complete", async || {
        let (created, others): (Vec<_>, Vec<_>) =
            log.requests()?.into_iter().partition(|request| request.code() == Some(201));
        if created.len() != seen.1 {
            seen = (Instant::now(), created.len());
        }
        let refusals: BTreeSet<_> = others.iter().map(AuditedRequest::code).collect();
        let nearly = created.len() >= wanted - wanted / 100 && seen.0.elapsed() > STILL;
        let complete = created.len() >= wanted || nearly;
        ensure!(complete, "{} claims of {wanted}, and answers with {refusals:?}", created.len());
        if created.len() < wanted {
            eprintln!("  {} claims of {wanted} in the audit log, and answers with {refusals:?}", created.len());
        }
        Ok(created)
    })
    .await
}

/// From the arrival of the first request to the end of the last answer.
pub(crate) fn span(requests: &[AuditedRequest]) -> Option<(Timestamp, Timestamp)> {
    let first = requests.iter().map(|request| request.request_received_timestamp).min()?;
    Some((first, requests.iter().map(|request| request.stage_timestamp).max()?))
}

/// How much later, and not at all if it was earlier.
pub(crate) fn delay(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from).max(SignedDuration::ZERO)).unwrap_or_default()
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target).with_context(|| format!("cannot write {}", target.display()))?;
        }
    }
    Ok(())
}
