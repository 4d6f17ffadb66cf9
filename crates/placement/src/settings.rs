//! What an administrator says about local volumes, as the configuration has it.

use std::{str::FromStr, time::Duration};

use cluster::{Volume, node::HOSTNAME, volume::NODE_NAME_FIELD};
use k8s_openapi::jiff::SignedDuration;
use serde::{Deserialize, Deserializer, de};

/// Where a home node is noted if the driver has no word for it.
pub const SELECTED_NODE: &str = "claimkeeper.dev/selected-node";

/// What the feature is told. Every part has a safe default.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct Settings {
    /// Whose volumes pods follow.
    pub drivers: Vec<Driver>,
    /// Whether API servers ask about pods. Where they do not, volumes are tied to their nodes instead.
    pub pod_webhook: bool,
    /// What becomes of a pod if nobody can find out where its volumes are.
    pub on_error: OnError,
    /// What becomes of what is tied to a node that is gone, where the class does not say otherwise.
    pub node_gone: NodeGone,
    /// How long it must have been gone, likewise.
    pub node_gone_after: Patience,
    /// The labels of nodes, besides the drivers' own, of which each value stands for one node.
    pub node_keys: Vec<String>,
    /// How many nodes may vanish within that time before nobody believes it any more.
    pub node_gone_brake: Percent,
    /// How many objects are worked on at once.
    pub concurrency: usize,
    /// The one namespace whose claims are looked after; all of them if absent. The operator's own key says so.
    #[serde(skip)]
    pub namespace: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            drivers: vec![Preset::Localdisk.driver()],
            pod_webhook: true,
            on_error: OnError::Admit,
            node_gone: NodeGone::Report,
            node_gone_after: Patience(Duration::from_mins(5)),
            node_keys: NODE_KEYS.map(str::to_owned).into(),
            node_gone_brake: Percent(20),
            concurrency: 16,
            namespace: None,
        }
    }
}

/// Labels by which well-known drivers tie volumes to one node.
const NODE_KEYS: [&str; 7] = [
    HOSTNAME,
    "topology.localdisk.csi.acstor.io/node",
    "topology.topolvm.io/node",
    "topology.topolvm.cybozu.com/node",
    "openebs.io/nodename",
    "openebs.io/nodeid",
    "directpv.min.io/node",
];

impl Settings {
    /// The driver of this name, if pods follow its volumes.
    #[must_use]
    pub fn driver(&self, name: &str) -> Option<&Driver> {
        self.drivers.iter().find(|driver| driver.name == name)
    }

    /// How pods are kept with the volumes of a driver.
    #[must_use]
    pub fn mode(&self, driver: &Driver) -> Mode {
        let default = if self.pod_webhook { Mode::Webhook } else { Mode::VolumeAffinity };
        driver.mode.unwrap_or(default)
    }

    /// Whether each value of this label, or field, stands for one node.
    #[must_use]
    pub fn is_node_key(&self, key: &str) -> bool {
        key == HOSTNAME
            || key == NODE_NAME_FIELD
            || self.node_keys.iter().any(|known| known == key)
            || self.drivers.iter().any(|driver| driver.topology_key.as_deref() == Some(key))
    }

    /// Whether a volume's claim is in a namespace that is looked after; one that never had a claim is nobody's.
    #[must_use]
    pub fn looks_after(&self, volume: &Volume) -> bool {
        let Some(namespace) = &self.namespace else { return true };
        volume.claim.as_ref().is_some_and(|claim| claim.key.namespace() == namespace)
    }

    /// Whether it has a word for this annotation, attribute or label.
    #[must_use]
    pub fn reads(&self, key: &str) -> bool {
        self.is_node_key(key) || self.drivers.iter().any(|driver| driver.reads(key))
    }
}

/// A driver whose volumes are where their node is.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "WrittenDriver")]
pub struct Driver {
    /// What its volumes call it.
    pub name: String,
    /// How pods are kept with its volumes; by default as [`Settings::pod_webhook`] has it.
    pub mode: Option<Mode>,
    /// The annotation of volumes that names the node which has the data now.
    pub selected_node_annotation: String,
    /// The attribute of volumes that names the node on which they were made.
    pub initial_node_attribute: Option<String>,
    /// The attribute of volumes that says whether they may be left behind.
    pub failover_mode_attribute: Option<String>,
    /// The label that every node has on which the driver runs; its value stands for the node.
    pub topology_key: Option<String>,
    /// Whether pods are kept away from nodes without that label.
    pub require_driver: bool,
    /// Whether we note where a volume has moved; otherwise the driver does.
    pub record_failover: bool,
}

/// A driver as it is written: by the name of a preset, by its own, or by both.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct WrittenDriver {
    preset: Option<Preset>,
    name: Option<String>,
    mode: Option<Mode>,
    selected_node_annotation: Option<String>,
    initial_node_attribute: Option<String>,
    failover_mode_attribute: Option<String>,
    topology_key: Option<String>,
    require_driver: Option<bool>,
    record_failover: Option<bool>,
}

impl TryFrom<WrittenDriver> for Driver {
    type Error = String;

    fn try_from(written: WrittenDriver) -> Result<Self, String> {
        let base = match (written.preset, written.name) {
            (Some(preset), None) => preset.driver(),
            (Some(preset), Some(name)) => Self { name, ..preset.driver() },
            (None, Some(name)) if name == Preset::Localdisk.provisioner() => Preset::Localdisk.driver(),
            (None, Some(name)) => Self::named(&name),
            (None, None) => return Err("a driver needs a name or a preset".to_owned()),
        };
        let driver = Self {
            name: base.name,
            mode: written.mode.or(base.mode),
            selected_node_annotation: written.selected_node_annotation.unwrap_or(base.selected_node_annotation),
            initial_node_attribute: written.initial_node_attribute.or(base.initial_node_attribute),
            failover_mode_attribute: written.failover_mode_attribute.or(base.failover_mode_attribute),
            topology_key: written.topology_key.or(base.topology_key),
            require_driver: written.require_driver.unwrap_or(base.require_driver),
            record_failover: written.record_failover.unwrap_or(base.record_failover),
        };
        let keys = [&driver.initial_node_attribute, &driver.failover_mode_attribute, &driver.topology_key];
        let keys = keys.into_iter().flatten().chain([&driver.name, &driver.selected_node_annotation]);
        if keys.into_iter().any(String::is_empty) {
            return Err("the name and the keys of a driver must not be empty".to_owned());
        }
        if driver.require_driver && driver.topology_key.is_none() {
            return Err(format!("driver {} has requireDriver, but no topologyKey to tell its nodes by", driver.name));
        }
        Ok(driver)
    }
}

impl Driver {
    fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            mode: None,
            selected_node_annotation: SELECTED_NODE.to_owned(),
            initial_node_attribute: None,
            failover_mode_attribute: None,
            topology_key: None,
            require_driver: false,
            record_failover: true,
        }
    }

    fn reads(&self, key: &str) -> bool {
        let keys = [&self.initial_node_attribute, &self.failover_mode_attribute, &self.topology_key];
        key == self.selected_node_annotation || keys.into_iter().flatten().any(|known| known == key)
    }
}

/// Drivers whose keys we know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// The one of the original.
    Localdisk,
}

impl Preset {
    /// What volumes of the driver call it.
    #[must_use]
    pub fn provisioner(self) -> &'static str {
        match self {
            Self::Localdisk => "localdisk.csi.acstor.io",
        }
    }

    /// The driver with its keys.
    #[must_use]
    pub fn driver(self) -> Driver {
        match self {
            Self::Localdisk => Driver {
                selected_node_annotation: "localdisk.csi.acstor.io/selected-node".to_owned(),
                initial_node_attribute: Some("localdisk.csi.acstor.io/selected-initial-node".to_owned()),
                failover_mode_attribute: Some("localdisk.csi.acstor.io/failover-mode".to_owned()),
                topology_key: Some("topology.localdisk.csi.acstor.io/node".to_owned()),
                record_failover: false,
                ..Driver::named(self.provisioner())
            },
        }
    }
}

/// How pods are kept with their volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// New pods are told where their volumes are.
    Webhook,
    /// Volumes are tied to their nodes.
    VolumeAffinity,
}

/// What becomes of a pod if nobody can find out where its volumes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnError {
    /// It is made, and its author is warned.
    Admit,
    /// It is refused if a volume might be lost that must not be.
    Deny,
}

/// What becomes of what is tied to a node that is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeGone {
    /// Nobody looks.
    Off,
    /// It is told.
    Report,
    /// What somebody makes again is deleted; the rest is told.
    Delete,
}

impl NodeGone {
    /// The word on classes; none if it is not one of ours.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "off" => Some(Self::Off),
            "report" => Some(Self::Report),
            "delete" => Some(Self::Delete),
            _ => None,
        }
    }
}

/// How long something is waited for, written like `5m` or `1h30m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience(pub Duration);

impl FromStr for Patience {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let signed: SignedDuration =
            text.parse().map_err(|_| format!("{text:?} is not a duration; write it like 15s or 1m30s"))?;
        let duration = Duration::try_from(signed);
        duration.map(Self).map_err(|_| format!("the duration {text:?} must not be negative"))
    }
}

impl<'de> Deserialize<'de> for Patience {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// A part of a whole, written like `20%`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Percent(pub u8);

impl<'de> Deserialize<'de> for Percent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let number = text.strip_suffix('%').and_then(|number| number.parse().ok()).filter(|number| *number <= 100);
        number.map(Self).ok_or_else(|| {
            de::Error::custom(format_args!("{text:?} is not a percentage; write it like 20%, from 0% to 100%"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Settings, String> {
        serde_saphyr::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_driver_is_known_by_its_preset_or_by_its_name_and_each_of_its_keys_can_be_set() {
        let settings =
            parse("drivers: [{name: localdisk.csi.acstor.io, requireDriver: true}, {name: a, topologyKey: k}]");
        let settings = settings.unwrap();
        assert_eq!(settings.drivers[0], Driver { require_driver: true, ..Preset::Localdisk.driver() });
        assert_eq!(settings.drivers[1], Driver { topology_key: Some("k".to_owned()), ..Driver::named("a") });
        assert!(settings.is_node_key("k") && settings.reads(SELECTED_NODE) && !settings.is_node_key(SELECTED_NODE));
        assert_eq!(parse("drivers: [{preset: localdisk}]").unwrap(), Settings::default());
    }

    #[test]
    fn zones_and_regions_never_stand_for_a_node() {
        let settings = Settings::default();
        for key in ["topology.kubernetes.io/zone", "topology.kubernetes.io/region", "example.dev/unknown"] {
            assert!(!settings.is_node_key(key) && !settings.reads(key), "{key}");
        }
    }

    #[test]
    fn volumes_are_tied_to_nodes_where_nobody_asks_about_pods() {
        let mode = |text: &str| {
            let settings = parse(text).unwrap();
            settings.mode(&settings.drivers[0])
        };
        assert_eq!(mode("{}"), Mode::Webhook);
        assert_eq!(mode("podWebhook: false"), Mode::VolumeAffinity);
        assert_eq!(mode("drivers: [{preset: localdisk, mode: volume-affinity}]"), Mode::VolumeAffinity);
        assert_eq!(mode("{podWebhook: false, drivers: [{preset: localdisk, mode: webhook}]}"), Mode::Webhook);
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for (text, part) in [
            ("drivers: [{}]", "a driver needs a name or a preset"),
            ("drivers: [{name: a, requireDriver: true}]", "driver a has requireDriver, but no topologyKey"),
            ("drivers: [{name: a, topologyKey: ''}]", "must not be empty"),
            ("nodeGoneBrake: 20", "write it like 20%"),
            ("nodeGoneBrake: 120%", "write it like 20%"),
            ("nodeGoneAfter: soon", "write it like 15s"),
            ("nodeGoneAfter: -5m", "must not be negative"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{text:?} gave {error:?}");
        }
    }
}
