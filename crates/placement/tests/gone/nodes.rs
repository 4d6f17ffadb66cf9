//! Which node is gone, and which is not.

use anyhow::{Result, ensure};
use kube::{
    ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::json;
use testbed::eventually;

use crate::room::{HOME_NODE, RECREATE, Room, SINCE};

fn recreated() -> serde_json::Value {
    json!({"metadata": {"annotations": {RECREATE: "true"}}})
}

#[tokio::test]
async fn the_machine_is_noted_and_one_that_is_not_ready_or_cordoned_is_not_gone() -> Result<()> {
    let room = Room::open("notready").await?;
    let class = room.create_class("local", "delete", "nobody.example.dev").await?;
    let (sick, lost) = (room.add_node("sick", "a").await?, room.add_node("lost", "b").await?);
    let kept = room.create_noted("kept", &class, &sick, recreated()).await?;
    let note = room.until_noted(&kept).await?;
    let expected = json!({
        "name": sick, "uid": room.nodes.get(&sick).await?.uid(), "systemUUID": "s-a", "machineID": "m-a", "providerID": "",
        "tie": format!("kubernetes.io/hostname={sick}"), "volume": room.volumes.get(&kept).await?.uid(),
    });
    assert_eq!(note, expected);
    let marker = room.create_noted("marker", &class, &lost, recreated()).await?;
    // Nobody looks after a node that kwok does not know any more.
    let patch = Patch::Merge(
        json!({"metadata": {"labels": {"testbed.claimkeeper.dev/kubelet": null}}, "spec": {"unschedulable": true}}),
    );
    room.nodes.patch(&sick, &PatchParams::default(), &patch).await?;
    let unready = json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}});
    room.nodes.patch_status(&sick, &PatchParams::default(), &Patch::Strategic(unready)).await?;
    let uid = room.uid_of_claim("kept").await?;
    let marker_uid = room.uid_of_claim("marker").await?;
    room.cluster.remove_node(&lost).await?;
    room.until_another("marker", marker_uid.as_deref()).await?;
    room.until_gone(&marker).await?;
    assert_eq!(room.uid_of_claim("kept").await?, uid);
    assert!(!room.volumes.get(&kept).await?.annotations().contains_key(SINCE));
    Ok(())
}

#[tokio::test]
async fn a_machine_that_comes_back_is_known_and_another_one_of_its_name_is_not_it() -> Result<()> {
    let mut room = Room::prepare("back").await?;
    room.restart(room.defaults()).await?;
    // Nothing is deleted of this class until the test has seen who came back.
    let class = room.create_class("local", "report", "nobody.example.dev").await?;
    let node = room.add_node("home", "a").await?;
    let volume = room.create_noted("data", &class, &node, recreated()).await?;
    let first = room.nodes.get(&node).await?.uid();

    room.cluster.remove_node(&node).await?;
    let uid = room.uid_of_claim("data").await?;
    let told = room.told(uid.as_deref(), "NodeGone").await?;
    assert!(told.contains(&format!("node {node} is gone since")), "{told}");
    room.told(room.volumes.get(&volume).await?.uid().as_deref(), "NodeGone").await?;
    assert!(room.volumes.get(&volume).await?.annotations().contains_key(SINCE));

    room.add_node("home", "a").await?;
    room.told(uid.as_deref(), "NodeBack").await?;
    let back = room.volumes.get(&volume).await?;
    assert!(!back.annotations().contains_key(SINCE));
    assert!(back.annotations()[HOME_NODE].contains(&room.nodes.get(&node).await?.uid().unwrap()));
    assert!(!back.annotations()[HOME_NODE].contains(&first.unwrap()));

    // Another machine, while nobody looks.
    room.process.kill();
    room.cluster.remove_node(&node).await?;
    room.add_node("home", "b").await?;
    let classes: kube::Api<k8s_openapi::api::storage::v1::StorageClass> = kube::Api::all(room.admin.clone());
    let patch = Patch::Merge(json!({"metadata": {"annotations": {"claimkeeper.dev/node-gone": "delete"}}}));
    classes.patch(&class, &PatchParams::default(), &patch).await?;
    room.restart(room.defaults()).await?;
    let told = room.told(uid.as_deref(), "ClaimDeleted").await?;
    assert!(told.contains("is another machine"), "{told}");
    room.until_another("data", uid.as_deref()).await?;
    room.until_gone(&volume).await
}

#[tokio::test]
async fn who_cannot_be_told_apart_is_only_reported() -> Result<()> {
    let room = Room::open("unknown").await?;
    let class = room.create_class("local", "delete", "nobody.example.dev").await?;
    let silent = room.add_node("silent", "").await?;
    let volume = room.create_noted("data", &class, &silent, recreated()).await?;
    let uid = room.uid_of_claim("data").await?;
    // The volume of a node that nobody has ever seen.
    let never = ("kubernetes.io/hostname", "never-there");
    room.create_bound("never", &class, never, recreated(), json!({})).await?;
    let never = room.uid_of_claim("never").await?;
    let told = room.told(never.as_deref(), "IdentityUnknown").await?;
    assert!(told.contains("nobody noted which machine it was"), "{told}");

    // Quick enough that nothing is deleted before the other one is there: nobody acts meanwhile.
    let mut room = room;
    room.process.kill();
    room.nodes.delete(&silent, &DeleteParams::default()).await?;
    eventually("the end of the node", async || {
        ensure!(room.nodes.get_opt(&silent).await?.is_none(), "it is there");
        Ok(())
    })
    .await?;
    room.add_node("silent", "").await?;
    room.restart(room.defaults()).await?;
    let told = room.told(uid.as_deref(), "IdentityUnknown").await?;
    assert!(told.contains("nobody can tell whether it is the same machine"), "{told}");
    for (claim, uid) in [("data", uid), ("never", never)] {
        assert_eq!(room.uid_of_claim(claim).await?, uid);
    }
    room.until_phase(&volume, "Bound").await?;
    assert_eq!(room.decided("delete-claim", "ClaimDeleted"), 0);
    Ok(())
}

#[tokio::test]
async fn a_node_that_merely_lost_its_label_is_there() -> Result<()> {
    let room = Room::open("label").await?;
    let class = room.create_class("local", "delete", "nobody.example.dev").await?;
    let (node, lost) = (room.add_node("relabelled", "a").await?, room.add_node("lost", "b").await?);
    room.create_noted("kept", &class, &node, recreated()).await?;
    room.create_noted("marker", &class, &lost, recreated()).await?;
    let (uid, marker) = (room.uid_of_claim("kept").await?, room.uid_of_claim("marker").await?);
    let patch = Patch::Merge(json!({"metadata": {"labels": {"kubernetes.io/hostname": "else"}}}));
    room.nodes.patch(&node, &PatchParams::default(), &patch).await?;
    room.cluster.remove_node(&lost).await?;
    room.until_another("marker", marker.as_deref()).await?;
    assert_eq!(room.uid_of_claim("kept").await?, uid);
    Ok(())
}
