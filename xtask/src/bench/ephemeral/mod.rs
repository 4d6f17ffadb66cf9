//! Claims of generic ephemeral volumes: the operator beside the controller in kube-controller-manager and beside what the API
//! server can take at all.
//!
//! Each part has a table of its own and can be run alone. Times are the API server's own, from its audit log: they are the
//! same for everyone, exact to the microsecond, and no watch of ours has to compete for the cores that all this runs on. The
//! log costs everyone the same; what the server spends per claim with and without it differs by less than its own noise of 10 %.

mod backlog;
mod calls;
pub(crate) mod contestant;
mod fairness;
pub(crate) mod load;
pub(crate) mod scene;
mod scheduling;
mod steady;

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::ValueEnum;

use self::contestant::Programs;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How many pods are in the backlog, in growing order
    #[arg(long, value_delimiter = ',', default_values_t = [3_000, 10_000])]
    pods: Vec<usize>,
    /// How often each contestant is measured
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// How many seconds the steady stream lasts
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// How many pods are scheduled
    #[arg(long, default_value_t = 1_000)]
    scheduled: usize,
    /// How many pods the unfair neighbour has
    #[arg(long, default_value_t = 5_000)]
    crowd: usize,
    /// Only these parts
    #[arg(long, value_delimiter = ',', default_values_t = Part::value_variants().to_vec())]
    only: Vec<Part>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// The pods exist, then the controller starts
    Backlog,
    /// 50 pods a second
    Steady,
    /// API calls per claim
    Calls,
    /// Pods per second until scheduled
    Scheduling,
    /// A single pod beside a crowd
    Fairness,
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.to_possible_value().map_or(Ok(()), |value| f.write_str(value.get_name()))
    }
}

pub(crate) async fn run(arguments: Arguments) -> Result<()> {
    let Arguments { pods, rounds, seconds, scheduled, crowd, only } = arguments;
    ensure!(pods.is_sorted() && pods.first().is_some_and(|pods| *pods > 0), "--pods must be numbers that grow");
    ensure!(rounds > 0 && seconds > 0 && scheduled > 0 && crowd > 0, "there must be something to measure");
    let programs = Programs::build(only.contains(&Part::Backlog)).await?;
    for part in Part::value_variants().iter().filter(|part| only.contains(part)) {
        let command = |rest: String| format!("cargo xtask bench ephemeral --only {part} {rest}");
        match part {
            Part::Backlog => {
                let sizes: Vec<String> = pods.iter().map(usize::to_string).collect();
                let command = command(format!("--pods {} --rounds {rounds}", sizes.join(",")));
                backlog::run(&programs, &pods, rounds, command).await?;
            }
            Part::Steady => {
                let command = command(format!("--seconds {seconds} --rounds {rounds}"));
                steady::run(&programs, Duration::from_secs(seconds), rounds, command).await?;
            }
            Part::Calls => calls::run(&programs, pods[0], command(format!("--pods {}", pods[0]))).await?,
            Part::Scheduling => {
                let command = command(format!("--scheduled {scheduled} --rounds {rounds}"));
                scheduling::run(&programs, scheduled, rounds, command).await?;
            }
            Part::Fairness => {
                let command = command(format!("--crowd {crowd} --rounds {rounds}"));
                fairness::run(&programs, crowd, rounds, command).await?;
            }
        }
    }
    Ok(())
}
