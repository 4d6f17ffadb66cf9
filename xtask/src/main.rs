//! The project's own commands: `cargo xtask <command>`.

mod bench;
mod build;
mod cluster;
mod demo;
mod deploy;
mod fuzz;
mod ship;
mod storageos;
mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about, disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Shows each feature at work on a real control plane
    Demo(demo::Arguments),
    /// Runs all tests on a real control plane
    Test(test::Arguments),
    /// Measures the operator beside its peer and writes docs/benchmarks.md
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Writes the chart as plain manifests into deploy/
    Deploy,
    /// Looks for inputs that break a parser
    Fuzz(fuzz::Arguments),
    /// A real Kubernetes control plane on this machine, to play with
    Cluster(cluster::Arguments),
    /// A StorageOS control plane on this machine, to play with
    #[command(name = "storageos")]
    StorageOs(storageos::Arguments),
    /// Makes the operator's image and the bill of what is in it
    Image(ship::image::Arguments),
    /// Makes everything that a release consists of
    Release(ship::release::Arguments),
}

#[tokio::main]
async fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Demo(arguments) => demo::run(arguments).await.map(|()| ExitCode::SUCCESS),
        Command::Test(arguments) => test::run(arguments).await,
        Command::Bench(bench) => bench::run(bench).await.map(|()| ExitCode::SUCCESS),
        Command::Deploy => deploy::run().map(|()| ExitCode::SUCCESS),
        Command::Fuzz(arguments) => fuzz::run(arguments),
        Command::Cluster(arguments) => cluster::run(arguments).await.map(|()| ExitCode::SUCCESS),
        Command::StorageOs(arguments) => storageos::run(arguments).await.map(|()| ExitCode::SUCCESS),
        Command::Image(arguments) => ship::image::run(arguments).map(|()| ExitCode::SUCCESS),
        Command::Release(arguments) => ship::release::run(arguments).map(|()| ExitCode::SUCCESS),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
