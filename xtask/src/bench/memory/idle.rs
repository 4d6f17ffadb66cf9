//! The operator with all of its features in a small cluster, where hardly anything happens: what it has in memory, and how soon it is
//! ready. It has no peer: no other program does all of it.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::Result;
use serde_json::json;
use testbed::{
    ControlPlane, Leash, Options,
    storageos::{StorageOs, Volume},
    within,
};

use super::{Arguments, settled};
use crate::{
    bench::{
        local::{self, Bound, free_address, is_ready},
        report::Section,
        sample::{Samples, mebibytes},
    },
    build::{self, Profile},
};

const FEATURES: [&str; 6] = ["ephemeral", "provisioner", "releaser", "enforcement", "placement", "shared-volumes"];

/// What a small cluster has of each.
const NODES: usize = 3;
const OBJECTS: usize = 100;
const SHARED: usize = 10;

/// MiB, settled.
const MEMORY_GOAL: f64 = 40.0;
/// Seconds.
const READY_GOAL: f64 = 2.0;

pub(super) async fn run(Arguments { rounds, .. }: &Arguments) -> Result<()> {
    let operator = tokio::task::spawn_blocking(|| build::claimkeeper(Profile::Release)).await??;
    let mut measured = Measured::default();
    for round in 1..=*rounds {
        eprintln!("small cluster: round {round} of {rounds}");
        let scene = Scene::open(&operator).await?;
        let (leash, ready) = scene.start().await?;
        measured.first_start.add(ready.as_secs_f64());
        let memory = settled("claimkeeper", u32::try_from(leash.pid())?).await?;
        eprintln!("  ready after {:.2} s, {:.1} MiB", ready.as_secs_f64(), mebibytes(memory.resident));
        measured.idle.add(mebibytes(memory.resident));
        measured.peak.add(mebibytes(memory.peak));
        drop(leash);
        let (_leash, ready) = scene.start().await?;
        eprintln!("  ready again after {:.2} s", ready.as_secs_f64());
        measured.next_start.add(ready.as_secs_f64());
    }
    measured.publish(*rounds)
}

#[derive(Default)]
struct Measured {
    idle: Samples,
    peak: Samples,
    first_start: Samples,
    next_start: Samples,
}

impl Measured {
    fn publish(&self, rounds: usize) -> Result<()> {
        let goal = |met: bool| if met { "met" } else { "missed" };
        let (idle, ready) = (self.idle.largest(), self.first_start.largest().max(self.next_start.largest()));
        let goals = format!(
            "- {}: less than {MEMORY_GOAL:.0} MiB at rest: {idle:.1} in the worst round, {:.1} at its peak\n\
             - {}: ready in less than {READY_GOAL:.0} s: {ready:.2} s in the worst round",
            goal(idle < MEMORY_GOAL),
            self.peak.largest(),
            goal(ready < READY_GOAL),
        );
        println!("\n{goals}");
        let times = |samples: &Samples| format!("{:.2} ({:.2} at most)", samples.median(), samples.largest());
        Section {
            title: "All features at rest",
            command: format!("cargo xtask bench memory --only idle --rounds {rounds}"),
            circumstances: format!(
                "claimkeeper out of the box with all six features, in a new cluster with {NODES} nodes, {OBJECTS} pods with a bound local volume each,\n\
                 and {SHARED} shared volumes. \"MiB\" is resident memory, settled. Seconds are from the start of the process until `/readyz` says\n\
                 yes: for the first time, when there is neither a Lease nor a certificate for the webhooks, and again after it was killed.\n\n{goals}"
            ),
            rows: vec![
                ["cluster", "MiB", "peak MiB", "s until ready, the first time", "again"].map(str::to_owned).to_vec(),
                vec![
                    "small".to_owned(),
                    self.idle.to_string(),
                    self.peak.to_string(),
                    times(&self.first_start),
                    times(&self.next_start),
                ],
            ],
        }
        .publish()
    }
}

/// A small cluster with the chart in it.
struct Scene {
    control_plane: ControlPlane,
    operator: PathBuf,
    kubeconfig: PathBuf,
    storageos: StorageOs,
}

impl Scene {
    async fn open(operator: &Path) -> Result<Self> {
        let options = Options::default().nodes(0).provisioner(false).without_scheduler().without_controller_manager();
        let control_plane = ControlPlane::start(options.name("bench")).await?;
        let client = control_plane.admin().await?;
        local::create_classes(&client).await?;
        local::create_nodes(&client, NODES).await?;
        let bound = || (0..OBJECTS).map(|number| Bound::local(number, NODES));
        local::create_claims(&client, bound()).await?;
        local::create_pods(&client, bound()).await?;
        let storageos = StorageOs::start().await?;
        for number in 0..SHARED {
            let (claim, volume) = (Bound::local(number, NODES).name(), format!("shared-{number}"));
            let endpoint = format!("10.77.0.{number}:25705");
            storageos.add_volume(Volume::shared(local::NAMESPACE, &claim, &volume).at(endpoint.as_str()));
        }
        // Who is trusted is kept in the webhook configurations all the same.
        let never = json!({"objectSelector": {"matchLabels": {"asked": "never"}}});
        let values = json!({"features": FEATURES, "webhook": {"enforceEphemeral": never, "hyperconverged": never}});
        let kubeconfig = control_plane.install_chart("claimkeeper", "claimkeeper", &values).await?;
        Ok(Self { control_plane, operator: operator.to_owned(), kubeconfig, storageos })
    }

    /// Starts it, and tells how long it took to be ready.
    async fn start(&self) -> Result<(Leash, Duration)> {
        let (admin, directory) = (free_address()?, self.control_plane.directory());
        let (config, kubeconfig) = (self.configure(admin)?, self.kubeconfig.to_string_lossy());
        let arguments = ["run", "--config", &config, "--kubeconfig", &kubeconfig];
        let start = Instant::now();
        let leash = Leash::start(directory, "claimkeeper", &self.operator, &arguments).await?;
        within(Duration::from_mins(1), "the operator to be ready", async || is_ready(admin).await).await?;
        Ok((leash, start.elapsed()))
    }

    /// Only where things are is our choice.
    fn configure(&self, admin: SocketAddr) -> Result<String> {
        let (endpoint, secret_path) = (self.storageos.url(), self.storageos.secret_path());
        let config = json!({
            "features": FEATURES,
            "admin": {"listen": admin},
            "log": {"format": "json"},
            "webhook": {"listen": free_address()?},
            "sharedVolumes": {"storageos": {"endpoint": endpoint, "secretPath": secret_path}},
        });
        let file = self.control_plane.directory().join("operator.yaml");
        fs::write(&file, config.to_string())?;
        Ok(file.to_string_lossy().into_owned())
    }
}
