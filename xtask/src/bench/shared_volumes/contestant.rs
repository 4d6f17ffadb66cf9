//! Who keeps the addresses.

use anyhow::{Result, ensure};
use clap::ValueEnum;
use testbed::{
    Leash,
    original::{self, ApiManager},
};

/// A program that keeps addresses in front of servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum Contestant {
    /// The operator out of the box
    Claimkeeper,
    /// The original, which looks for what it has created every 50 ms
    Tuned,
    /// The original at its defaults
    Original,
}

impl std::fmt::Display for Contestant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.to_possible_value().map_or(Ok(()), |value| f.write_str(value.get_name()))
    }
}

impl Contestant {
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Claimkeeper => "claimkeeper",
            Self::Tuned => "the original, tuned",
            Self::Original => "the original, defaults",
        }
    }

    /// What it is given besides where everything is.
    pub(super) fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Tuned => &["-k8s-create-poll-interval=50ms"],
            Self::Claimkeeper | Self::Original => &[],
        }
    }

    /// As whom it talks to the API server.
    pub(super) fn user(self) -> &'static str {
        match self {
            Self::Claimkeeper => "system:serviceaccount:claimkeeper:claimkeeper",
            Self::Tuned | Self::Original => original::USER,
        }
    }

    /// How often it is measured at the most. The original waits for two seconds per volume, which is the same every time.
    pub(super) fn most_rounds(self) -> usize {
        if self == Self::Original { 1 } else { usize::MAX }
    }
}

/// A contestant at work.
pub(super) enum Running {
    Ours(Leash),
    Original(ApiManager),
}

impl Running {
    fn leash(&mut self) -> &mut Leash {
        match self {
            Self::Ours(leash) => leash,
            Self::Original(original) => original.process(),
        }
    }

    pub(super) fn pid(&mut self) -> Result<u32> {
        Ok(u32::try_from(self.leash().pid())?)
    }

    /// What it says if it has ended although nobody asked it to.
    pub(super) fn check(&mut self) -> Result<()> {
        let leash = self.leash();
        ensure!(!leash.has_ended()?, "it ended by itself; its output ends with: {}", tail(&leash.output()));
        Ok(())
    }
}

fn tail(output: &str) -> String {
    let lines: Vec<&str> = output.lines().collect();
    lines[lines.len().saturating_sub(5)..].join("\n")
}
