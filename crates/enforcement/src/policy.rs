//! The rule's twin: policies by which the API server keeps it alone, also while no replica of the operator runs.
//!
//! ```text
//! Settings ── policies() ──> one policy and binding per action ── kubectl apply ──> kube-apiserver
//!                                   └── the text is the chart's: policies/claims.yaml, filled in by Helm the same way
//! ```
//!
//! What an expression cannot do is look at pods and volumes. Where the rule needs that, the twin takes the word of those who are
//! trusted and of nobody else; where a volume alone tells that storage is local, it sees nothing.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::settings::{Action, Driver, PodOwner, Settings};

const TEXT: &str = include_str!("../../../charts/claimkeeper/policies/claims.yaml");

/// A policy whose binding has all classes as parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Tells the policies apart.
    pub name: &'static str,
    /// Its spec, as YAML.
    pub spec: String,
    /// What the binding does about a claim that breaks the rule.
    pub validation_actions: &'static [&'static str],
    /// The namespace in which the rule does not hold: what the operator itself needs must not depend on it.
    pub spares: Option<String>,
}

/// The policies that keep the rule: one for each action, because only a binding can say what is done.
#[must_use]
pub fn policies(settings: &Settings) -> Vec<Policy> {
    let text = TEXT
        .replace("@configuredAction@", settings.action.name())
        .replace("@podOwner@", pod_owner(settings.pod_owner))
        .replace("@trustedCreators@", &literal(&settings.trusted_creators))
        .replace("@drivers@", &literal(&drivers(settings)));
    [Action::Deny, Action::Warn, Action::Audit]
        .map(|action| Policy {
            name: match action {
                Action::Deny => "claims-deny",
                Action::Warn => "claims-warn",
                Action::Audit => "claims-audit",
            },
            spec: text.replace("@action@", action.name()),
            validation_actions: match action {
                Action::Deny => &["Deny"],
                Action::Warn => &["Warn", "Audit"],
                Action::Audit => &["Audit"],
            },
            spares: settings.home.clone(),
        })
        .into()
}

fn pod_owner(pod_owner: PodOwner) -> &'static str {
    match pod_owner {
        PodOwner::Verified => "verified",
        PodOwner::Seed => "seed",
    }
}

/// What the expressions know of a driver. All values are lists, because those of a map must have one type.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Keys<'a> {
    accept_annotation: [&'a str; 1],
    ephemeral_pools: &'a [String],
    pool_parameter: Vec<&'a str>,
    replicas_parameter: Vec<&'a str>,
}

fn drivers(settings: &Settings) -> BTreeMap<&str, Keys<'_>> {
    // The first one of a name counts, as it does for the rule.
    settings.drivers.iter().rev().map(|driver| (driver.name.as_str(), keys(driver))).collect()
}

fn keys(driver: &Driver) -> Keys<'_> {
    Keys {
        accept_annotation: [&driver.accept_annotation],
        ephemeral_pools: &driver.ephemeral_pools,
        pool_parameter: driver.pool_parameter.iter().map(String::as_str).collect(),
        replicas_parameter: driver.replicas_parameter.iter().map(String::as_str).collect(),
    }
}

/// JSON is how CEL writes strings, lists and maps, too.
fn literal(value: &impl Serialize) -> String {
    // Cannot fail: these are strings in lists and maps.
    serde_json::to_string(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cluster::{Class, store::Slim};
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        claim::AskedClaim,
        decision::ADMIT_CLAIM,
        observation::{Asked, Look, Observation, Write},
        settings::Preset,
    };

    #[test]
    fn nothing_is_left_to_fill_in() {
        for policy in policies(&Settings::default()) {
            assert!(!policy.spec.contains('@'), "{}", policy.spec);
            serde_saphyr::from_str::<Value>(&policy.spec).unwrap();
        }
    }

    /// What an expression that only joins texts evaluates to.
    fn joined(expression: &str, values: &[(&str, &str)]) -> String {
        let mut text = String::new();
        for (number, part) in expression.replace("\\'", "\u{2019}").split('\'').enumerate() {
            // Every other part stands between quotes.
            if number % 2 == 1 {
                text += &part.replace('\u{2019}', "'");
                continue;
            }
            for name in part.split('+').map(str::trim).filter(|name| !name.is_empty()) {
                text += values.iter().find(|(known, _)| *known == name).unwrap().1;
            }
        }
        text
    }

    #[test]
    fn policies_and_webhook_refuse_in_the_same_words() {
        let class = json!({"metadata": {"name": "fast", "uid": "u1"}, "provisioner": "localdisk.csi.acstor.io"});
        let class = Class::from_wire(serde_json::from_value(class).unwrap()).unwrap();
        let claim =
            json!({"metadata": {"name": "data", "uid": "u2"}, "spec": {"storageClassName": "fast"}}).to_string();
        let claim = AskedClaim::read(&claim, "ci").unwrap();
        let write = Write { claim, old: None, user: "alice".to_owned() };
        let seen = Observation {
            settings: Arc::default(),
            asked: Asked::Claim(Box::new(write)),
            class: Look::Known(Arc::new(class)),
            named_volume: Look::NotNamed,
            volumes: Vec::new(),
            owner: Look::NotNamed,
            namespace: Look::Missing,
        };
        let decision = ADMIT_CLAIM.decide(&seen);

        let spec: Value = serde_saphyr::from_str(&policies(&Settings::default())[0].spec).unwrap();
        let expression = spec["validations"][0]["messageExpression"].as_str().unwrap();
        let (_, refusal) = expression.split_once(":  'only").or_else(|| expression.split_once(": 'only")).unwrap();
        let wrong = spec["variables"].as_array().unwrap().iter().find(|variable| variable["name"] == "wrong").unwrap();
        let wrong = wrong["expression"].as_str().unwrap().rsplit('\'').nth(1).unwrap();
        let values = [
            ("params.provisioner", "localdisk.csi.acstor.io"),
            ("params.metadata.name", "fast"),
            ("variables.wrong", wrong),
            ("variables.acceptAnnotation", "localdisk.csi.acstor.io/accept-ephemeral-storage"),
        ];
        assert_eq!(joined(&format!("'only{refusal}"), &values), decision.message);
    }

    #[test]
    fn of_two_drivers_of_one_name_the_first_counts() {
        let [mut first, mut second] = [Preset::Topolvm.driver(), Preset::Topolvm.driver()];
        (first.accept_annotation, second.accept_annotation) = ("first".to_owned(), "second".to_owned());
        let settings = Settings { drivers: vec![first, second], ..Settings::default() };
        assert_eq!(drivers(&settings)["topolvm.io"].accept_annotation, ["first"]);
    }

    #[test]
    fn the_chart_knows_the_same_presets() {
        let text = include_str!("../../../charts/claimkeeper/policies/presets.yaml");
        let presets: BTreeMap<String, Value> = serde_saphyr::from_str(text).unwrap();
        assert_eq!(presets.len(), Preset::ALL.len());
        for (preset, keys) in presets {
            let driver = |written: Value| serde_json::from_value::<Driver>(written).unwrap();
            assert_eq!(driver(json!({"preset": preset})), driver(keys.clone()), "{preset}");
            assert_eq!(driver(json!({"name": keys["name"]})), driver(keys), "{preset}");
        }
    }
}
