//! Claims of ended pods, freed on a real control plane with the rights that the chart grants.

#![allow(clippy::unwrap_used)] // helpers are tests too

mod guarded;
mod real_node;
mod room;

use anyhow::{Context, Result, ensure};
use ephemeral::reclaim::ReclaimCompleted;
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use room::{Kind, Room, Sight};
use serde_json::json;
use testbed::eventually;

#[tokio::test]
async fn a_claim_goes_before_its_pod_once_its_volume_is_detached_and_unmounted() -> Result<()> {
    let room = Room::prepare("disk").await?;
    room.add_driver(true).await?;
    let room = room.start(ReclaimCompleted::Delete, &[], Sight::Full).await?;
    let (pod, volume) = room.run_pod("build", Kind::Csi).await?;
    room.attach(&volume).await?;
    room.set_in_use(&[room.listed_as("build-scratch")]).await?;

    room.end("build", "Succeeded").await?;
    room.until_decided("wait", "StillAttached").await?;
    room.untouched("build-scratch").await?;

    room.attachments.delete(&volume, &DeleteParams::default()).await?;
    room.until_decided("wait", "StillInUse").await?;
    room.untouched("build-scratch").await?;

    room.set_in_use(&[]).await?;
    room.until_gone("build-scratch").await?;
    let event = room.event(&pod, "ClaimReclaimed").await?;
    assert_eq!(
        event.note,
        Some(format!(
            "claim {}/build-scratch with volume {volume} is deleted: the pod has ended and nothing can still be mounted",
            room.namespace
        ))
    );
    assert_eq!(event.type_.as_deref(), Some("Normal"));
    assert_eq!(room.pods.get("build").await?.uid(), pod.uid(), "the pod stays");
    eventually("the volume to be released", async || {
        let phase = room.volumes.get(&volume).await?.status.and_then(|status| status.phase);
        ensure!(phase.as_deref() == Some("Released"), "it is {phase:?}");
        Ok(())
    })
    .await?;
    assert_eq!(room.writes()?, ["create build-scratch", "delete build-scratch", "patch build-scratch"]);
    room.close().await
}

#[tokio::test]
async fn what_the_controller_in_kubernetes_attached_is_freed_when_it_has_detached_it() -> Result<()> {
    let room = Room::prepare("attacher").await?;
    room.add_driver(true).await?;
    let room = room.start(ReclaimCompleted::Delete, &[], Sight::Full).await?;
    // From now on kube-controller-manager attaches and detaches for this node, as it does for every kubelet's.
    let managed =
        json!({"metadata": {"annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}}});
    room.nodes.patch(&room.namespace, &PatchParams::default(), &Patch::Merge(managed)).await?;
    let (_, volume) = room.run_pod("build", Kind::Csi).await?;
    let attachment = eventually("the attachment", async || {
        let mut all = room.attachments.list(&ListParams::default()).await?.items;
        all.retain(|attachment| attachment.spec.source.persistent_volume_name.as_deref() == Some(&*volume));
        all.pop().context("there is none")
    })
    .await?;
    let attached = Patch::Merge(json!({"status": {"attached": true}}));
    room.attachments.patch_status(&attachment.name_any(), &PatchParams::default(), &attached).await?;
    room.set_in_use(&[room.listed_as("build-scratch")]).await?;

    room.end("build", "Succeeded").await?;
    room.until_decided("wait", "StillAttached").await?;
    room.untouched("build-scratch").await?;
    // As soon as the kubelet has unmounted it, Kubernetes detaches it by itself.
    room.set_in_use(&[]).await?;
    room.until_gone("build-scratch").await?;
    assert!(room.attachments.get_opt(&attachment.name_any()).await?.is_none());
    room.close().await
}

#[tokio::test]
async fn a_volume_that_is_never_attached_is_kept_and_told_once_unless_its_plugin_is_vouched_for() -> Result<()> {
    let kept = Room::open("unprovable", ReclaimCompleted::Delete).await?;
    let (pod, _) = kept.run_pod("build", Kind::HostPath).await?;
    kept.end("build", "Succeeded").await?;
    let note = kept.event(&pod, "UnmountNotProvable").await?.note.unwrap_or_default();
    assert!(note.contains("kubernetes.io/host-path") && note.contains("ephemeral.reclaimWithoutAttach"), "{note}");
    // An administrator who changes the class is a reason to look again, not to tell again.
    let before = kept.decided("report", "UnmountNotProvable");
    kept.annotate_class(json!("delete")).await?;
    eventually("another look", async || {
        ensure!(kept.decided("report", "UnmountNotProvable") > before, "not yet");
        Ok(())
    })
    .await?;
    assert_eq!(kept.events(pod.uid().as_deref(), "UnmountNotProvable").await?.len(), 1);
    assert!(kept.event(&pod, "UnmountNotProvable").await?.series.is_none());
    kept.untouched("build-scratch").await?;
    kept.close().await?;

    let freed = Room::prepare("vouched").await?;
    let freed = freed.start(ReclaimCompleted::Delete, &["kubernetes.io/host-path"], Sight::Full).await?;
    freed.run_pod("build", Kind::HostPath).await?;
    freed.end("build", "Succeeded").await?;
    freed.until_gone("build-scratch").await?;
    freed.close().await
}

#[tokio::test]
async fn a_csi_volume_without_attach_is_freed_only_if_its_driver_is_vouched_for() -> Result<()> {
    let room = Room::open("csi", ReclaimCompleted::Delete).await?;
    let (pod, _) = room.run_pod("build", Kind::Csi).await?;
    room.end("build", "Failed").await?;
    let note = room.event(&pod, "UnmountNotProvable").await?.note.unwrap_or_default();
    assert!(note.contains(&room.driver()), "{note}");
    // Until now nobody could tell how the driver treats its volumes.
    let before = room.decided("report", "UnmountNotProvable");
    room.add_driver(false).await?;
    eventually("another look", async || {
        ensure!(room.decided("report", "UnmountNotProvable") > before, "not yet");
        Ok(())
    })
    .await?;
    room.untouched("build-scratch").await?;

    // Whoever vouches for it restarts the operator with the new configuration.
    let driver = room.driver();
    let room = room.start(ReclaimCompleted::Delete, &[&driver], Sight::Full).await?;
    room.until_gone("build-scratch").await?;
    room.close().await
}

#[tokio::test]
async fn without_its_node_nothing_is_mounted() -> Result<()> {
    let room = Room::open("nodeless", ReclaimCompleted::Delete).await?;
    room.run_pod("build", Kind::HostPath).await?;
    room.cluster.remove_node(&room.namespace).await?;
    // Kubernetes removes such pods by itself, but not within the time that this takes.
    room.end("build", "Failed").await?;
    room.until_gone("build-scratch").await?;
    room.close().await
}

#[tokio::test]
async fn the_pending_claim_of_a_pod_that_never_had_a_node_is_freed() -> Result<()> {
    let room = Room::open("rejected", ReclaimCompleted::Delete).await?;
    let nowhere = json!({"nodeSelector": {"kubernetes.io/hostname": "nowhere"}});
    let pod = room.create_pod("build", nowhere, &json!([room.scratch()])).await?;
    eventually("the claim", async || room.claims.get("build-scratch").await).await?;
    room.end("build", "Failed").await?;
    room.event(&pod, "ClaimReclaimed").await?;
    room.until_gone("build-scratch").await?;
    room.close().await
}

#[tokio::test]
async fn the_annotation_of_a_class_overrides_the_configuration_both_ways() -> Result<()> {
    let room = Room::prepare("spared").await?;
    room.annotate_class(json!("off")).await?;
    let room = room.start(ReclaimCompleted::Delete, &["kubernetes.io/host-path"], Sight::Full).await?;
    room.run_pod("build", Kind::HostPath).await?;
    room.end("build", "Succeeded").await?;
    room.until_decided("leave", "ReclaimOff").await?;
    room.untouched("build-scratch").await?;
    // Taken away, the configuration counts at once.
    room.annotate_class(json!(null)).await?;
    room.until_gone("build-scratch").await?;
    room.close().await?;

    let room = Room::open("chosen", ReclaimCompleted::ByClass).await?;
    let nowhere = json!({"nodeSelector": {"kubernetes.io/hostname": "nowhere"}});
    room.create_pod("build", nowhere, &json!([room.scratch()])).await?;
    eventually("the claim", async || room.claims.get("build-scratch").await).await?;
    room.end("build", "Failed").await?;
    room.until_decided("leave", "ReclaimOff").await?;
    room.untouched("build-scratch").await?;
    room.annotate_class(json!("delete")).await?;
    room.until_gone("build-scratch").await?;
    room.close().await
}

#[tokio::test]
async fn an_annotation_that_means_nothing_counts_as_off_and_is_told_on_the_class() -> Result<()> {
    let room = Room::prepare("typo").await?;
    room.annotate_class(json!("delte")).await?;
    let room = room.start(ReclaimCompleted::Delete, &["kubernetes.io/host-path"], Sight::Full).await?;
    room.run_pod("build", Kind::HostPath).await?;
    room.end("build", "Succeeded").await?;
    room.until_decided("leave", "ReclaimOff").await?;
    room.untouched("build-scratch").await?;
    let class = room.classes.get(&room.namespace).await?;
    let events = eventually("the event on the class", async || {
        let events = room.events(class.uid().as_deref(), "UnknownReclaimMode").await?;
        ensure!(!events.is_empty(), "there is none");
        Ok(events)
    })
    .await?;
    let note = events[0].note.clone().unwrap_or_default();
    assert!(note.contains("`delte`") && note.contains("off, report or delete"), "{note}");
    assert_eq!(events.len(), 1);
    room.close().await
}

#[tokio::test]
async fn report_tells_once_what_could_be_freed_and_frees_nothing() -> Result<()> {
    let room = Room::prepare("report").await?;
    let room = room.start(ReclaimCompleted::Report, &["kubernetes.io/host-path"], Sight::Full).await?;
    let (pod, _) = room.run_pod("build", Kind::HostPath).await?;
    room.end("build", "Succeeded").await?;
    let event = room.event(&pod, "Reclaimable").await?;
    assert_eq!(event.type_.as_deref(), Some("Normal"));
    let before = room.decided("report", "Reclaimable");
    room.annotate_class(json!("report")).await?;
    eventually("another look", async || {
        ensure!(room.decided("report", "Reclaimable") > before, "not yet");
        Ok(())
    })
    .await?;
    assert_eq!(room.events(pod.uid().as_deref(), "Reclaimable").await?.len(), 1);
    room.untouched("build-scratch").await?;
    assert_eq!(room.writes()?, ["create build-scratch"]);
    room.close().await
}
