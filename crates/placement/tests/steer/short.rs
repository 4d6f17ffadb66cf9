//! What pods want of nodes, in short: as the table has it.

use serde::Deserialize;
use serde_json::{Value, json};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
const HOSTNAME: &str = "kubernetes.io/hostname";
const NAME: &str = "metadata.name";

/// What a pod wants of its node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wishes {
    pub(crate) required: Option<Vec<Vec<String>>>,
    pub(crate) preferred: Option<Vec<(i64, Vec<String>)>>,
    pub(crate) gates: Option<Vec<String>>,
}

impl Wishes {
    /// Of a pod.
    pub(crate) fn of(pod: &Value) -> Self {
        let (spec, affinity) = (&pod["spec"], &pod["spec"]["affinity"]["nodeAffinity"]);
        let (required, preferred, gates) = (&affinity[REQUIRED], &affinity[PREFERRED], &spec["schedulingGates"]);
        let list = |list: &Value| list.as_array().cloned().unwrap_or_default();
        Self {
            required: required.is_object().then(|| list(&required["nodeSelectorTerms"]).iter().map(words).collect()),
            preferred: preferred.is_array().then(|| {
                let wish = |wish: &Value| (wish["weight"].as_i64().unwrap(), words(&wish["preference"]));
                list(preferred).iter().map(wish).collect()
            }),
            gates: gates
                .is_array()
                .then(|| list(gates).iter().map(|gate| gate["name"].as_str().unwrap().to_owned()).collect()),
        }
    }

    /// Into a pod.
    pub(crate) fn write(&self, pod: &mut Value) {
        if let Some(terms) = &self.required {
            let terms: Vec<Value> = terms.iter().map(|words| term(words)).collect();
            pod["spec"]["affinity"]["nodeAffinity"][REQUIRED] = json!({"nodeSelectorTerms": terms});
        }
        if let Some(wishes) = &self.preferred {
            let wish = |(weight, words): &(i64, Vec<String>)| json!({"weight": weight, "preference": term(words)});
            pod["spec"]["affinity"]["nodeAffinity"][PREFERRED] = wishes.iter().map(wish).collect();
        }
        if let Some(gates) = &self.gates {
            pod["spec"]["schedulingGates"] = gates.iter().map(|name| json!({"name": name})).collect();
        }
    }
}

fn words(term: &Value) -> Vec<String> {
    let requirements =
        ["matchExpressions", "matchFields"].map(|list| term[list].as_array().cloned().unwrap_or_default());
    requirements.iter().flatten().map(word).collect()
}

fn word(requirement: &Value) -> String {
    let key = match requirement["key"].as_str().unwrap() {
        HOSTNAME => "host",
        NAME => "name",
        key => key,
    };
    let values = requirement["values"].as_array().into_iter().flatten().map(|value| value.as_str().unwrap());
    match requirement["operator"].as_str().unwrap() {
        "In" => format!("{key}={}", values.collect::<Vec<_>>().join("|")),
        "Exists" => format!("{key}?"),
        operator => panic!("nobody has a word for {operator}"),
    }
}

fn term(words: &[String]) -> Value {
    let mut term = json!({});
    for word in words {
        let (key, requirement) = match word.split_once('=') {
            Some((key, values)) => (key, json!({"operator": "In", "values": values.split('|').collect::<Vec<_>>()})),
            None => (word.trim_end_matches('?'), json!({"operator": "Exists"})),
        };
        let (key, list) = match key {
            "host" => (HOSTNAME, "matchExpressions"),
            "name" => (NAME, "matchFields"),
            key => (key, "matchExpressions"),
        };
        let mut requirement = requirement;
        requirement["key"] = key.into();
        if term[list].is_null() {
            term[list] = json!([]);
        }
        term[list].as_array_mut().unwrap().push(requirement);
    }
    term
}
