//! What is bounded, and what is said to those who meet a bound.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use futures::stream;
use http::{Request, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use platform::admission::{MOST_BODY, Settings};
use testbed::eventually;

use super::scene::{BOTH, Body, Scene, post, review, sentence, settings};

/// The same request without a word about its length.
fn piecemeal(body: String, ends: bool) -> Request<Body> {
    let pieces = body.into_bytes().chunks(100_000).map(Bytes::copy_from_slice).collect::<Vec<_>>();
    let pieces = stream::iter(pieces.into_iter().map(|piece| Ok::<_, Infallible>(Frame::data(piece))));
    let (head, _) = post("").into_parts();
    let body = if ends {
        BodyExt::boxed(StreamBody::new(pieces))
    } else {
        BodyExt::boxed(StreamBody::new(futures::StreamExt::chain(pieces, stream::pending())))
    };
    Request::from_parts(head, body)
}

fn padded(length: usize) -> String {
    let review = review("something");
    format!("{review}{}", " ".repeat(length - review.len()))
}

#[tokio::test]
async fn a_body_may_have_three_mebibytes_and_not_a_byte_more() {
    let scene = Scene::start(settings()).await;
    for version in BOTH {
        for whole in [true, false] {
            let send = |body| if whole { post(body) } else { piecemeal(body, true) };
            let answered = scene.connect(version).await.send(send(padded(MOST_BODY))).await.unwrap();
            assert_eq!(answered.0, StatusCode::OK, "{version:?} in one piece: {whole}");
            let answered = scene.connect(version).await.send(send(padded(MOST_BODY + 1))).await.unwrap();
            assert_eq!(answered.0, StatusCode::PAYLOAD_TOO_LARGE, "{version:?} in one piece: {whole}");
            assert_eq!(sentence(&answered), "the body is longer than 3145728 bytes");
        }
    }
    scene.shows("claimkeeper_admission_rejected_total{limit=\"body\"}", 4).await;
}

#[tokio::test]
async fn more_requests_than_allowed_at_once_are_told_to_come_back() {
    for version in BOTH {
        let unhurried = Duration::from_secs(30);
        let scene = Scene::start(Settings { max_in_flight: 1, request_timeout: unhurried, ..settings() }).await;
        let mut first = scene.connect(version).await;
        let first = tokio::spawn(async move { first.ask("wait").await });
        eventually("the first request", async || scene.webhook.has_seen("wait").then_some(()).ok_or("not there"))
            .await
            .unwrap();
        scene.shows("claimkeeper_admission_in_flight", 1).await;

        let mut second = scene.connect(version).await;
        let answered = second.ask("something").await;
        assert_eq!(answered.0, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(sentence(&answered), "1 requests are being answered already; try again");
        assert_eq!(answered.1[header::RETRY_AFTER], "1");
        scene.shows("claimkeeper_admission_rejected_total{limit=\"in_flight\"}", 1).await;

        scene.webhook.released.add_permits(1);
        assert_eq!(first.await.unwrap().0, StatusCode::OK);
        assert_eq!(second.ask("something").await.0, StatusCode::OK);
    }
}

#[tokio::test]
async fn what_takes_too_long_is_answered_in_time_all_the_same() {
    let scene = Scene::start(Settings { request_timeout: Duration::from_millis(300), ..settings() }).await;
    let mut late = 0;
    for version in BOTH {
        for request in [post(review("forever")), piecemeal(review("never-complete"), false)] {
            let mut client = scene.connect(version).await;
            let answered = client.send(request).await.unwrap();
            assert_eq!(answered.0, StatusCode::GATEWAY_TIMEOUT);
            assert_eq!(sentence(&answered), "the request could not be answered within 300ms");
            late += 1;
            scene.shows("claimkeeper_admission_rejected_total{limit=\"time\"}", late).await;
        }
    }
    scene.shows("claimkeeper_admission_in_flight", 0).await;
    assert!(!scene.webhook.has_seen("never-complete"));
}

#[tokio::test]
async fn more_connections_than_allowed_are_closed_until_there_is_room() {
    for version in BOTH {
        let scene = Scene::start(Settings { max_connections: 1, ..settings() }).await;
        let mut first = scene.connect(version).await;
        assert_eq!(first.ask("something").await.0, StatusCode::OK);
        scene.shows("claimkeeper_admission_connections", 1).await;
        assert!(scene.try_connect(version).await.is_err());
        scene.shows("claimkeeper_admission_rejected_total{limit=\"connections\"}", 1).await;
        drop(first);
        let second = eventually("room for a connection", async || scene.try_connect(version).await).await;
        assert_eq!(second.unwrap().ask("something").await.0, StatusCode::OK);
    }
}
