//! Quotas, as far as they limit claims.

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::ResourceQuota, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::Resource;
use serde::Deserialize;

use crate::{ObjectKey, meta, quantity::Quantity, store::Slim};

/// A quota.
#[derive(Debug, PartialEq, Eq)]
pub struct Quota {
    /// Where it is found.
    pub key: ObjectKey,
    /// What it says about claims, as admission reads it: from the status. Empty as long as nobody has counted.
    pub limits: BTreeMap<Box<str>, Limit>,
}

/// How much there may be of something, and how much there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// The most that is admitted.
    pub hard: Quantity,
    /// What is in use.
    pub used: Quantity,
}

impl Quota {
    /// Whether a claim that did not fit into `before` may fit into this. Growing use alone never makes room.
    #[must_use]
    pub fn leaves_more_room_than(&self, before: &Self) -> bool {
        let lifted = before.limits.keys().any(|resource| !self.limits.contains_key(resource));
        lifted
            || self.limits.iter().any(|(resource, now)| match before.limits.get(resource) {
                Some(then) => now.hard > then.hard || now.used < then.used,
                // Until it is counted, everything it limits is refused.
                None => true,
            })
    }
}

// `persistentvolumeclaims`, `count/persistentvolumeclaims`, `requests.storage`, and both per class.
fn limits_claims(resource: &str) -> bool {
    resource.ends_with("persistentvolumeclaims") || resource.ends_with("requests.storage")
}

impl Slim for Quota {
    type Wire = Wire;
    const KIND: &'static str = "resourcequotas";

    fn from_wire(Wire { metadata, status }: Wire) -> Option<Self> {
        let WireStatus { hard, used } = status;
        let limits = hard.into_iter().filter(|(resource, _)| limits_claims(resource)).filter_map(|(resource, hard)| {
            let used = used.get(&resource)?.parse().ok()?;
            Some((resource.into_boxed_str(), Limit { hard: hard.parse().ok()?, used }))
        });
        Some(Self { key: ObjectKey::new(&metadata.namespace?, &metadata.name?), limits: limits.collect() })
    }

    fn key(&self) -> &ObjectKey {
        &self.key
    }
}

/// A quota on its way from the API server.
#[derive(Debug, Clone, Deserialize, Resource)]
#[resource(inherit = ResourceQuota)]
pub struct Wire {
    #[serde(deserialize_with = "meta::slim")]
    metadata: ObjectMeta,
    #[serde(default)]
    status: WireStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct WireStatus {
    #[serde(default)]
    hard: BTreeMap<String, String>,
    #[serde(default)]
    used: BTreeMap<String, String>,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn quota(hard: &Value, used: &Value) -> Quota {
        let json = json!({"metadata": {"namespace": "ci", "name": "q"}, "status": {"hard": hard, "used": used}});
        Quota::from_wire(serde_json::from_value(json).unwrap()).unwrap()
    }

    #[test]
    fn only_what_limits_claims_is_kept() {
        let resources = ["pods", "requests.cpu", "persistentvolumeclaims", "count/persistentvolumeclaims"];
        let classes = ["requests.storage", "fast.storageclass.storage.k8s.io/requests.storage"];
        let amounts: BTreeMap<_, _> = resources.iter().chain(&classes).map(|name| (*name, "1")).collect();
        let kept = quota(&json!(amounts), &json!(amounts));
        assert_eq!(kept.limits.len(), 4);
        assert!(!kept.limits.contains_key("pods"));
    }

    #[test]
    fn room_is_made_by_a_higher_limit_less_use_or_no_limit_at_all() {
        let storage =
            |hard: &str, used: &str| quota(&json!({"requests.storage": hard}), &json!({"requests.storage": used}));
        let before = storage("10Gi", "10Gi");
        for (now, more) in [
            (storage("11Gi", "10Gi"), true),
            (storage("10Gi", "9Gi"), true),
            (quota(&json!({}), &json!({})), true),
            (
                quota(
                    &json!({"requests.storage": "10Gi", "persistentvolumeclaims": "5"}),
                    &json!({"requests.storage": "10Gi", "persistentvolumeclaims": "1"}),
                ),
                true,
            ),
            (storage("10Gi", "10Gi"), false),
            (storage("10Gi", "10.5Gi"), false),
            (storage("9Gi", "10Gi"), false),
            (storage("10240Mi", "10Gi"), false),
        ] {
            assert_eq!(now.leaves_more_room_than(&before), more, "{now:?}");
        }
    }
}
