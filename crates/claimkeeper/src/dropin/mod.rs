//! Drop-in names: the operator in the place of a program that it replaces, with that program's flags, words and habits, so
//! that a Deployment changes its image and nothing else.
//!
//! The name is the file's (`/usr/bin/dynamic-pvc-provisioner`, where its chart looks for it: a link to our binary) or the first
//! argument (`claimkeeper reclaimable-pv-releaser …`). From there on everything is the original's: Go's flags and, for all but
//! `storageos-api-manager`, klog's lines,
//! exit code 2 for a command line that is wrong, 255 behind a last line of severity `F` for everything else that is fatal.

mod api_manager;
mod flags;
mod klog;
mod settings;

use std::{ffi::OsString, path::Path, process::ExitCode};

use platform::logging::start_klog;

use self::{
    flags::Stop,
    settings::{DropIn, Request},
};
use crate::run;

/// The programs that we stand in for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Original {
    /// One of those that speak klog.
    Klog(Program),
    ApiManager,
}

impl Original {
    const ALL: [Self; 3] = [Self::Klog(Program::Provisioner), Self::Klog(Program::Releaser), Self::ApiManager];

    fn name(self) -> &'static str {
        match self {
            Self::Klog(program) => program.name(),
            Self::ApiManager => api_manager::NAME,
        }
    }
}

/// Those that have flags and log in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Program {
    Provisioner,
    Releaser,
}

impl Program {
    fn name(self) -> &'static str {
        match self {
            Self::Provisioner => "dynamic-pvc-provisioner",
            Self::Releaser => "reclaimable-pv-releaser",
        }
    }
}

/// The names that a process can be started under.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    Original::ALL.into_iter().map(Original::name)
}

/// One run in the place of another program.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Invocation {
    original: Original,
    arguments: Vec<String>,
}

impl Invocation {
    /// Tells whether the process was started under one of the names.
    pub(crate) fn requested(command_line: impl IntoIterator<Item = OsString>) -> Option<Self> {
        let known = |word: OsString| {
            let name = Path::new(&word).file_name()?.to_str()?;
            Original::ALL.into_iter().find(|known| known.name() == name)
        };
        let mut words = command_line.into_iter();
        let original = known(words.next()?).or_else(|| known(words.next()?))?;
        Some(Self { original, arguments: words.map(|word| word.to_string_lossy().into_owned()).collect() })
    }

    /// Does what the original would.
    pub(crate) fn main(&self) -> ExitCode {
        match self.original {
            Original::Klog(program) => main(program, &self.arguments),
            Original::ApiManager => api_manager::main(&self.arguments),
        }
    }
}

fn main(program: Program, arguments: &[String]) -> ExitCode {
    match DropIn::parse(program, arguments) {
        Ok(Request::Version) => {
            println!("{}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        Ok(Request::Run(settings)) => start(program, &settings),
        // Go prints the usage to standard error even when it was asked for.
        Err(Stop::Help(text)) => {
            eprint!("{text}");
            ExitCode::SUCCESS
        }
        Err(Stop::Wrong(text)) => {
            eprint!("{text}");
            ExitCode::from(2)
        }
    }
}

fn start(program: Program, settings: &DropIn) -> ExitCode {
    let klog = match start_klog(&settings.klog) {
        Ok(klog) => klog,
        Err(error) => {
            eprintln!("{}: {error}", program.name());
            return ExitCode::FAILURE;
        }
    };
    match operate(settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            klog.fatal(&format!("{error:#}"));
            ExitCode::from(255)
        }
    }
}

fn operate(settings: &DropIn) -> anyhow::Result<()> {
    let config = settings.config()?;
    for warning in settings.warnings() {
        tracing::warn!("{warning}");
    }
    run::run_logged(config, settings.kubeconfig.as_deref())
}

#[cfg(test)]
mod tests;
