//! Where servers may be: allowed ranges, the range of Services, and both families.

use std::sync::Arc;

use anyhow::{Result, ensure};
use kube::{ResourceExt, api::DeleteParams};
use serde_json::json;
use shared_volumes::Settings;
use testbed::{
    ControlPlane, Options, eventually,
    storageos::{Endpoint, Route},
};

use crate::room::Room;

const HERE: &str = "10.1.0.4:25705";

#[tokio::test]
async fn nobody_is_led_outside_the_allowed_ranges() -> Result<()> {
    let room = Room::prepare("allowed").await?;
    let allowed = ["10.1.0.0/16".parse().map_err(anyhow::Error::msg)?];
    let settings = Settings { allowed_endpoints: Arc::new(allowed), ..room.defaults() };
    let room = room.start(settings).await?;
    let outside = room.share("outside", "10.2.0.4:25705").await?;
    let told = room.until_noted("outside", "EndpointForbidden").await?;
    assert!(told.contains("allowedEndpoints"), "{told}");
    let (files, address) = room.published("files", HERE).await?;
    assert_eq!((room.services.get_opt("outside").await?, room.server.published(&outside)?), (None, None));
    room.server.failover(&files, "10.2.0.5:25705")?;
    room.until_leads("files", None).await?;
    room.until_noted("files", "EndpointForbidden").await?;
    room.server.failover(&files, HERE)?;
    room.until_leads("files", Some(HERE)).await?;
    assert_eq!(room.server.published(&files)?, Some(address));
    Ok(())
}

#[tokio::test]
async fn nobody_is_led_to_where_services_are() -> Result<()> {
    let room = Room::open("services").await?;
    let id = room.share("files", "10.0.200.7:25705").await?;
    let told = room.until_noted("files", "EndpointForbidden").await?;
    assert!(told.contains("10.0.0.0/16"), "{told}");
    assert_eq!((room.services.get_opt("files").await?, room.server.published(&id)?), (None, None));
    Ok(())
}

#[tokio::test]
async fn an_endpoint_that_is_none_harms_nothing() -> Result<()> {
    let room = Room::open("harmless").await?;
    let (id, address) = room.published("files", HERE).await?;
    let before = room.services.get("files").await?;
    // The original writes target port 0 for each of these, which becomes 2049, and then fails.
    for endpoint in ["10.1.0.4", "storage:2049", ":0", "10.1.0.4:0", "10.1.0.4:65536", "[fe80::1%eth0]:2049"] {
        room.server.failover(&id, endpoint)?;
        room.until_leads("files", None).await?;
        room.until_noted("files", "EndpointInvalid").await?;
        room.server.failover(&id, HERE)?;
        room.until_leads("files", Some(HERE)).await?;
        room.until_noted("files", "Served").await?;
    }
    room.server.failover(&id, Endpoint::Empty)?;
    room.until_noted("files", "EndpointGone").await?;
    let after = room.services.get("files").await?;
    assert_eq!((after.resource_version(), after.spec), (before.resource_version(), before.spec));
    assert_eq!(room.server.published(&id)?, Some(address));
    assert_eq!(room.server.requests_to(Route::MountEndpoint).len(), 1);
    Ok(())
}

#[tokio::test]
async fn servers_of_both_families_are_served_where_the_cluster_has_both() -> Result<()> {
    let ranges = "--service-cluster-ip-range=10.0.0.0/16,fd00:10::/108";
    let cluster = ControlPlane::start(Options::default().name("both-families").apiserver_flag(ranges)).await?;
    let room = Room::prepare_on(cluster.clone(), "families").await?;
    let settings = room.defaults();
    let room = room.start(settings).await?;
    let (four, _) = room.published("four", HERE).await?;
    let (six, address) = room.published("six", "[fd00:1::4]:25705").await?;
    assert_eq!(address, format!("[{}]:2049", room.cluster_ip("six").await?));
    assert!(address.starts_with("[fd00:10::"), "{address}");
    room.until_leads("six", Some("fd00:1::4:25705")).await?;
    assert_eq!(room.slices_of("six").await?[0].name_any(), "six-nfs-ipv6");
    let subsets = serde_json::to_value(room.endpoints.get("six").await?.subsets)?;
    assert_eq!(subsets[0]["addresses"], json!([{"ip": "fd00:1::4"}]));

    room.server.failover(&six, "[fd00:1::5]:25799")?;
    room.until_leads("six", Some("fd00:1::5:25799")).await?;
    room.until_noted("six", "Served").await?;
    let before = room.services.get("six").await?.uid();
    room.services.delete("six", &DeleteParams::default()).await?;
    eventually("another Service", async || {
        ensure!(room.services.get("six").await?.uid() != before, "it is still the same");
        Ok(())
    })
    .await?;
    room.until_leads("six", Some("fd00:1::5:25799")).await?;
    assert_eq!(room.server.published(&six)?, Some(address));
    // An address of one family cannot lead to a server of the other, and nobody's address changes for it.
    room.server.failover(&four, "[fd00:1::6]:25705")?;
    room.until_leads("four", None).await?;
    room.until_noted("four", "FamilyMismatch").await?;
    // Nor is anybody led to where Services are, in either family.
    let id = room.share("lost", "[fd00:10::7]:25705").await?;
    room.until_noted("lost", "EndpointForbidden").await?;
    assert_eq!(room.server.published(&id)?, None);
    Ok(())
}
