//! Volumes that are tied to their nodes.

use anyhow::{Result, ensure};
use kube::{
    ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use placement::Settings;
use rehearsal::Told;
use serde_json::{Value, json};
use testbed::{ControlPlane, Options, eventually};

use crate::room::{HOSTNAME, Room, SELECTED, node_of};

const TOPOLOGY: &str = "topology.example.dev/node";

fn ties() -> Value {
    json!({"mode": "volume-affinity", "topologyKey": TOPOLOGY, "recordFailover": false})
}

fn tied_to(key: &str, value: &str) -> Value {
    let expression = json!({"key": key, "operator": "In", "values": [value]});
    json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}})
}

async fn affinity(room: &Room, name: &str) -> Result<Value> {
    Ok(serde_json::to_value(room.volumes.get(&room.own(name)).await?)?["spec"]["nodeAffinity"].take())
}

async fn until_tied(room: &Room, name: &str, expected: &Value) -> Result<()> {
    eventually(&format!("volume {name} to be tied"), async || {
        let found = affinity(room, name).await?;
        ensure!(found == *expected, "it has {found}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn volumes_are_tied_to_their_home_as_soon_as_they_appear_and_the_scheduler_obeys() -> Result<()> {
    let mut room = Room::prepare("ties", &["plain", "other"]).await?;
    room.add_node("labelled", &json!({TOPOLOGY: "l-1"})).await?;
    room.start(room.settings(&ties())?).await?;
    let labelled = room.create_volume("labelled", &room.made_on("labelled")).await?;
    until_tied(&room, "labelled", &tied_to(TOPOLOGY, "l-1")).await?;
    room.events.until_told(labelled.uid().as_deref(), "TiedToHome").await?;
    // The driver will give its node the label when it comes to it; its value is the name.
    room.create_volume("plain", &room.made_on("plain")).await?;
    until_tied(&room, "plain", &tied_to(TOPOLOGY, &room.own("plain"))).await?;
    for number in 0..3 {
        let name = format!("app-{number}");
        room.create_pod(&name, "labelled", &json!({})).await?;
        assert_eq!(node_of(&room.until_running(&name).await?), Some(room.own("labelled")));
    }
    room.until_written(&[
        &format!("persistentvolumes/{}", room.own("labelled")),
        &format!("persistentvolumes/{}", room.own("plain")),
    ])
    .await
}

#[tokio::test]
async fn a_volume_is_not_tied_to_a_node_that_is_gone_but_when_it_is_back() -> Result<()> {
    let mut room = Room::prepare("homeless", &["b"]).await?;
    let driver = json!({"mode": "volume-affinity", "recordFailover": false});
    room.start(room.settings(&driver)?).await?;
    let volume = room.create_volume("data", &room.made_on("a")).await?;
    let Told { kind, note, .. } = room.events.until_told(volume.uid().as_deref(), "HomeNodeGone").await?;
    assert!(kind == "Warning" && note.contains(&room.own("a")), "{kind}: {note}");
    assert_eq!(affinity(&room, "data").await?, Value::Null);
    room.add_node("a", &json!({})).await?;
    // Without a key of its own the driver's nodes are told apart by their hostname.
    until_tied(&room, "data", &tied_to(HOSTNAME, &room.own("a"))).await
}

#[tokio::test]
async fn what_others_say_about_a_volume_stays_and_so_does_what_nothing_is_known_of() -> Result<()> {
    let mut room = Room::prepare("others", &["a", "b"]).await?;
    let settings = Settings { namespace: Some(room.namespace.clone()), ..room.settings(&ties())? };
    room.start(settings.clone()).await?;
    let with = |terms: &Value| {
        let mut volume = room.made_on("a");
        volume["spec"]["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": terms}});
        volume
    };
    let expression = |key: &str| json!({"key": key, "operator": "In", "values": ["x"]});
    let zone = json!([{"matchExpressions": [expression("topology.kubernetes.io/zone")]}]);
    let more = json!([{"matchExpressions": [expression(TOPOLOGY), expression("topology.kubernetes.io/zone")]}]);
    room.create_volume("zone", &with(&zone)).await?;
    room.create_volume("more", &with(&more)).await?;
    room.create_volume("unknown", &json!({})).await?;
    let mut foreign = room.made_on("a");
    foreign["spec"]["csi"]["driver"] = "other.example.dev".into();
    room.create_volume("foreign", &foreign).await?;
    // Another operator looks after that namespace.
    let mut elsewhere = json!({
        "metadata": {"name": room.own("elsewhere")},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": room.namespace,
            "claimRef": {"namespace": "default", "name": room.own("elsewhere")},
            "csi": {"driver": room.driver(), "volumeHandle": "disks#elsewhere"},
        },
    });
    json_patch::merge(&mut elsewhere, &room.made_on("a"));
    room.volumes.create(&PostParams::default(), &serde_json::from_value(elsewhere)?).await?;
    room.create_volume("ours", &room.made_on("a")).await?;
    until_tied(&room, "ours", &tied_to(TOPOLOGY, &room.own("a"))).await?;
    let why = placement::explain::volume(&room.admin, &settings, &room.own("ours")).await?;
    assert_eq!(why.iter().map(|account| account.reason).collect::<Vec<_>>(), ["NothingSeen", "AlreadyTied"]);
    room.until_decided("leave", "TiedByOther", 2).await?;
    room.until_decided("leave", "HomeUnknown", 1).await?;
    assert_eq!(affinity(&room, "zone").await?["required"]["nodeSelectorTerms"], zone);
    assert_eq!(affinity(&room, "more").await?["required"]["nodeSelectorTerms"], more);
    assert_eq!(affinity(&room, "foreign").await?, Value::Null);
    assert_eq!(affinity(&room, "elsewhere").await?, Value::Null);
    room.until_written(&[&format!("persistentvolumes/{}", room.own("ours"))]).await
}

#[tokio::test]
async fn a_volume_that_moved_stays_tied_where_the_server_says_so_and_that_is_told_once() -> Result<()> {
    let mut room = Room::prepare("immutable", &["a", "b"]).await?;
    room.start(room.settings(&ties())?).await?;
    let volume = room.create_volume("data", &room.made_on("a")).await?;
    until_tied(&room, "data", &tied_to(TOPOLOGY, &room.own("a"))).await?;
    room.annotate_volume("data", &json!({SELECTED: room.own("b")})).await?;
    let Told { kind, note, .. } = room.events.until_told(volume.uid().as_deref(), "AffinityImmutable").await?;
    assert!(kind == "Warning" && note.contains("MutablePVNodeAffinity"), "{kind}: {note}");
    let before = room.decided("leave", "AffinityImmutable");
    room.annotate_volume("data", &json!({"example.dev/look": "again"})).await?;
    room.until_decided("leave", "AffinityImmutable", before + 1).await?;
    assert_eq!(affinity(&room, "data").await?, tied_to(TOPOLOGY, &room.own("a")));
    let events = room.events.about(volume.uid().as_deref()).await?;
    assert_eq!(events.iter().filter(|told| told.reason == "AffinityImmutable").count(), 1, "{events:?}");
    assert_eq!(room.decided("retie", "TiedToNewHome"), 0);
    let user = format!("system:serviceaccount:{}:claimkeeper", room.namespace);
    let requests = room.cluster.audit_log().user(user).requests()?;
    let refused = requests.iter().filter(|request| request.code() == Some(422)).count();
    assert_eq!(refused, 1, "a server that has said no is not asked again");
    Ok(())
}

#[tokio::test]
async fn a_volume_that_moved_is_tied_anew_where_the_server_allows_it() -> Result<()> {
    let gate = "--feature-gates=MutablePVNodeAffinity=true";
    let options = Options::default().name("mutable").nodes(1).provisioner(false).apiserver_flag(gate);
    let control_plane = ControlPlane::start(options).await?;
    let mut room = Room::on(control_plane.cluster(), "mutable", &["a", "b"]).await?;
    for node in ["a", "b"] {
        let label = json!({"metadata": {"labels": {TOPOLOGY: node}}});
        let patch = Patch::Merge(label);
        room.nodes.patch(&room.own(node), &PatchParams::default(), &patch).await?;
    }
    room.start(room.settings(&ties())?).await?;
    room.create_volume("data", &room.made_on("a")).await?;
    until_tied(&room, "data", &tied_to(TOPOLOGY, "a")).await?;
    room.annotate_volume("data", &json!({SELECTED: room.own("b")})).await?;
    until_tied(&room, "data", &tied_to(TOPOLOGY, "b")).await?;
    room.create_pod("app", "data", &json!({})).await?;
    assert_eq!(node_of(&room.until_running("app").await?), Some(room.own("b")));
    // Who says more knows more.
    let mut theirs = room.made_on("a");
    let expression = |key: &str| json!({"key": key, "operator": "In", "values": ["b"]});
    let terms = json!([{"matchExpressions": [expression(TOPOLOGY), expression("topology.kubernetes.io/zone")]}]);
    theirs["spec"]["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": terms}});
    room.create_volume("theirs", &theirs).await?;
    room.until_decided("leave", "TiedByOther", 1).await?;
    assert_eq!(affinity(&room, "theirs").await?["required"]["nodeSelectorTerms"], terms);
    Ok(())
}

#[tokio::test]
async fn switching_to_affinity_ties_what_is_there_and_switching_back_unties_nothing() -> Result<()> {
    let mut room = Room::prepare("switch", &["a", "b"]).await?;
    room.create_volume("first", &room.made_on("a")).await?;
    let by_webhook = json!({"topologyKey": TOPOLOGY, "recordFailover": false});
    room.start(room.settings(&by_webhook)?).await?;
    room.until_decided("leave", "NothingSeen", 1).await?;
    assert_eq!(affinity(&room, "first").await?, Value::Null);
    room.process.kill();
    room.start(room.settings(&ties())?).await?;
    until_tied(&room, "first", &tied_to(TOPOLOGY, &room.own("a"))).await?;
    room.process.kill();
    room.start(room.settings(&by_webhook)?).await?;
    room.create_volume("second", &room.made_on("b")).await?;
    // A pod of the untied volume is steered: behind the gate it gets its term.
    let gated = json!({"spec": {"schedulingGates": [{"name": "claimkeeper.dev/home-node"}]}});
    room.create_pod("app", "second", &gated).await?;
    assert_eq!(node_of(&room.until_running("app").await?).map(|node| node.starts_with(&room.namespace)), Some(true));
    let preferred = serde_json::to_value(room.pods.get("app").await?)?["spec"]["affinity"].take();
    assert!(preferred.to_string().contains(&room.own("b")), "{preferred}");
    assert_eq!(affinity(&room, "first").await?, tied_to(TOPOLOGY, &room.own("a")));
    assert_eq!(affinity(&room, "second").await?, Value::Null);
    Ok(())
}
