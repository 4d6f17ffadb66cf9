//! Values that end up in labels.

use super::ConfigError;

/// Kubernetes' limit for the value of a label.
const LONGEST: usize = 63;

/// Whether a value can be that of a label; otherwise every write with it would be refused.
pub(super) fn check(key: &str, value: &str) -> Result<(), ConfigError> {
    let inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let outer = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let valid = value.chars().all(inner) && outer(value.chars().next()) && outer(value.chars().last());
    if valid && value.len() <= LONGEST {
        return Ok(());
    }
    let wrong = format!(
        "`{value}` cannot be the value of a label: up to {LONGEST} letters, digits, dots, dashes and underscores, the first and \
         the last a letter or a digit"
    );
    Err(ConfigError::value(key, &wrong))
}
