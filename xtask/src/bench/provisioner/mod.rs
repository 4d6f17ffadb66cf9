//! Claims that pods ask for by annotation, beside ephemeral volumes with the same claims, which need no event each, and beside a
//! client with the limits of the original.
//!
//! The cluster, the restored states and the audit log are those of the ephemeral bench ([`super::ephemeral`]).

mod backlog;

use anyhow::{Result, ensure};
use clap::ValueEnum;

use super::{ephemeral::contestant::Programs, original};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How many pods are in the backlog
    #[arg(long, default_value_t = 2_000)]
    pods: usize,
    /// How often each contestant is measured
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Only these contestants
    #[arg(long, value_delimiter = ',', default_values_t = Contestant::value_variants().to_vec())]
    only: Vec<Contestant>,
}

/// Who works off the backlog.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Contestant {
    /// The operator: pods that ask by annotation
    Provisioner,
    /// The operator: pods with an ephemeral volume
    Ephemeral,
    /// A client with the original's limits: the pods that ask by annotation
    Original,
}

impl std::fmt::Display for Contestant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.to_possible_value().map_or(Ok(()), |value| f.write_str(value.get_name()))
    }
}

impl Contestant {
    fn label(self) -> &'static str {
        match self {
            Self::Provisioner => "claimkeeper, `provisioner`",
            Self::Ephemeral => "claimkeeper, `ephemeral`",
            Self::Original => "a client with the original's limits",
        }
    }
}

pub(crate) async fn run(Arguments { pods, rounds, only }: Arguments) -> Result<()> {
    ensure!(pods > 0 && rounds > 0, "there must be something to measure");
    let programs = Programs::build(false).await?;
    let original = if only.contains(&Contestant::Original) {
        Some(tokio::task::spawn_blocking(original::build).await??)
    } else {
        None
    };
    let names: Vec<String> = only.iter().map(ToString::to_string).collect();
    let command = format!("cargo xtask bench provisioner --only {} --pods {pods} --rounds {rounds}", names.join(","));
    backlog::run(&programs, original, &only, pods, rounds, command).await
}
