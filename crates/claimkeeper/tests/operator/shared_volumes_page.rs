//! The page of the shared volumes: what it says to do is done, and what it says is shown is shown.

use std::{collections::BTreeSet, path::PathBuf, process::Command};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use regex::Regex;
use serde_json::{Value, json};
use testbed::{
    eventually,
    storageos::{Endpoint, StorageOs, Volume},
};

use crate::{
    home::{BINARY, Home, Replica, file},
    lifetime::documented_metrics,
};

const PAGE: &str = include_str!("../../../../docs/shared-volumes.md");
const RULES: [&str; 2] =
    [include_str!("../../../shared-volumes/src/decision.rs"), include_str!("../../../shared-volumes/src/address.rs")];
/// The volume of the page.
const ID: &str = "aad1e4ab-23d2-4a45-9a9b-0305885997ff";
const ADDRESS: &str = "10.0.0.123";
const ENDPOINT: &str = "10.1.0.31:25705";

/// The blocks of code in a language.
fn blocks(language: &str) -> Vec<&'static str> {
    let code = PAGE.split("```").skip(1).step_by(2);
    code.filter_map(|block| block.split_once('\n'))
        .filter(|(found, _)| *found == language)
        .map(|(_, text)| text)
        .collect()
}

/// The commands of the page that begin like this, each with what it prints.
fn shown(language: &str, command: &str) -> Vec<(&'static str, &'static str)> {
    let shown = blocks(language).into_iter().flat_map(|block| block.split("$ ").skip(1));
    shown.filter_map(|shown| shown.split_once('\n')).filter(|(line, _)| line.starts_with(command)).collect()
}

/// The rows of a table: columns are as wide as what is in them, which differs.
fn words(table: &str) -> Vec<Vec<&str>> {
    table.lines().map(|line| line.split_whitespace().collect()).collect()
}

#[tokio::test]
async fn what_the_page_shows_of_a_volume_and_of_a_server_that_is_gone_is_what_there_is() -> Result<()> {
    let page = Page::follow().await?;
    eventually("the Service and its slice as the page shows them", async || {
        for (command, output) in shown("console", "kubectl ") {
            let found = page.run(command).await?;
            ensure!(words(&found) == words(output), "{command} printed\n{found}");
        }
        Ok(())
    })
    .await?;
    page.server.failover(&page.id, Endpoint::Null)?;
    let [(first, noted), (second, chain)] = shown("text", "claimkeeper why ")[..] else {
        anyhow::bail!("the page has other answers")
    };
    eventually("the answer of the page", async || page.expect_answer(first, noted).await).await?;
    page.expect_answer(second, chain).await?;
    let [(command, rows)] = shown("text", "claimkeeper audit ")[..] else { anyhow::bail!("the page has no audit") };
    let found = page.as_on_the_page(&page.ask(command).await?);
    assert_eq!(words(&found), words(rows), "{command}");
    page.expect_documented_metrics().await
}

#[tokio::test]
async fn the_installation_of_the_page_has_what_its_configuration_names() -> Result<()> {
    let home = Home::on(testbed::shared().await?, "page").await?;
    let [commands] = blocks("sh")[..] else { anyhow::bail!("the page has other commands") };
    let (install, secret) = commands.trim().split_once('\n').context("the page has one command")?;
    let chart: Vec<Value> = serde_saphyr::from_multiple(&rendered(&home, install).await?)?;
    let made = |kind: &str| chart.iter().find(|object| object["kind"] == kind).with_context(|| format!("no {kind}"));
    let kubeconfig = home.cluster.admin_kubeconfig().display();
    let secret = secret.replace("--namespace storage", &format!("--namespace {}", home.namespace));
    home.run_as_administrator(&format!("export KUBECONFIG={kubeconfig}\n{secret}")).await?;

    let [config] = blocks("yaml")[..] else { anyhow::bail!("the page has other YAML") };
    let config: Value = serde_saphyr::from_str(config)?;
    let rendered = made("ConfigMap")?["data"]["config.yaml"].as_str().context("no configuration")?;
    let rendered: Value = serde_saphyr::from_str(rendered)?;
    assert_eq!(rendered["features"], config["features"]);
    let storageos = |config: &Value, key: &str| config["sharedVolumes"]["storageos"][key].clone();
    for key in ["endpoint", "secretPath"] {
        assert_eq!(storageos(&rendered, key), storageos(&config, key));
    }
    let spec = &made("Deployment")?["spec"]["template"]["spec"];
    let mounts = spec["containers"][0]["volumeMounts"].as_array().context("nothing is mounted")?;
    let mount = mounts.iter().find(|mount| mount["mountPath"] == storageos(&config, "secretPath"));
    let name = &mount.context("the credentials are elsewhere")?["name"];
    let volumes = spec["volumes"].as_array().context("there are no volumes")?;
    let volume = volumes.iter().find(|volume| volume["name"] == *name).context("what is mounted is not there")?;
    let secrets: Api<Secret> = Api::namespaced(home.cluster.admin().await?, &home.namespace);
    let found = secrets.get(volume["secret"]["secretName"].as_str().unwrap_or_default()).await?;
    let keys: Vec<String> = found.data.unwrap_or_default().into_keys().collect();
    assert_eq!(keys, ["password", "username"]);
    Ok(())
}

#[test]
fn every_reason_of_the_rules_is_on_the_page() {
    let quoted: BTreeSet<&str> = PAGE.split('`').skip(1).step_by(2).collect();
    let reason = Regex::new(r#""([A-Z][a-z]+(?:[A-Z][a-z]+)+)""#).unwrap();
    for rules in RULES {
        let code = rules.split("#[cfg(test)]").next().unwrap();
        let reasons: BTreeSet<&str> = reason.captures_iter(code).map(|found| found.extract::<1>().1[0]).collect();
        assert!(reasons.len() > 5, "{reasons:?}");
        let missing: Vec<&&str> = reasons.difference(&quoted).collect();
        assert!(missing.is_empty(), "{missing:?} cannot be looked up");
    }
}

#[test]
fn the_tables_of_the_address_are_those_of_the_rules() {
    let cells = |row: &str| row.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let documented: BTreeSet<Vec<String>> = PAGE.lines().filter(|line| line.starts_with('|')).map(cells).collect();
    let rows = RULES[1].lines().filter_map(|line| line.strip_prefix("//! | ")).map(|row| cells(&format!("| {row}")));
    let rows: Vec<Vec<String>> = rows.collect();
    assert!(rows.len() > 15, "the rules have no tables");
    let missing: Vec<_> = rows.iter().filter(|row| !documented.contains(*row)).collect();
    assert!(missing.is_empty(), "the page has other rows than {missing:#?}");
}

/// What the page speaks of: a claim, its volume, and the operator with the page's configuration.
struct Page {
    home: Home,
    server: StorageOs,
    operator: Replica,
    id: String,
    address: String,
    config: PathBuf,
    _directory: tempfile::TempDir,
}

impl Page {
    async fn follow() -> Result<Self> {
        let home = Home::on(testbed::shared().await?, "studio").await?;
        let server = StorageOs::start().await?;
        home.create_claim("footage").await?;
        let id = server.add_volume(Volume::shared(&home.namespace, "footage", "pvc-footage").at(ENDPOINT));
        let config = blocks("yaml").into_iter().find(|block| block.starts_with("features:"));
        let mut config: Value = serde_saphyr::from_str(config.context("the page has no configuration")?)?;
        let storageos = &mut config["sharedVolumes"]["storageos"];
        storageos["endpoint"] = json!(server.url());
        storageos["secretPath"] = json!(server.secret_path());
        storageos["pollInterval"] = json!("200ms");
        let directory = tempfile::tempdir()?;
        let asked = file(&directory, "claimkeeper.yaml", &config.to_string());
        let values = json!({
            "features": config["features"], "namespace": home.namespace, "leaderElection": {"name": "shared"},
        });
        let operator = home.install("solo", &values, config).await?.start().await?;
        let address =
            eventually("the address", async || server.published(&id)?.context("nothing is published")).await?;
        Ok(Self { home, server, operator, id, address, config: asked, _directory: directory })
    }

    /// Runs a command of the page here, and tells what it prints there.
    async fn run(&self, command: &str) -> Result<String> {
        let command = command.replace("--namespace studio", &format!("--namespace {}", self.home.namespace));
        let mut kubectl = self.home.cluster.kubectl();
        kubectl.args(command.split_whitespace().skip(1));
        Ok(self.as_on_the_page(&printed(kubectl).await?))
    }

    fn as_on_the_page(&self, text: &str) -> String {
        let address = self.address.trim_end_matches(":2049");
        text.replace(&self.home.namespace, "studio").replace(&self.id, ID).replace(address, ADDRESS)
    }

    async fn ask(&self, command: &str) -> Result<String> {
        let mut program = Command::new(BINARY);
        for word in command.split_whitespace().skip(1) {
            match word {
                "studio" => program.arg(&self.home.namespace),
                "claimkeeper.yaml" => program.arg(&self.config),
                word => program.arg(word),
            };
        }
        program.arg("--kubeconfig").arg(self.home.cluster.admin_kubeconfig());
        printed(program).await
    }

    /// What this feature says; others may have something to say about a claim, too.
    async fn expect_answer(&self, command: &str, answer: &str) -> Result<()> {
        let said = self.ask(command).await?;
        let start = said.find("shared-volumes: ").with_context(|| format!("it said {said}"))?;
        let said = self.as_on_the_page(&said[start..]);
        ensure!(said == answer, "{command} said\n{said}");
        Ok(())
    }

    async fn expect_documented_metrics(&self) -> Result<()> {
        let names = documented_metrics(PAGE);
        assert!(names.len() >= 10, "{names:?}");
        eventually("every metric of the page", async || {
            let (_, text) = self.operator.ask("/metrics").await?;
            let missing: Vec<_> =
                names.iter().filter(|name| !text.lines().any(|line| line.starts_with(**name))).collect();
            ensure!(missing.is_empty(), "{missing:?} are missing in\n{text}");
            Ok(())
        })
        .await
    }
}

/// What an installation by this command would create.
async fn rendered(home: &Home, install: &str) -> Result<String> {
    let command = install.replace("helm install claimkeeper", "template claimkeeper").replace('\'', "");
    let mut helm = Command::new(home.cluster.helm());
    helm.args(command.split_whitespace().filter(|argument| *argument != "--create-namespace"));
    helm.args(["--kube-version=v1.37.1"]).current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    printed(helm).await
}

async fn printed(command: Command) -> Result<String> {
    let output = tokio::process::Command::from(command).kill_on_drop(true).output().await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8(output.stdout)?)
}
