//! What the original left behind is taken over: a Service called as the volume, an Endpoints object, and the slices that Kubernetes
//! made of it.

use anyhow::{Result, ensure};
use kube::{
    ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use shared_volumes::{Settings, names::VOLUME_ID};
use testbed::{
    eventually,
    storageos::{Endpoint, MOUNT_ENDPOINT},
};

use crate::{
    conflict::{Slices, Witness},
    room::Room,
};

const HERE: &str = "10.1.0.4:25705";
const THERE: &str = "10.1.0.5:25799";

/// Makes what the original makes, waits until Kubernetes has mirrored it, and returns the volume's id and address.
async fn left_behind(room: &Room) -> Result<(String, String)> {
    let claim = room.create_claim("files", json!({})).await?;
    let id = room.server.add_volume(room.volume("files").at(HERE));
    let owner =
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "files", "uid": claim.metadata.uid});
    let meta = |owners: Value| json!({"name": "pv-files", "labels": {VOLUME_ID: id}, "ownerReferences": owners});
    let port = json!({"name": "nfs", "port": 2049, "protocol": "TCP", "targetPort": 25_705});
    let service = json!({"metadata": meta(json!([owner])), "spec": {"type": "ClusterIP", "ports": [port]}});
    room.services.create(&PostParams::default(), &serde_json::from_value(service)?).await?;
    let subset =
        json!({"addresses": [{"ip": "10.1.0.4"}], "ports": [{"name": "nfs", "port": 25_705, "protocol": "TCP"}]});
    let endpoints = json!({"metadata": meta(Value::Null), "subsets": [subset]});
    room.endpoints.create(&PostParams::default(), &serde_json::from_value(endpoints)?).await?;
    room.until_leads("pv-files", Some(HERE)).await?;
    let address = format!("{}:2049", room.cluster_ip("pv-files").await?);
    let published = address.clone();
    room.server.change(&id, |volume| {
        volume.labels.insert(MOUNT_ENDPOINT.to_owned(), published);
    })?;
    Ok((id, address))
}

async fn until_taken_over(room: &Room, endpoint: &str) -> Result<()> {
    eventually("one slice, and that ours", async || {
        let slices = room.slices_of("pv-files").await?;
        let names: Vec<String> = slices.iter().map(ResourceExt::name_any).collect();
        ensure!(names == ["pv-files-nfs-ipv4"], "there are {names:?}");
        Ok(())
    })
    .await?;
    room.until_leads("pv-files", Some(endpoint)).await?;
    room.until_noted("files", "Served").await?;
    Ok(())
}

#[tokio::test]
async fn what_the_original_left_is_taken_over_without_a_moment_without_a_target() -> Result<()> {
    let room = Room::prepare("takeover").await?;
    let (id, address) = left_behind(&room).await?;
    let before = room.services.get("pv-files").await?;
    let witness = Witness::watch(&room);
    let settings = room.defaults();
    let room = room.start(settings).await?;
    until_taken_over(&room, HERE).await?;
    let ours = |slices: &Slices| slices.keys().eq(["pv-files-nfs-ipv4"]) && slices["pv-files-nfs-ipv4"] == [HERE];
    let seen = witness.until("only our slice", ours).await?;
    let mut all = seen.iter().skip_while(|slices| slices.is_empty());
    assert!(
        all.all(|slices| slices.values().flatten().all(|to| to == HERE) && slices.values().flatten().count() > 0),
        "{seen:?}"
    );
    let after = room.services.get("pv-files").await?;
    assert_eq!((after.uid(), room.server.published(&id)?), (before.uid(), Some(address)));
    assert_eq!(room.services.get_opt("files").await?, None, "it got another Service");
    Ok(())
}

#[tokio::test]
async fn what_the_original_left_of_a_server_that_has_moved_never_leads_to_two() -> Result<()> {
    let room = Room::prepare("moved").await?;
    let (id, address) = left_behind(&room).await?;
    room.server.failover(&id, THERE)?;
    let witness = Witness::watch(&room);
    let settings = room.defaults();
    let room = room.start(settings).await?;
    until_taken_over(&room, THERE).await?;
    let ours = |slices: &Slices| slices.keys().eq(["pv-files-nfs-ipv4"]) && slices["pv-files-nfs-ipv4"] == [THERE];
    let seen = witness.until("only our slice", ours).await?;
    for slices in &seen {
        let mut led: Vec<&String> = slices.values().flatten().collect();
        led.sort();
        led.dedup();
        assert!(led.len() <= 1, "it led to {led:?}");
    }
    assert_eq!(room.server.published(&id)?, Some(address));
    Ok(())
}

#[tokio::test]
async fn without_endpoints_what_the_original_left_of_them_is_removed() -> Result<()> {
    let room = Room::prepare("slices-only").await?;
    left_behind(&room).await?;
    let settings = Settings { endpoints: false, ..room.defaults() };
    let room = room.start(settings).await?;
    until_taken_over(&room, HERE).await?;
    eventually("the end of the Endpoints object", async || {
        ensure!(room.endpoints.get_opt("pv-files").await?.is_none(), "it is there");
        Ok(())
    })
    .await?;
    room.published("home", THERE).await?;
    assert_eq!(room.endpoints.get_opt("home").await?, None);
    Ok(())
}

#[tokio::test]
async fn what_the_original_left_of_a_volume_that_nobody_tells_of_makes_room() -> Result<()> {
    let room = Room::prepare("orphaned").await?;
    let (id, _) = left_behind(&room).await?;
    room.server.remove_volume(&id);
    let settings = room.defaults();
    let room = room.start(settings).await?;
    room.published("home", HERE).await?;
    room.until_leads("pv-files", None).await?;
    room.until_leads("home", Some(HERE)).await
}

#[tokio::test]
async fn a_restart_finishes_what_was_begun() -> Result<()> {
    let mut room = Room::prepare("restart").await?;
    let (settings, source) = (room.defaults(), room.source());
    // Nothing can be published yet.
    let fault = room.server.fault(testbed::storageos::Fault::status(500).on(testbed::storageos::Route::MountEndpoint));
    room.enter(settings.clone(), source.clone()).await?;
    let id = room.share("files", HERE).await?;
    room.until_leads("files", Some(HERE)).await?;
    room.process.kill();
    room.server.clear_fault(fault);
    assert_eq!(room.server.published(&id)?, None);
    room.enter(settings, source).await?;
    let address = room.until_published(&id).await?;
    assert_eq!(address, format!("{}:2049", room.cluster_ip("files").await?));
    Ok(())
}

#[tokio::test]
async fn a_restart_finishes_what_was_half_withdrawn() -> Result<()> {
    let mut room = Room::open("half-withdrawn").await?;
    let (id, _) = room.published("files", HERE).await?;
    room.process.kill();
    room.server.failover(&id, Endpoint::Null)?;
    // It was killed between the slice and the Endpoints object.
    let shut = json!({"endpoints": [{"addresses": ["10.1.0.4"], "conditions": {"ready": false, "serving": false}}]});
    room.slices.patch("files-nfs-ipv4", &PatchParams::default(), &Patch::Merge(shut)).await?;
    let (settings, source) = (room.defaults(), room.source());
    room.enter(settings, source).await?;
    eventually("the Endpoints object to lead nowhere", async || {
        let subsets = room.endpoints.get("files").await?.subsets.unwrap_or_default();
        ensure!(subsets.iter().all(|subset| subset.addresses.is_none()), "{subsets:?}");
        Ok(())
    })
    .await
}
