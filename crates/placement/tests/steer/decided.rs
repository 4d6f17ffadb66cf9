//! The decision table, decided by the rules alone.

use std::sync::Arc;

use cluster::{Store, decision::Decision, store::Slim};
use placement::{
    Caches, INDEXES_OF_NODES, INDEXES_OF_PODS, INDEXES_OF_VOLUMES, interesting_pod, interesting_volume,
    patch::patch,
    pod::AskedPod,
    steer::{
        decision::{STEER_POD, Verdict, warnings},
        observation::{Asked, Observation, Outcome},
        observe::makes_pod,
    },
};
use platform::admission::Request;
use serde_json::{Value, json};

use crate::{
    short::Wishes,
    table::{Row, Table, widest},
};

const NAMESPACE: &str = "ci";

/// Stores as the operator has them.
pub(crate) fn stores() -> Caches {
    let (interested, wanted) = (widest(), widest());
    let trim = move |volume: &mut cluster::Volume| volume.keep_only(|key| wanted.reads(key));
    let interest = move |volume: &cluster::Volume| interesting_volume(volume, &interested);
    let wanted = widest();
    let of_node = move |node: &mut cluster::Node| node.keep_only(|key| wanted.is_node_key(key));
    Caches {
        pods: Store::new(vec![interesting_pod], INDEXES_OF_PODS.into()),
        claims: Store::new(vec![|_| true], vec![]),
        classes: Store::new(vec![|_| true], vec![]),
        volumes: Store::trimmed(vec![Box::new(interest)], INDEXES_OF_VOLUMES.into(), trim).remembering_dropped(),
        nodes: Store::trimmed(vec![Box::new(|_| true)], INDEXES_OF_NODES.into(), of_node),
    }
}

/// What the caches have once they are warm.
fn caches(table: &Table) -> Caches {
    let caches = stores();
    table.nodes.keys().for_each(|name| caches.nodes.apply(slim(table.node(name))));
    table.classes.keys().for_each(|name| caches.classes.apply(slim(table.class(name))));
    for name in table.claims.keys() {
        let (claim, volume) = table.claim(name, NAMESPACE);
        caches.claims.apply(slim(claim));
        if let Some(volume) = volume {
            caches.volumes.apply(slim(volume));
        }
    }
    caches
}

/// The object as the API server would show it.
pub(crate) fn slim<T: Slim>(mut object: Value) -> T {
    object["metadata"]["uid"] = object["metadata"]["name"].clone();
    object["metadata"]["resourceVersion"] = "7".into();
    T::from_wire(serde_json::from_value(object).unwrap()).unwrap()
}

fn review(row: &Row, pod: &Value) -> String {
    let kind = json!({"group": "", "version": "v1", "kind": "Pod"});
    json!({
        "uid": "call", "kind": row.kind.as_ref().unwrap_or(&kind), "subResource": row.sub_resource, "namespace": NAMESPACE,
        "operation": row.operation.as_deref().unwrap_or("CREATE"), "object": pod,
    })
    .to_string()
}

/// What the API server would say to a live read: what no cache has does not exist, or nobody answers.
fn look_live(row: &Row, seen: &mut Observation) {
    for volume in &mut seen.volumes {
        let missing = match &volume.outcome {
            Outcome::ClaimNotCached => Outcome::ClaimMissing,
            Outcome::VolumeNotCached(name) => Outcome::VolumeMissing(name.clone()),
            _ => continue,
        };
        volume.outcome = if row.unreadable { Outcome::Failed { may_be_durable: true } } else { missing };
    }
}

/// What is decided, the warnings, and what becomes of the pod.
fn decide(caches: &Caches, row: &Row, pod: &Value) -> (Decision<Verdict>, Vec<String>, Value) {
    let review = review(row, pod);
    let request: Request<'_> = serde_json::from_str(&review).unwrap();
    let settings = Arc::new(row.settings());
    let asked = makes_pod(&request).then(|| AskedPod::read(request.object.unwrap().get()));
    let mut seen = match &asked {
        None => Observation::without_pod(&settings, Asked::Other),
        Some(Ok(pod)) => caches.observe(&settings, NAMESPACE, pod),
        Some(Err(error)) => Observation::without_pod(&settings, Asked::Unreadable(error.to_string())),
    };
    let mut decision = STEER_POD.decide(&seen);
    if decision.action == Verdict::Read {
        look_live(row, &mut seen);
        decision = STEER_POD.decide(&seen);
    }
    let asked = asked.and_then(Result::ok);
    let patch = asked.zip(decision.action.additions()).and_then(|(asked, additions)| patch(&asked, additions));
    let warnings = warnings(&seen, &decision);
    (decision, warnings, patch.map_or_else(|| pod.clone(), |bytes| patched(pod, &bytes)))
}

/// The pod with a patch.
pub(crate) fn patched(pod: &Value, patch: &[u8]) -> Value {
    let mut pod = pod.clone();
    json_patch::patch(&mut pod, &serde_json::from_slice::<json_patch::Patch>(patch).unwrap()).unwrap();
    pod
}

#[test]
fn every_row_is_decided_as_the_table_says() {
    let table = Table::load();
    let caches = caches(&table);
    let mut wrong = Vec::new();
    for row in &table.rows {
        let pod = row.pod(NAMESPACE);
        let (decision, warned, after) = decide(&caches, row, &pod);
        let word = if decision.action == Verdict::DenyOnError { "deny" } else { decision.action.name() };
        if (word, decision.reason) != row.expected() {
            wrong.push(format!("{}: {word} {}: {}", row.name, decision.reason, decision.message));
        }
        let (found, expected) = (Wishes::of(&after), row.becomes());
        if found != expected && !row.not_asked && pod["spec"]["volumes"].is_array() {
            wrong.push(format!("{}: becomes {found:?}, not {expected:?}", row.name));
        }
        let told =
            warned.len() == row.warns.len() && warned.iter().zip(&row.warns).all(|(said, part)| said.contains(part));
        if !told {
            wrong.push(format!("{}: warns {warned:?}, not {:?}", row.name, row.warns));
        }
        if warned.iter().any(|warning| warning.len() > 256) {
            wrong.push(format!("{}: the API server may cut off {warned:?}", row.name));
        }
        let (again, _, twice) = decide(&caches, row, &after);
        if twice != after || again.reason != decision.reason {
            wrong.push(format!("{}: asked again, it becomes {twice}", row.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_table_is_big_enough_names_every_row_once_and_every_defect() {
    let rows = Table::load().rows;
    let mut names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
    assert!(names.len() >= 100, "{}", names.len());
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
    let defects = rows.iter().filter_map(|row| row.defect.as_ref()?.split(':').next()?.parse().ok());
    assert_eq!(defects.collect::<std::collections::BTreeSet<u8>>(), (1..=8).collect());
}

#[test]
fn what_we_do_not_know_of_a_pod_stays_and_the_patch_is_small() {
    let table = Table::load();
    let caches = caches(&table);
    let row = table.rows.iter().find(|row| row.name == "what must hold narrows each of the author's terms").unwrap();
    let mut pod = row.pod(NAMESPACE);
    pod["spec"]["notInvented"] = json!({"yet": [1, 2]});
    pod["spec"]["affinity"]["nodeAffinity"]["neither"] = json!(true);
    pod["spec"]["affinity"]["podAffinity"] = json!({});
    let (_, _, after) = decide(&caches, row, &pod);
    let mut without = after.clone();
    for (place, term) in
        pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
            .as_array()
            .unwrap()
            .iter()
            .enumerate()
    {
        without["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
            [place] = term.clone();
    }
    assert_eq!(without, pod);
    assert_ne!(after, pod);
}

#[test]
fn a_sentence_about_many_volumes_ends() {
    let table = Table::load();
    let caches = caches(&table);
    let row = table.rows.iter().find(|row| row.name == "a volume is followed to where it was made").unwrap();
    let mut pod = row.pod(NAMESPACE);
    let volume = |number| json!({"name": format!("v{number}"), "persistentVolumeClaim": {"claimName": "gone"}});
    pod["spec"]["volumes"] = (0..500).map(volume).collect();
    let (decision, warned, _) = decide(&caches, row, &pod);
    assert!(decision.message.len() < 2_000 && decision.message.ends_with("; and 490 more"), "{}", decision.message);
    assert_eq!(warned.len(), 10);
}

#[test]
fn one_volume_among_very_many_still_counts() {
    let table = Table::load();
    let caches = caches(&table);
    let row = table.rows.iter().find(|row| row.name == "a volume is followed to where it was made").unwrap();
    let mut pod = row.pod(NAMESPACE);
    let volume = |number| {
        let claim = if number == 0 { "b1" } else { "a1" };
        json!({"name": format!("v{number}"), "persistentVolumeClaim": {"claimName": claim}})
    };
    pod["spec"]["volumes"] = (0..300).map(volume).collect();
    let (_, _, after) = decide(&caches, row, &pod);
    let wish = |weight, host: &str| (weight, vec![format!("host={host}")]);
    assert_eq!(Wishes::of(&after).preferred, Some(vec![wish(100, "node-a"), wish(1, "host-of-b")]));
}
