//! The features by name.

use std::{fmt, str::FromStr};

use platform::spelling::nearest;
use serde::{Deserialize, Deserializer, de};

/// What can be switched on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Feature {
    Ephemeral,
    Provisioner,
    Releaser,
    Enforcement,
    Placement,
    SharedVolumes,
}

/// A name that belongs to no feature.
#[derive(Debug)]
pub(crate) struct UnknownFeature(String);

impl Feature {
    pub(crate) const ALL: [Self; 6] =
        [Self::Ephemeral, Self::Provisioner, Self::Releaser, Self::Enforcement, Self::Placement, Self::SharedVolumes];

    /// The name in flags, configuration, logs and metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ephemeral => "ephemeral",
            Self::Provisioner => "provisioner",
            Self::Releaser => "releaser",
            Self::Enforcement => "enforcement",
            Self::Placement => "placement",
            Self::SharedVolumes => "shared-volumes",
        }
    }

    /// All names.
    pub(crate) fn names() -> Vec<&'static str> {
        Self::ALL.into_iter().map(Self::name).collect()
    }
}

impl FromStr for Feature {
    type Err = UnknownFeature;

    fn from_str(name: &str) -> Result<Self, UnknownFeature> {
        Self::ALL.into_iter().find(|feature| feature.name() == name).ok_or_else(|| UnknownFeature(name.to_owned()))
    }
}

impl fmt::Display for UnknownFeature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(name) = self;
        match nearest(name, &Feature::names()) {
            Some(near) => write!(f, "there is no feature `{name}`; did you mean `{near}`?"),
            None => write!(f, "there is no feature `{name}`; known: {}", Feature::names().join(", ")),
        }
    }
}

impl<'de> Deserialize<'de> for Feature {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(|error: UnknownFeature| de::Error::custom(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chart_knows_the_same_features() {
        let schema = include_str!("../../../../charts/claimkeeper/values.schema.json");
        let schema: serde_json::Value = serde_json::from_str(schema).unwrap();
        assert_eq!(schema["properties"]["features"]["items"]["enum"], serde_json::json!(Feature::names()));
    }
}
