//! What is written, in which order, and what people are told who ask.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster::ObjectKey;
use k8s_openapi::api::events::v1::Event;
use kube::{Api, api::ListParams};
use platform::metrics::Registry;
use serde_json::json;
use shared_volumes::{Settings, StorageOs, StorageOsSettings, source::Source, why};
use testbed::{
    AuditedRequest, eventually,
    storageos::{Endpoint, Fault, Route},
};

use crate::room::Room;

const HERE: &str = "10.1.0.4:25705";
const THERE: &str = "10.1.0.5:25799";

/// What the feature wrote, in the order of arrival: verb and resource.
fn writes(room: &Room) -> Result<Vec<(String, String)>> {
    let all = requests(room)?.into_iter();
    Ok(all.filter(|(verb, _)| ["create", "patch", "delete"].contains(&verb.as_str())).collect())
}

/// What it asked for.
fn requests(room: &Room) -> Result<Vec<(String, String)>> {
    let user = format!("system:serviceaccount:{}:claimkeeper", room.namespace);
    let mut requests = room.cluster.audit_log().user(user).requests()?;
    requests.sort_by_key(|request| request.request_received_timestamp);
    let told = |request: AuditedRequest| Some((request.verb, request.object_ref?.resource));
    Ok(requests.into_iter().filter_map(told).filter(|(_, what)| what != "events").collect())
}

#[tokio::test]
async fn what_restores_traffic_is_written_first() -> Result<()> {
    let room = Room::open("order").await?;
    let (id, _) = room.published("files", HERE).await?;
    let before = writes(&room)?.len();
    let asked = requests(&room)?.len();
    room.server.failover(&id, THERE)?;
    let expected = ["endpointslices", "endpoints", "services", "persistentvolumeclaims"];
    eventually("all writes", async || {
        let written: Vec<_> = writes(&room)?.split_off(before);
        let what: Vec<&str> = written.iter().map(|(_, what)| what.as_str()).collect();
        ensure!(what == expected, "{written:?}");
        Ok(())
    })
    .await?;
    // All that it takes is known: nothing is read before.
    let first =
        requests(&room)?.split_off(asked).into_iter().find(|(verb, _)| !["watch", "list"].contains(&verb.as_str()));
    assert_eq!(first, Some(("patch".to_owned(), "endpointslices".to_owned())));
    Ok(())
}

#[tokio::test]
async fn a_server_that_has_moved_does_not_wait_until_all_is_done_for_others_that_have() -> Result<()> {
    let room = Room::prepare("rest").await?;
    let settings = Settings { concurrency: 1, ..room.defaults() };
    let source = StorageOsSettings { request_timeout: Duration::from_mins(10), ..room.source() };
    let room = room.start_with(settings, source).await?;
    let (files, _) = room.published("files", HERE).await?;
    let (home, _) = room.published("home", "10.1.0.4:25706").await?;
    // From now on the one who would do the rest waits for an answer.
    room.server.fault(Fault::hang().on(Route::MountEndpoint));
    let new = room.share("new", "10.1.0.4:25707").await?;
    eventually("the publication that hangs", async || {
        let mut requests = room.server.requests_to(Route::MountEndpoint).into_iter();
        ensure!(requests.any(|request| request.volume.as_ref() == Some(&new)), "nothing is published");
        Ok(())
    })
    .await?;
    room.server.failover(&files, THERE)?;
    room.until_leads("files", Some(THERE)).await?;
    room.server.failover(&home, "10.1.0.5:25706")?;
    room.until_leads("home", Some("10.1.0.5:25706")).await?;
    // Whoever moves these, one after the other, has not even told that the first one is elsewhere.
    let noted = room.until_noted("files", "Served").await?;
    ensure!(noted.ends_with(HERE), "the rest was done first: {noted}");
    Ok(())
}

#[tokio::test]
async fn nothing_is_written_when_nothing_changes() -> Result<()> {
    let room = Room::prepare("idle").await?;
    let settings = Settings { cache_expiry: Duration::from_secs(1), ..room.defaults() };
    let room = room.start(settings).await?;
    for number in 1..=3 {
        room.published(&format!("files-{number}"), &format!("10.1.0.9:{number}")).await?;
    }
    let (gone, _) = room.published("gone", HERE).await?;
    room.server.failover(&gone, Endpoint::Null)?;
    room.until_noted("gone", "EndpointGone").await?;
    let (written, verified) = (writes(&room)?, room.verifications());
    eventually("more verifications", async || {
        ensure!(room.verifications() >= verified + 6, "only {}", room.verifications() - verified);
        Ok(())
    })
    .await?;
    assert_eq!(writes(&room)?, written);
    Ok(())
}

#[tokio::test]
async fn who_asks_why_is_told_the_chain_or_what_was_noted() -> Result<()> {
    let room = Room::open("why").await?;
    let (id, address) = room.published("files", HERE).await?;
    let claim = ObjectKey::new(&room.namespace, "files");
    let settings = room.defaults();
    let source = StorageOs::new(room.source(), &Registry::default()).map_err(anyhow::Error::msg)?;
    let asked = async |source: Option<&dyn Source>| why::explain(&room.admin, &settings, source, &claim).await;
    let accounts = asked(Some(&source)).await?;
    let told: Vec<_> = accounts.iter().map(|account| (account.decision, account.reason)).collect();
    assert_eq!(told, [("serve", "Served"), ("leave", "AlreadyPublished")]);
    assert!(accounts[0].about.contains(&id) && accounts[0].failed.is_none());
    let accounts = asked(None).await?;
    let noted = accounts.first().context("nothing is told")?;
    assert_eq!((noted.decision, noted.reason), ("noted", "Served"));
    assert!(noted.message.contains(&address), "{}", noted.message);

    room.server.failover(&id, "storage:2049")?;
    room.until_noted("files", "EndpointInvalid").await?;
    let accounts = asked(Some(&source)).await?;
    assert_eq!(
        (accounts[0].reason, accounts[0].failed),
        ("EndpointInvalid", Some("its endpoint is an address with a port"))
    );
    room.create_claim("plain", json!({})).await?;
    let plain = ObjectKey::new(&room.namespace, "plain");
    assert!(why::explain(&room.admin, &settings, Some(&source), &plain).await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn the_metrics_of_the_original_are_there() -> Result<()> {
    let room = Room::open("metrics").await?;
    room.published("files", HERE).await?;
    let text = room.process.registry.encode();
    for line in [
        "# TYPE storageos_shared_volume_reconcile_duration_seconds histogram",
        "# HELP storageos_shared_volume_reconcile_duration_seconds Distribution of the length of time to reconcile all shared volumes.",
        "# TYPE storageos_api_helper_duration_seconds histogram",
        "# TYPE storageos_api_helper_total counter",
        "# TYPE storageos_api_in_flight_requests gauge",
        "# TYPE storageos_api_requests_total counter",
        "# TYPE storageos_api_request_duration_seconds histogram",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
    }
    for bound in ["0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5", "1", "2.5", "5", "10", "+Inf"] {
        let series = format!(r#"storageos_api_request_duration_seconds_bucket{{method="get",le="{bound}"}}"#);
        assert!(text.contains(&series), "{series} is missing in\n{text}");
    }
    assert_eq!(room.process.metric(r#"storageos_api_helper_total{error="",function="set_external_endpoint"}"#), 1);
    assert_eq!(room.process.metric(r#"storageos_api_helper_total{error="",function="setup"}"#), 1);
    Ok(())
}

#[tokio::test]
async fn each_change_is_told_once() -> Result<()> {
    let room = Room::prepare("once").await?;
    let settings = Settings { cache_expiry: Duration::from_secs(1), ..room.defaults() };
    let room = room.start(settings).await?;
    let (id, _) = room.published("files", HERE).await?;
    let uid = room.claims.get("files").await?.metadata.uid;
    room.server.failover(&id, Endpoint::Null)?;
    room.told(uid.clone(), "Warning", "EndpointGone").await?;
    room.server.failover(&id, HERE)?;
    room.until_noted("files", "Served").await?;
    let verified = room.verifications();
    eventually("more verifications", async || {
        ensure!(room.verifications() >= verified + 3, "only {}", room.verifications() - verified);
        Ok(())
    })
    .await?;
    let events: Api<Event> = Api::namespaced(room.admin.clone(), &room.namespace);
    eventually("the three events", async || {
        let all = events.list(&ListParams::default()).await?.items;
        let about = all.into_iter().filter(|event| event.regarding.as_ref().is_some_and(|about| about.uid == uid));
        let times = |event: &Event| event.series.as_ref().map_or(1, |series| series.count);
        let mut told: Vec<(String, i32)> =
            about.map(|event| (event.reason.clone().unwrap_or_default(), times(&event))).collect();
        told.sort();
        let total =
            |reason: &str| told.iter().filter(|(found, _)| found == reason).map(|(_, count)| count).sum::<i32>();
        ensure!((total("Served"), total("EndpointGone")) == (2, 1), "{told:?}");
        Ok(())
    })
    .await
}
