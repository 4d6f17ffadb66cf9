//! Which volume a claim may have. The rules are those by which Kubernetes itself finds a volume for a claim.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use serde::{Deserialize, de::IgnoredAny};

use crate::{Volume, quantity::Quantity};

/// What a claim wants of its volume, apart from the class: that may be said elsewhere.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Wants {
    request: Option<Quantity>,
    access_modes: Vec<String>,
    mode: String,
    attributes_class: String,
    selector: Option<LabelSelector>,
    /// Whether it is to begin with somebody's data.
    has_source: bool,
}

impl Wants {
    /// Whether a claim of this class may have this volume, should it be free.
    #[must_use]
    pub fn fits(&self, class: &str, volume: &Volume) -> bool {
        let offer = &volume.offer;
        let offered = |mode: &String| offer.access_modes.iter().any(|offered| **offered == **mode);
        *class == *volume.class
            && self.request.zip(offer.capacity).is_some_and(|(request, capacity)| request <= capacity)
            && self.access_modes.iter().all(offered)
            && *self.mode == *offer.mode
            && *self.attributes_class == *offer.attributes_class
            && self.selector.as_ref().is_none_or(|selector| selects(selector, &volume.labels))
            && !self.has_source
    }
}

fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let equal = |(key, value): (&String, &String)| labels.get(key) == Some(value);
    selector.match_labels.iter().flatten().all(equal)
        && selector.match_expressions.iter().flatten().all(|requirement| meets(requirement, labels))
}

fn meets(
    LabelSelectorRequirement { key, operator, values }: &LabelSelectorRequirement,
    labels: &BTreeMap<String, String>,
) -> bool {
    let value = labels.get(key);
    let listed = value.is_some_and(|value| values.iter().flatten().any(|listed| listed == value));
    match operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        // Kubernetes knows something that we don't: better none than a wrong one.
        _ => false,
    }
}

/// A claim's spec on its way from the API server.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WireSpec {
    /// The class that it names, unless an annotation does.
    pub storage_class_name: Option<String>,
    /// The volume that it names.
    pub volume_name: Option<String>,
    #[serde(default)]
    resources: WireResources,
    #[serde(default)]
    access_modes: Vec<String>,
    volume_mode: Option<String>,
    volume_attributes_class_name: Option<String>,
    selector: Option<LabelSelector>,
    data_source: Option<IgnoredAny>,
    data_source_ref: Option<IgnoredAny>,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct WireResources {
    #[serde(default)]
    requests: BTreeMap<String, String>,
}

impl From<WireSpec> for Wants {
    fn from(spec: WireSpec) -> Self {
        Self {
            request: spec.resources.requests.get("storage").and_then(|amount| amount.parse().ok()),
            access_modes: spec.access_modes,
            mode: spec.volume_mode.unwrap_or_else(|| "Filesystem".to_owned()),
            attributes_class: spec.volume_attributes_class_name.unwrap_or_default(),
            selector: spec.selector,
            has_source: spec.data_source.is_some() || spec.data_source_ref.is_some(),
        }
    }
}
