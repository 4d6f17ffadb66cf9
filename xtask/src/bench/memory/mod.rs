//! Resident memory of the operator beside programs that do the same and have the same objects to look at.

mod ephemeral;
mod idle;
mod local;

use std::{fmt, time::Duration};

use anyhow::{Result, ensure};
use clap::ValueEnum;
use testbed::within;

use super::sample::{Memory, Samples, mebibytes, memory_of};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// With what in the cluster
    #[arg(long, value_delimiter = ',', default_values_t = Part::value_variants().to_vec())]
    only: Vec<Part>,
    /// How many pods there are besides ephemeral volumes
    #[arg(long, default_value_t = 50_000)]
    pods: usize,
    /// How many nodes, pods, volumes and claims there are with local volumes
    #[arg(long, default_value_t = 10_000)]
    objects: usize,
    /// How often each program is started and measured
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

/// What the cluster has in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Pods with ephemeral volumes
    Ephemeral,
    /// Pods with local volumes, on many nodes
    Local,
    /// Little of everything, with all features
    Idle,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_possible_value().map_or(Ok(()), |value| f.write_str(value.get_name()))
    }
}

/// A program has settled when its memory has not moved by more than 2 % for this long; both give memory back after a burst,
/// the one after seconds, the other within two minutes.
const SETTLED: Duration = Duration::from_secs(30);
const SETTLE_DEADLINE: Duration = Duration::from_mins(4);

pub(crate) async fn run(arguments: Arguments) -> Result<()> {
    for part in &arguments.only {
        match part {
            Part::Ephemeral => ephemeral::run(&arguments).await?,
            Part::Local => local::run(&arguments).await?,
            Part::Idle => idle::run(&arguments).await?,
        }
    }
    Ok(())
}

#[derive(Default)]
struct Measured {
    label: String,
    ours: Samples,
    theirs: Samples,
    our_peak: Samples,
    their_peak: Samples,
}

impl Measured {
    fn add(&mut self, ours: Memory, theirs: Memory) {
        eprintln!("  {:.1} MiB and {:.1} MiB", mebibytes(ours.resident), mebibytes(theirs.resident));
        self.ours.add(mebibytes(ours.resident));
        self.our_peak.add(mebibytes(ours.peak));
        self.theirs.add(mebibytes(theirs.resident));
        self.their_peak.add(mebibytes(theirs.peak));
    }

    fn row(&self) -> Vec<String> {
        let ratio = format!("1 : {:.1}", self.theirs.median() / self.ours.median());
        let peaks = format!("{:.0} / {:.0}", self.our_peak.median(), self.their_peak.median());
        vec![self.label.clone(), self.ours.to_string(), self.theirs.to_string(), ratio, peaks]
    }
}

/// Waits until a program has read what there is and has given back what it does not need.
async fn settled(name: &str, pid: u32) -> Result<Memory> {
    let mut still_since = tokio::time::Instant::now();
    let mut reference = memory_of(pid)?.resident;
    within(SETTLE_DEADLINE, &format!("the memory of {name} to settle"), async || {
        let memory = memory_of(pid)?;
        if memory.resident.abs_diff(reference) > reference / 50 {
            reference = memory.resident;
            still_since = tokio::time::Instant::now();
        }
        ensure!(still_since.elapsed() > SETTLED, "{} MiB and moving", mebibytes(memory.resident));
        Ok(memory)
    })
    .await
}
