//! The decision table, decided by the API server alone: with the policies that stand in for the webhook, and without it.
//!
//! The control plane has no controllers, so that what is there stays as a row wants it. Volumes are left out: no policy can
//! look at them.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;

use anyhow::Result;
use room::{Room, Verdict};
use testbed::{ControlPlane, Options};

use crate::table::{Row, Table};

mod room;
#[path = "../table/mod.rs"]
mod table;

/// What is decided by looking at a pod is decided by not looking at it.
fn reason_of_policies(reason: &str) -> &str {
    match reason {
        "OwnerNotFound" | "OwnerDoesNotUseIt" => "OwnerNotTrusted",
        reason => reason,
    }
}

/// Reasons to leave a claim alone that are not noted: the claims of everybody else would fill the audit log.
const NOT_NOTED: [&str; 6] = ["NoClass", "ClassNotFound", "OtherDriver", "BeingDeleted", "OwnNamespace", "Unhandled"];

fn wrong(row: &Row, verdict: &Verdict) -> Option<String> {
    let (word, reason) = row.expected();
    let Verdict { action, reason: noted, message } = verdict;
    if *action != row.expected_of_policies() {
        return Some(format!("{}: {action} {noted:?}, not {}: {message}", row.name, row.expected_of_policies()));
    }
    if row.differs().is_some() {
        return (word == *action).then(|| format!("{}: it is said to differ and does not", row.name));
    }
    let noticed = |reason: &&str| !NOT_NOTED.contains(reason) && !row.wants_no_class();
    let expected = Some(reason_of_policies(reason)).filter(noticed);
    if noted.as_deref() != expected {
        return Some(format!("{}: the reason is {noted:?}, not {expected:?}", row.name));
    }
    let helps = message.contains("only generic ephemeral volumes are allowed for ")
        && message.contains(" provisioner: class ")
        && message.contains("volumeClaimTemplate: {spec: {storageClassName: ")
        && message.contains("accept-ephemeral-storage: \"true\"");
    (word == "deny" && !helps).then(|| format!("{}: the message does not help: {message}", row.name))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_row_is_decided_by_the_api_server_alone_as_the_table_says() -> Result<()> {
    let options = Options::default().name("policies").without_controller_manager().without_scheduler().nodes(0);
    let control_plane = ControlPlane::start(options.provisioner(false)).await?;
    let table = Table::load();
    let rows: Vec<&Row> = table.rows.iter().filter(|row| row.in_process.is_none()).collect();
    assert!(rows.len() >= 80, "{}", rows.len());

    let room = Room::furnish(control_plane.cluster(), &table, &rows).await?;
    let (mut ordinary, mut of_default): (Vec<_>, BTreeMap<&str, Vec<_>>) = (Vec::new(), BTreeMap::new());
    for (number, row) in rows.iter().enumerate() {
        match row.default.as_deref() {
            None => ordinary.push(number),
            Some(class) => of_default.entry(class).or_default().push(number),
        }
    }
    room.ask_all(&rows, &ordinary).await?;
    for (class, numbers) in of_default {
        room.make_default(class, true).await?;
        room.ask_all(&rows, &numbers).await?;
        room.make_default(class, false).await?;
    }

    let verdicts = room.verdicts(rows.len()).await?;
    let wrong: Vec<String> = rows.iter().zip(&verdicts).filter_map(|(row, verdict)| wrong(row, verdict)).collect();
    assert!(wrong.is_empty(), "{} of {} rows:\n{}", wrong.len(), rows.len(), wrong.join("\n"));
    Ok(())
}

/// The rows that policies cannot decide as the webhook does, as the documentation lists them.
fn differences(table: &Table) -> String {
    let head = "| claim | webhook | policies | because |\n|---|---|---|---|\n".to_owned();
    let rows = table.rows.iter().filter_map(|row| Some((row, row.differs()?)));
    rows.fold(head, |text, (row, why)| {
        text + &format!("| {} | {} | {} | {why} |\n", row.name, row.expected().0, row.expected_of_policies())
    })
}

#[test]
fn the_documentation_lists_what_policies_cannot_decide() {
    let page = include_str!("../../../../docs/enforcement.md");
    let list = differences(&Table::load());
    assert!(page.contains(&list), "docs/enforcement.md must have this list:\n{list}");
}
