//! What is wrong with a configuration, in one line: the file, the place, and what to do.

use std::{fmt, io, path::Path};

use platform::spelling::nearest;

/// Why a configuration cannot be used.
#[derive(Debug)]
pub(crate) struct ConfigError(String);

impl ConfigError {
    pub(super) fn unreadable(file: &Path, error: &io::Error) -> Self {
        let reason = match error.kind() {
            io::ErrorKind::NotFound => "it does not exist".to_owned(),
            io::ErrorKind::PermissionDenied => "this user may not read it".to_owned(),
            io::ErrorKind::InvalidData => "it is not UTF-8 text".to_owned(),
            _ => error.to_string(),
        };
        Self(format!("the configuration {} cannot be read: {reason}", file.display()))
    }

    /// A key whose value has the right form and still cannot work.
    pub(super) fn value(key: &str, wrong: &dyn fmt::Display) -> Self {
        Self(format!("{key}: {wrong}"))
    }

    pub(super) fn within(self, file: &Path) -> Self {
        Self(format!("{}: {}", file.display(), self.0))
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

impl From<serde_saphyr::Error> for ConfigError {
    fn from(error: serde_saphyr::Error) -> Self {
        use serde_saphyr::Error as Yaml;
        let place = error.location().map(|at| format!("line {}, column {}: ", at.line(), at.column()));
        let place = place.unwrap_or_default();
        let text = match error.without_snippet() {
            Yaml::SerdeUnknownField { field, expected, .. } => unknown("key", field, expected),
            Yaml::SerdeUnknownVariant { variant, expected, .. } => unknown("value", variant, expected),
            Yaml::DuplicateMappingKey { key: Some(key), .. } => {
                format!("the key `{key}` appears twice; keep one of them")
            }
            other => {
                // The place is said in front already.
                let text = other.to_string();
                text.rsplit_once(" at line ").map_or_else(|| text.clone(), |(text, _)| text.to_owned())
            }
        };
        Self(format!("{place}{text}"))
    }
}

fn unknown(what: &str, given: &str, known: &[&'static str]) -> String {
    match nearest(given, known) {
        Some(near) => format!("unknown {what} `{given}`; did you mean `{near}`?"),
        None => format!("unknown {what} `{given}`; known here: {}", known.join(", ")),
    }
}
