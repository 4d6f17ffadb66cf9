//! What goes wrong, where and how often.

use std::{
    io::ErrorKind,
    time::{Duration, Instant},
};

use anyhow::{Error, Result, ensure};
use http::StatusCode;
use serde_json::json;
use testbed::{
    eventually,
    storageos::{Endpoint, Fault, Route, StorageOs, Volume},
};
use tokio::time::timeout;

use crate::{Client, ENDPOINT, paths, volume};

fn is_reset(error: &Error) -> bool {
    let is_reset = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::ConnectionReset)
    };
    error.chain().any(is_reset)
}

#[tokio::test]
async fn an_error_status_comes_with_the_text_that_goes_with_it() -> Result<()> {
    let server = StorageOs::start().await?;
    let client = Client::login(&server).await?;
    for (status, text) in [
        (401, "authentication required"),
        (403, "unauthorised"),
        (404, "not found"),
        (409, "in use"),
        (412, "attempting to write stale object"),
        (500, "Internal Server Error"),
        (503, "temporary store failure"),
    ] {
        server.fault(Fault::status(status).times(1));
        let answer = client.get("/namespaces").await?;
        assert_eq!((answer.status.as_u16(), answer.json()?), (status, json!({ "error": text })));
    }
    server.fault(Fault::status_with(500, "<html>").times(1));
    assert_eq!(client.get("/namespaces").await?.body, "<html>");
    assert_eq!(client.get("/namespaces").await?.status, StatusCode::OK);
    let statuses = server.requests_to(Route::Namespaces).into_iter().filter_map(|request| request.status);
    assert_eq!(statuses.collect::<Vec<_>>(), [401, 403, 404, 409, 412, 500, 503, 500, 200]);
    Ok(())
}

#[tokio::test]
async fn a_fault_of_one_namespace_route_or_volume_leaves_the_others_alone() -> Result<()> {
    let server = StorageOs::start().await?;
    let (bad, good) = (server.add_volume(volume()), server.add_volume(Volume::shared("other", "data", "pvc-2")));
    let client = Client::login(&server).await?;
    let status = async |path: &str| anyhow::Ok(client.get(path).await?.status.as_u16());
    let (team, other) = (paths(&server, "team", &bad), paths(&server, "other", &good));
    let number = server.fault(Fault::status(503).namespace("team"));
    assert_eq!([status(&team.0).await?, status(&other.0).await?, status("/namespaces").await?], [503, 200, 200]);
    server.clear_fault(number);
    server.fault(Fault::status(500).on(Route::Volumes));
    assert_eq!([status(&team.0).await?, status(&other.0).await?, status(&team.1).await?], [500, 500, 200]);
    server.clear_faults();
    server.fault(Fault::status(409).volume(&good));
    assert_eq!([status(&team.1).await?, status(&other.1).await?, status(&other.0).await?], [200, 409, 200]);
    Ok(())
}

#[tokio::test]
async fn a_fault_hits_as_often_as_it_was_told_to() -> Result<()> {
    let server = StorageOs::start().await?;
    let client = Client::login(&server).await?;
    let statuses = async |count| {
        let mut statuses = Vec::new();
        for _ in 0..count {
            statuses.push(client.get("/nodes").await?.status.as_u16());
        }
        anyhow::Ok(statuses)
    };
    server.fault(Fault::status(500).after(1).times(2));
    assert_eq!(statuses(4).await?, [200, 500, 500, 200]);
    server.fault(Fault::status(503).every(3));
    assert_eq!(statuses(7).await?, [200, 200, 503, 200, 200, 503, 200]);
    server.clear_faults();
    // Of two that hit the same request the first decides, and the other is not used up.
    server.fault(Fault::status(500).times(1));
    server.fault(Fault::status(503).times(1));
    assert_eq!(statuses(3).await?, [500, 503, 200]);
    Ok(())
}

#[tokio::test]
async fn a_connection_is_reset_before_or_after_the_work_is_done() -> Result<()> {
    let server = StorageOs::start().await?;
    let id = server.add_volume(volume());
    let client = Client::login(&server).await?;
    let path = format!("{}/nfs/mount-endpoint", paths(&server, "team", &id).1);
    let update = json!({ "mountEndpoint": "10.96.0.7:2049", "version": server.version(&id)? });
    server.fault(Fault::reset().times(1));
    let error = client.put(&path, update.clone()).await.expect_err("an answer");
    assert!(is_reset(&error), "{error:#}");
    assert_eq!(server.published(&id)?, None);
    server.fault(Fault::lose_answer().times(1));
    let error = client.put(&path, update).await.expect_err("an answer");
    assert!(is_reset(&error), "{error:#}");
    assert_eq!(server.published(&id)?.as_deref(), Some("10.96.0.7:2049"));
    let requests = server.requests_to(Route::MountEndpoint);
    assert_eq!(requests.iter().map(|request| request.status).collect::<Vec<_>>(), [None, None]);
    Ok(())
}

#[tokio::test]
async fn an_answer_can_be_unreadable_in_each_way_and_then_it_has_told_nothing() -> Result<()> {
    let server = StorageOs::start().await?;
    let id = server.add_volume(volume());
    let client = Client::login(&server).await?;
    let volumes = paths(&server, "team", &id).0;
    let whole = client.get(&volumes).await?.body;
    server.failover(&id, "10.0.0.2:25705")?;

    server.fault(Fault::truncated_json().times(1));
    let answer = client.get(&volumes).await?;
    assert_eq!(answer.status, StatusCode::OK);
    assert!(answer.json().is_err() && answer.body.len() > whole.len() / 3, "{:?}", answer.body);

    server.fault(Fault::broken_body().times(1));
    let error = client.get(&volumes).await.expect_err("a whole answer");
    let is_incomplete = |error: &Error| {
        error.chain().any(|cause| cause.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_incomplete_message))
    };
    assert!(is_incomplete(&error) || error.to_string().contains("body"), "{error:#}");

    server.fault(Fault::content_type("text/html").times(1));
    assert_eq!(client.get(&volumes).await?.header("content-type"), Some("text/html"));
    server.fault(Fault::body("null").times(1));
    assert_eq!(client.get(&volumes).await?.body, "null");

    let told = server.reports(&id).into_iter().map(|report| report.endpoint).collect::<Vec<_>>();
    assert_eq!(told, [Some(ENDPOINT.to_owned())]);
    Ok(())
}

#[tokio::test]
async fn a_request_hangs_while_others_are_answered() -> Result<()> {
    let server = StorageOs::start().await?;
    let id = server.add_volume(volume());
    let client = Client::login(&server).await?;
    let volumes = paths(&server, "team", &id).0;
    server.fault(Fault::hang().on(Route::Volumes).times(1));
    let mut hanging = Box::pin(client.get(&volumes));
    // Polled until the server has it.
    eventually("the request", async || {
        let _ = timeout(Duration::from_millis(10), &mut hanging).await;
        ensure!(!server.requests_to(Route::Volumes).is_empty(), "it has not arrived");
        Ok(())
    })
    .await?;
    assert_eq!(client.get(&volumes).await?.status, StatusCode::OK);
    assert!(timeout(Duration::from_millis(10), &mut hanging).await.is_err(), "the first one was answered");
    let statuses = server.requests_to(Route::Volumes).into_iter().map(|request| request.status);
    assert_eq!(statuses.collect::<Vec<_>>(), [None, Some(200)]);
    Ok(())
}

#[tokio::test]
async fn a_delayed_answer_is_true_and_one_that_is_held_back_need_not_be() -> Result<()> {
    let server = StorageOs::start().await?;
    let id = server.add_volume(volume());
    let client = Client::login(&server).await?;
    let (volumes, path) = paths(&server, "team", &id);
    let pause = Duration::from_millis(300);
    for (fault, path, expected) in
        [(Fault::delay(pause), &volumes, serde_json::Value::Null), (Fault::hold(pause), &path, json!(ENDPOINT))]
    {
        server.failover(&id, ENDPOINT)?;
        server.fault(fault.times(1));
        let (started, before) = (Instant::now(), server.requests().len());
        let change = eventually("the request", async || {
            ensure!(server.requests().len() > before, "it has not arrived");
            server.failover(&id, Endpoint::Null)?;
            Ok(started.elapsed())
        });
        let (answer, changed) = tokio::join!(client.get(path), change);
        assert!(started.elapsed() >= pause);
        let answer = answer?.json()?;
        let volume = answer.get(0).unwrap_or(&answer);
        // On a machine that stood still in between, the delayed answer may have been made before the change.
        if changed? < pause {
            assert_eq!(volume["nfs"]["serviceEndpoint"], expected);
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_server_that_is_closed_refuses_connections_and_remembers_everything() -> Result<()> {
    let mut server = StorageOs::start().await?;
    let id = server.add_volume(volume());
    let token = Client::login(&server).await?.token;
    server.close().await;
    let refused =
        crate::ask(&server, http::Method::GET, "/namespaces", Some(&token), None).await.expect_err("an answer");
    let refused = refused.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    assert_eq!(refused, Some(ErrorKind::ConnectionRefused));
    let address = server.address();
    server.open().await?;
    assert_eq!(server.address(), address);
    let client = Client { server: &server, token };
    assert_eq!(client.get(&paths(&server, "team", &id).1).await?.status, StatusCode::OK);
    Ok(())
}
