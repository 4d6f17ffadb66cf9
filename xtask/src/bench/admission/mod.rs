//! Admission requests about claims and about pods: the operator beside webhooks made with controller-runtime, which do what the
//! original's do, and beside a server with the same TLS and HTTP that does nothing.
//!
//! All answer the same prepared reviews over TLS, one after the other in every round, and every answer is checked. The servers
//! are asked directly: an API server in front would use more of the two cores than they do.

pub(crate) mod floor;
pub(crate) mod load;

mod contestant;
mod reviews;
mod scene;
mod table;

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use clap::ValueEnum;

use self::{
    contestant::{Contestant, Programs},
    load::Outcome,
    reviews::{LEAST_CLAIMS, Webhook},
    scene::Scene,
};
use super::sample::Samples;

pub(crate) use self::contestant::build_webhook;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// What is asked about, one after the other
    #[arg(long, value_delimiter = ',', default_values_t = Webhook::value_variants().to_vec())]
    webhook: Vec<Webhook>,
    /// How many claims there are, in growing order
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 10_000])]
    claims: Vec<usize>,
    /// How often each contestant is measured
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// How many seconds each load lasts
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Only these contestants
    #[arg(long, value_delimiter = ',', default_values_t = Contestant::value_variants().to_vec())]
    only: Vec<Contestant>,
}

/// How the servers are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Load {
    Connections(usize),
    Streams(usize),
    Rate(u32),
}

/// The API server has one connection to a webhook and as many streams on it as it has requests.
const LOADS: [Load; 4] = [Load::Connections(16), Load::Connections(256), Load::Streams(64), Load::Rate(1_000)];

impl Load {
    fn label(self) -> String {
        match self {
            Self::Connections(count) => format!("{count} connections"),
            Self::Streams(count) => format!("HTTP/2, {count} streams"),
            Self::Rate(rate) => format!("{rate} requests/s"),
        }
    }

    /// What the load generator calls it.
    fn flag(self) -> String {
        match self {
            Self::Connections(count) => format!("--connections={count}"),
            Self::Streams(count) => format!("--streams={count}"),
            Self::Rate(rate) => format!("--rate={rate}"),
        }
    }
}

/// What was measured of one contestant under one load.
#[derive(Default)]
struct Measured {
    /// Requests per second.
    rate: Samples,
    /// Milliseconds.
    p50: Samples,
    p99: Samples,
    /// Microseconds of processor time per request.
    processor: Samples,
    /// MiB after it.
    memory: Samples,
}

#[derive(Default)]
struct Results {
    /// By number of claims in the cluster: one row of the table each.
    measured: BTreeMap<(usize, Load, Contestant), Measured>,
    /// What the operator asked the API server while it was asked itself, and how often.
    calls: BTreeMap<(Contestant, String), usize>,
}

pub(crate) async fn run(arguments: Arguments) -> Result<()> {
    let Arguments { webhook, claims, rounds, seconds, only } = &arguments;
    ensure!(claims.is_sorted() && !claims.is_empty(), "--claims must be numbers that grow");
    ensure!(*rounds > 0 && *seconds > 0 && !only.is_empty(), "there must be something to measure");
    let too_few = webhook.contains(&Webhook::Pods) && claims.iter().any(|claims| *claims < LEAST_CLAIMS);
    ensure!(!too_few, "pods are asked about with --claims of at least {LEAST_CLAIMS}");
    let programs = Programs::build().await?;
    for webhook in webhook {
        arguments.measure(Scene::open(programs.clone(), *webhook).await?).await?;
    }
    Ok(())
}

impl Arguments {
    async fn measure(&self, mut scene: Scene) -> Result<()> {
        let Self { claims, rounds, seconds, .. } = self;
        let webhook = scene.webhook;
        let only: Vec<Contestant> = self.only.iter().copied().filter(|who| who.answers(webhook)).collect();
        let mut results = Results::default();
        for wanted in claims {
            scene.fill(*wanted).await?;
            for round in 0..*rounds {
                // Each is the first once, should that make a difference.
                for turn in 0..only.len() {
                    let contestant = only[(round + turn) % only.len()];
                    eprintln!("{webhook}, {wanted} claims, round {} of {rounds}: {}", round + 1, contestant.label());
                    results.measure(&scene, contestant, *wanted, *seconds).await?;
                }
            }
        }
        let list = |items: Vec<String>| items.join(",");
        let (sizes, names) = (claims.iter().map(usize::to_string), only.iter().map(ToString::to_string));
        let command = format!(
            "cargo xtask bench admission --webhook {webhook} --only {} --claims {} --rounds {rounds} --seconds {seconds}",
            list(names.collect()),
            list(sizes.collect())
        );
        table::publish(&results, webhook, command)
    }
}

impl Results {
    async fn measure(&mut self, scene: &Scene, contestant: Contestant, claims: usize, seconds: u64) -> Result<()> {
        let mut running = scene.start(contestant).await?;
        let log = scene.audit()?;
        for load in LOADS {
            let Outcome { rate, p50, p99, processor, own_share } =
                running.measure(scene, &load.flag(), seconds).await?;
            let memory = running.memory()?;
            eprintln!(
                "  {}: {rate:.0} requests/s, p50 {p50:.2} ms, p99 {p99:.2} ms, {processor:.1} µs of CPU each, {memory:.0} MiB; \
                 asking took {:.0} % of a core",
                load.label(),
                own_share * 100.0
            );
            let to = self.measured.entry((claims, load, contestant)).or_default();
            to.rate.add(rate);
            to.p50.add(p50);
            to.p99.add(p99);
            to.processor.add(processor);
            to.memory.add(memory);
        }
        // A watch is in the log when it ends, which happens at any time.
        for call in log.requests()?.iter().filter(|request| request.verb != "watch") {
            let resource = call.object_ref.as_ref().map_or("the server", |object| object.resource.as_str());
            *self.calls.entry((contestant, format!("{} {resource}", call.verb))).or_default() += 1;
        }
        running.end().await
    }
}
