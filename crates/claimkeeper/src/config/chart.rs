//! The chart's values are our configuration: the same keys, the same words, the same defaults.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::{Config, Feature};

/// Keys of our blocks that are only the chart's.
const OF_THE_CHART: [&str; 9] = [
    "enforcement.policies",
    "placement.deletes",
    "sharedVolumes.storageos.secret",
    "webhook.service",
    "webhook.url",
    "webhook.enforceEphemeral",
    "webhook.hyperconverged",
    "webhook.certificates.issuerRef",
    "webhook.certificates.caBundle",
];

/// What the chart knows and nobody is asked for. No two replicas have the same identity.
const KNOWN_TO_THE_CHART: [&str; 8] = [
    "leaderElection.namespace",
    "leaderElection.identity",
    "leaderElection.candidate",
    "enforcement.claimWebhook",
    "placement.podWebhook",
    "webhook.certificates.directory",
    "webhook.certificates.service",
    "webhook.certificates.configurations",
];

fn schema() -> Value {
    serde_json::from_str(include_str!("../../../../charts/claimkeeper/values.schema.json")).unwrap()
}

fn values() -> Value {
    serde_saphyr::from_str(include_str!("../../../../charts/claimkeeper/values.yaml")).unwrap()
}

/// The documented configuration with the keys that have no default.
fn documented() -> Value {
    let page = include_str!("../../../../docs/configuration.md");
    let (_, block) = page.split_once("```yaml\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    let uncommented = block.lines().map(|line| {
        let is_key = line.trim_start().strip_prefix("# ").and_then(|rest| rest.split_once(": "));
        let is_key = is_key.is_some_and(|(key, _)| key.chars().all(char::is_alphanumeric));
        if is_key { line.replacen("# ", "", 1) } else { line.to_owned() }
    });
    serde_saphyr::from_str(&uncommented.collect::<Vec<_>>().join("\n")).unwrap()
}

fn is_of_the_chart(path: &str) -> bool {
    OF_THE_CHART.iter().any(|key| path == *key || path.strip_prefix(key).is_some_and(|rest| rest.starts_with('.')))
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// The keys of a document, without those in lists.
fn keys_of_document(path: &str, value: &Value, found: &mut BTreeSet<String>) {
    for (key, value) in value.as_object().into_iter().flatten() {
        let path = join(path, key);
        keys_of_document(&path, value, found);
        found.insert(path);
    }
}

/// The keys that a schema knows, without those in lists.
fn keys_of_schema(path: &str, schema: &Value, found: &mut BTreeSet<String>) {
    for (key, schema) in schema["properties"].as_object().into_iter().flatten() {
        let path = join(path, key);
        keys_of_schema(&path, schema, found);
        found.insert(path);
    }
}

/// The values as the operator would have them in its configuration: what is empty is left out, as the chart does.
fn as_configuration(path: &str, values: &Map<String, Value>) -> Map<String, Value> {
    let ours = values.iter().filter(|(key, value)| !is_of_the_chart(&join(path, key)) && **value != json!(""));
    let ours = ours.map(|(key, value)| match value {
        Value::Object(block) => (key.clone(), as_configuration(&join(path, key), block).into()),
        other => (key.clone(), other.clone()),
    });
    ours.collect()
}

#[test]
fn the_chart_has_the_keys_of_the_configuration() {
    let (mut ours, mut charts) = (BTreeSet::new(), BTreeSet::new());
    let documented = documented();
    keys_of_document("", &documented, &mut ours);
    for key in KNOWN_TO_THE_CHART {
        assert!(ours.remove(key), "the configuration has no {key}");
    }
    let blocks: Vec<&String> = documented.as_object().unwrap().keys().collect();
    keys_of_schema("", &schema(), &mut charts);
    charts.retain(|path| {
        let block = path.split('.').next().unwrap_or_default();
        blocks.iter().any(|known| *known == block) && !is_of_the_chart(path)
    });
    assert_eq!(ours, charts);
}

#[test]
fn the_chart_has_the_defaults_of_the_configuration() {
    let (values, documented) = (values(), documented());
    let blocks = values.as_object().unwrap().clone().into_iter().filter(|(key, _)| documented.get(key).is_some());
    let config = as_configuration("", &blocks.collect());
    let config = Config::parse(&Value::from(config).to_string()).unwrap();
    let runs = [Feature::Enforcement, Feature::Placement, Feature::Provisioner, Feature::Releaser];
    let default = Config { features: runs.into(), ..Config::default() };
    assert_eq!(format!("{config:#?}"), format!("{default:#?}"));
}

#[test]
fn what_the_chart_lets_choose_the_operator_knows() {
    let mut tried = 0;
    try_choices("", &schema(), &documented(), &mut tried);
    assert!(tried > 20, "only {tried} choices");
}

/// Tries every word that the schema of one of our keys lists.
fn try_choices(path: &str, schema: &Value, documented: &Value, tried: &mut usize) {
    for (key, schema) in schema["properties"].as_object().into_iter().flatten() {
        let path = join(path, key);
        try_choices(&path, schema, documented, tried);
        let block = path.split('.').next().unwrap_or_default();
        // Whose certificate it is is another word to the operator, and comes with a directory.
        if documented.get(block).is_none() || is_of_the_chart(&path) || path == "webhook.certificates.mode" {
            continue;
        }
        // Where YAML takes off for a boolean, the chart says off.
        for word in schema["enum"].as_array().into_iter().flatten().filter(|word| word.is_string()) {
            let config = path.rsplit('.').fold(word.clone(), |inner, key| json!({ key: inner }));
            Config::parse(&config.to_string()).unwrap();
            *tried += 1;
        }
    }
}

#[test]
fn every_value_has_a_default_that_is_shown() {
    fn compare(path: &str, schema: &Value, values: &Value) {
        for (key, schema) in schema["properties"].as_object().into_iter().flatten() {
            let (path, value) = (join(path, key), &values[key]);
            // Subcharts share what is global. Blocks that are empty show nothing.
            assert!(!value.is_null() || path == "global", "values.yaml has no {path}");
            if value.as_object().is_some_and(|block| !block.is_empty()) {
                compare(&path, schema, value);
            }
        }
    }
    compare("", &schema(), &values());
}
