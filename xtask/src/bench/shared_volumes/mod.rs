//! Shared volumes: the operator beside its original, `storageos/api-manager` v1.2.16, with the same StorageOS.
//!
//! Each run has a new cluster and a new StorageOS, and three acts:
//!
//! ```text
//! cold                            moves                                   rest
//! volumes are there, and the      servers move, one after the other and   nothing happens for a minute
//! program publishes them all      then all at once, and slices follow
//! ```

mod act;
mod contestant;
mod stage;
mod table;

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};
use clap::ValueEnum;
use testbed::original;

use self::{contestant::Contestant, stage::Stage};
use super::{ephemeral::contestant::Programs, sample::Samples};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How many volumes there are, in growing order; the original is measured with the first number of them
    #[arg(long, value_delimiter = ',', default_values_t = [200, 2_000])]
    volumes: Vec<usize>,
    /// How many servers move one after the other
    #[arg(long, default_value_t = 100)]
    moves: usize,
    /// How often each contestant is measured; the original at its defaults is measured once
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Only these contestants
    #[arg(long, value_delimiter = ',', default_values_t = Contestant::value_variants().to_vec())]
    only: Vec<Contestant>,
}

/// All that was measured, by the number of volumes and by who it was.
type Results = BTreeMap<(usize, Contestant), Measured>;

#[derive(Default)]
struct Measured {
    /// Seconds until all volumes were published.
    cold: Samples,
    /// Seconds of processor time until then.
    cold_processor: Samples,
    /// MiB at the most, in all acts.
    peak: Samples,
    /// Servers that moved one after the other.
    single: Moved,
    /// Servers that moved all at once.
    together: Moved,
    /// A minute of rest, measured in the first round.
    rest: Option<Rest>,
}

/// Milliseconds until a slice leads to where a server has moved, of each round.
#[derive(Default)]
struct Moved {
    /// From the move.
    p50: Samples,
    p99: Samples,
    /// From when the API of StorageOS has told of it.
    seen_p50: Samples,
    seen_p99: Samples,
    seen_last: Samples,
}

/// What a minute in which nothing happens costs.
struct Rest {
    /// Requests to the API server.
    reads: usize,
    writes: usize,
    /// Writes of the leader's Lease, which are apart from that.
    leases: usize,
    /// Requests to StorageOS.
    storageos: usize,
    /// Milliseconds.
    processor: f64,
    /// MiB.
    memory: f64,
}

pub(crate) async fn run(arguments: Arguments) -> Result<()> {
    let Arguments { volumes, moves, rounds, only } = &arguments;
    let Some(fewest) = volumes.first().copied().filter(|fewest| *fewest > 0 && volumes.is_sorted()) else {
        bail!("--volumes must be numbers that grow")
    };
    ensure!(
        *rounds > 0 && *moves > 0 && *moves <= fewest,
        "there must be something to measure, and a server can move once"
    );
    if only.iter().any(|contestant| *contestant != Contestant::Claimkeeper)
        && let Some(reason) = original::unavailable().await
    {
        bail!("the original cannot run here, so measure with `--only claimkeeper`: {reason}");
    }
    let programs = Programs::build(false).await?;
    let runs = runs(volumes, only);
    let mut results = Results::new();
    for round in 0..*rounds {
        for turn in 0..runs.len() {
            let (volumes, contestant) = runs[(round + turn) % runs.len()];
            if round >= contestant.most_rounds() {
                continue;
            }
            eprintln!("{volumes} volumes, round {} of {rounds}: {}", round + 1, contestant.label());
            let stage = Stage::open(&programs, volumes).await?;
            let measured = results.entry((volumes, contestant)).or_default();
            act::play(stage, contestant, *moves, round == 0, measured).await?;
        }
    }
    table::publish(&results, &arguments)
}

/// Who is measured, and with how many volumes.
fn runs(volumes: &[usize], only: &[Contestant]) -> Vec<(usize, Contestant)> {
    let mut runs = Vec::new();
    for (index, volumes) in volumes.iter().enumerate() {
        let here = only.iter().filter(|contestant| index == 0 || **contestant == Contestant::Claimkeeper);
        runs.extend(here.map(|contestant| (*volumes, *contestant)));
    }
    runs
}
