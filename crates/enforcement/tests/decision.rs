//! The decision table, decided by the rules alone.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;

use cluster::{Store, store::Slim};
use enforcement::{
    decision::{ADMIT_CLAIM, Verdict, Wanted},
    observation::{Look, Observation},
    observe::{Caches, INDEXES_OF_VOLUMES, asked, interesting_pod, interesting_volume},
};
use platform::admission::Request;
use serde_json::{Value, json};
use table::{Row, Table};

mod table;

const NAMESPACE: &str = "ci";

#[allow(clippy::unnecessary_wraps)] // as rows ask for it
fn uid(pod: &str) -> Option<String> {
    Some(format!("uid-of-{pod}"))
}

/// What the caches have once they are warm.
fn caches(table: &Table, row: &Row) -> Caches {
    let caches = Caches {
        pods: Store::new(vec![interesting_pod], vec![]),
        classes: Store::new(vec![|_| true], vec![]),
        namespaces: Store::new(vec![|_| true], vec![]),
        volumes: Store::new(vec![interesting_volume], INDEXES_OF_VOLUMES.into()),
    };
    for name in table.classes.keys() {
        let class = table.class(name, row.default.as_ref() == Some(name));
        caches.classes.apply(slim(class, &json!({"metadata": {"uid": name}})));
    }
    for name in &row.volumes {
        let read = json!({"metadata": {"uid": name, "resourceVersion": "7"}, "status": {"phase": "Available"}});
        caches.volumes.apply(slim(table.volume(name, NAMESPACE), &read));
    }
    for name in &row.pods {
        caches.pods.apply(slim(table.pod(name, NAMESPACE), &json!({"metadata": {"uid": uid(name)}})));
    }
    let labels = row.label.as_ref().map(|label| json!({"claimkeeper.dev/enforcement": label}));
    caches.namespaces.apply(slim(json!({"metadata": {"name": NAMESPACE, "labels": labels}}), &json!({})));
    caches
}

/// The object as the API server would show it.
fn slim<T: Slim>(mut object: Value, added: &Value) -> T {
    for (part, values) in added.as_object().unwrap() {
        for (key, value) in values.as_object().unwrap() {
            object[part][key] = value.clone();
        }
    }
    T::from_wire(serde_json::from_value(object).unwrap()).unwrap()
}

fn review(row: &Row) -> String {
    let (mut claim, mut old) = (row.claim(NAMESPACE, &uid), row.old(NAMESPACE, &uid));
    for claim in old.iter_mut().chain([&mut claim]) {
        claim["metadata"]["uid"] = "uid-of-the-claim".into();
        if row.terminating {
            claim["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        }
    }
    let operation = if old.is_some() { "UPDATE" } else { "CREATE" };
    let kind = json!({"group": "", "version": "v1", "kind": "PersistentVolumeClaim"});
    json!({
        "uid": "call", "kind": row.kind.as_ref().unwrap_or(&kind), "subResource": row.sub_resource,
        "name": claim["metadata"]["name"], "namespace": NAMESPACE,
        "operation": row.operation.as_deref().unwrap_or(operation), "userInfo": {"username": row.user},
        "dryRun": row.dry_run, "object": claim, "oldObject": old,
    })
    .to_string()
}

/// What the API server would say to a live read: what no cache has does not exist, or nobody answers.
fn look_live(table: &Table, row: &Row, seen: &mut Observation, wanted: Wanted) {
    fn nothing<T>(row: &Row) -> Look<T> {
        if row.unreadable { Look::Failed } else { Look::Missing }
    }
    match wanted {
        Wanted::Class => seen.class = nothing(row),
        Wanted::Volume => seen.named_volume = nothing(row),
        Wanted::Namespace => seen.namespace = nothing(row),
        Wanted::Owner => {
            let owner = seen.write().and_then(|write| write.claim.pod()).unwrap().name.clone();
            let there = row.pods.contains(&owner) && !row.unreadable;
            let pod = || slim(table.pod(&owner, NAMESPACE), &json!({"metadata": {"uid": uid(&owner)}}));
            seen.owner = if there { Look::Known(Arc::new(pod())) } else { nothing(row) };
        }
    }
}

fn decide(table: &Table, row: &Row) -> (Verdict, &'static str, String) {
    let review = review(row);
    let request: Request<'_> = serde_json::from_str(&review).unwrap();
    let mut seen = caches(table, row).observe(&Arc::new(row.settings(NAMESPACE)), asked(&request));
    for _ in 0..5 {
        let decision = ADMIT_CLAIM.decide(&seen);
        let Verdict::Read(wanted) = decision.action else {
            return (decision.action, decision.reason, decision.message.into_owned());
        };
        look_live(table, row, &mut seen, wanted);
    }
    panic!("{}: it reads for ever", row.name)
}

#[test]
fn every_row_is_decided_as_the_table_says() {
    let table = Table::load();
    let mut wrong = Vec::new();
    for row in &table.rows {
        let (verdict, reason, message) = decide(&table, row);
        let word = match verdict {
            Verdict::DenyOnError => "deny",
            verdict => verdict.name(),
        };
        if (word, reason) != row.expected() {
            wrong.push(format!("{}: {word} {reason}, not {:?}: {message}", row.name, row.expected()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_pod_that_was_made_anew_is_read_live_if_the_cache_has_its_namesake() {
    let table = Table::load();
    // Somebody whose word is not taken for it.
    let looked_at = |row: &&Row| row.user == "alice" && row.expected().1 == "OwnedByPod" && !row.pods.is_empty();
    let row = table.rows.iter().find(looked_at).unwrap();
    let request = review(row);
    let request: Request<'_> = serde_json::from_str(&request).unwrap();
    let caches = caches(&table, row);
    for name in &row.pods {
        caches.pods.apply(slim(table.pod(name, NAMESPACE), &json!({"metadata": {"uid": "of-the-one-before"}})));
    }
    let seen = caches.observe(&Arc::new(row.settings(NAMESPACE)), asked(&request));
    assert_eq!(ADMIT_CLAIM.decide(&seen).action, Verdict::Read(Wanted::Owner), "{}", row.name);
}

#[test]
fn the_table_is_big_enough_and_names_every_row_once() {
    let mut names: Vec<String> = Table::load().rows.into_iter().map(|row| row.name).collect();
    assert!(names.len() >= 80, "{}", names.len());
    names.sort();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
}

#[test]
fn every_denial_says_what_to_do() {
    let table = Table::load();
    for row in table.rows.iter().filter(|row| row.expected().0 == "deny" && row.in_process.is_none()) {
        let (_, _, message) = decide(&table, row);
        assert!(message.starts_with("only generic ephemeral volumes are allowed for "), "{}: {message}", row.name);
        assert!(
            message.contains(" provisioner: ") && message.contains("volumeClaimTemplate"),
            "{}: {message}",
            row.name
        );
        assert!(message.contains("accept-ephemeral-storage: \"true\""), "{}: {message}", row.name);
        assert!(message.len() < 1024, "{} does not fit into an event", message.len());
    }
}
