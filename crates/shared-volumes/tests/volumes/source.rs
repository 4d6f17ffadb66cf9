//! The StorageOS API has bad days.

use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::ResourceQuota;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::json;
use shared_volumes::{Settings, StorageOsSettings};
use testbed::{
    eventually,
    storageos::{Fault, Route, TokenHeader},
};

use crate::{conflict::Witness, room::Room};

const HERE: &str = "10.1.0.4:25705";
const THERE: &str = "10.1.0.5:25799";

#[tokio::test]
async fn a_namespace_that_fails_hides_no_other_and_nothing_of_it_is_taken_for_gone() -> Result<()> {
    let room = Room::open("partial").await?;
    let (files, _) = room.published("files", HERE).await?;
    // A volume of another StorageOS namespace, for a claim of ours.
    room.create_claim("home", json!({})).await?;
    let mut home = room.volume("home").at(THERE);
    home.namespace = "elsewhere".to_owned();
    let home = room.server.add_volume(home);
    room.until_published(&home).await?;
    for fault in [Fault::status(500), Fault::status(403), Fault::reset(), Fault::truncated_json(), Fault::body("{}")] {
        let failing = room.server.fault(fault.on(Route::Volumes).namespace("elsewhere"));
        let to = if room.leads("files").await? == [HERE] { "10.1.0.6:1" } else { HERE };
        room.server.failover(&files, to)?;
        room.until_leads("files", Some(to)).await?;
        assert_eq!(room.leads("home").await?, [THERE]);
        room.server.clear_fault(failing);
    }
    assert_eq!(room.server.requests_to(Route::Login).len(), 1, "only a 401 is a reason to log in");
    Ok(())
}

#[tokio::test]
async fn a_namespace_that_hangs_delays_no_other() -> Result<()> {
    let room = Room::open("hanging").await?;
    let (files, _) = room.published("files", HERE).await?;
    room.server.add_namespace("elsewhere");
    room.server.fault(Fault::hang().on(Route::Volumes).namespace("elsewhere"));
    eventually("a request that hangs", async || {
        let hanging = room.server.requests_to(Route::Volumes).into_iter().filter(|request| request.status.is_none());
        ensure!(hanging.count() > 0, "none hangs");
        Ok(())
    })
    .await?;
    room.server.failover(&files, THERE)?;
    room.until_leads("files", Some(THERE)).await?;
    let hanging = room.server.requests_to(Route::Volumes).into_iter().filter(|request| request.status.is_none());
    assert_eq!(hanging.count(), 1, "it is asked again before it has answered");
    Ok(())
}

#[tokio::test]
async fn one_volume_that_hangs_delays_no_other() -> Result<()> {
    let room = Room::prepare("one-hangs").await?;
    let stuck = room.share("stuck", HERE).await?;
    room.server.fault(Fault::hang().on(Route::Volume).volume(&stuck));
    let settings = Settings { concurrency: 2, ..room.defaults() };
    let room = room.start(settings).await?;
    room.until_leads("stuck", Some(HERE)).await?;
    for number in 1..=5 {
        room.published(&format!("files-{number}"), &format!("10.1.0.9:{number}")).await?;
    }
    assert_eq!(room.server.published(&stuck)?, None);
    Ok(())
}

#[tokio::test]
async fn an_api_that_is_away_changes_nothing_and_is_left_alone() -> Result<()> {
    let mut room = Room::open("away").await?;
    let (files, address) = room.published("files", HERE).await?;
    room.server.close().await;
    eventually("failures", async || {
        let failed = room.process.metrics("storageos_api_helper_total");
        let open = failed.iter().any(|line| line.contains(r#"error="circuit_open""#));
        ensure!(open, "{failed:?}");
        Ok(())
    })
    .await?;
    assert_eq!(room.leads("files").await?, [HERE]);
    room.server.failover(&files, THERE)?;
    room.server.open().await?;
    room.until_leads("files", Some(THERE)).await?;
    assert_eq!(room.server.published(&files)?, Some(address));
    Ok(())
}

#[tokio::test]
async fn a_namespace_or_a_list_that_comes_back_empty_is_not_believed_without_asking() -> Result<()> {
    let room = Room::open("empty").await?;
    room.published("files", HERE).await?;
    for route in [Route::Namespaces, Route::Volumes] {
        let empty = room.server.fault(Fault::body("[]").on(route));
        room.after_polls(3).await?;
        assert_eq!(room.leads("files").await?, [HERE]);
        room.server.clear_fault(empty);
    }
    assert!(room.server.requests_to(Route::Volume).len() > 1, "nobody asked");
    Ok(())
}

#[tokio::test]
async fn an_answer_that_was_overtaken_by_a_newer_one_leads_nobody_back() -> Result<()> {
    let room = Room::open("overtaken").await?;
    let (files, _) = room.published("files", HERE).await?;
    let witness = Witness::watch(&room);
    // One list does not show the volume, so that it is asked for; that answer is late, and lists go on meanwhile.
    let looks = || room.server.requests_to(Route::Volume);
    let before = looks().len();
    room.server.fault(Fault::hold(Duration::from_secs(2)).on(Route::Volume).times(1));
    room.server.fault(Fault::body("[]").on(Route::Volumes).namespace(&room.namespace).times(1));
    eventually("the volume to be asked for", async || {
        ensure!(looks().len() > before, "not yet");
        Ok(())
    })
    .await?;
    room.server.failover(&files, THERE)?;
    room.until_leads("files", Some(THERE)).await?;
    eventually("the late answer", async || {
        ensure!(looks()[before].status.is_some(), "not yet");
        Ok(())
    })
    .await?;
    room.after_polls(3).await?;
    let seen = witness.until("the new server", |slices| slices["files-nfs-ipv4"] == [THERE]).await?;
    let mut then = seen.iter().filter_map(|slices| slices.get("files-nfs-ipv4")).skip_while(|led| **led != [THERE]);
    assert!(then.all(|led| *led == [THERE]), "it was led back: {seen:?}");
    Ok(())
}

#[tokio::test]
async fn a_write_that_comes_too_late_is_repeated_at_once_from_what_is_there_now() -> Result<()> {
    let room = Room::prepare("stale").await?;
    room.server.fault(Fault::status(412).on(Route::MountEndpoint).times(3));
    let settings = room.defaults();
    let room = room.start(settings).await?;
    let (_, _) = room.published("files", HERE).await?;
    let puts = room.server.requests_to(Route::MountEndpoint);
    assert_eq!(puts.iter().map(|put| put.status).collect::<Vec<_>>(), [Some(412), Some(412), Some(412), Some(200)]);
    assert_eq!(
        room.server.requests_to(Route::Volume).len(),
        4,
        "each write is made from what was read right before it"
    );
    let published = |error: &str| {
        room.process
            .metric(&format!(r#"storageos_api_helper_total{{error="{error}",function="set_external_endpoint"}}"#))
    };
    assert_eq!((published(""), published("stale_write")), (1, 0), "it was not repeated at once");
    Ok(())
}

#[tokio::test]
async fn a_write_whose_answer_is_lost_is_not_repeated() -> Result<()> {
    let room = Room::prepare("lost").await?;
    room.server.fault(Fault::lose_answer().on(Route::MountEndpoint).times(1));
    let settings = room.defaults();
    let room = room.start(settings).await?;
    room.published("files", HERE).await?;
    room.after_polls(2).await?;
    assert_eq!(room.server.requests_to(Route::MountEndpoint).len(), 1);
    Ok(())
}

#[tokio::test]
async fn a_token_is_refreshed_before_it_expires() -> Result<()> {
    let room = Room::prepare("refresh").await?;
    room.server.sessions(|sessions| sessions.lifetime = Duration::from_secs(3));
    let settings = room.defaults();
    let room = room.start(settings).await?;
    room.published("files", HERE).await?;
    eventually("two refreshes", async || {
        ensure!(room.server.requests_to(Route::Refresh).len() >= 2, "none");
        Ok(())
    })
    .await?;
    let refused = room.server.requests().into_iter().filter(|request| request.status == Some(401)).count();
    assert_eq!((refused, room.server.requests_to(Route::Login).len()), (0, 1));
    Ok(())
}

#[tokio::test]
async fn a_token_that_is_refused_is_replaced_by_one_login_for_all() -> Result<()> {
    let room = Room::open("expired").await?;
    let (files, _) = room.published("files", HERE).await?;
    for number in 1..=10 {
        room.server.add_namespace(&format!("more-{number}"));
    }
    for round in 1..=3 {
        room.server.expire_tokens();
        let to = format!("10.1.0.7:{round}");
        room.server.failover(&files, to.as_str())?;
        room.until_leads("files", Some(&to)).await?;
        assert_eq!(room.server.requests_to(Route::Login).len(), 1 + round, "one login for all who were refused");
    }
    Ok(())
}

#[tokio::test]
async fn a_token_is_found_in_every_answer_that_has_one() -> Result<()> {
    for (header, in_body) in [(TokenHeader::Bare, true), (TokenHeader::Bare, false), (TokenHeader::Missing, true)] {
        let room = Room::prepare("token").await?;
        room.server.sessions(|sessions| (sessions.token_header, sessions.token_in_body) = (header, in_body));
        let settings = room.defaults();
        let room = room.start(settings).await?;
        room.published("files", HERE).await?;
    }
    Ok(())
}

#[tokio::test]
async fn credentials_are_read_for_each_login_and_metrics_survive_those_that_fail() -> Result<()> {
    let room = Room::prepare("credentials").await?;
    room.server.write_secret("storageos", "wrong")?;
    let settings = room.defaults();
    let room = room.start(settings).await?;
    let id = room.share("files", HERE).await?;
    let failed = r#"storageos_api_helper_total{error="authentication",function="setup"}"#;
    eventually("a login that fails", async || {
        ensure!(room.process.metric(failed) >= 2, "none");
        Ok(())
    })
    .await?;
    // The whitespace is that of editors.
    room.server.write_secret("storageos\n", &format!(" {}\n", testbed::storageos::PASSWORD))?;
    room.until_published(&id).await?;
    assert!(room.process.metric(r#"storageos_api_requests_total{code="200",method="get"}"#) > 0);
    assert!(room.process.metric(r#"storageos_api_request_duration_seconds_count{method="put"}"#) > 0);
    Ok(())
}

#[tokio::test]
async fn a_request_is_given_up_in_time() -> Result<()> {
    let room = Room::prepare("timeout").await?;
    room.server.fault(Fault::hang().on(Route::Namespaces).times(1));
    let source = StorageOsSettings { request_timeout: Duration::from_millis(300), ..room.source() };
    let settings = room.defaults();
    let room = room.start_with(settings, source).await?;
    room.published("files", HERE).await?;
    eventually("the end of the one that hangs", async || {
        let given_up = room.process.metric(r#"storageos_api_helper_total{error="timeout",function="list_namespaces"}"#);
        ensure!(given_up == 1, "{given_up} were given up");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn nothing_is_published_that_could_not_be_reached() -> Result<()> {
    let room = Room::prepare("unreachable").await?;
    let quotas: Api<ResourceQuota> = Api::namespaced(room.admin.clone(), &room.namespace);
    let quota = json!({"metadata": {"name": "none"}, "spec": {"hard": {"count/endpointslices.discovery.k8s.io": "0"}}});
    quotas.create(&PostParams::default(), &serde_json::from_value(quota)?).await?;
    eventually("the quota", async || {
        let status = quotas.get("none").await?.status.and_then(|status| status.hard);
        ensure!(status.is_some(), "it does not count yet");
        Ok(())
    })
    .await?;
    let settings = room.defaults();
    let room = room.start(settings).await?;
    let id = room.share("files", HERE).await?;
    let message = room.until_noted("files", "Refused").await?;
    assert!(message.contains("exceeded quota"), "{message}");
    assert_eq!(room.server.published(&id)?, None);
    quotas.delete("none", &DeleteParams::default()).await?;
    room.until_published(&id).await?;
    room.until_leads("files", Some(HERE)).await
}

#[tokio::test]
async fn a_list_that_fails_is_asked_for_again_at_the_next_poll_and_not_before() -> Result<()> {
    let room = Room::prepare("refused").await?;
    let refused = room.server.fault(Fault::status(403).on(Route::Namespaces));
    let settings = room.defaults();
    let room = room.start(settings).await?;
    let id = room.share("files", HERE).await?;
    room.after_polls(5).await?;
    let asked = room.server.requests_to(Route::Namespaces).len() as u64;
    // Three may be under way.
    let polls = room.process.metric("storageos_shared_volume_reconcile_duration_seconds_count") + 3;
    assert!(asked <= polls, "asked {asked} times in {polls} polls");
    assert_eq!(room.server.requests_to(Route::Login).len(), 1, "who is refused is still who he was");
    assert_eq!(room.process.metric(r#"storageos_api_helper_total{error="",function="list_shared_volumes"}"#), 0);
    room.server.clear_fault(refused);
    room.until_published(&id).await?;
    Ok(())
}

#[tokio::test]
async fn a_server_that_moves_does_not_wait_for_volumes_that_are_new() -> Result<()> {
    let room = Room::prepare("first").await?;
    let settings = Settings { concurrency: 1, ..room.defaults() };
    let source = StorageOsSettings { request_timeout: Duration::from_mins(5), ..room.source() };
    let room = room.start_with(settings, source).await?;
    let (files, _) = room.published("files", HERE).await?;
    room.until_idle().await?;
    let stuck = room.share("stuck", "10.1.0.9:1").await?;
    room.server.fault(Fault::hang().on(Route::Volume).volume(&stuck));
    room.until_leads("stuck", Some("10.1.0.9:1")).await?;
    // It holds the only worker for volumes that are new.
    let waiting = room.share("waiting", "10.1.0.9:2").await?;
    room.server.failover(&files, THERE)?;
    room.until_leads("files", Some(THERE)).await?;
    assert_eq!((room.server.published(&waiting)?, room.server.published(&stuck)?), (None, None));
    Ok(())
}

#[tokio::test]
async fn a_refresh_that_fails_ends_nothing() -> Result<()> {
    for (status, logins) in [(500, 1), (401, 2)] {
        let room = Room::prepare("refresh-fails").await?;
        room.server.sessions(|sessions| sessions.lifetime = Duration::from_secs(6));
        room.server.fault(Fault::status(status).on(Route::Refresh).times(1));
        let settings = room.defaults();
        let room = room.start(settings).await?;
        let (files, _) = room.published("files", HERE).await?;
        eventually("a refresh or a login after the one that failed", async || {
            let (refreshes, logins) =
                (room.server.requests_to(Route::Refresh).len(), room.server.requests_to(Route::Login).len());
            ensure!(refreshes + logins >= 3, "{refreshes} refreshes, {logins} logins");
            Ok(())
        })
        .await?;
        room.server.failover(&files, THERE)?;
        room.until_leads("files", Some(THERE)).await?;
        // A token that could not be refreshed is good for a while; one that was refused is not.
        let found = room.server.requests_to(Route::Login).len();
        assert!(found >= logins, "{found} logins after {status}");
        if status == 500 {
            assert_eq!(
                room.process.metric(r#"storageos_api_helper_total{error="server",function="refresh_token"}"#),
                1
            );
        }
    }
    Ok(())
}

#[tokio::test]
async fn tokens_that_expire_while_nobody_can_log_in_end_nothing() -> Result<()> {
    let room = Room::open("locked-out").await?;
    let (files, address) = room.published("files", HERE).await?;
    let failing = room.server.fault(Fault::status(401).on(Route::Login));
    for _ in 0..5 {
        room.server.expire_tokens();
        room.after_polls(1).await?;
    }
    let failed = r#"storageos_api_helper_total{error="authentication",function="reset_api"}"#;
    eventually("logins that fail", async || {
        ensure!(room.process.metric(failed) >= 10, "{} so far", room.process.metric(failed));
        Ok(())
    })
    .await?;
    assert_eq!(room.leads("files").await?, [HERE]);
    room.server.clear_fault(failing);
    room.server.failover(&files, THERE)?;
    room.until_leads("files", Some(THERE)).await?;
    assert_eq!(room.server.published(&files)?, Some(address));
    Ok(())
}

#[tokio::test]
async fn credentials_that_cannot_be_read_are_waited_for() -> Result<()> {
    let room = Room::prepare("no-secret").await?;
    let (empty, settings) = (tempfile::tempdir()?, room.defaults());
    let source = StorageOsSettings { secret_path: empty.path().to_owned(), ..room.source() };
    let from = room.server.secret_path().to_owned();
    let room = room.start_with(settings, source).await?;
    let id = room.share("files", HERE).await?;
    let failed = r#"storageos_api_helper_total{error="credentials",function="setup"}"#;
    eventually("a login without credentials", async || {
        ensure!(room.process.metric(failed) >= 2, "none");
        Ok(())
    })
    .await?;
    for file in ["username", "password"] {
        std::fs::copy(from.join(file), empty.path().join(file))?;
    }
    room.until_published(&id).await?;
    Ok(())
}
