//! The chart's files and what they are rendered to.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use testbed::Cluster;

pub(crate) const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/claimkeeper");

/// The profiles that come with the chart, by the names of their files; the first one is no file and changes nothing.
pub(crate) fn profiles() -> Result<Vec<(String, Value)>> {
    let mut profiles = vec![("values.yaml".to_owned(), json!({}))];
    for entry in fs::read_dir(CHART)? {
        let name = entry?.file_name().into_string().ok().context("a file of the chart has a strange name")?;
        if name.starts_with("values-") {
            let text = fs::read_to_string(Path::new(CHART).join(&name))?;
            profiles.push((name, serde_saphyr::from_str(&text)?));
        }
    }
    profiles.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(profiles)
}

/// Puts values over others, as Helm does.
pub(crate) fn over(base: &mut Value, more: &Value) {
    match (base, more) {
        (Value::Object(base), Value::Object(more)) => {
            for (key, value) in more {
                over(base.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (base, more) => base.clone_from(more),
    }
}

/// The objects of a release called `claimkeeper`.
pub(crate) struct Documents(pub(crate) Vec<Value>);

impl Documents {
    pub(crate) async fn render(cluster: &Cluster, namespace: &str, values: &Value) -> Result<Self> {
        Ok(Self(cluster.render_chart("claimkeeper", namespace, values).await?))
    }

    pub(crate) fn of(&self, kind: &str) -> Vec<&Value> {
        self.0.iter().filter(|document| document["kind"] == kind).collect()
    }

    pub(crate) fn get(&self, kind: &str, name: &str) -> Option<&Value> {
        self.0.iter().find(|document| document["kind"] == kind && document["metadata"]["name"] == name)
    }
}
