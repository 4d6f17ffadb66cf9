//! The client's manners, against a server that misbehaves on demand.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Frame;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchParams},
    client::Body,
};
use platform::{
    client::{ClientOptions, Fence, RequestError, Timeouts, over},
    metrics::Registry,
};
use tokio::time::{Instant, sleep, timeout};
use tower::{BoxError, service_fn};

/// A body of one piece that may never end.
struct Piece {
    bytes: Option<Bytes>,
    ends: bool,
}

impl http_body::Body for Piece {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.bytes.take() {
            Some(bytes) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            None if self.ends => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

fn reply(status: u16, body: &'static str) -> Response<Piece> {
    let mut response = Response::new(Piece { bytes: Some(Bytes::from_static(body.as_bytes())), ends: true });
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    response
}

const EMPTY_LIST: &str = r#"{"apiVersion":"v1","kind":"PodList","metadata":{},"items":[]}"#;
const CONFIG_MAP: &str = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}"#;

struct Server {
    client: Client,
    registry: Registry,
    tries: Arc<AtomicUsize>,
}

impl Server {
    fn new<F, Fut>(fence: Option<Fence>, answer: F) -> Self
    where
        F: Fn(usize, Request<Body>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<Response<Piece>, BoxError>> + Send + 'static,
    {
        let registry = Registry::default();
        let tries = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&tries);
        let service = service_fn(move |request| answer(counter.fetch_add(1, Ordering::SeqCst), request));
        let options = ClientOptions { fence, ..ClientOptions::new(&registry) };
        Self { client: over(service, options), registry, tries }
    }

    fn tries(&self) -> usize {
        self.tries.load(Ordering::SeqCst)
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "a")
    }

    fn config_maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), "a")
    }
}

#[tokio::test(start_paused = true)]
async fn a_read_survives_a_short_overload_and_broken_connections() {
    let server = Server::new(None, |nth, _| async move {
        match nth {
            0 => Err("connection reset".into()),
            1 => Ok(reply(503, "{}")),
            _ => Ok(reply(200, EMPTY_LIST)),
        }
    });
    assert_eq!(server.pods().list(&ListParams::default()).await.unwrap().items.len(), 0);
    assert_eq!(server.tries(), 3);
    let metrics = server.registry.encode();
    for line in [
        r#"claimkeeper_api_requests_total{verb="list",resource="pods",code="error"} 1"#,
        r#"claimkeeper_api_requests_total{verb="list",resource="pods",code="503"} 1"#,
        r#"claimkeeper_api_requests_total{verb="list",resource="pods",code="200"} 1"#,
        r#"claimkeeper_api_request_duration_seconds_count{verb="list",resource="pods"} 3"#,
    ] {
        assert!(metrics.lines().any(|printed| printed == line), "{line} is missing in\n{metrics}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_stays_down_costs_a_reader_at_most_five_seconds() {
    let server = Server::new(None, |_, _| async { Err("connection refused".into()) });
    let started = Instant::now();
    assert!(server.pods().list(&ListParams::default()).await.is_err());
    assert!(started.elapsed() <= Duration::from_secs(5), "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_write_is_never_sent_twice_when_the_server_may_have_carried_it_out() {
    for status in [500, 503, 504] {
        let server = Server::new(None, move |_, _| async move { Ok(reply(status, "{}")) });
        let config_maps = server.config_maps();
        assert!(config_maps.create(&PostParams::default(), &ConfigMap::default()).await.is_err());
        assert!(config_maps.patch("a", &PatchParams::default(), &Patch::Merge(())).await.is_err());
        assert!(config_maps.delete("a", &DeleteParams::default()).await.is_err());
        assert_eq!(server.tries(), 3, "after {status}");
    }
    let server = Server::new(None, |_, _| async { Err("connection reset".into()) });
    assert!(server.config_maps().create(&PostParams::default(), &ConfigMap::default()).await.is_err());
    assert_eq!(server.tries(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_was_turned_away_waits_as_long_as_the_server_asked_and_keeps_its_body() {
    let server = Server::new(None, |nth, request: Request<Body>| async move {
        let body = request.into_body().collect_bytes().await?;
        assert!(String::from_utf8_lossy(&body).contains("ConfigMap"), "try {nth} has the body {body:?}");
        let mut turned_away = reply(429, "{}");
        turned_away.headers_mut().insert("Retry-After", "2".parse()?);
        Ok(if nth == 0 { turned_away } else { reply(201, CONFIG_MAP) })
    });
    let started = Instant::now();
    server.config_maps().create(&PostParams::default(), &ConfigMap::default()).await.unwrap();
    assert_eq!((server.tries(), started.elapsed().as_secs()), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn silence_ends_after_the_header_timeout_also_for_a_watch() {
    let server = Server::new(None, |_, _| async {
        sleep(Duration::from_hours(1)).await;
        Ok(reply(200, EMPTY_LIST))
    });
    let started = Instant::now();
    let error = server.pods().list(&ListParams::default()).await.unwrap_err();
    assert!(matches!(RequestError::behind(&error), Some(RequestError::NoAnswer { .. })), "{error}");
    assert_eq!(started.elapsed().as_secs(), 10);
    let error = server.pods().watch(&WatchParams::default(), "0").await.err().unwrap();
    assert!(error.to_string().contains("did not answer watch pods within 10s"), "{error}");
    assert!(server.registry.encode().contains(r#"{verb="watch",resource="pods",code="timeout"} 1"#));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_never_ends_is_given_up_unless_it_is_a_watch() {
    let server = Server::new(None, |_, _| async {
        Ok(Response::new(Piece { bytes: Some(Bytes::from_static(b"{\"")), ends: false }))
    });
    let started = Instant::now();
    let error = server.pods().list(&ListParams::default()).await.unwrap_err();
    assert!(error.to_string().contains("answer to list pods was not complete within 30s"), "{error}");
    assert_eq!(started.elapsed().as_secs(), 30);

    let mut events = Box::pin(server.pods().watch(&WatchParams::default(), "0").await.unwrap());
    let next = timeout(Duration::from_hours(1), futures::StreamExt::next(&mut events)).await;
    assert!(next.is_err(), "a quiet watch was ended: {next:?}");
}

#[tokio::test(start_paused = true)]
async fn a_closed_fence_refuses_writes_before_they_are_sent_and_lets_reads_pass() {
    let fence = Fence::new();
    let server = Server::new(Some(fence.clone()), |_, request: Request<Body>| async move {
        Ok(reply(200, if request.method() == "GET" { EMPTY_LIST } else { CONFIG_MAP }))
    });
    let create = async || server.config_maps().create(&PostParams::default(), &ConfigMap::default()).await;
    let error = create().await.unwrap_err();
    assert!(RequestError::is_not_leader(&error), "{error}");
    assert!(error.to_string().contains("not the leader: create configmaps was refused"), "{error}");
    server.pods().list(&ListParams::default()).await.unwrap();
    assert_eq!(server.tries(), 1);

    fence.open_until(Instant::now() + Duration::from_secs(10));
    create().await.unwrap();
    // Nobody closed it: the process merely slept for longer than it may lead.
    tokio::time::advance(Duration::from_mins(1)).await;
    assert!(RequestError::is_not_leader(&create().await.unwrap_err()));
    assert_eq!(server.tries(), 2);
    assert!(server.registry.encode().contains(r#"{verb="create",resource="configmaps",code="not_leader"} 2"#));
}

#[tokio::test(start_paused = true)]
async fn a_write_on_its_way_is_abandoned_when_the_fence_closes() {
    let fence = Fence::new();
    fence.open_until(Instant::now() + Duration::from_secs(4));
    let server = Server::new(Some(fence), |_, _| async {
        sleep(Duration::from_secs(8)).await;
        Ok(reply(201, CONFIG_MAP))
    });
    let started = Instant::now();
    let error = server.config_maps().create(&PostParams::default(), &ConfigMap::default()).await.unwrap_err();
    assert!(RequestError::is_not_leader(&error), "{error}");
    assert_eq!(started.elapsed().as_secs(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_waits_for_its_second_try_is_refused_when_the_fence_closed_meanwhile() {
    let fence = Fence::new();
    fence.open_until(Instant::now() + Duration::from_secs(1));
    let server = Server::new(Some(fence), |_, _| async {
        let mut turned_away = reply(429, "{}");
        turned_away.headers_mut().insert("Retry-After", "2".parse()?);
        Ok(turned_away)
    });
    let error = server.config_maps().create(&PostParams::default(), &ConfigMap::default()).await.unwrap_err();
    assert!(RequestError::is_not_leader(&error), "{error}");
    assert_eq!(server.tries(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_client_without_retries_tries_once() {
    let tries = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&tries);
    let service = service_fn(move |_: Request<Body>| {
        counter.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, BoxError>(reply(503, "{}")) }
    });
    let timeouts = Timeouts { response_header: Duration::from_secs(3), ..Timeouts::default() };
    let client = over(service, ClientOptions { retry: false, timeouts, ..ClientOptions::new(&Registry::default()) });
    assert!(Api::<Pod>::all(client).list(&ListParams::default()).await.is_err());
    assert_eq!(tries.load(Ordering::SeqCst), 1);
}
