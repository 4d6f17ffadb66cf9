//! A backlog: the pods exist, then a controller starts.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result};

use super::{
    contestant::{Contestant, Programs},
    scene::{Scene, created_claims, delay, span},
};
use crate::bench::{
    chart::{Bar, Chart},
    claims,
    pods::{self, Plan},
    report::Section,
    sample::Samples,
};

/// Those that work off the whole backlog, several times.
const CONTESTANTS: [Contestant; 4] = [
    Contestant::Ceiling,
    Contestant::Claimkeeper,
    Contestant::PeerUnlimited { workers: 5 },
    Contestant::PeerUnlimited { workers: 50 },
];

/// At its defaults the peer makes some 20 claims a second: this many take it half a minute, and the rest would not tell more.
const CLAIMS_AT_DEFAULTS: usize = 500;

const CHART: &str = "ephemeral-throughput.svg";

/// What was measured of one contestant with one backlog.
#[derive(Default)]
struct Measured {
    /// Claims per second.
    rate: Samples,
    /// Seconds from the start of the process to the last claim.
    wall: Samples,
    /// MiB at the most.
    memory: Samples,
    /// Microseconds of processor time per claim, from the start of the process.
    processor: Samples,
    /// The same from the first claim on.
    processor_busy: Samples,
    /// What API server and etcd used for it.
    server: Samples,
}

/// By size of the backlog and position in the table.
type Results = BTreeMap<usize, Vec<(Contestant, Measured)>>;

pub(crate) async fn run(programs: &Programs, sizes: &[usize], rounds: usize, command: String) -> Result<()> {
    let scene = Scene::open(programs).await?;
    let mut results = Results::new();
    let mut pod_size = 0;
    let mut existing = 0;
    for &size in sizes {
        if existing > 0 {
            // The pods of the smaller backlog, without the claims that were made for them.
            scene.restore(&state(existing)).await?;
        }
        Plan { first: existing, ..Plan::new(size - existing, 1) }.create(&scene.client().await?).await?;
        pod_size = pods::size_of_one(&scene.client().await?).await?;
        existing = size;
        scene.save(&state(size)).await?;
        let mut measured: Vec<_> = CONTESTANTS.map(|contestant| (contestant, Measured::default())).into();
        for round in 0..rounds {
            // Each is the first once, should that make a difference.
            for turn in 0..CONTESTANTS.len() {
                let (contestant, measured) = &mut measured[(round + turn) % CONTESTANTS.len()];
                eprintln!("{size} pods, round {} of {rounds}: {}", round + 1, contestant.label());
                measure(&scene, *contestant, size, size, measured).await?;
            }
        }
        if existing == sizes[0] {
            let mut at_defaults = Measured::default();
            eprintln!("{size} pods: {}", Contestant::PeerAtDefaults.label());
            measure(&scene, Contestant::PeerAtDefaults, size, CLAIMS_AT_DEFAULTS.min(size), &mut at_defaults).await?;
            measured.push((Contestant::PeerAtDefaults, at_defaults));
        }
        results.insert(size, measured);
    }
    draw(&results).publish(CHART)?;
    publish(&results, pod_size, command)
}

fn state(size: usize) -> String {
    format!("{size}-pods")
}

async fn measure(scene: &Scene, contestant: Contestant, pods: usize, wanted: usize, to: &mut Measured) -> Result<()> {
    scene.restore(&state(pods)).await?;
    let (log, client, server) = (scene.audit()?, scene.client().await?, scene.server_time()?);
    let mut running = scene.start(contestant).await?;
    claims::wait_for(&client, wanted).await?;
    running.check()?;
    let (used, server) = (running.used()?, scene.server_time()?.saturating_sub(server));
    let created = created_claims(&log, wanted).await?;
    let (first, last) = span(&created).context("no claim was created")?;
    let busy = used.processor.saturating_sub(running.processor_time_at(first));
    let rate = created.len() as f64 / delay(first, last).as_secs_f64();
    let per_claim = |time: Duration| time.as_secs_f64() * 1e6 / created.len() as f64;
    to.rate.add(rate);
    to.wall.add(delay(running.since, last).as_secs_f64());
    to.memory.add(used.memory);
    to.processor.add(per_claim(used.processor));
    to.processor_busy.add(per_claim(busy));
    to.server.add(per_claim(server));
    let (processor, memory) = (per_claim(used.processor), used.memory);
    eprintln!(
        "  {rate:.0} claims/s, {memory:.0} MiB, {processor:.0} µs of CPU per claim, {:.0} in the server",
        per_claim(server)
    );
    Ok(())
}

fn publish(results: &Results, pod_size: usize, command: String) -> Result<()> {
    let header = [
        "backlog",
        "who",
        "claims/s",
        "of the ceiling",
        "× best peer",
        "seconds",
        "peak MiB",
        "CPU µs/claim",
        "busy",
        "server",
    ];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for (size, measured) in results {
        let ceiling = median_of(measured, |contestant| contestant == Contestant::Ceiling);
        let best_peer = median_of(measured, Contestant::is_peer);
        rows.extend(measured.iter().map(|(contestant, measured)| {
            // What the load generator prepares before it begins is nobody's work.
            let all = |figures: &Samples| match contestant {
                Contestant::Ceiling => "–".into(),
                _ => figures.to_string(),
            };
            vec![
                size.to_string(),
                contestant.label(),
                measured.rate.rounded(),
                format!("{:.0} %", measured.rate.median() / ceiling * 100.0),
                format!("{:.2}", measured.rate.median() / best_peer),
                all(&measured.wall),
                all(&measured.memory),
                all(&measured.processor),
                measured.processor_busy.rounded(),
                measured.server.rounded(),
            ]
        }));
    }
    Section {
        title: "Ephemeral volumes: a backlog",
        command,
        circumstances: format!(
            "![Claims per second]({CHART})\n\n\
             The pods, each with one ephemeral volume and {pod_size} bytes of JSON, exist; then the program starts. Claims per second \
             count from\nthe arrival of the first request to the answer to the last, as the API server's audit log has them; \"seconds\" are \
             from the start\nof the process to the last claim. \"CPU\" is all processor time of the process, \"busy\" only that from its first \
             claim on, \"server\"\nthat of API server and etcd. All share the cores of one machine, so that what a controller uses its server cannot \
             have.\n\n\
             Every run starts with the same objects, restored into etcd, and a fresh API server with default limits. Everyone elects a\n\
             leader, as by default. kube-controller-manager v1.37.1 runs with `--controllers=ephemeral-volume-controller`: at its defaults\n\
             (measured once, over its first {CLAIMS_AT_DEFAULTS} claims), and with `--kube-api-qps=-1`. The ceiling is a load generator that \
             POSTs the same\nclaims, prepared, over as many connections as claimkeeper uses ({}) and in the same binary format, while a \
             watch of pods and\none of claims are open.",
            super::contestant::CONNECTIONS
        ),
        rows,
    }
    .publish()
}

fn median_of(measured: &[(Contestant, Measured)], which: impl Fn(Contestant) -> bool) -> f64 {
    let medians =
        measured.iter().filter(|(contestant, _)| which(*contestant)).map(|(_, measured)| measured.rate.median());
    medians.fold(f64::NAN, f64::max)
}

fn draw(results: &Results) -> Chart {
    let bars = results.iter().flat_map(|(size, measured)| {
        measured.iter().map(move |(contestant, measured)| Bar {
            group: format!("{size} pods"),
            label: contestant.label(),
            value: measured.rate.median(),
            ours: *contestant == Contestant::Claimkeeper,
        })
    });
    Chart { title: "Claims per second while a backlog is worked off", bars: bars.collect() }
}
