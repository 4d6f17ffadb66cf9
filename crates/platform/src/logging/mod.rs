//! Logs: text for a person at a terminal, one JSON object a line for everything else; klog's form for those who replace a
//! program that used klog.

mod json;
mod klog;

use std::{
    io::{self, IsTerminal},
    str::FromStr,
};

use tracing_subscriber::{EnvFilter, fmt, layer::SubscriberExt, registry, util::SubscriberInitExt};

use json::JsonLines;
pub use klog::{Klog, KlogError, KlogOptions, klog_severity, start_klog};

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Text on a terminal, JSON otherwise.
    #[default]
    Auto,
    /// Text, with colours on a terminal.
    Text,
    /// One JSON object a line.
    Json,
}

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
#[error(
    "the log level {level:?} is not understood: {reason}; use error, warn, info, debug or trace, or target=level pairs"
)]
pub struct LevelError {
    level: String,
    reason: String,
}

/// Checks a level without setting anything up.
pub fn check_level(level: &str) -> Result<(), LevelError> {
    filter(level).map(drop)
}

/// Sends the process's logs to standard error. `level` is a level or a list of `target=level`.
pub fn start(format: Format, level: &str) -> Result<(), LevelError> {
    let terminal = io::stderr().is_terminal();
    let text = match format {
        Format::Auto => terminal,
        Format::Text => true,
        Format::Json => false,
    };
    let json_lines = (!text).then(|| fmt::layer().json().event_format(JsonLines::new()).with_writer(io::stderr));
    let text_lines = text.then(|| fmt::layer().with_ansi(terminal).with_writer(io::stderr));
    // A second call, as tests make it, keeps the first one's settings.
    let _ = registry().with(filter(level)?).with(json_lines).with(text_lines).try_init();
    Ok(())
}

/// What the libraries log, our own lines say better and once: every failed try of every request is not worth a line. Whoever
/// wants them all the same names the same targets.
const QUIET: &str = "kube_client=off,kube_runtime=off";

fn filter(level: &str) -> Result<EnvFilter, LevelError> {
    // A bare word that is no level would be taken for a target and switch that target's logs on: a typo would go unseen.
    let targets = level.split(',').filter(|part| !part.contains('='));
    for bare in targets {
        tracing::Level::from_str(bare.trim())
            .map_err(|error| LevelError { level: level.to_owned(), reason: error.to_string() })?;
    }
    EnvFilter::try_new(format!("{QUIET},{level}"))
        .map_err(|error| LevelError { level: level.to_owned(), reason: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_targets_are_accepted_and_typos_are_not() {
        for good in ["info", "DEBUG", "info,kube=debug"] {
            assert!(check_level(good).is_ok(), "{good}");
        }
        for bad in ["verbose", "inf", "info,kube=loud", ""] {
            let error = check_level(bad).unwrap_err().to_string();
            assert!(error.contains("use error, warn, info, debug or trace"), "{error}");
        }
    }
}
