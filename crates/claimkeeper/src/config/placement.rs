//! The feature `placement`.

use placement::Settings;

use super::ConfigError;

/// Labels that many nodes share: whoever takes one for a node loses the volumes of a whole zone with the first of them.
const SHARED: [&str; 5] = [
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "kubernetes.io/os",
];

/// What its types alone do not tell.
pub(super) fn check(settings: &Settings) -> Result<(), ConfigError> {
    let names: Vec<&str> = settings.drivers.iter().map(|driver| driver.name.as_str()).collect();
    if let Some(twice) = names.iter().enumerate().find_map(|(at, name)| names[..at].contains(name).then_some(name)) {
        return Err(ConfigError::value("placement.drivers", &format!("has `{twice}` twice")));
    }
    let topologies = settings.drivers.iter().filter_map(|driver| driver.topology_key.as_ref());
    let keys = settings.node_keys.iter().map(|key| ("placement.nodeKeys", key));
    for (place, key) in keys.chain(topologies.map(|key| ("placement.drivers", key))) {
        if key.is_empty() {
            return Err(ConfigError::value(place, &"has an empty key"));
        }
        if SHARED.contains(&key.as_str()) {
            let wrong = format!("has `{key}`, but many nodes share one value of it");
            return Err(ConfigError::value(place, &wrong));
        }
    }
    Ok(())
}
