//! `cargo xtask bench …`: what the operator costs, measured beside its peer in the same run.
//!
//! Machines are noisy, so the programs run side by side or in turns, several times, and the table has the median and the
//! spread. Each bench rewrites its own section of `docs/benchmarks.md` and leaves the others alone.

mod admission;
mod chart;
mod claims;
mod ephemeral;
mod local;
mod memory;
mod operator;
mod original;
mod pods;
mod provisioner;
mod releaser;
mod report;
mod sample;
mod shared_volumes;

use anyhow::Result;

#[derive(clap::Subcommand)]
pub(crate) enum Bench {
    /// Resident memory with many objects in the cluster
    Memory(memory::Arguments),
    /// Claims of ephemeral volumes: how fast, how soon, at what cost
    Ephemeral(ephemeral::Arguments),
    /// Claims that pods ask for by annotation: how fast, at what cost
    Provisioner(provisioner::Arguments),
    /// Retained volumes: how fast they are released, at what cost
    Releaser(releaser::Arguments),
    /// Shared volumes: how soon they are published and follow their servers, at what cost
    SharedVolumes(shared_volumes::Arguments),
    /// Admission requests: how many, how soon, at what cost
    Admission(admission::Arguments),
    /// The server that answers constant bytes in the admission bench
    #[command(hide = true)]
    AdmissionFloor(admission::floor::Arguments),
    /// The load generator of the admission bench
    #[command(hide = true)]
    AdmissionLoad(admission::load::Arguments),
    /// The bare load generator that the ephemeral bench runs as a process of its own
    #[command(hide = true)]
    Load(ephemeral::load::Arguments),
}

pub(crate) async fn run(bench: Bench) -> Result<()> {
    match bench {
        Bench::Memory(arguments) => memory::run(arguments).await,
        Bench::Ephemeral(arguments) => ephemeral::run(arguments).await,
        Bench::Provisioner(arguments) => provisioner::run(arguments).await,
        Bench::Releaser(arguments) => releaser::run(arguments).await,
        Bench::SharedVolumes(arguments) => shared_volumes::run(arguments).await,
        Bench::Admission(arguments) => admission::run(arguments).await,
        Bench::AdmissionFloor(arguments) => admission::floor::run(arguments).await,
        Bench::AdmissionLoad(arguments) => admission::load::run(arguments).await,
        Bench::Load(arguments) => ephemeral::load::run(arguments).await,
    }
}
