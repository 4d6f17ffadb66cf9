//! What keeps a volume from being released, all of which the original did not look at.

use anyhow::{Result, ensure};
use cluster::{Volume, store::Slim};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, PostParams},
};
use serde_json::json;
use testbed::{AuditedRequest, eventually};
use tokio_util::sync::CancellationToken;

use crate::room::{RELEASE, Room, reference};

#[tokio::test]
async fn volumes_that_are_not_retained_are_left_alone() -> Result<()> {
    let room = Room::prepare("policy").await?;
    let class = room.create_class("cache", json!({RELEASE: "pool"})).await?;
    let volume = room.create_released("one", &class, json!({}), json!({})).await?;
    room.until_phase(&volume, "Released").await?;
    // Kubernetes leaves it to its driver to delete such a volume, and there is none.
    let kept = json!({
        "metadata": {"annotations": {"pv.kubernetes.io/provisioned-by": "disks.example.dev"}},
        "spec": {"persistentVolumeReclaimPolicy": "Delete"},
    });
    room.patch_volume(&volume, kept).await?;
    let settings = room.defaults();
    let room = room.start(settings).await?;
    let note = room.told(&volume, "NotRetained").await?;
    assert!(note.contains("set persistentVolumeReclaimPolicy to Retain"), "{note}");
    assert!(reference(&room.volumes.get(&volume).await?).is_some());
    Ok(())
}

#[tokio::test]
async fn a_volume_that_is_being_deleted_is_left_alone() -> Result<()> {
    let room = Room::prepare("leaving").await?;
    let class = room.create_class("cache", json!({RELEASE: "pool"})).await?;
    let hold = json!({"metadata": {"finalizers": ["example.dev/hold"]}});
    let volume = room.create_released("one", &class, json!({}), hold).await?;
    room.until_phase(&volume, "Released").await?;
    room.volumes.delete(&volume, &DeleteParams::default()).await?;
    let settings = room.defaults();
    let room = room.start(settings).await?;
    room.told(&volume, "VolumeBeingDeleted").await?;
    assert!(reference(&room.volumes.get(&volume).await?).is_some());
    room.patch_volume(&volume, json!({"metadata": {"finalizers": null}})).await?;
    Ok(())
}

#[tokio::test]
async fn a_volume_that_is_attached_is_released_only_when_it_is_detached() -> Result<()> {
    let room = Room::open("attached").await?;
    let class = room.create_class("cache", json!({})).await?;
    let volume = room.create_released("one", &class, json!({}), json!({})).await?;
    room.until_phase(&volume, "Released").await?;
    let attachments: Api<VolumeAttachment> = Api::all(room.admin.clone());
    let attachment = json!({
        "metadata": {"name": room.own("attachment")},
        "spec": {"attacher": "disks.example.dev", "nodeName": "gone", "source": {"persistentVolumeName": volume}},
    });
    attachments.create(&PostParams::default(), &serde_json::from_value(attachment)?).await?;
    room.annotate_class(&class, json!({RELEASE: "pool"})).await?;
    room.told(&volume, "StillAttached").await?;
    room.until_phase(&volume, "Released").await?;
    attachments.delete(&room.own("attachment"), &DeleteParams::default()).await?;
    room.until_phase(&volume, "Available").await?;
    Ok(())
}

#[tokio::test]
async fn what_an_administrator_did_in_between_is_not_undone() -> Result<()> {
    let mut room = Room::prepare("between").await?;
    let class = room.create_class("cache", json!({RELEASE: "pool"})).await?;
    let volume = room.create_released("one", &class, json!({}), json!({})).await?;
    let stale = room.until_phase(&volume, "Released").await?;
    // The cache has not heard of it.
    room.patch_volume(
        &volume,
        json!({"spec": {"claimRef": {"name": "meant-for", "uid": null, "resourceVersion": null}}}),
    )
    .await?;
    let settings = room.defaults();
    let (feature, watches) = room.build(settings).await?;
    let caches = feature.caches().clone();
    caches.volumes.begin_list();
    caches.volumes.apply(Volume::from_wire(serde_json::from_value(serde_json::to_value(&stale)?)?).unwrap());
    caches.volumes.end_list();
    let stop = CancellationToken::new();
    let feeds = async {
        tokio::join!(
            watches.feed(&caches.claims),
            watches.feed_cluster_scoped(&caches.classes),
            watches.feed_namespaces(&caches.namespaces)
        )
    };
    let tried = async {
        let tried_again = room.until_decided("release", "Released", 2).await;
        stop.cancel();
        tried_again
    };
    tokio::select! {
        _ = feeds => {}
        ((), tried) = async { tokio::join!(feature.run(stop.clone()), tried) } => tried?,
    }
    let volume = room.volumes.get(&volume).await?;
    assert_eq!(reference(&volume).map(|[_, name, uid]| (name, uid)), Some(("meant-for".to_owned(), String::new())));
    Ok(())
}

#[tokio::test]
async fn volumes_are_found_although_their_class_is_listed_late() -> Result<()> {
    let mut room = Room::prepare("late").await?;
    let class = room.create_class("cache", json!({RELEASE: "pool"})).await?;
    let volume = room.create_released("one", &class, json!({}), json!({})).await?;
    room.until_phase(&volume, "Released").await?;
    let settings = room.defaults();
    let (feature, watches) = room.build(settings).await?;
    let caches = feature.caches().clone();
    let late = async {
        // Everything but the classes.
        tokio::join!(caches.volumes.synced(), caches.claims.synced(), caches.namespaces.synced());
        watches.feed_cluster_scoped(&caches.classes).await;
    };
    let feeds = async {
        tokio::join!(
            watches.feed_cluster_scoped(&caches.volumes),
            watches.feed(&caches.claims),
            watches.feed_namespaces(&caches.namespaces),
            late
        )
    };
    tokio::select! {
        _ = feeds => {}
        () = feature.run(CancellationToken::new()) => {}
        released = room.until_phase(&volume, "Available") => drop(released?),
    }
    Ok(())
}

#[tokio::test]
async fn every_right_that_the_chart_grants_is_enough() -> Result<()> {
    let room = Room::open("rights").await?;
    let pool = room.create_class("pool", json!({RELEASE: "pool"})).await?;
    let tenant = room.create_class("tenant", json!({RELEASE: "namespace"})).await?;
    let volume = room.create_released("one", &pool, json!({}), json!({})).await?;
    room.until_phase(&volume, "Available").await?;
    let volume = room.create_released("two", &tenant, json!({}), json!({})).await?;
    room.create_claim("next", &tenant, json!({})).await?;
    room.until_bound("next", &volume).await?;
    room.told(&volume, "Released").await?;
    let user = format!("system:serviceaccount:{}:claimkeeper", room.namespace);
    let requests = room.cluster.audit_log().user(user).requests()?;
    let refused: Vec<_> = requests.iter().filter(|request| request.code() == Some(403)).collect();
    assert!(!requests.is_empty() && refused.is_empty(), "{refused:?}");
    Ok(())
}

#[tokio::test]
async fn a_release_is_one_write() -> Result<()> {
    let room = Room::open("writes").await?;
    let class = room.create_class("pool", json!({RELEASE: "pool"})).await?;
    let mut volumes = Vec::new();
    for number in 0..5 {
        volumes.push(room.create_released(&format!("v{number}"), &class, json!({}), json!({})).await?);
    }
    for volume in &volumes {
        room.until_phase(volume, "Available").await?;
    }
    let user = format!("system:serviceaccount:{}:claimkeeper", room.namespace);
    eventually("the audit log to have them", async || {
        let requests = room.cluster.audit_log().user(user.clone()).requests()?;
        let patches = requests.iter().filter(|request| {
            request.verb == "patch"
                && request.object_ref.as_ref().is_some_and(|object| object.resource == "persistentvolumes")
        });
        let codes: Vec<_> = patches.map(AuditedRequest::code).collect();
        ensure!(codes.iter().filter(|code| **code == Some(200)).count() == volumes.len(), "{codes:?}");
        Ok(())
    })
    .await?;
    assert!(room.volumes.get(&volumes[0]).await?.annotations().contains_key("claimkeeper.dev/previous-claim"));
    Ok(())
}
