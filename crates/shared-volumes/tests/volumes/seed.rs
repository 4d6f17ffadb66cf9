//! Every sentence of the seed.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams},
};
use serde_json::json;
use shared_volumes::{Settings, names::VOLUME_ID};
use testbed::{
    eventually,
    storageos::{Endpoint, MOUNT_ENDPOINT, PV_NAME, PVC_NAME, PVC_NAMESPACE, Route},
};

use crate::room::Room;

#[tokio::test]
async fn an_attached_volume_gets_a_service_and_endpoints_and_its_address_is_published() -> Result<()> {
    let room = Room::open("publish").await?;
    let (id, address) = room.published("files", "10.1.0.4:25705").await?;
    let service = room.services.get("files").await?;
    assert_eq!(service.labels().get(VOLUME_ID), Some(&id));
    let owner = &service.owner_references()[0];
    let claim = room.claims.get("files").await?;
    assert_eq!((owner.kind.as_str(), &owner.uid), ("PersistentVolumeClaim", &claim.uid().unwrap()));
    let spec = service.spec.context("it has no spec")?;
    assert_eq!(spec.type_.as_deref(), Some("ClusterIP"));
    assert_eq!(spec.selector, None);
    let port = &spec.ports.context("it has no ports")?[0];
    assert_eq!((port.name.as_deref(), port.port, port.protocol.as_deref()), (Some("nfs"), 2049, Some("TCP")));
    assert_eq!(serde_json::to_value(&port.target_port)?, json!(25_705));
    assert_eq!(address, format!("{}:2049", spec.cluster_ip.context("it has no address")?));
    assert_eq!(room.leads("files").await?, ["10.1.0.4:25705"]);

    let endpoints = room.endpoints.get("files").await?;
    assert_eq!(endpoints.labels().get(VOLUME_ID), Some(&id));
    let owner = &endpoints.owner_references()[0];
    assert_eq!((owner.kind.as_str(), Some(&owner.uid)), ("Service", service.metadata.uid.as_ref()));
    let subsets = serde_json::to_value(&endpoints.subsets)?;
    let ports = json!([{"name": "nfs", "port": 25_705, "protocol": "TCP"}]);
    assert_eq!(subsets, json!([{"addresses": [{"ip": "10.1.0.4"}], "ports": ports}]));
    let told = room.told(service.metadata.uid, "Normal", "Created").await?;
    assert_eq!(told, format!("Created service for shared volume {}/files", room.namespace));
    room.told(claim.uid(), "Normal", "Served").await?;
    assert_eq!(room.server.requests_to(Route::MountEndpoint).len(), 1);
    Ok(())
}

#[tokio::test]
async fn volumes_that_lack_something_are_silently_ignored() -> Result<()> {
    let room = Room::prepare("ignored").await?;
    for claim in ["labels", "empty", "null", "broken", "host", "loopback"] {
        room.create_claim(claim, json!({})).await?;
    }
    let volume = |claim: &str| room.volume(claim);
    for label in [PV_NAME, PVC_NAME, PVC_NAMESPACE] {
        room.server.add_volume(volume("labels").at("10.1.0.4:1").without_label(label));
    }
    room.server.add_volume(volume("empty").at(Endpoint::Empty));
    room.server.add_volume(volume("null").at(Endpoint::Null));
    room.server.add_volume(volume("null").at(Endpoint::NoNfs));
    room.server.add_volume(volume("broken").at("10.1.0.4"));
    room.server.add_volume(volume("host").at("storage:2049"));
    room.server.add_volume(volume("loopback").at("127.0.0.1:2049"));
    room.server.add_volume(volume("no-such-claim").at("10.1.0.5:1"));
    let settings = room.defaults();
    let room = room.start(settings).await?;
    room.until_counted("NotOfKubernetes", 3).await?;
    room.until_counted("NotShared", 3).await?;
    room.until_counted("EndpointInvalid", 2).await?;
    room.until_counted("EndpointForbidden", 1).await?;
    room.until_counted("ClaimMissing", 1).await?;
    // All of them have been decided about; one that counts shows that nothing comes late.
    room.published("files", "10.1.0.6:1").await?;
    let services = room.services.list(&ListParams::default()).await?;
    assert_eq!(services.items.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), ["files"]);
    for claim in ["labels", "empty", "null", "broken", "host", "loopback"] {
        let uid = room.claims.get(claim).await?.uid();
        assert_eq!(room.events(uid).await?, []);
    }
    Ok(())
}

#[tokio::test]
async fn a_volume_counts_as_soon_as_its_claim_is_there() -> Result<()> {
    let room = Room::open("late").await?;
    let id = room.server.add_volume(room.volume("files").at("10.1.0.4:25705"));
    room.until_counted("ClaimMissing", 1).await?;
    assert_eq!(room.services.get_opt("files").await?, None);
    room.create_claim("files", json!({})).await?;
    room.until_published(&id).await?;
    Ok(())
}

#[tokio::test]
async fn after_a_failover_the_address_is_the_same_and_leads_to_the_new_server() -> Result<()> {
    let room = Room::open("failover").await?;
    let (id, address) = room.published("files", "10.1.0.4:25705").await?;
    let before = room.services.get("files").await?;
    room.server.failover(&id, "10.1.0.5:25799")?;
    room.until_leads("files", Some("10.1.0.5:25799")).await?;
    let told = room.told(before.uid(), "Warning", "Updated").await?;
    assert_eq!(told, format!("Shared volume service target changed {}/files", room.namespace));
    eventually("the rest of what tells of the server", async || {
        let service = room.services.get("files").await?;
        let port = serde_json::to_value(service.spec.and_then(|spec| spec.ports))?[0]["targetPort"].clone();
        ensure!(port == json!(25_799), "the Service says {port}");
        let subsets = serde_json::to_value(room.endpoints.get("files").await?.subsets)?;
        ensure!(subsets[0]["addresses"] == json!([{"ip": "10.1.0.5"}]), "the Endpoints object says {subsets}");
        ensure!(subsets[0]["ports"][0]["port"] == json!(25_799), "the Endpoints object says {subsets}");
        Ok(())
    })
    .await?;
    let after = room.services.get("files").await?;
    assert_eq!(after.uid(), before.uid());
    assert_eq!(address, format!("{}:2049", room.cluster_ip("files").await?));
    assert_eq!(room.server.published(&id)?, Some(address));
    assert_eq!(room.server.requests_to(Route::MountEndpoint).len(), 1, "it was published again");
    assert_eq!(room.process.metric("claimkeeper_shared_volumes_failover_duration_seconds_count"), 1);
    Ok(())
}

#[tokio::test]
async fn services_and_endpoints_stay_while_a_server_is_gone_but_lead_nowhere() -> Result<()> {
    let room = Room::open("gone").await?;
    let (id, address) = room.published("files", "10.1.0.4:25705").await?;
    let (service, endpoints) = (room.services.get("files").await?, room.endpoints.get("files").await?);
    room.server.failover(&id, Endpoint::Null)?;
    room.until_leads("files", None).await?;
    room.until_noted("files", "EndpointGone").await?;
    room.told(room.claims.get("files").await?.uid(), "Warning", "EndpointGone").await?;
    assert_eq!(room.services.get("files").await?.uid(), service.uid());
    let closed = room.endpoints.get("files").await?;
    assert_eq!(closed.uid(), endpoints.uid());
    let subsets = serde_json::to_value(closed.subsets)?;
    assert_eq!(
        (&subsets[0]["notReadyAddresses"], &subsets[0]["addresses"]),
        (&json!([{"ip": "10.1.0.4"}]), &json!(null))
    );
    room.server.failover(&id, "10.1.0.6:25706")?;
    room.until_leads("files", Some("10.1.0.6:25706")).await?;
    room.until_noted("files", "Served").await?;
    assert_eq!(room.server.published(&id)?, Some(address));
    Ok(())
}

#[tokio::test]
async fn a_volume_that_its_source_does_not_have_any_more_keeps_its_objects() -> Result<()> {
    let room = Room::open("removed").await?;
    let (id, _) = room.published("files", "10.1.0.4:25705").await?;
    let (service, endpoints) = (room.services.get("files").await?, room.endpoints.get("files").await?);
    room.server.remove_volume(&id);
    room.until_leads("files", None).await?;
    room.until_noted("files", "VolumeGone").await?;
    assert_eq!(room.services.get("files").await?.uid(), service.uid());
    assert_eq!(room.endpoints.get("files").await?.uid(), endpoints.uid());
    Ok(())
}

#[tokio::test]
async fn everything_goes_with_the_claim() -> Result<()> {
    let room = Room::open("collected").await?;
    room.published("files", "10.1.0.4:25705").await?;
    room.delete_claim("files").await?;
    eventually("the end of all objects", async || {
        ensure!(room.services.get_opt("files").await?.is_none(), "the Service is there");
        ensure!(room.endpoints.get_opt("files").await?.is_none(), "the Endpoints object is there");
        ensure!(room.slices_of("files").await?.is_empty(), "the slice is there");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_service_that_was_deleted_is_made_again_with_its_address() -> Result<()> {
    let room = Room::open("deleted").await?;
    let (id, address) = room.published("files", "10.1.0.4:25705").await?;
    let before = room.services.get("files").await?;
    room.services.delete("files", &DeleteParams::default()).await?;
    let after = eventually("another Service", async || {
        let service = room.services.get("files").await?;
        ensure!(service.uid() != before.uid(), "it is still the same");
        Ok(service)
    })
    .await?;
    room.until_leads("files", Some("10.1.0.4:25705")).await?;
    assert_eq!(after.spec.and_then(|spec| spec.cluster_ip), before.spec.and_then(|spec| spec.cluster_ip));
    assert_eq!(room.server.published(&id)?, Some(address));
    assert_eq!(room.server.requests_to(Route::MountEndpoint).len(), 1);
    assert_eq!(room.process.metric("claimkeeper_shared_volumes_changed_addresses_total"), 0);
    Ok(())
}

#[tokio::test]
async fn a_verified_volume_is_read_again_only_when_its_time_is_over() -> Result<()> {
    let room = Room::prepare("cached").await?;
    let settings = room.defaults();
    let mut room = room.start(settings).await?;
    room.published("files", "10.1.0.4:25705").await?;
    // What we wrote wakes us, once it has gone round.
    eventually("five polls without a verification", async || {
        let before = room.verifications();
        room.after_polls(5).await?;
        ensure!(room.verifications() == before, "verified {} times", room.verifications() - before);
        Ok(())
    })
    .await?;

    room.process.kill();
    let settings = Settings { cache_expiry: Duration::from_secs(1), ..room.defaults() };
    let source = room.source();
    room.enter(settings, source).await?;
    eventually("verifications", async || {
        ensure!(room.verifications() >= 3, "verified {} times", room.verifications());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn what_differs_from_the_cache_is_evaluated_at_once() -> Result<()> {
    let room = Room::open("differs").await?;
    let (id, address) = room.published("files", "10.1.0.4:25705").await?;
    // Somebody else has changed what is published.
    room.server.change(&id, |volume| {
        volume.labels.insert(MOUNT_ENDPOINT.to_owned(), "10.0.0.250:2049".to_owned());
    })?;
    eventually("the right address", async || {
        let published = room.server.published(&id)?;
        ensure!(published.as_ref() == Some(&address), "{published:?} is published");
        Ok(())
    })
    .await
}
