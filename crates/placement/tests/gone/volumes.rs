//! Volumes whose claim is gone, and nobody can clean them any more.

use anyhow::{Result, ensure};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use testbed::eventually;

use crate::room::{PROVISIONER_FINALIZER, Room};

const HOSTNAME: &str = "kubernetes.io/hostname";

#[tokio::test]
async fn a_released_volume_is_deleted_without_its_provisioner_and_only_that_ones_finalizer_is_removed() -> Result<()> {
    let room = Room::open("released").await?;
    let class = room.create_class("local", "delete", "nobody.example.dev").await?;
    let (node, lives) = (room.add_node("home", "a").await?, room.add_node("lives", "b").await?);
    let plain = room.create_noted("plain", &class, &node, json!({})).await?;
    let alive = room.create_noted("alive", &class, &lives, json!({})).await?;
    let held = json!({"metadata": {"finalizers": [PROVISIONER_FINALIZER, "example.dev/hold"]}});
    let held = room.create_bound("held", &class, (HOSTNAME, &node), json!({}), held).await?;
    let retained = json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}});
    let retained = room.create_bound("retained", &class, (HOSTNAME, &node), json!({}), retained).await?;
    let attached = room.create_noted("attached", &class, &node, json!({})).await?;
    for volume in [&held, &retained] {
        room.until_noted(volume).await?;
    }
    let attachments: Api<VolumeAttachment> = Api::all(room.admin.clone());
    let attach = |volume: &str, node: &str| {
        let name = format!("{volume}-{}", node.len());
        serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"attacher": "nobody.example.dev", "nodeName": node, "source": {"persistentVolumeName": volume}},
        }))
    };
    // One to a node that lives, one to the node that is lost: that one says nothing.
    let living = attachments.create(&PostParams::default(), &attach(&attached, &lives)?).await?.name_any();
    attachments.create(&PostParams::default(), &attach(&plain, &node)?).await?;
    for claim in ["plain", "alive", "held", "retained", "attached"] {
        room.claims.delete(claim, &DeleteParams::default()).await?;
    }
    for volume in [&plain, &alive, &held, &retained, &attached] {
        room.until_phase(volume, "Released").await?;
    }
    let uid = async |volume: &str| anyhow::Ok(room.volumes.get(volume).await?.uid());
    let (held_uid, retained_uid, attached_uid) = (uid(&held).await?, uid(&retained).await?, uid(&attached).await?);

    room.cluster.remove_node(&node).await?;
    room.until_gone(&plain).await?;
    room.told(held_uid.as_deref(), "HeldByOthers").await?;
    assert_eq!(room.volumes.get(&held).await?.finalizers(), ["example.dev/hold"]);
    room.told(retained_uid.as_deref(), "Retained").await?;
    assert!(room.volumes.get(&retained).await?.metadata.deletion_timestamp.is_none());
    let told = room.told(attached_uid.as_deref(), "StillAttached").await?;
    assert!(told.contains(&format!("attached to node {lives}")), "{told}");
    for volume in [&alive, &attached] {
        let volume = room.volumes.get(volume).await?;
        assert!(volume.metadata.deletion_timestamp.is_none());
        assert!(volume.finalizers().iter().any(|finalizer| finalizer == PROVISIONER_FINALIZER));
    }

    attachments.delete(&living, &DeleteParams::default()).await?;
    // It is looked at again whenever it changes.
    room.annotate(&attached, json!({"claimkeeper.dev/test": "detached"})).await?;
    room.until_gone(&attached).await?;
    let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    room.volumes.patch(&held, &PatchParams::default(), &patch).await?;
    eventually("the end of all", async || {
        ensure!(room.volumes.get_opt(&held).await?.is_none(), "it is there");
        Ok(())
    })
    .await
}
