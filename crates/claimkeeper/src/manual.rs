//! What others tell about the commands: shells, which complete them, and `man`. Both are made of the definition that also parses
//! the arguments, so that neither can tell of a flag that is not there.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use clap::{Command, ValueEnum};
use clap_complete::{generate, shells};

/// A shell that can complete the commands.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
}

#[derive(clap::Args)]
pub(crate) struct ManualArguments {
    /// The directory that the pages are written into
    directory: PathBuf,
}

/// Prints the script that teaches a shell the commands.
pub(crate) fn print_completion(shell: Shell, mut commands: Command) -> Result<()> {
    let name = commands.get_name().to_owned();
    // Not written to standard output at once: the generators do not expect that a pipe can be closed.
    let mut script = Vec::new();
    match shell {
        Shell::Bash => generate(shells::Bash, &mut commands, name, &mut script),
        Shell::Zsh => generate(shells::Zsh, &mut commands, name, &mut script),
        Shell::Fish => generate(shells::Fish, &mut commands, name, &mut script),
    }
    io::stdout().write_all(&script).context("cannot print the script")
}

/// Writes a page of the manual for every command.
pub(crate) fn write_manual(arguments: &ManualArguments, commands: Command) -> Result<()> {
    let directory: &Path = &arguments.directory;
    fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(commands, directory))
        .with_context(|| format!("cannot write the manual into {}", directory.display()))
}
