//! The commands.

use std::{env, fmt, path::PathBuf, process::ExitCode};

use clap::{CommandFactory, Parser, Subcommand};

use crate::{
    audit::{self, AuditArguments},
    config::{Config, Feature, UnknownFeature},
    dropin,
    manual::{self, ManualArguments, Shell},
    policy, run,
    why::{self, WhyArguments},
};

#[derive(Parser)]
#[command(name = "claimkeeper", version, about = "Looks after a volume claim for its whole life", after_help = drop_ins())]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

fn drop_ins() -> String {
    let head =
        "Drop-in names, as the file's name or as the first argument, with the flags of the program that is replaced:";
    dropin::names().fold(head.to_owned(), |text, name| text + "\n  " + name)
}

#[derive(Subcommand)]
enum Command {
    /// Runs the operator
    Run(RunArguments),
    /// Checks a configuration file and says what is wrong with it
    CheckConfig {
        /// The file to check
        file: PathBuf,
    },
    /// Tells what is decided about an object, which check decided it, and what to do
    Why(WhyArguments),
    /// Lists what is there and would be decided about differently today
    Audit(AuditArguments),
    /// Prints what an administrator applies to the cluster
    #[command(subcommand)]
    Render(Render),
    /// Prints what makes a shell complete these commands: `source <(claimkeeper completion bash)`
    Completion {
        /// Which shell
        shell: Shell,
    },
    /// Writes the manual pages of these commands, which releases bring along
    #[command(hide = true)]
    Manual(ManualArguments),
    /// Prints the version
    Version,
}

#[derive(Subcommand)]
enum Render {
    /// The admission policies of the features that run, for `kubectl apply -f -`; the chart installs the same
    Policy(Choice),
}

/// What is configured, and what runs.
#[derive(clap::Args)]
struct Choice {
    /// The configuration file; every key has a safe default
    #[arg(long, value_name = "FILE", env = "CLAIMKEEPER_CONFIG")]
    config: Option<PathBuf>,
    /// Which features run, separated by commas; overrides the file's
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    features: Option<Vec<String>>,
}

#[derive(clap::Args)]
struct RunArguments {
    #[command(flatten)]
    choice: Choice,
    /// Which cluster; otherwise KUBECONFIG, the pod's own service account, or the kubeconfig in the home directory
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

/// An error that the person at the keyboard made, not the cluster: exit code 2, as for an unknown flag.
#[derive(Debug)]
struct UsageError(String);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// Parses the arguments and does what they say.
pub(crate) fn main() -> ExitCode {
    if let Some(drop_in) = dropin::Invocation::requested(env::args_os()) {
        return drop_in.main();
    }
    let Arguments { command } = Arguments::parse();
    let result = match command {
        Command::Run(arguments) => start(arguments),
        Command::CheckConfig { file } => check_config(&file),
        Command::Why(arguments) => why::run(&arguments),
        Command::Audit(arguments) => audit::run(&arguments),
        Command::Render(what) => render(what),
        Command::Completion { shell } => manual::print_completion(shell, Arguments::command()),
        Command::Manual(arguments) => manual::write_manual(&arguments, Arguments::command()),
        Command::Version => {
            println!("claimkeeper {}", env!("CARGO_PKG_VERSION"));
            Ok(())
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("claimkeeper: {error:#}");
            if error.is::<UsageError>() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

fn start(RunArguments { choice, kubeconfig }: RunArguments) -> anyhow::Result<()> {
    run::run(configuration(choice)?, kubeconfig.as_deref())
}

fn render(Render::Policy(choice): Render) -> anyhow::Result<()> {
    print!("{}", policy::render(&configuration(choice)?));
    Ok(())
}

fn configuration(Choice { config, features }: Choice) -> anyhow::Result<Config> {
    let mut configuration = config.as_deref().map(Config::load).transpose()?.unwrap_or_default();
    if let Some(names) = features {
        configuration.features = parse_features(&names)?;
    }
    if configuration.features.is_empty() {
        let known = Feature::names().join(", ");
        let text = format!("no feature is named; name at least one with --features or in the file's features: {known}");
        return Err(UsageError(text).into());
    }
    Ok(configuration)
}

fn parse_features(names: &[String]) -> Result<Vec<Feature>, UsageError> {
    let mut features = Vec::new();
    for name in names.iter().map(|name| name.trim()).filter(|name| !name.is_empty()) {
        let feature = name.parse().map_err(|error: UnknownFeature| UsageError(format!("--features: {error}")))?;
        if !features.contains(&feature) {
            features.push(feature);
        }
    }
    Ok(features)
}

fn check_config(file: &std::path::Path) -> anyhow::Result<()> {
    let configuration = Config::load(file)?;
    let features: Vec<&str> = configuration.features.iter().map(|feature| feature.name()).collect();
    match features.as_slice() {
        [] => println!("{} is valid; it names no feature, so `run` needs --features", file.display()),
        features => println!("{} is valid; features: {}", file.display(), features.join(", ")),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_names_every_drop_in() {
        let help = Arguments::command().render_help().to_string();
        for name in dropin::names() {
            assert!(help.lines().any(|line| line.trim() == name), "{name} is missing in\n{help}");
        }
    }
}
