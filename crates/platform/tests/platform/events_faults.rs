//! Events against a server that misbehaves on demand.

use std::{
    cell::{Cell, RefCell},
    fmt, io,
    sync::{Arc, Once},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::client::Body;
use parking_lot::Mutex;
use platform::{
    client::{ClientOptions, over},
    events::{Draft, Event, EventKind, Recorder, Regarding, Worker},
    metrics::Registry,
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tower::{BoxError, service_fn};

/// The requests so far: method and path, and the name of the event in it or the count of its series.
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
                let name = body["metadata"]["name"].as_str().map(str::to_owned);
                let name = name.unwrap_or_else(|| body["series"]["count"].to_string());
                let nth = {
                    let mut seen = seen.lock();
                    seen.push((path.clone(), name));
                    seen.len() - 1
                };
                let (code, body) = answer(nth, &path);
                // On the paused clock a second costs nothing, and shows who waits for whom.
                sleep(if code == 0 { Duration::from_hours(1) } else { Duration::from_secs(1) }).await;
                let body = Full::new(Bytes::from(body.to_string()));
                Ok::<_, BoxError>(Response::builder().status(code).body(body)?)
            }
        });
        let client = over(service, ClientOptions::new(&registry));
        let (recorder, worker) = Recorder::new(client, "claimkeeper.dev/test", "replica-1", &registry);
        Self { recorder, worker, registry, requests }
    }

    /// Publishes `notes` about one pod, lets the worker finish, and returns the requests and the outcomes.
    async fn tell(self, notes: &[&str]) -> (Vec<(String, String)>, String) {
        self.tell_all(notes.iter().map(|note| event(note))).await
    }

    async fn tell_all(self, events: impl Iterator<Item = Event>) -> (Vec<(String, String)>, String) {
        events.for_each(|event| self.recorder.publish(event));
        drop(self.recorder);
        self.worker.run(CancellationToken::new()).await;
        (self.requests.lock().clone(), outcomes(&self.registry))
    }
}

fn event(note: &str) -> Event {
    about("pod", note)
}

fn about(pod: &str, note: &str) -> Event {
    let regarding =
        ObjectReference { namespace: Some("a".into()), name: Some(pod.into()), ..ObjectReference::default() };
    Event { regarding, kind: EventKind::Normal, reason: "Tested", action: "Test", note: note.into() }
}

fn about_each_of(pods: usize) -> impl Iterator<Item = Event> {
    (0..pods).map(|number| about(&format!("pod-{number}"), "note"))
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
    about_each_of(20_000).for_each(|event| recorder.publish(event));
    assert_eq!(started.elapsed(), Duration::ZERO);
    assert_eq!(outcomes(&registry), format!("\"dropped\"}} {}", 20_000 - 8_192));
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn one_object_does_not_take_the_room_of_all_others() {
    let Server { recorder, worker, registry, .. } = Server::new(|_, _| (0, Value::Null));
    let running = tokio::spawn(worker.run(CancellationToken::new()));
    (0..10_000).for_each(|number| recorder.publish(event(&number.to_string())));
    about_each_of(40).for_each(|event| recorder.publish(event));
    assert_eq!(outcomes(&registry), "\"limited\"} 9975", "nothing is dropped");
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn what_is_said_too_often_is_not_put_into_words_and_is_counted_where_it_was_told() {
    struct Words<'a>(&'a Cell<u32>);
    impl fmt::Display for Words<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.set(self.0.get() + 1);
            f.write_str("note")
        }
    }
    let Server { recorder, worker, registry, requests } = Server::new(|_, _| created());
    let spoken = Cell::new(0);
    let regarding = Regarding { api_version: "v1", kind: "Pod", namespace: "a", name: "pod", uid: None };
    let say = || {
        let words = Words(&spoken);
        let (kind, reason, action, note) = (EventKind::Normal, "Tested", "Test", format_args!("{words}"));
        recorder.publish_draft(&Draft { regarding, kind, reason, action, note });
    };
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(worker.run(shutdown.clone()));
    (0..1_000).for_each(|_| say());
    // Once each time to recognize it, and once more for what is told.
    assert_eq!(spoken.get(), 1_001);
    sleep(Duration::from_mins(5)).await;
    assert_eq!(outcomes(&registry), "\"limited\"} 975, \"created\"} 1, \"aggregated\"} 24");
    say();
    say();
    shutdown.cancel();
    running.await.unwrap();
    assert_eq!(outcomes(&registry), "\"limited\"} 976, \"created\"} 1, \"aggregated\"} 25");
    let counts: Vec<_> = requests.lock().iter().skip(1).map(|(_, count)| count.clone()).collect();
    assert_eq!(counts, ["1000", "1002"]);
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_delays_the_shutdown_by_two_seconds_at_most() {
    let Server { recorder, worker, registry, requests } = Server::new(|_, _| (0, Value::Null));
    about_each_of(100).for_each(|event| recorder.publish(event));
    (0..10).for_each(|number| recorder.publish(event(&number.to_string())));
    let shutdown = CancellationToken::new();
    shutdown.cancel();
    let started = Instant::now();
    timeout(Duration::from_mins(1), worker.run(shutdown)).await.unwrap();
    assert_eq!(started.elapsed().as_secs(), 2);
    let on_their_way = requests.lock().len();
    assert!((2..=16).contains(&on_their_way), "{on_their_way} at once");
    assert_eq!(outcomes(&registry), format!("\"dropped\"}} {}", 110 - on_their_way), "all but those on their way");
    recorder.publish(event("late"));
    assert_eq!(outcomes(&registry), format!("\"dropped\"}} {}", 111 - on_their_way));
}

#[tokio::test(start_paused = true)]
async fn events_about_different_objects_do_not_wait_for_each_other() {
    let server = Server::new(|_, _| created());
    let started = Instant::now();
    let (requests, outcomes) = server.tell_all(about_each_of(64)).await;
    assert_eq!((requests.len(), outcomes.as_str()), (64, "\"created\"} 64"));
    // Sixteen at once would need four seconds if chance spread them evenly.
    assert!(started.elapsed() < Duration::from_secs(32), "{:?} at a second each", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn what_is_said_again_waits_until_the_first_time_is_written_and_is_counted_in_it() {
    let server = Server::new(|_, _| created());
    let (requests, outcomes) = server.tell_all(about_each_of(64).flat_map(|event| [event.clone(), event])).await;
    assert_eq!(outcomes, "\"created\"} 64, \"aggregated\"} 64");
    for pod in 0..64 {
        let stem = format!("pod-{pod}.");
        let posts: Vec<_> = requests.iter().filter(|(_, name)| name.starts_with(&stem)).collect();
        let [(_, name)] = posts.as_slice() else { panic!("{posts:?}") };
        let patch = format!("PATCH /apis/events.k8s.io/v1/namespaces/a/events/{name}");
        assert_eq!(requests.iter().filter(|(path, _)| *path == patch).count(), 1, "{patch}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_of_the_api_is_found_out_by_many_and_said_once() {
    let server =
        Server::new(|_, path| if path.contains("events.k8s.io") { refusal(404, "", Value::Null) } else { created() });
    Log::listen();
    let (requests, outcomes) = server.tell_all(about_each_of(200)).await;
    assert_eq!(outcomes, "\"created\"} 200");
    let refused = requests.iter().filter(|(path, _)| path.contains("events.k8s.io")).count();
    assert!(refused <= 16, "{refused} events had to find out");
    assert_eq!(Log::lines_with("INFO").len(), 1, "{:?}", Log::lines_with(""));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_away_is_complained_about_once_a_minute_whatever_it_says() {
    let server = Server::new(|nth, _| match nth % 2 {
        0 => (0, Value::Null),
        _ => refusal(403, "Forbidden", json!({"causes": [{"reason": "NamespaceTerminating"}]})),
    });
    Log::listen();
    let started = Instant::now();
    let (_, outcomes) = server.tell_all(about_each_of(100)).await;
    assert_eq!(outcomes, "\"failed\"} 100");
    let (warnings, minutes) = (Log::lines_with("WARN"), started.elapsed().as_secs() / 60);
    assert!((1..=1 + minutes).contains(&(warnings.len() as u64)), "in {minutes} minutes: {warnings:#?}");
}

thread_local! {
    static LOGGED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What this thread logs. A subscriber for a single thread would do if it were not deaf to lines that another thread, which has
/// none, came across first.
struct Log;

impl Log {
    fn listen() {
        static LISTENING: Once = Once::new();
        LISTENING.call_once(|| {
            tracing_subscriber::fmt().with_ansi(false).with_writer(|| Self).init();
            tracing::callsite::rebuild_interest_cache();
        });
        LOGGED.take();
    }

    fn lines_with(word: &str) -> Vec<String> {
        let text = LOGGED.with_borrow(|bytes| String::from_utf8(bytes.clone()).unwrap());
        text.lines().filter(|line| line.contains(word)).map(str::to_owned).collect()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOGGED.with_borrow_mut(|logged| logged.extend_from_slice(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
