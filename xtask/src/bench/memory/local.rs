//! The operator with both webhooks beside webhooks made with controller-runtime that have the same objects in their caches.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use testbed::{Leash, eventually};

use super::{Arguments, Measured, settled};
use crate::{
    bench::{
        admission,
        local::{self, Bound, Ground, free_address, is_ready},
        report::Section,
    },
    build::{self, Profile},
};

/// MiB of the operator, settled.
const GOAL: f64 = 150.0;

pub(super) async fn run(Arguments { objects, rounds, .. }: &Arguments) -> Result<()> {
    let programs = tokio::task::spawn_blocking(|| {
        Ok::<_, anyhow::Error>((build::claimkeeper(Profile::Release)?, admission::build_webhook()?))
    });
    let (operator, webhook) = programs.await??;
    let scene = Scene { ground: Ground::open(&["enforcement", "placement"]).await?, operator, webhook };
    let empty = scene.measure("empty".to_owned(), *rounds).await?;
    let client = scene.ground.control_plane.admin().await?;
    let bound = || (0..*objects).map(|number| Bound::local(number, *objects));
    local::create_nodes(&client, *objects).await?;
    local::create_claims(&client, bound()).await?;
    local::create_pods(&client, bound()).await?;
    let full = scene.measure(format!("{objects} nodes, pods, volumes and claims"), *rounds).await?;
    let (settled, peak) = (full.ours.largest(), full.our_peak.largest());
    let met = if settled <= GOAL { "met" } else { "missed" };
    let goal = format!(
        "- {met}: at most {GOAL:.0} MiB with {objects} nodes, pods, volumes and claims: {settled:.1} in the worst round, {peak:.1} at its peak"
    );
    println!("\n{goal}");
    Section {
        title: "Memory: local volumes",
        command: format!("cargo xtask bench memory --only local --objects {objects} --rounds {rounds}"),
        circumstances: format!(
            "Resident memory in MiB, as above. claimkeeper runs with the features `enforcement` and `placement`; `controller-runtime` \
             v0.25.2 has\nwebhooks for claims and pods that decide as the original's do, and caches, without managedFields, of what claimkeeper \
             watches: nodes,\npods, volumes, claims, classes and namespaces. Each claim is bound to a volume of `localdisk.csi.acstor.io` on a \
             node of its own, where\nits pod runs.\n\n{goal}"
        ),
        rows: vec![
            ["cluster", "claimkeeper", "controller-runtime", "ratio", "peaks"].map(str::to_owned).to_vec(),
            empty.row(),
            full.row(),
        ],
    }
    .publish()
}

/// A cluster with both programs.
struct Scene {
    ground: Ground,
    operator: PathBuf,
    webhook: PathBuf,
}

impl Scene {
    async fn measure(&self, label: String, rounds: usize) -> Result<Measured> {
        let mut measured = Measured { label, ..Measured::default() };
        for round in 1..=rounds {
            eprintln!("{}: round {round} of {rounds}", measured.label);
            let (address, admin) = (free_address()?, free_address()?);
            let ours = self.start("claimkeeper", &self.operator, &self.ground.operator(address, admin, "")?).await?;
            let theirs = self.ground.go(free_address()?, "everything");
            let theirs = self.start("controller-runtime", &self.webhook, &theirs).await?;
            eventually("both to have read what there is", async || {
                is_ready(admin).await?;
                ensure!(theirs.output().contains("ready"), "controller-runtime has not said so");
                Ok(())
            })
            .await?;
            let (our_pid, their_pid) = (u32::try_from(ours.pid())?, u32::try_from(theirs.pid())?);
            let (ours, theirs) =
                tokio::try_join!(settled("claimkeeper", our_pid), settled("controller-runtime", their_pid))?;
            measured.add(ours, theirs);
        }
        Ok(measured)
    }

    async fn start(&self, name: &str, program: &Path, arguments: &[String]) -> Result<Leash> {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        Leash::start(self.ground.control_plane.directory(), name, program, &arguments).await
    }
}
