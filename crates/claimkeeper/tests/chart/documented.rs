//! What the pages say about the chart.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    process::Stdio,
};

use anyhow::{Context, Result, ensure};
use regex::Regex;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::documents::{CHART, Documents, profiles};

/// Blocks of the configuration, which has a page of its own.
const OF_THE_CONFIGURATION: [&str; 12] = [
    "features",
    "namespace",
    "ephemeral",
    "provisioner",
    "releaser",
    "enforcement",
    "placement",
    "sharedVolumes",
    "leaderElection",
    "admin",
    "log",
    "webhook",
];

/// Keys in those that are the chart's nevertheless. The other webhook has the same as this one.
const OF_THE_CHART: [&str; 8] = [
    "enforcement.policies",
    "placement.deletes",
    "sharedVolumes.storageos.secret",
    "webhook.service",
    "webhook.url",
    "webhook.enforceEphemeral",
    "webhook.certificates.issuerRef",
    "webhook.certificates.caBundle",
];

/// What is given to Kubernetes as it is.
const WHOLE: [&str; 4] = ["podSecurityContext", "securityContext", "resources.requests", "resources.limits"];

fn leaves(path: &str, value: &Value, found: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(block) if !block.is_empty() && !WHOLE.contains(&path) => {
            for (key, value) in block {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                leaves(&path, value, found);
            }
        }
        _ => drop(found.insert(path.to_owned(), value.to_string())),
    }
}

#[test]
fn the_page_has_every_right_that_the_chart_grants() -> Result<()> {
    let mut expected = Vec::new();
    for (role, rights) in testbed::rights::granted()? {
        let mut verbs: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for right in rights {
            let group = if right.group.is_empty() { String::new() } else { format!(".{}", right.group) };
            verbs.entry(format!("`{}{group}`", right.resource)).or_default().push(right.verb);
        }
        let rights: Vec<String> =
            verbs.into_iter().map(|(kind, verbs)| format!("{kind}: {}", verbs.join(", "))).collect();
        expected.push(format!("| `{role}` | {} |\n", rights.join("; ")));
    }
    let expected = expected.concat();
    let page = fs::read_to_string(format!("{CHART}/../../docs/installation.md"))?;
    let (_, table) = page.split_once("| Role | Rights |\n|---|---|\n").context("the page has no table of rights")?;
    ensure!(table.starts_with(&format!("{expected}\n")), "the page must have these lines:\n{expected}");
    Ok(())
}

#[test]
fn the_page_has_every_value_of_the_chart_with_its_default() -> Result<()> {
    let values: Value = serde_saphyr::from_str(&fs::read_to_string(format!("{CHART}/values.yaml"))?)?;
    let mut defaults = BTreeMap::new();
    leaves("", &values, &mut defaults);
    defaults.retain(|path, _| {
        let block = path.split('.').next().unwrap_or_default();
        !OF_THE_CONFIGURATION.contains(&block)
            || OF_THE_CHART
                .iter()
                .any(|key| path.strip_prefix(key).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')))
    });
    let page = fs::read_to_string(format!("{CHART}/../../docs/installation.md"))?;
    let rows = page.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.split("` | ");
        let (key, default) = (cells.next()?, cells.next()?.strip_prefix('`')?);
        // The order in which keys stand is nobody's business.
        let default = serde_json::from_str::<Value>(default).ok()?;
        Some((key.to_owned(), default.to_string()))
    });
    assert_eq!(rows.collect::<BTreeMap<_, _>>(), defaults);
    Ok(())
}

#[tokio::test]
async fn a_documented_installation_is_one_that_works() -> Result<()> {
    let cluster = testbed::shared().await?;
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let mut commands = Vec::new();
    for page in
        ["README.md", "docs/installation.md", "docs/enforcement.md", "docs/placement.md", "docs/shared-volumes.md"]
    {
        let text = fs::read_to_string(format!("{root}/{page}"))?;
        let lines = text.replace("\\\n", " ");
        let found = lines.lines().filter(|line| line.starts_with("helm install ")).map(str::to_owned);
        let before = commands.len();
        commands.extend(found);
        ensure!(commands.len() > before, "{page} does not say how to install");
    }
    for command in commands {
        let line = command.replace("helm install", "template").replace('\'', "").replace("--create-namespace", "");
        let mut helm = Command::new(cluster.helm());
        helm.args(line.split_whitespace()).arg("--kube-version=v1.37.1").current_dir(root).stdin(Stdio::null());
        let output = helm.kill_on_drop(true).output().await?;
        ensure!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

#[tokio::test]
async fn alerts_are_about_metrics_that_there_are() -> Result<()> {
    let cluster = testbed::shared().await?;
    let values =
        json!({"features": ["enforcement", "placement", "shared-volumes"], "metrics": {"rules": {"enabled": true}}});
    let documents = Documents::render(&cluster, "storage", &values).await?;
    let rules = documents.of("PrometheusRule")[0]["spec"].to_string();
    let mut pages = String::new();
    for page in fs::read_dir(format!("{CHART}/../../docs"))? {
        pages += &String::from_utf8_lossy(&fs::read(page?.path())?);
    }
    let metric = Regex::new("(?:claimkeeper|leader_election)_[a-z_]+")?;
    let named: BTreeSet<&str> = metric.find_iter(&rules).map(|found| found.as_str()).collect();
    assert!(named.len() > 3, "{named:?}");
    for metric in named {
        assert!(pages.contains(metric), "no page has {metric}");
    }
    Ok(())
}

#[tokio::test]
async fn whoever_installs_is_told_the_risks_of_each_feature() -> Result<()> {
    let cluster = testbed::shared().await?;
    for (file, profile) in profiles()? {
        let mut helm = Command::new(cluster.helm());
        helm.args(["install", "claimkeeper", CHART, "--namespace=storage", "--dry-run=client"]);
        helm.args(["--values", &format!("{CHART}/{file}")]).stdin(Stdio::null());
        let output = helm.kill_on_drop(true).output().await?;
        let told = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "{file}: {}", String::from_utf8_lossy(&output.stderr));
        let (_, notes) = told.split_once("\nNOTES:\n").context("nothing is told")?;
        let default = json!(["enforcement", "placement", "provisioner", "releaser"]);
        for feature in profile.get("features").unwrap_or(&default).as_array().into_iter().flatten() {
            let about = format!("\n* {}: ", feature.as_str().unwrap_or_default());
            assert!(notes.contains(&about), "{file}: nothing about {feature} in\n{notes}");
        }
        let leaves_data = notes.contains("WITH WHATEVER DATA IS LEFT ON THEM");
        assert_eq!(leaves_data, notes.contains("\n* releaser: "), "{notes}");
        assert!(!notes.contains("DELETE"), "{file} deletes");
    }
    Ok(())
}
