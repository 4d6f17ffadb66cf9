//! What the claims of a backlog cost in API calls.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use testbed::{AuditLog, AuditedRequest, eventually};
use tokio::time::Instant;

use super::{
    contestant::{Contestant, Programs},
    scene::{STILL, Scene},
};
use crate::bench::{claims, pods::Plan, report::Section};

const STATE: &str = "calls";

pub(crate) async fn run(programs: &Programs, pods: usize, command: String) -> Result<()> {
    let scene = Scene::open(programs).await?;
    Plan::new(pods, 1).create(&scene.client().await?).await?;
    scene.save(STATE).await?;
    let header = ["who", "writes of claims per claim", "other calls per claim", "the other calls"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for contestant in [Contestant::Claimkeeper, Contestant::BEST_PEER] {
        eprintln!("API calls for {pods} pods: {}", contestant.label());
        scene.restore(STATE).await?;
        let (log, client) = (scene.audit()?, scene.client().await?);
        let running = scene.start(contestant).await?;
        claims::wait_for(&client, pods).await?;
        drop(running);
        let requests = complete(&log).await?;
        let own = requests.iter().filter(|request| contestant.users().contains(&request.user.username.as_str()));
        rows.push(row(contestant, pods, own));
    }
    Section {
        title: "Ephemeral volumes: API calls",
        command,
        circumstances: format!(
            "Every request of the program in the API server's audit log, from its start with a backlog of {pods} pods to its end after \
             the\nlast claim. The other calls are made once, or once in a while, however many claims there are."
        ),
        rows,
    }
    .publish()
}

/// Watches are in the log only when they have ended.
async fn complete(log: &AuditLog) -> Result<Vec<AuditedRequest>> {
    let mut seen = (Instant::now(), 0);
    eventually("the audit log to be complete", async || {
        let requests = log.requests()?;
        if requests.len() != seen.1 {
            seen = (Instant::now(), requests.len());
        }
        ensure!(seen.0.elapsed() > STILL, "{} requests", requests.len());
        Ok(requests)
    })
    .await
}

fn row<'a>(contestant: Contestant, pods: usize, requests: impl Iterator<Item = &'a AuditedRequest>) -> Vec<String> {
    let (mut writes, mut others, mut by_call) = (0, 0, BTreeMap::<String, usize>::new());
    for request in requests {
        let resource = request.object_ref.as_ref().map_or("the server", |object| object.resource.as_str());
        let reads = matches!(request.verb.as_str(), "get" | "list" | "watch");
        if resource == "persistentvolumeclaims" && !reads {
            writes += 1;
        } else {
            others += 1;
            *by_call.entry(format!("{} {resource}", request.verb)).or_default() += 1;
        }
    }
    let per_claim = |calls: usize| format!("{:.3}", calls as f64 / pods as f64);
    let calls: Vec<String> = by_call.iter().map(|(call, count)| format!("{count} {call}")).collect();
    vec![contestant.label(), per_claim(writes), per_claim(others), calls.join(", ")]
}
