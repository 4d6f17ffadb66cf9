//! The end: nobody who asked goes without an answer.

use std::time::Duration;

use http::{StatusCode, header};
use platform::admission::Settings;
use testbed::eventually;
use tokio::net::TcpStream;

use super::scene::{BOTH, Http, Scene, post, review, settings};

async fn not_ready(scene: &Scene) {
    let unready = async || if scene.readiness.is_ready() { Err("still ready") } else { Ok(()) };
    eventually("readiness to end", unready).await.unwrap();
}

async fn no_longer_accepts(scene: &Scene) {
    let refused = async || if TcpStream::connect(scene.address).await.is_ok() { Err("it is accepted") } else { Ok(()) };
    eventually("connections to be refused", refused).await.unwrap();
}

#[tokio::test]
async fn a_replica_that_ends_is_unready_at_once_and_still_serves_who_does_not_know_yet() {
    // Longer than this test, and shorter than the server would wait for it anyway.
    let scene = Scene::start(Settings { drain_delay: Duration::from_mins(1), ..settings() }).await;
    for version in BOTH {
        let mut open = scene.connect(version).await;
        assert_eq!(open.ask("something").await.0, StatusCode::OK);
        let ready = async || if scene.readiness.is_ready() { Ok(()) } else { Err(scene.readiness.report()) };
        if version == Http::One {
            eventually("readiness", ready).await.unwrap();
        }
        scene.stop.cancel();
        not_ready(&scene).await;
        assert!(scene.readiness.report().contains("[-]waiting for the end of this process\n"));

        let mut late = scene.connect(version).await;
        for client in [&mut open, &mut late] {
            let (code, headers, _) = client.ask("something").await;
            assert_eq!((code, headers.get(header::CONNECTION)), (StatusCode::OK, None));
        }
    }
}

#[tokio::test]
async fn connections_in_use_are_ended_by_an_answer() {
    let scene = Scene::start(Settings { drain_delay: Duration::ZERO, ..settings() }).await;
    let mut open = scene.connect(Http::One).await;
    assert_eq!(open.ask("something").await.1.get(header::CONNECTION), None);
    scene.stop.cancel();
    not_ready(&scene).await;
    let (code, headers, _) = eventually("the last call", async || {
        let answered = open.ask("something").await;
        if answered.1.contains_key(header::CONNECTION) { Ok(answered) } else { Err("no word of the end") }
    })
    .await
    .unwrap();
    assert_eq!((code, &headers[header::CONNECTION]), (StatusCode::OK, &"close".parse().unwrap()));
    eventually("the connection to end", async || open.is_closed().then_some(()).ok_or("open")).await.unwrap();
    scene.ended.await.unwrap().unwrap();
}

#[tokio::test]
async fn what_is_under_way_at_the_end_is_answered_and_idle_connections_are_closed() {
    for version in BOTH {
        let unhurried = Duration::from_mins(1);
        let scene =
            Scene::start(Settings { drain_delay: Duration::ZERO, request_timeout: unhurried, ..settings() }).await;
        let (mut idle, mut busy) = (scene.connect(version).await, scene.connect(version).await);
        assert_eq!(idle.ask("something").await.0, StatusCode::OK);
        let busy = tokio::spawn(async move { busy.ask("wait").await });
        eventually("the request", async || scene.webhook.has_seen("wait").then_some(()).ok_or("not there"))
            .await
            .unwrap();

        scene.stop.cancel();
        no_longer_accepts(&scene).await;
        eventually("the idle connection to end", async || idle.is_closed().then_some(()).ok_or("open")).await.unwrap();
        assert!(!scene.ended.is_finished() && !busy.is_finished());

        scene.webhook.released.add_permits(1);
        assert_eq!(busy.await.unwrap().0, StatusCode::OK);
        scene.ended.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_connection_that_is_as_old_as_the_end_gets_its_first_answer() {
    // HTTP/2 says goodbye before the first request, and the client asks elsewhere.
    let unhurried = Duration::from_mins(1);
    let scene = Scene::start(Settings { drain_delay: Duration::ZERO, request_timeout: unhurried, ..settings() }).await;
    let mut fresh = scene.connect(Http::One).await;
    scene.stop.cancel();
    no_longer_accepts(&scene).await;
    let (code, headers, _) = fresh.ask("something").await;
    assert_eq!((code, &headers[header::CONNECTION]), (StatusCode::OK, &"close".parse().unwrap()));
    scene.ended.await.unwrap().unwrap();
}

#[tokio::test]
async fn the_end_is_not_kept_waiting_for_an_answer_that_never_comes() {
    for version in BOTH {
        let hurried = Duration::from_millis(300);
        let scene =
            Scene::start(Settings { drain_delay: Duration::ZERO, request_timeout: hurried, ..settings() }).await;
        let mut client = scene.connect(version).await;
        let asked = tokio::spawn(async move { client.send(post(review("forever"))).await });
        eventually("the request", async || scene.webhook.has_seen("forever").then_some(()).ok_or("not there"))
            .await
            .unwrap();
        scene.stop.cancel();
        scene.ended.await.unwrap().unwrap();
        assert_eq!(asked.await.unwrap().unwrap().0, StatusCode::GATEWAY_TIMEOUT);
    }
}
