//! What Services are called, whose they are, and what becomes of addresses.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::json;
use shared_volumes::{ServiceName, Settings, names::VOLUME_ID};
use testbed::{
    eventually,
    storageos::{MOUNT_ENDPOINT, Volume},
};

use crate::room::Room;

const HERE: &str = "10.1.0.4:25705";

#[tokio::test]
async fn services_can_be_called_as_volumes() -> Result<()> {
    let room = Room::prepare("pv-name").await?;
    let settings = Settings { service_name: ServiceName::Pv, ..room.defaults() };
    let room = room.start(settings).await?;
    room.published("files", HERE).await?;
    room.until_leads("pv-files", Some(HERE)).await?;
    assert_eq!(room.services.get_opt("files").await?, None);
    Ok(())
}

#[tokio::test]
async fn a_claim_whose_name_no_service_can_have_gets_one_of_a_derived_name() -> Result<()> {
    let room = Room::open("odd-name").await?;
    for claim in ["my.files", "1st"] {
        let port = 25_700 + claim.len();
        let (_, address) = room.published(claim, &format!("10.1.0.4:{port}")).await?;
        let services = room.services.list(&ListParams::default()).await?.items;
        let its = services.iter().find(|service| address.starts_with(&format!("{}:", ip(service))));
        let its = its.context("nobody has its address")?;
        assert!(its.name_any().starts_with("nfs-"), "{}", its.name_any());
        room.until_leads(&its.name_any(), Some(&format!("10.1.0.4:{port}"))).await?;
    }
    Ok(())
}

fn ip(service: &k8s_openapi::api::core::v1::Service) -> &str {
    service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref()).unwrap_or_default()
}

#[tokio::test]
async fn a_service_that_is_not_ours_is_left_alone() -> Result<()> {
    let room = Room::open("foreign").await?;
    let foreign = json!({"metadata": {"name": "files"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}});
    let foreign = room.services.create(&PostParams::default(), &serde_json::from_value(foreign)?).await?;
    let headless = json!({"metadata": {"name": "home"}, "spec": {"clusterIP": "None", "ports": [{"port": 2049}]}});
    room.services.create(&PostParams::default(), &serde_json::from_value(headless)?).await?;
    let (id, address) = room.published("files", HERE).await?;
    let (_, other) = room.published("home", "10.1.0.5:25705").await?;
    assert_eq!(room.services.get("files").await?.resource_version(), foreign.resource_version());
    assert_ne!(address, format!("{}:2049", ip(&foreign)));
    assert!(!other.contains("None") && other.ends_with(":2049"), "{other} was published");
    let labelled = ListParams::default().labels(&format!("{VOLUME_ID}={id}"));
    let ours = room.services.list(&labelled).await?.items;
    assert_eq!(ours.len(), 1);
    room.until_leads(&ours[0].name_any(), Some(HERE)).await?;
    assert_eq!(room.leads("files").await?, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn a_claim_that_has_another_volume_is_not_served_this_one() -> Result<()> {
    let room = Room::open("other-volume").await?;
    room.create_claim("files", json!({"spec": {"volumeName": "pv-something-else"}})).await?;
    room.server.add_volume(room.volume("files").at(HERE));
    room.until_counted("ClaimHasOtherVolume", 1).await?;
    assert_eq!(room.services.get_opt("files").await?, None);
    Ok(())
}

#[tokio::test]
async fn a_service_that_is_published_keeps_its_name() -> Result<()> {
    let mut room = Room::prepare("kept-name").await?;
    let pv = Settings { service_name: ServiceName::Pv, ..room.defaults() };
    let source = room.source();
    room.enter(pv, source.clone()).await?;
    let (id, address) = room.published("files", HERE).await?;
    room.process.kill();
    // Another program starts, which would call it otherwise, and the server has moved.
    room.server.failover(&id, "10.1.0.5:25705")?;
    let claim = room.defaults();
    room.enter(claim, source).await?;
    room.until_leads("pv-files", Some("10.1.0.5:25705")).await?;
    room.until_noted("files", "Served").await?;
    assert_eq!(room.services.get_opt("files").await?, None);
    assert_eq!(room.server.published(&id)?, Some(address));
    Ok(())
}

#[tokio::test]
async fn an_address_that_somebody_else_has_is_replaced_and_everybody_is_told() -> Result<()> {
    let mut room = Room::prepare("taken").await?;
    let settings = Settings { create_wait_duration: Duration::from_millis(500), ..room.defaults() };
    let source = room.source();
    room.enter(settings.clone(), source.clone()).await?;
    let (id, address) = room.published("files", HERE).await?;
    room.process.kill();
    let taken = room.cluster_ip("files").await?;
    room.services.delete("files", &DeleteParams::default()).await?;
    let thief = json!({"metadata": {"name": "thief"}, "spec": {"clusterIP": taken, "ports": [{"port": 80}]}});
    eventually("somebody else to have the address", async || {
        room.services.create(&PostParams::default(), &serde_json::from_value(thief.clone())?).await?;
        anyhow::Ok(())
    })
    .await?;
    room.enter(settings, source).await?;
    let told = room.told(room.claims.get("files").await?.uid(), "Warning", "AddressTaken").await?;
    assert!(told.contains("stale file handles"), "{told}");
    eventually("a new address", async || {
        let published = room.server.published(&id)?;
        ensure!(published.as_ref() != Some(&address), "it is still {published:?}");
        Ok(())
    })
    .await?;
    room.until_leads("files", Some(HERE)).await?;
    assert_eq!(room.process.metric("claimkeeper_shared_volumes_changed_addresses_total"), 1);
    let thief = room.services.get("thief").await?;
    assert_eq!(thief.labels().get(VOLUME_ID), None, "it was taken for ours");
    Ok(())
}

#[tokio::test]
async fn an_address_that_is_free_again_in_time_is_kept() -> Result<()> {
    let mut room = Room::prepare("given-back").await?;
    let (settings, source) = (room.defaults(), room.source());
    room.enter(settings.clone(), source.clone()).await?;
    let (id, address) = room.published("files", HERE).await?;
    room.process.kill();
    let taken = room.cluster_ip("files").await?;
    room.services.delete("files", &DeleteParams::default()).await?;
    let other = json!({"metadata": {"name": "other"}, "spec": {"clusterIP": taken, "ports": [{"port": 80}]}});
    eventually("somebody else to have the address", async || {
        room.services.create(&PostParams::default(), &serde_json::from_value(other.clone())?).await?;
        anyhow::Ok(())
    })
    .await?;
    room.enter(Settings { create_wait_duration: Duration::from_mins(5), ..settings }, source).await?;
    room.until_noted("files", "AddressRefused").await?;
    // It is refused again and again.
    let asked = r#"claimkeeper_shared_volumes_decisions_total{decision="create",reason="ServiceMissing"}"#;
    eventually("it to be asked for again", async || {
        ensure!(room.process.metric(asked) >= 3, "only {}", room.process.metric(asked));
        Ok(())
    })
    .await?;
    room.services.delete("other", &DeleteParams::default()).await?;
    room.until_leads("files", Some(HERE)).await?;
    assert_eq!(room.cluster_ip("files").await?, taken);
    room.until_noted("files", "Served").await?;
    assert_eq!(room.server.published(&id)?, Some(address));
    assert_eq!(room.process.metric("claimkeeper_shared_volumes_changed_addresses_total"), 0);
    Ok(())
}

#[tokio::test]
async fn an_address_that_makes_no_sense_is_not_asked_for() -> Result<()> {
    let room = Room::open("nonsense").await?;
    room.create_claim("files", json!({})).await?;
    let id = room.server.add_volume(room.volume("files").at(HERE).label(MOUNT_ENDPOINT, "None:2049"));
    eventually("an address", async || {
        let published = room.server.published(&id)?.unwrap_or_default();
        ensure!(published == format!("{}:2049", room.cluster_ip("files").await?), "{published} is published");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_server_of_a_family_that_the_cluster_does_not_have_is_reported() -> Result<()> {
    let room = Room::open("family").await?;
    let id = room.share("files", "[fd00::4]:25705").await?;
    let told = room.told(room.claims.get("files").await?.uid(), "Warning", "Refused").await?;
    assert!(told.contains("IPv6"), "{told}");
    assert_eq!(room.server.published(&id)?, None);
    // It is tried again, and works as soon as it can.
    room.server.failover(&id, HERE)?;
    room.until_published(&id).await?;
    // And what has an address of one family cannot lead to a server of the other.
    room.server.failover(&id, "[fd00::5]:25705")?;
    room.until_leads("files", None).await?;
    room.until_noted("files", "FamilyMismatch").await?;
    Ok(())
}

#[tokio::test]
async fn a_claim_is_told_of_its_own_volume_alone() -> Result<()> {
    let room = Room::open("own-note").await?;
    room.create_claim("files", json!({"spec": {"volumeName": "pv-files"}})).await?;
    let id = room.server.add_volume(room.volume("files").at(HERE));
    room.until_published(&id).await?;
    let served = room.until_noted("files", "Served").await?;
    // An earlier claim of that name has left its volume behind, which still names it.
    let left = Volume::shared(&room.namespace, "files", "pv-left").label(MOUNT_ENDPOINT, "10.0.0.250:2049");
    room.server.add_volume(left);
    room.until_counted("EndpointGone", 1).await?;
    room.until_idle().await?;
    assert_eq!(room.until_noted("files", "Served").await?, served);
    assert_eq!(room.leads("files").await?, [HERE]);
    Ok(())
}

#[tokio::test]
async fn a_slice_of_our_name_that_is_not_ours_is_left_alone_and_reported() -> Result<()> {
    let room = Room::open("foreign-slice").await?;
    let foreign = json!({
        "metadata": {"name": "files-nfs-ipv4", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4", "ports": [], "endpoints": [],
    });
    let foreign = room.slices.create(&PostParams::default(), &serde_json::from_value(foreign)?).await?;
    let id = room.share("files", HERE).await?;
    let told = room.told(room.claims.get("files").await?.uid(), "Warning", "SliceNameTaken").await?;
    assert!(told.contains("files-nfs-ipv4"), "{told}");
    assert_eq!(room.server.published(&id)?, None);
    let found = room.slices.get("files-nfs-ipv4").await?;
    assert_eq!(found.resource_version(), foreign.resource_version());
    room.slices.delete("files-nfs-ipv4", &DeleteParams::default()).await?;
    room.until_published(&id).await?;
    room.until_leads("files", Some(HERE)).await
}

#[tokio::test]
async fn a_volume_that_is_made_anew_under_the_old_names_is_served() -> Result<()> {
    let room = Room::open("anew").await?;
    let (old, before) = room.published("files", HERE).await?;
    room.server.remove_volume(&old);
    let new = room.server.add_volume(room.volume("files").at("10.1.0.5:25705"));
    let address = room.until_published(&new).await?;
    assert_ne!((&new, &address), (&old, &before));
    room.until_leads("files", None).await?;
    let labelled = ListParams::default().labels(&format!("{VOLUME_ID}={new}"));
    let services = room.services.list(&labelled).await?.items;
    assert_eq!(services.len(), 1);
    assert_eq!(address, format!("{}:2049", ip(&services[0])));
    room.until_leads(&services[0].name_any(), Some("10.1.0.5:25705")).await
}

#[tokio::test]
async fn two_volumes_of_one_name_each_get_a_service() -> Result<()> {
    let room = Room::prepare("same-name").await?;
    let settings = Settings { service_name: ServiceName::Pv, ..room.defaults() };
    let room = room.start(settings).await?;
    let mut addresses = Vec::new();
    for (claim, endpoint) in [("files", HERE), ("home", "10.1.0.5:25705")] {
        room.create_claim(claim, json!({})).await?;
        let mut volume = Volume::shared(&room.namespace, claim, "pv-same").at(endpoint);
        // The names of volumes are unique within a namespace of StorageOS only.
        volume.namespace = format!("{}-{claim}", room.namespace);
        let id = room.server.add_volume(volume);
        addresses.push(room.until_published(&id).await?);
    }
    assert_ne!(addresses[0], addresses[1]);
    room.until_leads("pv-same", Some(HERE)).await
}
