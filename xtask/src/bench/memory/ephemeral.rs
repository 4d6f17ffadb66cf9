//! The operator beside kube-controller-manager, of which only the ephemeral controller runs.

use std::path::Path;

use anyhow::{Context, Result};
use kube::Client;
use testbed::{Component, ControlPlane, Leash, Options};

use super::{Arguments, Measured, settled};
use crate::{
    bench::{claims, operator, pods, report::Section},
    build::{self, Profile},
};

pub(super) async fn run(arguments: &Arguments) -> Result<()> {
    let operator = tokio::task::spawn_blocking(|| build::claimkeeper(Profile::Release)).await??;
    let mut rows =
        vec![["cluster", "claimkeeper", "kube-controller-manager", "ratio", "peaks"].map(str::to_owned).to_vec()];
    let mut pod_size = 0;
    for (ephemeral_every, label) in [(10, "one in ten with an ephemeral volume"), (1, "each with an ephemeral volume")]
    {
        let scene = Scene::open(&operator).await?;
        if ephemeral_every == 10 {
            rows.push(scene.measure("empty", 0, arguments.rounds).await?.row());
        }
        pods::Plan::new(arguments.pods, ephemeral_every).create(&scene.client).await?;
        pod_size = pods::size_of_one(&scene.client).await?;
        let label = format!("{} pods, {label}", arguments.pods);
        let claims = arguments.pods.div_ceil(ephemeral_every);
        rows.push(scene.measure(&label, claims, arguments.rounds).await?.row());
    }
    Section {
        title: "Memory",
        command: format!("cargo xtask bench memory --only ephemeral --pods {} --rounds {}", arguments.pods, arguments.rounds),
        circumstances: format!(
            "Resident memory in MiB, after each program was started anew and had settled. kube-controller-manager \
             v1.37.1 runs with\n`--controllers=ephemeral-volume-controller` and nothing else; the pods are {pod_size} bytes of JSON \
             each, managedFields included.\n\"peaks\" are the most that claimkeeper and kube-controller-manager ever held.",
        ),
        rows,
    }
    .publish()
}

/// A cluster with both programs' parts.
struct Scene {
    control_plane: ControlPlane,
    client: Client,
    operator: std::path::PathBuf,
    arguments: Vec<String>,
}

impl Scene {
    async fn open(operator: &Path) -> Result<Self> {
        let options = Options::default()
            .name("bench")
            .nodes(0)
            .provisioner(false)
            .without_scheduler()
            .controllers("ephemeral-volume-controller")
            // The peer's own limit of 20 requests a second would only make the first round longer.
            .controller_manager_flag("--kube-api-qps=1000")
            .controller_manager_flag("--kube-api-burst=2000")
            .apiserver_flag("--max-requests-inflight=2000")
            .apiserver_flag("--max-mutating-requests-inflight=1000");
        let control_plane = ControlPlane::start(options).await?;
        Ok(Self {
            client: control_plane.admin().await?,
            operator: operator.to_owned(),
            arguments: operator::install(&control_plane, "ephemeral").await?.arguments,
            control_plane,
        })
    }

    async fn measure(&self, label: &str, claims: usize, rounds: usize) -> Result<Measured> {
        let mut measured = Measured { label: label.to_owned(), ..Measured::default() };
        for round in 1..=rounds {
            eprintln!("{label}: round {round} of {rounds}");
            self.control_plane.stop(Component::ControllerManager).await?;
            let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
            let leash = Leash::start(self.control_plane.directory(), "claimkeeper", &self.operator, &arguments).await?;
            self.control_plane.start_component(Component::ControllerManager).await?;
            let theirs = self.control_plane.pid(Component::ControllerManager).context("the peer does not run")?;
            claims::wait_for(&self.client, claims).await?;

            let our_pid = u32::try_from(leash.pid())?;
            let (ours, theirs) =
                tokio::try_join!(settled("claimkeeper", our_pid), settled("kube-controller-manager", theirs))?;
            measured.add(ours, theirs);
        }
        Ok(measured)
    }
}
