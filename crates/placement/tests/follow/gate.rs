//! Pods that must not run without their volume.

use anyhow::{Context, Result, ensure};
use cluster::ObjectKey;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use placement::{
    patch::{Additions, Place, lift},
    pod::AskedPod,
};
use platform::client;
use rehearsal::Told;
use serde_json::{Value, json};
use testbed::eventually;

use crate::room::{HOSTNAME, INITIAL, ROOM, Room, node_of};

const GATE: &str = "claimkeeper.dev/home-node";

fn gated() -> Value {
    json!({"spec": {"schedulingGates": [{"name": GATE}]}})
}

fn spec(pod: &Pod) -> Value {
    serde_json::to_value(pod).unwrap()["spec"].take()
}

fn required(values: &[&str]) -> Value {
    json!({"key": HOSTNAME, "operator": "In", "values": values})
}

fn with_terms(terms: &Value) -> Value {
    json!({"spec": {"affinity": {"nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}}})
}

#[tokio::test]
async fn a_pod_waits_until_its_home_node_is_back_and_runs_there() -> Result<()> {
    let mut room = Room::prepare("gate", &["b"]).await?;
    room.create_volume("data", &room.durable_on("a")).await?;
    let settings = room.settings(&json!({}))?;
    room.start(settings.clone()).await?;
    let theirs = json!({"key": ROOM, "operator": "Exists"});
    let mut change = gated();
    json_patch::merge(&mut change, &with_terms(&json!([{"matchExpressions": [theirs]}, {}])));
    let uid = room.create_pod("app", "data", &change).await?.uid();
    let Told { kind, note, .. } = room.events.until_told(uid.as_deref(), "WaitingForHomeNode").await?;
    assert_eq!(kind, "Warning");
    for part in [&room.own("a"), &room.own("data"), "claim data", "without end"] {
        assert!(note.contains(part), "{part} is missing: {note}");
    }
    let waiting = room.pods.get("app").await?;
    assert_eq!((node_of(&waiting), &spec(&waiting)["schedulingGates"]), (None, &json!([{"name": GATE}])));

    let key = ObjectKey::new(&room.namespace, "app");
    let why = placement::gate::explain(&room.admin, &settings, &key).await?.unwrap();
    assert_eq!((why.decision, why.reason, &*why.message), ("wait", "WaitingForHomeNode", &*note));

    room.add_node("a", &json!({})).await?;
    let running = room.until_running("app").await?;
    assert_eq!(node_of(&running), Some(room.own("a")));
    assert!(placement::gate::explain(&room.admin, &settings, &key).await?.is_none(), "it waits for nothing");
    let terms = &spec(&running)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let ours = required(&[&room.own("a")]);
    assert_eq!(*terms, json!({"nodeSelectorTerms": [{"matchExpressions": [theirs, ours]}, {}]}));
    assert_eq!(room.events.until_told(uid.as_deref(), "HomeNodeBack").await?.kind, "Normal");
    let events = room.events.about(uid.as_deref()).await?;
    assert_eq!(events.len(), 2, "each once: {events:?}");
    room.until_written(&["pods/app"]).await
}

#[tokio::test]
async fn a_pod_runs_elsewhere_when_its_home_node_is_given_up() -> Result<()> {
    let mut room = Room::prepare("given-up", &["b"]).await?;
    room.annotate_class(&json!({"claimkeeper.dev/node-recovery-timeout": "3s"})).await?;
    room.create_volume("data", &room.durable_on("a")).await?;
    room.create_volume("cache", &room.made_on("b")).await?;
    room.start(room.settings(&json!({}))?).await?;
    let mut change = gated();
    let claim = |name: &str| json!({"name": name, "persistentVolumeClaim": {"claimName": name}});
    change["spec"]["volumes"] = json!([claim("data"), claim("cache")]);
    let uid = room.create_pod("app", "data", &change).await?.uid();
    let Told { kind, note, .. } = room.events.until_told(uid.as_deref(), "HomeNodeGivenUp").await?;
    assert!(kind == "Warning" && note.contains(&room.own("a")) && note.contains("empty"), "{kind}: {note}");
    let running = room.until_running("app").await?;
    assert_eq!(node_of(&running), Some(room.own("b")));
    // The volume that may be left is still worth a wish.
    let affinity = &spec(&running)["affinity"]["nodeAffinity"];
    let ours = json!({"weight": 100, "preference": {"matchExpressions": [required(&[&room.own("b")])]}});
    assert_eq!(*affinity, json!({"preferredDuringSchedulingIgnoredDuringExecution": [ours]}));
    Ok(())
}

#[tokio::test]
async fn a_pod_waits_no_longer_than_there_is_a_reason() -> Result<()> {
    let mut room = Room::prepare("no-reason", &["b"]).await?;
    room.annotate_class(&json!({"claimkeeper.dev/failover-mode": "durability"})).await?;
    let by_class = json!({"spec": {"csi": {"volumeAttributes": {INITIAL: room.own("a")}}}});
    room.create_volume("class", &by_class).await?;
    room.create_volume("noted", &room.durable_on("a")).await?;
    room.create_volume("claim", &room.durable_on("a")).await?;
    room.start(room.settings(&json!({}))?).await?;
    let mut uids = Vec::new();
    for name in ["class", "noted", "claim"] {
        let uid = room.create_pod(name, name, &gated()).await?.uid();
        room.events.until_told(uid.as_deref(), "WaitingForHomeNode").await?;
        uids.push(uid);
    }
    // Somebody says that pods should run, that the volume is elsewhere, and that the claim is not needed.
    room.annotate_class(&json!({"claimkeeper.dev/failover-mode": "availability"})).await?;
    room.events.until_told(uids[0].as_deref(), "NothingToWaitFor").await?;
    room.annotate_volume("noted", &json!({crate::room::SELECTED: room.own("b")})).await?;
    room.events.until_told(uids[1].as_deref(), "HomeNodeBack").await?;
    for name in ["class", "noted"] {
        assert_eq!(node_of(&room.until_running(name).await?), Some(room.own("b")));
    }
    room.claims.delete("claim", &DeleteParams::default()).await?;
    room.events.until_told(uids[2].as_deref(), "NothingToWaitFor").await?;
    Ok(())
}

#[tokio::test]
async fn gates_of_others_stay_and_their_pods_are_not_ours() -> Result<()> {
    let mut room = Room::prepare("gates", &["a"]).await?;
    room.create_volume("data", &room.durable_on("a")).await?;
    room.start(room.settings(&json!({}))?).await?;
    let gates = |names: &[&str]| json!({"spec": {"schedulingGates": names.iter().map(|name| json!({"name": name})).collect::<Vec<_>>()}});
    room.create_pod("theirs", "data", &gates(&["example.dev/other"])).await?;
    room.create_pod("both", "data", &gates(&["example.dev/other", GATE])).await?;
    eventually("our gate to be gone", async || {
        let pod = spec(&room.pods.get("both").await?);
        ensure!(pod["schedulingGates"] == json!([{"name": "example.dev/other"}]), "{}", pod["schedulingGates"]);
        Ok(())
    })
    .await?;
    room.until_written(&["pods/both"]).await?;
    assert_eq!(spec(&room.pods.get("theirs").await?)["schedulingGates"], json!([{"name": "example.dev/other"}]));
    Ok(())
}

#[tokio::test]
async fn a_gate_is_lifted_from_the_pod_that_was_read_and_no_other() -> Result<()> {
    let room = Room::prepare("versions", &[]).await?;
    let mut change = gated();
    change["spec"]["schedulingGates"] =
        json!([{"name": "example.dev/first"}, {"name": GATE}, {"name": "example.dev/last"}]);
    let read = async || -> Result<String> { Ok(serde_json::to_string(&room.pods.get("app").await?)?) };
    let lift = async |pod: &str| -> Result<u16> {
        let home = Additions { required: vec![Place::Hostname("a".into())], ..Additions::default() };
        let patch = lift(&AskedPod::read(pod)?, &home, GATE).context("there is nothing to lift")?;
        let request = http::Request::patch(format!("/api/v1/namespaces/{}/pods/app", room.namespace));
        let request = request.header("Content-Type", "application/json-patch+json").body(patch)?;
        match client::send_unread(&room.admin, request).await {
            Ok(()) => Ok(200),
            Err(kube::Error::Api(status)) => Ok(status.code),
            Err(error) => Err(error.into()),
        }
    };
    room.create_pod("app", "none", &change).await?;
    let first = read().await?;
    let touched = Patch::Merge(json!({"metadata": {"annotations": {"example.dev/touched": "yes"}}}));
    room.pods.patch("app", &PatchParams::default(), &touched).await?;
    assert_eq!(lift(&first).await?, 409, "it has changed");
    let second = read().await?;
    room.delete_pod("app").await?;
    room.create_pod("app", "none", &change).await?;
    assert_eq!(lift(&second).await?, 409, "it is another one");
    let third = read().await?;
    let moved = Patch::Merge(json!({"spec": {"schedulingGates": [{"name": GATE}, {"name": "example.dev/last"}]}}));
    room.pods.patch("app", &PatchParams::default(), &moved).await?;
    assert_eq!(lift(&third).await?, 422, "the gate is not where it was");
    assert_eq!(spec(&room.pods.get("app").await?)["affinity"], Value::Null);
    assert_eq!(lift(&read().await?).await?, 200);
    let lifted = spec(&room.pods.get("app").await?);
    assert_eq!(lifted["schedulingGates"], json!([{"name": "example.dev/last"}]));
    assert_eq!(
        json!({"spec": {"affinity": lifted["affinity"]}}),
        with_terms(&json!([{"matchExpressions": [required(&["a"])]}]))
    );
    Ok(())
}

#[tokio::test]
async fn homes_that_contradict_each_other_are_told_and_not_widened() -> Result<()> {
    let mut room = Room::prepare("apart", &["a"]).await?;
    room.create_volume("one", &room.durable_on("a")).await?;
    room.create_volume("other", &room.durable_on("b")).await?;
    room.start(room.settings(&json!({}))?).await?;
    let mut change = gated();
    let claim = |name: &str| json!({"name": name, "persistentVolumeClaim": {"claimName": name}});
    change["spec"]["volumes"] = json!([claim("one"), claim("other")]);
    let uid = room.create_pod("app", "one", &change).await?.uid();
    room.events.until_told(uid.as_deref(), "WaitingForHomeNode").await?;
    room.add_node("b", &json!({})).await?;
    let Told { kind, note, .. } = room.events.until_told(uid.as_deref(), "HomesContradict").await?;
    assert!(kind == "Warning" && note.contains(&room.own("a")) && note.contains(&room.own("b")), "{kind}: {note}");
    let terms = &spec(&room.pods.get("app").await?)["affinity"]["nodeAffinity"];
    let both = json!([required(&[&room.own("a")]), required(&[&room.own("b")])]);
    assert_eq!(
        terms["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"][0]["matchExpressions"],
        both
    );
    Ok(())
}

#[tokio::test]
async fn a_pod_that_insists_on_a_node_that_is_gone_is_told_how_it_is_helped() -> Result<()> {
    let mut room = Room::prepare("stranded", &["a", "b"]).await?;
    room.create_volume("data", &room.durable_on("a")).await?;
    let settings = room.settings(&json!({}))?;
    room.start(settings.clone()).await?;
    // Nobody has room for it while its node is there.
    let full =
        json!({"spec": {"containers": [{"name": "main", "image": "app", "resources": {"requests": {"cpu": "9k"}}}]}});
    let mut tied = with_terms(&json!([{"matchExpressions": [required(&[&room.own("a")])]}]));
    json_patch::merge(&mut tied, &full);
    let free = room.create_pod("free", "data", &full).await?.uid();
    let uid = room.create_pod("tied", "data", &tied).await?.uid();
    room.remove_node("a").await?;
    let Told { kind, note, .. } = room.events.until_told(uid.as_deref(), "HomeNodeGone").await?;
    let key = ObjectKey::new(&room.namespace, "tied");
    let why = placement::gate::explain(&room.admin, &settings, &key).await?.unwrap();
    assert_eq!((why.reason, &*why.message), ("HomeNodeGone", &*note));
    let command = format!("kubectl get pod tied -n {} -o yaml | kubectl replace --force -f -", room.namespace);
    assert!(kind == "Warning" && note.contains(&command), "{kind}: {note}");
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "tied", "uid": uid, "controller": true});
    tied["metadata"]["ownerReferences"] = json!([owner]);
    let uid = room.create_pod("owned", "data", &tied).await?.uid();
    let command = format!("kubectl delete pod owned -n {}", room.namespace);
    let note = room.events.until_told(uid.as_deref(), "HomeNodeGone").await?.note;
    assert!(note.contains(&command), "{note}");
    room.until_decided("leave", "NotTiedToNode", 1).await?;
    assert!(room.events.about(free.as_deref()).await?.is_empty());
    room.until_written(&[]).await
}
