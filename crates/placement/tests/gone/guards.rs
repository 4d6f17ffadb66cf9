//! What is not touched, and what is told instead.

use anyhow::Result;
use kube::{ResourceExt, api::PostParams};
use placement::{gone, settings::Percent};
use serde_json::json;

use crate::room::{RECREATE, Room, SINCE};

const HOSTNAME: &str = "kubernetes.io/hostname";

fn recreated() -> serde_json::Value {
    json!({"metadata": {"annotations": {RECREATE: "true"}}})
}

#[tokio::test]
async fn claims_that_nobody_makes_again_retained_volumes_and_other_classes_are_left_alone() -> Result<()> {
    let room = Room::open("guards").await?;
    let class = room.create_class("local", "delete", "nobody.example.dev").await?;
    let report = room.create_class("report", "report", "nobody.example.dev").await?;
    let off = room.create_class("off", "off", "nobody.example.dev").await?;
    let typo = room.create_class("typo", "Delete", "nobody.example.dev").await?;
    let node = room.add_node("home", "a").await?;
    let retained = json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}});
    let retained = room.create_bound("retained", &class, (HOSTNAME, &node), recreated(), retained).await?;
    room.until_noted(&retained).await?;
    room.create_noted("plain", &class, &node, json!({})).await?;
    room.create_noted("report", &report, &node, recreated()).await?;
    room.create_noted("typo", &typo, &node, recreated()).await?;
    let zone = ("topology.kubernetes.io/zone", room.own("zone"));
    let zoned = room.create_bound("zoned", &class, (zone.0, &zone.1), recreated(), json!({})).await?;
    let off = room.create_bound("off", &off, (HOSTNAME, &node), recreated(), json!({})).await?;
    room.create_noted("made", &class, &node, recreated()).await?;
    let names = ["retained", "plain", "report", "typo", "zoned", "off"];
    let mut uids = Vec::new();
    for name in names {
        uids.push(room.uid_of_claim(name).await?);
    }
    let made = room.uid_of_claim("made").await?;

    room.cluster.remove_node(&node).await?;
    room.until_another("made", made.as_deref()).await?;
    for (uid, reason) in uids.iter().zip(["Retained", "NobodyRecreates", "NodeGone", "NodeGone"]) {
        room.told(uid.as_deref(), reason).await?;
    }
    for (name, uid) in names.into_iter().zip(&uids) {
        assert_eq!(room.uid_of_claim(name).await?, *uid, "{name}");
        assert!(room.claims.get(name).await?.metadata.deletion_timestamp.is_none(), "{name}");
    }
    for untouched in [&zoned, &off] {
        let annotations = room.volumes.get(untouched).await?.annotations().clone();
        assert!(!annotations.keys().any(|key| key.starts_with("claimkeeper.dev/")), "{annotations:?}");
    }
    let classes: kube::Api<k8s_openapi::api::storage::v1::StorageClass> = kube::Api::all(room.admin.clone());
    let told = room.told(classes.get(&typo).await?.uid().as_deref(), "NodeGoneUnclear").await?;
    assert!(told.contains(r#""Delete", but must be off, report or delete"#), "{told}");
    Ok(())
}

#[tokio::test]
async fn nothing_is_deleted_when_too_many_nodes_vanish_together() -> Result<()> {
    let mut room = Room::prepare("brake").await?;
    let settings = placement::Settings { node_gone_brake: Percent(0), ..room.defaults() };
    room.restart(settings.clone()).await?;
    let class = room.create_class("local", "delete", "nobody.example.dev").await?;
    let (one, two) = (room.add_node("one", "a").await?, room.add_node("two", "b").await?);
    room.create_noted("one", &class, &one, recreated()).await?;
    room.create_noted("two", &class, &two, recreated()).await?;
    let uids = [room.uid_of_claim("one").await?, room.uid_of_claim("two").await?];
    // While nobody looks, so that both are found missing at once.
    room.process.kill();
    room.cluster.remove_node(&one).await?;
    room.cluster.remove_node(&two).await?;
    room.restart(settings).await?;
    for (name, uid) in ["one", "two"].into_iter().zip(&uids) {
        let told = room.told(uid.as_deref(), "TooManyNodesGone").await?;
        assert!(told.contains("nothing is deleted"), "{told}");
        assert_eq!(room.uid_of_claim(name).await?, *uid);
    }
    assert_eq!(room.decided("delete-claim", "ClaimDeleted"), 0);
    assert!(
        room.process
            .registry
            .encode()
            .contains(r#"claimkeeper_placement_node_gone{decision="report",reason="TooManyNodesGone"} 2"#)
    );
    // Whoever says that it is meant.
    room.process.kill();
    room.restart(room.defaults()).await?;
    for (name, uid) in ["one", "two"].into_iter().zip(&uids) {
        room.until_another(name, uid.as_deref()).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_claim_that_a_pod_on_a_living_node_uses_is_kept() -> Result<()> {
    let room = Room::open("inuse").await?;
    let class = room.create_class("local", "delete", "nobody.example.dev").await?;
    let (lost, lives) = (room.add_node("lost", "a").await?, room.add_node("lives", "b").await?);
    room.create_noted("data", &class, &lost, recreated()).await?;
    let uid = room.uid_of_claim("data").await?;
    let pod = json!({
        "metadata": {"name": "user"},
        "spec": {
            "nodeName": lives, "containers": [{"name": "c", "image": "none"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        },
    });
    room.pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    room.cluster.remove_node(&lost).await?;
    let told = room.told(uid.as_deref(), "InUse").await?;
    assert!(told.contains(&format!("pod user on node {lives} uses claim")), "{told}");
    assert!(room.claims.get("data").await?.metadata.deletion_timestamp.is_none());
    Ok(())
}

#[tokio::test]
async fn an_operator_that_may_not_delete_tells_it() -> Result<()> {
    let mut room = Room::prepare("forbidden").await?;
    room.deletes = false;
    let account = format!("system:serviceaccount:{}:claimkeeper", room.namespace);
    room.cluster.expect_refusals(&account, ("", "persistentvolumeclaims", "create"))?;
    let settings = room.defaults();
    let room = room.start(settings).await?;
    let class = room.create_class("local", "delete", "nobody.example.dev").await?;
    let node = room.add_node("home", "a").await?;
    let volume = room.create_noted("data", &class, &node, recreated()).await?;
    let uid = room.uid_of_claim("data").await?;
    room.cluster.remove_node(&node).await?;
    let told = room.told(uid.as_deref(), "NodeGoneFailed").await?;
    assert!(told.contains("cannot create resource \"persistentvolumeclaims\""), "{told}");
    let volume = room.volumes.get(&volume).await?;
    // What could not be made again was neither deleted nor written down.
    assert!(room.claims.get("data").await?.metadata.deletion_timestamp.is_none());
    assert!(volume.annotations().contains_key(SINCE) && !volume.annotations().contains_key(crate::room::PENDING));
    Ok(())
}

#[tokio::test]
async fn what_is_decided_can_be_asked_for_and_is_listed() -> Result<()> {
    let room = Room::open("why").await?;
    let class = room.create_class("local", "delete", "nobody.example.dev").await?;
    let (lost, lives) = (room.add_node("lost", "a").await?, room.add_node("lives", "b").await?);
    let plain = room.create_noted("plain", &class, &lost, json!({})).await?;
    let alive = room.create_noted("alive", &class, &lives, json!({})).await?;
    room.cluster.remove_node(&lost).await?;
    room.told(room.uid_of_claim("plain").await?.as_deref(), "NobodyRecreates").await?;

    let settings = room.defaults();
    let why = async |volume: &str| gone::why::explain(&room.admin, &settings, volume).await;
    let account = why(&plain).await?.unwrap();
    assert_eq!((account.decision, account.reason), ("report", "NobodyRecreates"));
    assert_eq!(account.failed, Some("somebody makes its claim again"));
    assert!(account.held.contains(&"no such machine is in the cluster"));
    assert_eq!(why(&alive).await?.unwrap().reason, "NodeThere");
    for (node, volume, reason) in [(&lost, &plain, "NobodyRecreates"), (&lives, &alive, "NodeThere")] {
        let accounts = gone::why::explain_node(&room.admin, &settings, node).await?;
        let told: Vec<_> = accounts.iter().map(|account| (account.about.as_str(), account.reason)).collect();
        assert_eq!(told, [(format!("volume {volume} and its node").as_str(), reason)]);
    }
    let found = gone::audit::find(&room.admin, &settings, Some(&room.namespace)).await?;
    let found: Vec<_> = found.iter().map(|row| (row.name.as_str(), row.decision, row.reason)).collect();
    assert_eq!(found, [(plain.as_str(), "report", "NobodyRecreates")]);
    Ok(())
}
