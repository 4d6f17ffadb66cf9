//! The feature `enforcement`.

use enforcement::Settings;

use super::ConfigError;

/// What its types alone do not tell.
pub(super) fn check(settings: &Settings) -> Result<(), ConfigError> {
    let names: Vec<&str> = settings.drivers.iter().map(|driver| driver.name.as_str()).collect();
    if let Some(twice) = names.iter().enumerate().find_map(|(at, name)| names[..at].contains(name).then_some(name)) {
        return Err(ConfigError::value("enforcement.drivers", &format!("has `{twice}` twice")));
    }
    if settings.trusted_creators.iter().any(String::is_empty) {
        return Err(ConfigError::value("enforcement.trustedCreators", &"has an empty name"));
    }
    Ok(())
}
