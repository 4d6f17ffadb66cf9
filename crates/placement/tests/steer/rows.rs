//! The decision table, decided by the API server with the webhook.

use anyhow::{Context, Result, ensure};
use http::Method;
use placement::Settings;
use platform::admission::Answer;
use proptest::{
    strategy::{Strategy, ValueTree},
    test_runner::TestRunner,
};
use rehearsal::{Outcome, STAGEHAND};
use testbed::eventually;

use crate::{
    properties::pods,
    short::Wishes,
    stage::{CLASSES, NODES, Stage},
    table::{Row, Table},
};

const SAMPLE: usize = 60;

#[tokio::test(flavor = "multi_thread")]
async fn every_row_becomes_what_the_table_says_behind_the_api_server() -> Result<()> {
    let (stage, table) = (Stage::open("steer-rows").await?, Table::load());
    set_the_scene(&stage, &table).await?;
    let mut wrong = Vec::new();
    for row in table.rows.iter().filter(|row| row.in_process.is_none()) {
        stage.set(row.settings());
        let outcome = stage.rehearse(&row.pod(&stage.namespace)).await.with_context(|| row.name.clone())?;
        if let Err(error) = compare(row, &outcome, &stage.answers.take()) {
            wrong.push(format!("{}: {error:#}", row.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    what_was_a_valid_pod_still_is(&stage).await
}

/// Any pods, with and without us.
async fn what_was_a_valid_pod_still_is(stage: &Stage) -> Result<()> {
    stage.set(Settings::default());
    let homes = ["node-a", "node-b", "node-c", "node-x"]
        .iter()
        .cycle()
        .zip(["availability", "availability", "durability"].iter().cycle());
    for (number, (node, mode)) in homes.take(8).enumerate() {
        stage.local(&format!("claim-{number}"), node, mode).await?;
    }
    let mut runner = TestRunner::deterministic();
    let mut steered = 0;
    for _ in 0..SAMPLE {
        let pod = pods().new_tree(&mut runner).map_err(|error| anyhow::anyhow!("{error}"))?.current();
        let without = stage
            .actors
            .send(STAGEHAND, Method::POST, &format!("{}?dryRun=All", stage.path("pods")), Some(&pod))
            .await?;
        let with = stage.rehearse(&pod).await?;
        ensure!(without.code == 201, "nobody would take it: {without:?}");
        ensure!(with.code == 201, "{pod} becomes invalid: {with:?}");
        steered += usize::from(stage.answers.take().iter().any(|answer| answer.patch.is_some()));
    }
    ensure!(steered > SAMPLE / 2, "only {steered} were steered");
    Ok(())
}

async fn set_the_scene(stage: &Stage, table: &Table) -> Result<()> {
    for name in table.nodes.keys() {
        stage.actors.make(NODES, &table.node(name)).await?;
    }
    for name in table.classes.keys() {
        stage.actors.make(CLASSES, &table.class(name)).await?;
    }
    let mut volumes = 0;
    for name in table.claims.keys() {
        let (claim, volume) = table.claim(name, &stage.namespace);
        volumes += usize::from(volume.is_some());
        stage.bind((claim, volume)).await?;
    }
    eventually("the caches know everything", async || {
        let caches = &stage.caches;
        let known = (caches.nodes.len(), caches.classes.len(), caches.claims.len());
        let expected = (table.nodes.len(), table.classes.len(), table.claims.len());
        ensure!(known == expected, "{known:?} of {expected:?}");
        let foreign = cluster::ObjectKey::new("", "volume-of-network");
        // One is of a driver that nobody follows.
        ensure!(caches.volumes.len() == volumes - 1 && caches.volumes.has_dropped(&foreign), "volumes are missing");
        anyhow::Ok(())
    })
    .await
}

fn compare(row: &Row, outcome: &Outcome, answers: &[Answer]) -> Result<()> {
    let (decision, reason) = row.expected();
    ensure!(outcome.code == 201, "{outcome:?}");
    if row.not_asked {
        ensure!(answers.is_empty(), "{answers:?}");
        return Ok(());
    }
    // The API server asks again if somebody else has changed the pod after us; here nobody has.
    let [answer] = answers else { anyhow::bail!("{} answers were given", answers.len()) };
    ensure!(answer.reason == reason, "{}: {}", answer.reason, answer.message);
    let (found, expected) = (Wishes::of(&outcome.body), row.becomes());
    ensure!(found == expected, "{found:?}, not {expected:?}");
    let warned = outcome.warnings.len() == row.warns.len()
        && outcome.warnings.iter().zip(&row.warns).all(|(said, part)| said.contains(part.as_str()));
    ensure!(warned, "{:?}, not {:?}", outcome.warnings, row.warns);
    let told = answer.audit.iter().find(|(key, _)| *key == "decision").map(|(_, value)| value.as_str());
    ensure!(told == Some(decision).filter(|decision| *decision != "allow"), "{told:?}");
    Ok(())
}
