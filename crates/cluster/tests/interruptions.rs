//! What becomes of a watch that is interrupted in ways in which no real API server interrupts it on demand.

use std::{collections::VecDeque, convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use cluster::{Claim, ObjectKey, Store, server::ListMode, watch::Watches};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use kube::client::Body;
use parking_lot::Mutex;
use platform::{
    client::{ClientOptions, over},
    metrics::Registry,
    readiness::Readiness,
};
use tokio::{sync::mpsc, time::Instant};
use tower::service_fn;

const LIST: &str = r#"{"type":"ADDED","object":{"metadata":{"namespace":"ci","name":"old","resourceVersion":"5"}}}
{"type":"BOOKMARK","object":{"kind":"PersistentVolumeClaim","apiVersion":"v1","metadata":{"resourceVersion":"7","annotations":{"k8s.io/initial-events-end":"true"}}}}
"#;
const ADDED: &str = r#"{"type":"ADDED","object":{"metadata":{"namespace":"ci","name":"new","resourceVersion":"9"}}}
"#;
const EXPIRED: &str = r#"{"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old resource version","reason":"Expired"}}
"#;

/// An answer of the server.
#[derive(Clone, Copy)]
enum Answer {
    /// A watch that brings this and is over.
    Watch(&'static str),
    Refused(StatusCode, &'static str),
}

/// What the server was asked for, and how long after the beginning.
struct Asked {
    lists: bool,
    since: String,
    after: Duration,
}

/// A store that is fed by a server that answers as told, and then not at all.
struct Scene {
    store: Store<Claim>,
    asked: mpsc::UnboundedReceiver<Asked>,
    registry: Registry,
}

impl Scene {
    fn with(answers: impl IntoIterator<Item = Answer>) -> Self {
        let answers = Arc::new(Mutex::new(answers.into_iter().collect::<VecDeque<_>>()));
        let (tell, asked) = mpsc::unbounded_channel();
        let begun = Instant::now();
        let service = service_fn(move |request: Request<Body>| {
            let query = request.uri().query().unwrap_or_default();
            let since = query.split('&').find_map(|pair| pair.strip_prefix("resourceVersion=")).unwrap_or_default();
            let lists = query.contains("sendInitialEvents=true");
            let _ = tell.send(Asked { lists, since: since.to_owned(), after: begun.elapsed() });
            let answer = answers.lock().pop_front();
            async move {
                Ok::<_, Infallible>(match answer {
                    Some(Answer::Watch(events)) => Response::new(body(events)),
                    Some(Answer::Refused(code, text)) => {
                        let mut answer = Response::new(body(text));
                        *answer.status_mut() = code;
                        answer
                    }
                    None => std::future::pending().await,
                })
            }
        });
        let registry = Registry::default();
        let watches = Watches {
            client: over(service, ClientOptions { retry: false, ..ClientOptions::new(&registry) }),
            namespace: None,
            list_mode: ListMode::Streamed,
            readiness: Readiness::default(),
            registry: registry.clone(),
        };
        let store = Store::new(vec![|_| true], vec![]);
        tokio::spawn(watches.feed(&store));
        Self { store, asked, registry }
    }

    async fn next(&mut self) -> Asked {
        self.asked.recv().await.expect("the watch goes on")
    }

    fn has(&self, name: &str) -> bool {
        self.store.get(&ObjectKey::new("ci", name)).is_some()
    }

    fn failures(&self) -> bool {
        let line = r#"claimkeeper_cache_watch_failures_total{kind="persistentvolumeclaims"} 0"#;
        !self.registry.encode().lines().any(|printed| printed == line)
    }
}

fn body(text: &'static str) -> BoxBody<Bytes, Infallible> {
    Full::from(text).boxed()
}

#[tokio::test(start_paused = true)]
async fn a_watch_goes_on_where_it_stopped() {
    let mut scene = Scene::with([Answer::Watch(LIST), Answer::Watch(ADDED)]);
    let first = scene.next().await;
    assert!(first.lists);
    let second = scene.next().await;
    assert_eq!((second.lists, second.since.as_str()), (false, "7"));
    let third = scene.next().await;
    assert_eq!((third.lists, third.since.as_str()), (false, "9"));
    assert!(scene.has("old") && scene.has("new"));
    assert_eq!(third.after, Duration::ZERO, "what brought something is asked again at once");
    assert!(!scene.failures());
}

#[tokio::test(start_paused = true)]
async fn an_event_that_is_cut_off_is_heard_when_the_watch_goes_on() {
    let half = &ADDED[..30];
    let mut scene = Scene::with([Answer::Watch(LIST), Answer::Watch(half), Answer::Watch(ADDED)]);
    for expected in ["0", "7", "7", "9"] {
        assert_eq!(scene.next().await.since, expected);
    }
    assert!(scene.has("new"));
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_has_missed_too_much_lists_again_at_once() {
    let refused = r#"{"kind":"Status","status":"Failure","code":410,"message":"too old","reason":"Expired"}"#;
    let set_back = r#"{"kind":"Status","status":"Failure","code":504,"message":"Timeout: Too large resource version: 7, current: 3","reason":"Timeout"}"#;
    for missed in [
        Answer::Watch(EXPIRED),
        Answer::Refused(StatusCode::GONE, refused),
        Answer::Refused(StatusCode::GATEWAY_TIMEOUT, set_back),
    ] {
        let mut scene = Scene::with([Answer::Watch(LIST), missed, Answer::Watch(LIST)]);
        assert!(scene.next().await.lists);
        assert!(!scene.next().await.lists);
        let again = scene.next().await;
        assert!(again.lists);
        assert_eq!(again.after, Duration::ZERO);
        assert!(!scene.failures(), "nothing was wrong");
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_has_missed_too_much_again_and_again_does_not_list_without_pause() {
    for missed in [EXPIRED, "<html>\n"] {
        let mut scene = Scene::with([LIST, missed, LIST, missed, LIST].map(Answer::Watch));
        let mut lists = Vec::new();
        for _ in 0..5 {
            let asked = scene.next().await;
            lists.extend(asked.lists.then_some(asked.after));
        }
        assert_eq!(lists.len(), 3, "{lists:?}");
        assert!(lists[2] > lists[1], "{lists:?}");
        assert!(scene.failures());
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_that_never_gets_whole_is_not_asked_for_without_pause() {
    for answer in [
        Answer::Watch(EXPIRED),
        Answer::Watch(""),
        Answer::Watch(ADDED),
        Answer::Refused(StatusCode::INTERNAL_SERVER_ERROR, "broken"),
    ] {
        let mut scene = Scene::with([answer; 8]);
        let mut last = scene.next().await;
        for _ in 0..8 {
            let next = scene.next().await;
            assert!(next.lists);
            assert!(next.after > last.after, "asked again at once");
            last = next;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn pauses_grow_and_are_never_longer_than_promised() {
    let broken = [Answer::Refused(StatusCode::INTERNAL_SERVER_ERROR, "broken"); 40];
    let rest = [Answer::Watch(ADDED), broken[0]];
    let mut scene = Scene::with([Answer::Watch(LIST)].into_iter().chain(broken).chain(rest));
    scene.next().await;
    let mut last = scene.next().await.after;
    let mut pauses = Vec::new();
    for _ in 0..40 {
        let next = scene.next().await;
        assert_eq!((next.lists, next.since.as_str()), (false, "7"));
        pauses.push(next.after.saturating_sub(last));
        last = next.after;
    }
    assert!(pauses[0] < Duration::from_secs(1), "{pauses:?}");
    assert!(pauses[20] > Duration::from_secs(4), "{pauses:?}");
    assert!(pauses.iter().all(|pause| *pause <= Duration::from_secs(10)), "{pauses:?}");
    assert!(scene.failures());
    let back = scene.next().await;
    assert_eq!(back.since, "9");
    let again = scene.next().await.after.saturating_sub(back.after);
    assert!(again < Duration::from_secs(1), "what was heard in between makes pauses short again: {again:?}");
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_over_at_once_and_brings_nothing_is_not_asked_for_without_pause() {
    let mut scene = Scene::with([Answer::Watch(LIST)].into_iter().chain([Answer::Watch(""); 5]));
    scene.next().await;
    let mut last = scene.next().await;
    for _ in 0..5 {
        let next = scene.next().await;
        assert!(next.after > last.after);
        last = next;
    }
}
