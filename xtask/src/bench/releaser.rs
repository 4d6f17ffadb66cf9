//! A backlog of Released volumes: they exist, then the program starts.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::{
    core::v1::{Event, PersistentVolume},
    storage::v1::StorageClass,
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use testbed::{AuditLog, AuditedRequest, within};

use super::{
    claims::count,
    ephemeral::{
        contestant::{Programs, Running},
        scene::{Scene, delay, span},
    },
    operator, original,
    report::Section,
    sample::Samples,
};

/// This many take a client with the original's limits more than half a minute, and the rest would not tell more.
const RELEASES_OF_THE_ORIGINAL: usize = 100;

/// What 5 requests a second are enough for, of which every release takes 2: one for itself and one for its event.
const ORIGINAL_BOUND: f64 = 2.5;

const DEADLINE: Duration = Duration::from_mins(10);
const OPERATOR: &str = "system:serviceaccount:claimkeeper:claimkeeper";
const RELEASED: &str = "released";
const CLASS: &str = "cache";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How many volumes are Released
    #[arg(long, default_value_t = 5_000)]
    volumes: usize,
    /// How often it is measured
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

#[derive(Default)]
struct Measured {
    /// Releases per second.
    rate: Samples,
    /// Releases per second until the last event was written.
    with_events: Samples,
    /// MiB at the most.
    memory: Samples,
    /// Microseconds of processor time per release, its event included, from the start of the process.
    processor: Samples,
    /// Writes of volumes per release.
    writes: Samples,
    /// All other calls per release but its event.
    calls: Samples,
    events: Samples,
}

pub(crate) async fn run(Arguments { volumes, rounds }: Arguments) -> Result<()> {
    ensure!(
        volumes >= RELEASES_OF_THE_ORIGINAL && rounds > 0,
        "there must be at least {RELEASES_OF_THE_ORIGINAL} volumes"
    );
    let programs = Programs::build(false).await?;
    let peer = tokio::task::spawn_blocking(original::build).await??;
    let scene = Scene::open(&programs).await?;
    let arguments = operator::install(&scene.control_plane, "releaser").await?.arguments;
    eprintln!("Making {volumes} Released volumes …");
    create(&scene.client().await?, volumes).await?;
    scene.save(RELEASED).await?;
    let (mut ours, mut theirs) = (Measured::default(), Measured::default());
    for round in 0..rounds {
        eprintln!("{volumes} volumes, round {} of {rounds}: claimkeeper", round + 1);
        measure(&scene, &programs.operator, &arguments, volumes, &mut ours).await?;
    }
    eprintln!("{volumes} volumes: a client with the original's limits");
    let kubeconfig = scene.control_plane.admin_kubeconfig().display().to_string();
    measure(&scene, &peer, &["releaser".to_owned(), kubeconfig], RELEASES_OF_THE_ORIGINAL, &mut theirs).await?;
    publish(&ours, &theirs, volumes, format!("cargo xtask bench releaser --volumes {volumes} --rounds {rounds}"))
}

/// As Kubernetes leaves them behind.
async fn create(client: &Client, count: usize) -> Result<()> {
    let class: StorageClass = serde_json::from_value(json!({
        "metadata": {"name": CLASS, "annotations": {"claimkeeper.dev/release": "pool"}},
        "provisioner": "kubernetes.io/no-provisioner",
    }))?;
    Api::all(client.clone()).create(&PostParams::default(), &class).await?;
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let one = async |number: usize| -> Result<()> {
        let name = format!("pv-{number:05}");
        let volume = json!({
            "metadata": {"name": name, "annotations": {"pv.kubernetes.io/bound-by-controller": "yes"}},
            "spec": {
                "capacity": {"storage": "10Gi"},
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": CLASS,
                "csi": {"driver": "disks.example.dev", "volumeHandle": name},
                "claimRef": {
                    "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": format!("team-{}", number % 50),
                    "name": format!("build-{number}"), "uid": format!("00000000-0000-4000-8000-{number:012}"),
                    "resourceVersion": "1",
                },
            },
        });
        volumes.create(&PostParams::default(), &serde_json::from_value(volume)?).await?;
        let status = Patch::Merge(json!({"status": {"phase": "Released"}}));
        volumes.patch_status(&name, &PatchParams::default(), &status).await?;
        Ok(())
    };
    stream::iter(0..count).map(one).buffer_unordered(16).try_collect::<()>().await
}

async fn measure(scene: &Scene, program: &Path, arguments: &[String], wanted: usize, to: &mut Measured) -> Result<()> {
    scene.restore(RELEASED).await?;
    let (log, client) = (scene.audit()?, scene.client().await?);
    let mut running: Running = scene.launch(program, arguments).await?;
    within(DEADLINE, "all events", async || {
        let events = count::<Event>(&client).await?;
        ensure!(events >= wanted, "{events} of {wanted}");
        Ok(())
    })
    .await?;
    running.check()?;
    let used = running.used()?;
    let writes = written(&log, wanted).await?;
    let released = writes.iter().filter(|request| request.code() == Some(200)).count();
    let (first, last) = span(&writes).context("no volume was released")?;
    let events = log.clone().verb("create").resource("events").requests()?;
    let (_, told) = span(&events).context("no event was written")?;
    let all = log.clone().user(OPERATOR).requests()?.len();
    let made = released as f64;
    to.rate.add(made / delay(first, last).as_secs_f64());
    to.with_events.add(made / delay(first, told).as_secs_f64());
    to.memory.add(used.memory);
    to.processor.add(used.processor.as_secs_f64() * 1e6 / made);
    to.writes.add(writes.len() as f64 / made);
    to.events.add(events.len() as f64 / made);
    to.calls.add(all.saturating_sub(writes.len() + events.len()) as f64 / made);
    eprintln!("  {:.0} releases/s, {:.0} MiB", made / delay(first, last).as_secs_f64(), used.memory);
    Ok(())
}

/// The writes of volumes, once the log has them all.
async fn written(log: &AuditLog, wanted: usize) -> Result<Vec<AuditedRequest>> {
    within(DEADLINE, "the audit log to be complete", async || {
        let mut writes = log.clone().verb("patch").resource("persistentvolumes").requests()?;
        writes.extend(log.clone().verb("update").resource("persistentvolumes").requests()?);
        ensure!(writes.len() >= wanted, "{} of {wanted}", writes.len());
        Ok(writes)
    })
    .await
}

fn publish(ours: &Measured, theirs: &Measured, volumes: usize, command: String) -> Result<()> {
    let header = [
        "who",
        "releases/s",
        "with their events",
        "× 2.5/s",
        "peak MiB",
        "CPU µs/release",
        "writes",
        "events",
        "other calls",
    ];
    let row = |who: &str, measured: &Measured, calls: String| {
        vec![
            who.to_owned(),
            measured.rate.to_string(),
            measured.with_events.to_string(),
            format!("{:.1}", measured.with_events.median() / ORIGINAL_BOUND),
            measured.memory.to_string(),
            measured.processor.rounded(),
            format!("{:.3}", measured.writes.median()),
            format!("{:.3}", measured.events.median()),
            calls,
        ]
    };
    Section {
        title: "Released volumes: a backlog",
        command,
        circumstances: format!(
            "{volumes} Released volumes of a class with `claimkeeper.dev/release: pool` exist, in a cluster with API server and etcd and\n\
             nobody else; then the program starts. \"With their events\" counts until the last event is written. Writes, events and other\n\
             calls are those per release in the audit log: a live read of the claim is one of them, and lists of classes and attachments are\n\
             shared by all releases that wait for them.\n\n\
             The original's client allows 5 requests a second, after a burst of 10, and it makes 2 for every release: its bound is\n\
             {ORIGINAL_BOUND} releases with their events a second. Its program is not measured here; \"a client with the original's limits\" is a small\n\
             one made of the same library at its defaults, measured once over its first {RELEASES_OF_THE_ORIGINAL} releases."
        ),
        rows: vec![
            header.map(str::to_owned).to_vec(),
            row("claimkeeper", ours, format!("{:.3}", ours.calls.median())),
            row("a client with the original's limits", theirs, "–".to_owned()),
        ],
    }
    .publish()
}
