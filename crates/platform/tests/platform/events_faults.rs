//! Events against a server that misbehaves on demand.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::client::Body;
use parking_lot::Mutex;
use platform::{
    client::{ClientOptions, over},
    events::{Event, EventKind, Recorder, Worker},
    metrics::Registry,
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tower::{BoxError, service_fn};

/// The requests so far: method and path, and the name of the event in it.
type Requests = Arc<Mutex<Vec<(String, String)>>>;

struct Server {
    recorder: Recorder,
    worker: Worker,
    registry: Registry,
    requests: Requests,
}

impl Server {
    fn new(answer: impl Fn(usize, &str) -> (u16, Value) + Send + Sync + 'static) -> Self {
        let (registry, requests) = (Registry::default(), Requests::default());
        let (seen, answer) = (Arc::clone(&requests), Arc::new(answer));
        let service = service_fn(move |request: Request<Body>| {
            let (seen, answer) = (Arc::clone(&seen), Arc::clone(&answer));
            async move {
                let path = format!("{} {}", request.method(), request.uri().path());
                let body: Value = serde_json::from_slice(&request.into_body().collect_bytes().await?)?;
                let name = body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                let nth = {
                    let mut seen = seen.lock();
                    seen.push((path.clone(), name));
                    seen.len() - 1
                };
                let (code, body) = answer(nth, &path);
                if code == 0 {
                    sleep(Duration::from_hours(1)).await;
                }
                let body = Full::new(Bytes::from(body.to_string()));
                Ok::<_, BoxError>(Response::builder().status(code).body(body)?)
            }
        });
        let client = over(service, ClientOptions::new(&registry));
        let (recorder, worker) = Recorder::new(client, "claimkeeper.dev/test", "replica-1", &registry);
        Self { recorder, worker, registry, requests }
    }

    /// Publishes `notes`, lets the worker finish, and returns the requests and the outcomes.
    async fn tell(self, notes: &[&str]) -> (Vec<(String, String)>, String) {
        for note in notes {
            self.recorder.publish(event(note));
        }
        drop(self.recorder);
        self.worker.run(CancellationToken::new()).await;
        (self.requests.lock().clone(), outcomes(&self.registry))
    }
}

fn event(note: &str) -> Event {
    let regarding =
        ObjectReference { namespace: Some("a".into()), name: Some("pod".into()), ..ObjectReference::default() };
    Event { regarding, kind: EventKind::Normal, reason: "Tested", action: "Test", note: note.into() }
}

fn outcomes(registry: &Registry) -> String {
    let metrics = registry.encode();
    let lines = metrics.lines().filter_map(|line| line.strip_prefix("claimkeeper_events_total{outcome="));
    lines.collect::<Vec<_>>().join(", ")
}

fn created() -> (u16, Value) {
    (201, json!({"metadata": {"name": "event"}, "involvedObject": {}}))
}

fn refusal(code: u16, reason: &str, details: Value) -> (u16, Value) {
    let status = json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": "no"});
    let mut status = status;
    status["details"] = details;
    (code, status)
}

#[tokio::test(start_paused = true)]
async fn a_server_that_fails_for_a_moment_gets_the_same_event_again_and_only_once() {
    let server = Server::new(|nth, _| match nth {
        0 => refusal(500, "InternalError", json!({})),
        1 => refusal(409, "AlreadyExists", json!({})),
        _ => panic!("a third request"),
    });
    let (requests, outcomes) = server.tell(&["note"]).await;
    assert_eq!(requests[0], requests[1]);
    assert_eq!(outcomes, "\"created\"} 1");
}

#[tokio::test(start_paused = true)]
async fn a_server_without_the_events_group_gets_core_events_from_then_on() {
    let server =
        Server::new(|_, path| if path.contains("events.k8s.io") { refusal(404, "", Value::Null) } else { created() });
    let (requests, outcomes) = server.tell(&["one", "two"]).await;
    let paths: Vec<&str> = requests.iter().map(|(path, _)| path.as_str()).collect();
    let (events, core) = ("POST /apis/events.k8s.io/v1/namespaces/a/events", "POST /api/v1/namespaces/a/events");
    assert_eq!(paths, [events, core, core]);
    assert_eq!(outcomes, "\"created\"} 2");
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_goes_away_is_no_reason_to_change_the_api() {
    let terminating = json!({"causes": [{"reason": "NamespaceTerminating"}]});
    for refused in
        [refusal(403, "Forbidden", terminating), refusal(404, "NotFound", json!({"kind": "namespaces", "name": "a"}))]
    {
        let server = Server::new(move |nth, _| if nth == 0 { refused.clone() } else { created() });
        let (requests, outcomes) = server.tell(&["one", "two"]).await;
        assert!(requests.iter().all(|(path, _)| path.contains("events.k8s.io")), "{requests:?}");
        assert_eq!(outcomes, "\"failed\"} 1, \"created\"} 1");
    }
}

#[tokio::test(start_paused = true)]
async fn publishing_never_waits_and_what_does_not_fit_is_counted() {
    let Server { recorder, worker, registry, .. } = Server::new(|_, _| (0, Value::Null));
    let running = tokio::spawn(worker.run(CancellationToken::new()));
    let started = Instant::now();
    for number in 0..1_500 {
        recorder.publish(event(&number.to_string()));
    }
    assert_eq!(started.elapsed(), Duration::ZERO);
    assert_eq!(outcomes(&registry), "\"dropped\"} 500");
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_delays_the_shutdown_by_two_seconds_at_most() {
    let Server { recorder, worker, registry, .. } = Server::new(|_, _| (0, Value::Null));
    for number in 0..10 {
        recorder.publish(event(&number.to_string()));
    }
    let shutdown = CancellationToken::new();
    shutdown.cancel();
    let started = Instant::now();
    timeout(Duration::from_mins(1), worker.run(shutdown)).await.unwrap();
    assert_eq!(started.elapsed().as_secs(), 2);
    assert_eq!(outcomes(&registry), "\"dropped\"} 9", "all but the one that was on its way");
    recorder.publish(event("late"));
    assert_eq!(outcomes(&registry), "\"dropped\"} 10");
}
