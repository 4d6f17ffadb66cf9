//! The page of the releaser: its recipes are followed as they stand there, and what it says is decided is what is decided.

use std::{collections::BTreeSet, fs, process::Command, time::Duration};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use regex::Regex;
use serde_json::{Value, json};
use testbed::{Cluster, within};

use crate::{
    home::{BINARY, Home, Replica},
    lifetime::documented_metrics,
};

const PAGE: &str = include_str!("../../../../docs/releaser.md");
const RULES: [&str; 3] = [
    include_str!("../../../releaser/src/decision.rs"),
    include_str!("../../../releaser/src/association.rs"),
    include_str!("../../../releaser/src/reservation.rs"),
];

/// A pod that did not fit is looked at again after some seconds.
const PATIENCE: Duration = Duration::from_mins(1);

#[tokio::test(flavor = "multi_thread")]
async fn the_cache_of_a_build_goes_to_the_next_build_of_its_namespace() -> Result<()> {
    let cluster = testbed::shared().await?;
    let [storage, build, config] = yaml("Recipe: caches of CI builds")?;
    let recipe = Recipe::follow(cluster, "ci", storage, config).await?;
    recipe.apply("build-1.yaml", build).await?;
    recipe.until_running("build-1").await?;
    assert_eq!(recipe.volume_of("build-1-cache").await?, "ci-cache-1");
    recipe.delete("build-1").await?;
    recipe.until_phase("ci-cache-1", "Released").await?;
    within(PATIENCE, "the documented answer", async || recipe.why("pv/ci-cache-1", "Asking why")).await?;
    recipe.expect_documented_metrics().await?;

    let stranger = Stranger::waits(&recipe, "ci-cache").await?;
    recipe.apply("build-2.yaml", &build.replace("build-1", "build-2")).await?;
    recipe.until_running("build-2").await?;
    assert_eq!(recipe.volume_of("build-2-cache").await?, "ci-cache-1");
    assert_eq!(stranger.volume().await?, None, "another namespace waited longer");

    recipe.home.run_as_administrator(&recipe.commands("Recipe: caches of CI builds")?).await?;
    recipe.delete("build-2").await?;
    within(PATIENCE, "the cache to be everybody's", async || {
        let volume = stranger.volume().await?;
        ensure!(volume.as_deref() == Some("ci-cache-1"), "it has {volume:?}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stateful_set_that_is_made_again_finds_its_data() -> Result<()> {
    let section = "Recipe: the same claim, made again";
    let cluster = testbed::shared().await?;
    let [objects, config] = yaml(section)?;
    let objects = objects.replace("disks.example.com", testbed::PROVISIONER);
    let recipe = Recipe::follow(cluster, "orders", &objects, config).await?;
    recipe.until_running("db-0").await?;
    let volume = recipe.volume_of("data-db-0").await?;

    let commands = recipe.commands(section)?.replace("$VOLUME", &volume);
    recipe.home.run_as_administrator(&commands).await?;
    let kept = recipe.volumes.get(&volume).await?.spec.and_then(|spec| spec.claim_ref).unwrap_or_default();
    assert_eq!((kept.namespace.as_deref(), kept.name.as_deref()), (Some("orders"), Some("data-db-0")));
    assert_eq!(kept.uid, None);
    let stranger = Stranger::waits(&recipe, "orders-data").await?;
    within(PATIENCE, "the stranger to have a volume", async || stranger.volume().await?.context("it has none")).await?;

    recipe.apply("objects.yaml", &objects).await?;
    recipe.until_running("db-0").await?;
    assert_eq!(recipe.volume_of("data-db-0").await?, volume);
    assert_ne!(stranger.volume().await?, Some(volume));
    recipe.apply_with(&["delete", "--wait=false"], "objects.yaml", &objects).await
}

#[test]
fn every_reason_of_the_rules_is_on_the_page() {
    let quoted: BTreeSet<&str> = PAGE.split('`').skip(1).step_by(2).collect();
    let reason = Regex::new(r#""([A-Z][a-z]+(?:[A-Z][a-z]+)*)""#).unwrap();
    for rules in RULES {
        let code = rules.split("#[cfg(test)]").next().unwrap();
        let reasons: BTreeSet<&str> = reason.captures_iter(code).map(|found| found.extract::<1>().1[0]).collect();
        assert!(reasons.len() > 2, "{reasons:?}");
        let missing: Vec<&&str> = reasons.difference(&quoted).collect();
        assert!(missing.is_empty(), "{missing:?} cannot be looked up");
    }
}

#[test]
fn the_tables_of_the_page_are_those_of_the_rules() {
    let cells = |row: &str| row.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let documented: Vec<Vec<String>> = PAGE.lines().map(cells).collect();
    for rules in RULES {
        let rows = rules.lines().filter_map(|line| line.strip_prefix("//! | ")).map(|row| cells(&format!("| {row}")));
        let rows: Vec<Vec<String>> = rows.collect();
        assert!(rows.len() > 5, "the rules have no table");
        // The line below the head is drawn in another way.
        let (head, rest) = rows.split_at(1);
        let found = documented.windows(rows.len() + 1).any(|found| found[..1] == *head && found[2..] == *rest);
        assert!(found, "the page has another table than {rows:#?}");
    }
}

/// The YAML blocks of a section, of which there must be as many.
pub(crate) fn yaml<const N: usize>(section: &str) -> Result<[&'static str; N]> {
    let found = blocks(section)?.into_iter().filter(|(language, _)| *language == "yaml");
    let found: Vec<&str> = found.map(|(_, content)| content).collect();
    found.try_into().map_err(|found: Vec<&str>| anyhow::anyhow!("{section} has {} blocks", found.len()))
}

/// The blocks of code in a section: language and content.
fn blocks(section: &str) -> Result<Vec<(&'static str, &'static str)>> {
    let (_, text) = PAGE.split_once(&format!("\n## {section}\n")).with_context(|| format!("no section {section}"))?;
    let text = text.split("\n## ").next().unwrap_or_default();
    let code = text.split("```").skip(1).step_by(2);
    code.map(|block| block.split_once('\n').context("a block in one line")).collect()
}

/// A recipe on a control plane, with the operator that it asks for.
struct Recipe {
    home: Home,
    volumes: Api<PersistentVolume>,
    operator: Replica,
}

impl Recipe {
    /// Does what the page says, but for this namespace only, because others test here too.
    async fn follow(cluster: Cluster, namespace: &str, objects: &str, config: &str) -> Result<Self> {
        let volumes = Api::all(cluster.admin().await?);
        let home = Home::at(cluster, namespace.to_owned()).await?;
        apply(&home, &["apply"], "objects.yaml", objects).await?;
        let mut values: Value = serde_saphyr::from_str(config)?;
        values["leaderElection"] = json!({"name": "shared"});
        let operator = home.install("claimkeeper", &values, serde_saphyr::from_str(config)?).await?.start().await?;
        operator.until_ready().await?;
        Ok(Self { home, volumes, operator })
    }

    async fn apply(&self, file: &str, objects: &str) -> Result<()> {
        self.apply_with(&["apply"], file, objects).await
    }

    async fn apply_with(&self, command: &[&str], file: &str, objects: &str) -> Result<()> {
        apply(&self.home, command, file, objects).await
    }

    /// The commands of a section, for the cluster of the test.
    fn commands(&self, section: &str) -> Result<String> {
        let found = blocks(section)?.into_iter().find(|(language, _)| *language == "sh");
        let commands = found.context("there are no commands")?.1;
        Ok(format!("export KUBECONFIG={}\n{commands}", self.home.cluster.admin_kubeconfig().display()))
    }

    async fn until_running(&self, pod: &str) -> Result<()> {
        within(PATIENCE, &format!("pod {pod} to run"), async || {
            let status = self.home.pods.get(pod).await?.status.unwrap_or_default();
            ensure!(status.phase.as_deref() == Some("Running"), "{:?} {:?}", status.phase, status.conditions);
            Ok(())
        })
        .await
    }

    async fn volume_of(&self, claim: &str) -> Result<String> {
        self.home.claims.get(claim).await?.spec.and_then(|spec| spec.volume_name).context("it is not bound")
    }

    async fn delete(&self, pod: &str) -> Result<()> {
        self.home.pods.delete(pod, &DeleteParams::default().grace_period(0)).await?;
        Ok(())
    }

    async fn until_phase(&self, volume: &str, wanted: &str) -> Result<()> {
        within(PATIENCE, &format!("{volume} to be {wanted}"), async || {
            let phase = self.volumes.get(volume).await?.status.and_then(|status| status.phase);
            ensure!(phase.as_deref() == Some(wanted), "it is {phase:?}");
            Ok(())
        })
        .await
    }

    /// Asks, and compares the answer with that of the section.
    fn why(&self, object: &str, section: &str) -> Result<()> {
        let documented = blocks(section)?.into_iter().find(|(language, _)| *language == "text");
        let documented = documented.context("there is no answer")?.1;
        let mut command = Command::new(BINARY);
        let output =
            command.args(["why", object, "--kubeconfig"]).arg(self.home.cluster.admin_kubeconfig()).output()?;
        let answer = format!("$ claimkeeper why {object}\n{}", String::from_utf8_lossy(&output.stdout));
        ensure!(answer == documented, "{answer}");
        Ok(())
    }

    /// While a volume is Released: its class is not counted before.
    async fn expect_documented_metrics(&self) -> Result<()> {
        let (_, text) = self.operator.ask("/metrics").await?;
        let names = documented_metrics(PAGE);
        assert!(names.len() >= 3, "{names:?}");
        let missing: Vec<_> = names.iter().filter(|name| !text.lines().any(|line| line.starts_with(**name))).collect();
        assert!(missing.is_empty(), "{missing:?} are missing in\n{text}");
        Ok(())
    }
}

async fn apply(home: &Home, subcommand: &[&str], file: &str, objects: &str) -> Result<()> {
    let file = home.cluster.directory().join(format!("{}-{file}", home.namespace));
    fs::write(&file, objects)?;
    let mut command = home.cluster.kubectl();
    command.args(subcommand).arg("-f").arg(file);
    let output = tokio::process::Command::from(command).kill_on_drop(true).output().await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

/// Somebody in another namespace who would take any volume of the class.
struct Stranger(Api<PersistentVolumeClaim>);

impl Stranger {
    async fn waits(recipe: &Recipe, class: &str) -> Result<Self> {
        let client = recipe.home.cluster.admin().await?;
        let namespace = recipe.home.cluster.create_namespace("stranger").await?;
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &namespace);
        let claim = json!({
            "metadata": {"name": "greedy"},
            "spec": {
                "storageClassName": class, "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
            },
        });
        claims.create(&PostParams::default(), &serde_json::from_value(claim)?).await?;
        let pod = json!({
            "metadata": {"name": "greedy"},
            "spec": {
                "containers": [{"name": "main", "image": "registry.example/main"}],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "greedy"}}],
            },
        });
        let pods: Api<Pod> = Api::namespaced(client, &namespace);
        pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        Ok(Self(claims))
    }

    async fn volume(&self) -> Result<Option<String>> {
        Ok(self.0.get("greedy").await?.spec.and_then(|spec| spec.volume_name))
    }
}
