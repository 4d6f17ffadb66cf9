//! `cargo xtask bench …`: what the operator costs, measured beside its peer in the same run.
//!
//! Machines are noisy, so both programs run side by side on the same cluster, several times, and the table has the median and
//! the spread. Each bench rewrites its own section of `docs/benchmarks.md` and leaves the others alone.

mod memory;
mod pods;
mod report;
mod sample;

use anyhow::Result;

#[derive(clap::Subcommand)]
pub(crate) enum Bench {
    /// Resident memory with many pods in the cluster
    Memory(memory::Arguments),
}

pub(crate) async fn run(bench: Bench) -> Result<()> {
    match bench {
        Bench::Memory(arguments) => memory::run(arguments).await,
    }
}
