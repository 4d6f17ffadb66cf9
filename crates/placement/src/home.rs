//! Where a local volume's data is, and whether it may be left behind.

use std::{sync::Arc, time::Duration};

use cluster::{Class, Node, ObjectKey, Store, Volume, store::Index, volume::NODE_NAME_FIELD};

use crate::{
    gone::identity::Note,
    settings::{Driver, Patience, Settings},
};

/// What a class says about volumes that do not say it themselves.
pub const FAILOVER_MODE: &str = "claimkeeper.dev/failover-mode";

/// How long a class wants a node that is away to be waited for.
pub const NODE_RECOVERY_TIMEOUT: &str = "claimkeeper.dev/node-recovery-timeout";

/// Nodes by `label=value`, as far as their labels are kept.
pub const BY_LABEL: Index<Node> = Index { name: "label", values: labels };

fn labels(node: &Node) -> Vec<Box<str>> {
    node.labels.iter().map(|(key, value)| format!("{key}={value}").into()).collect()
}

/// A word for a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Home {
    /// Its name.
    Name(Box<str>),
    /// A label whose value stands for it.
    Label(Box<str>, Box<str>),
}

impl Home {
    /// The home node of a volume: where it was noted last, or else where it was made, or else the one that it is tied to.
    #[must_use]
    pub fn of(volume: &Volume, driver: &Driver, settings: &Settings) -> Option<Self> {
        let noted = volume.annotations.get(&driver.selected_node_annotation);
        let made = || volume.attributes.get(driver.initial_node_attribute.as_ref()?);
        let named = noted.or_else(made).filter(|name| !name.is_empty());
        named.map(|name| Self::Name(name.as_str().into())).or_else(|| Self::tied(volume, settings))
    }

    /// The one node that a volume is tied to.
    #[must_use]
    pub fn tied(volume: &Volume, settings: &Settings) -> Option<Self> {
        let (key, value) = volume.reach.pins.iter().find(|(key, _)| settings.is_node_key(key))?;
        Some(if &**key == NODE_NAME_FIELD {
            Self::Name(value.clone())
        } else {
            Self::Label(key.clone(), value.clone())
        })
    }

    /// The node, if it is there.
    #[must_use]
    pub fn find(&self, nodes: &Store<Node>) -> Option<Arc<Node>> {
        match self {
            Self::Name(name) => nodes.get(&ObjectKey::new("", name)),
            Self::Label(key, value) => nodes.find(&BY_LABEL, &format!("{key}={value}")).into_iter().next(),
        }
    }

    /// The nodes that it stands for, or that are noted on the volume as having its data.
    pub(crate) fn candidates(&self, volume: &Volume, nodes: &Store<Node>) -> Vec<Arc<Node>> {
        let mut found = match self {
            Self::Name(_) => self.find(nodes).into_iter().collect(),
            Self::Label(key, value) => nodes.find(&BY_LABEL, &format!("{key}={value}")),
        };
        let noted = Note::of(volume, self).and_then(|note| nodes.get(&ObjectKey::new("", &note.name)));
        found.extend(noted.filter(|noted| found.iter().all(|node| node.key != noted.key)));
        found
    }

    /// The same among those that were listed.
    pub(crate) fn among<'a>(&self, volume: &Volume, nodes: &'a [Node]) -> Vec<&'a Node> {
        let noted = Note::of(volume, self);
        let stands_for = |node: &&Node| match self {
            Self::Name(name) => node.key.name() == &**name,
            Self::Label(key, value) => node.labels.get(&**key).is_some_and(|found| **found == **value),
        };
        let is_noted = |node: &&Node| noted.as_ref().is_some_and(|note| note.name == node.key.name());
        nodes.iter().filter(|node| stands_for(node) || is_noted(node)).collect()
    }

    /// What to call it, whether it is there or not.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Name(name) | Self::Label(_, name) => name,
        }
    }
}

/// What is more important: that a pod runs, or that it finds its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailoverMode {
    /// That it runs.
    Availability,
    /// That it finds its data. Over several volumes the strictest counts, so this is the greater one.
    Durability,
}

impl FailoverMode {
    /// What a volume says, or else its class. Who says nothing, or nothing that we know, wants pods to run.
    #[must_use]
    pub fn of(volume: &Volume, driver: &Driver, class: Option<&Class>) -> Self {
        let own = driver.failover_mode_attribute.as_ref().and_then(|key| volume.attributes.get(key));
        let word = own.or_else(|| class?.annotations.get(FAILOVER_MODE)).map(String::as_str);
        if word == Some("durability") { Self::Durability } else { Self::Availability }
    }
}

/// How long a class wants a node that is away to be waited for; for ever if it does not say, or not clearly.
#[must_use]
pub fn node_recovery_timeout(class: Option<&Class>) -> Option<Duration> {
    class?.annotations.get(NODE_RECOVERY_TIMEOUT)?.parse().ok().map(|Patience(timeout)| timeout)
}

#[cfg(test)]
mod tests {
    use cluster::store::Slim;
    use serde_json::{Value, json};

    use super::*;
    use crate::settings::Preset;

    #[allow(clippy::needless_pass_by_value)] // written in place
    fn volume(annotations: Value, attributes: Value, pin: Option<&str>) -> Volume {
        let terms = pin.map(|key| {
            json!({"required": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": key, "operator": "In", "values": ["tied"]}]}]}})
        });
        let json = json!({"metadata": {"name": "pv-1", "uid": "u1", "resourceVersion": "1", "annotations": annotations},
            "spec": {"csi": {"driver": "localdisk.csi.acstor.io", "volumeAttributes": attributes}, "nodeAffinity": terms}});
        Volume::from_wire(serde_json::from_value(json).unwrap()).unwrap()
    }

    #[allow(clippy::needless_pass_by_value)] // likewise
    fn class(annotations: Value) -> Class {
        let json = json!({"metadata": {"name": "local", "uid": "u1", "annotations": annotations}});
        Class::from_wire(serde_json::from_value(json).unwrap()).unwrap()
    }

    #[test]
    fn home_is_where_a_volume_was_noted_last_then_where_it_was_made_then_where_it_is_tied() {
        let noted = || json!({"localdisk.csi.acstor.io/selected-node": "noted"});
        let made = || json!({"localdisk.csi.acstor.io/selected-initial-node": "made"});
        let (hostname, zone) = (Some("kubernetes.io/hostname"), Some("topology.kubernetes.io/zone"));
        let name = |name: &str| Some(Home::Name(name.into()));
        let label = |key: &str| Some(Home::Label(key.into(), "tied".into()));
        for (volume, home) in [
            (volume(noted(), made(), hostname), name("noted")),
            (volume(json!({}), made(), hostname), name("made")),
            (volume(json!({}), json!({}), hostname), label("kubernetes.io/hostname")),
            (
                volume(json!({}), json!({}), Some("topology.localdisk.csi.acstor.io/node")),
                label("topology.localdisk.csi.acstor.io/node"),
            ),
            (volume(json!({}), json!({}), Some(NODE_NAME_FIELD)), name("tied")),
            (volume(json!({}), json!({}), zone), None),
            (volume(json!({}), json!({}), None), None),
            (volume(json!({"localdisk.csi.acstor.io/selected-node": ""}), json!({}), None), None),
        ] {
            assert_eq!(Home::of(&volume, &Preset::Localdisk.driver(), &Settings::default()), home, "{volume:?}");
        }
    }

    #[test]
    fn a_volume_says_whether_it_may_be_left_or_else_its_class_and_unknown_words_say_nothing() {
        let attribute = |word: &str| volume(json!({}), json!({"localdisk.csi.acstor.io/failover-mode": word}), None);
        let of_class = |word: &str| class(json!({FAILOVER_MODE: word}));
        let silent = volume(json!({}), json!({}), None);
        for (volume, class, mode) in [
            (&attribute("durability"), Some(of_class("availability")), FailoverMode::Durability),
            (&attribute("availability"), Some(of_class("durability")), FailoverMode::Availability),
            (&attribute("eventually"), None, FailoverMode::Availability),
            (&silent, Some(of_class("durability")), FailoverMode::Durability),
            (&silent, Some(of_class("Durability")), FailoverMode::Availability),
            (&silent, None, FailoverMode::Availability),
        ] {
            assert_eq!(FailoverMode::of(volume, &Preset::Localdisk.driver(), class.as_ref()), mode);
        }
    }

    #[test]
    fn a_node_is_waited_for_as_long_as_the_class_says_and_for_ever_if_it_does_not() {
        let timeout = |word: &str| node_recovery_timeout(Some(&class(json!({NODE_RECOVERY_TIMEOUT: word}))));
        assert_eq!(timeout("10m"), Some(Duration::from_mins(10)));
        for unclear in ["", "soon", "-1m"] {
            assert_eq!(timeout(unclear), None);
        }
        assert_eq!(node_recovery_timeout(None), None);
    }
}
