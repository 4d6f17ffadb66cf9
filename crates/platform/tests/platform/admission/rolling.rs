//! Two replicas are replaced one after the other while the real API server asks 200 times a second.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use platform::admission::Settings;
use serde_json::{Value, json};
use testbed::{Service, eventually};
use tokio::{
    sync::Mutex,
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;

use super::{
    api_server::Asked,
    scene::{Authority, PATH, Scene, in_a_year, settings},
};

/// One after the other: the machine has enough to do with one.
static TURN: Mutex<()> = Mutex::const_new(());

/// A machine that is too slow for the rate is asked as fast as it can.
const MOST_AT_ONCE: usize = 64;

const EVERY: Duration = Duration::from_millis(5);

/// How long a Service takes to hear of a replica's end, and how long the replica waits for that: on a busy machine both drag.
const LAG: Duration = Duration::from_secs(1);
const DRAIN: Duration = Duration::from_secs(5);

async fn replica(service: &mut Service, authority: &Authority, name: &str) -> Scene {
    // The time limit is not what is tested.
    let unhurried = Duration::from_secs(25);
    let settings = Settings { drain_delay: DRAIN, request_timeout: unhurried, max_in_flight: 10_000, ..settings() };
    let scene = Scene::start_without_certificate(settings).await;
    scene.certificate.replace(authority.serving(name, |_| {}), in_a_year());
    let readiness = scene.readiness.clone();
    service.add(scene.address, move || std::future::ready(readiness.is_ready()));
    scene
}

async fn ready(service: &Service, count: usize) {
    let as_many = async || if service.ready() == count { Ok(()) } else { Err(service.ready()) };
    eventually("the Service to hear of it", as_many).await.unwrap();
}

/// Asks until it is told to stop; returns how often, and what went wrong.
async fn load(asked: Arc<Asked>, stop: CancellationToken) -> (usize, Vec<String>) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let (mut requests, mut results, mut count) = (JoinSet::new(), Vec::new(), 0);
    while !stop.is_cancelled() {
        ticks.tick().await;
        while requests.len() >= MOST_AT_ONCE {
            results.extend(requests.join_next().await.map(Result::unwrap));
        }
        let asked = Arc::clone(&asked);
        requests.spawn(async move { asked.create(&format!("load-{count}")).await });
        count += 1;
    }
    results.extend(requests.join_all().await);
    (count, results.into_iter().filter_map(Result::err).collect())
}

async fn no_call_fails_while_replicas_are_replaced(
    asked: Asked,
    client_config: impl Fn(&Service) -> Value,
    name: &str,
) {
    let _turn = TURN.lock().await;
    let authority = Authority::new("the authority of both");
    let mut service = Service::start(LAG).await.unwrap();
    let mut replicas =
        vec![replica(&mut service, &authority, name).await, replica(&mut service, &authority, name).await];
    ready(&service, 2).await;
    asked.ask::<ValidatingWebhookConfiguration>(client_config(&service), &authority).await;
    asked.refused("deny").await;

    let (asked, stop, mut answered) = (Arc::new(asked), CancellationToken::new(), 0);
    let load = tokio::spawn(load(Arc::clone(&asked), stop.clone()));
    for _ in 0..2 {
        // As a Deployment does it: first the new one, then the end of an old one.
        replicas.push(replica(&mut service, &authority, name).await);
        ready(&service, 3).await;
        let old = replicas.remove(0);
        old.stop.cancel();
        old.ended.await.unwrap().unwrap();
        answered += loaded(&old.webhook.seen.lock().unwrap());
        ready(&service, 2).await;
    }
    stop.cancel();
    let (count, failures) = load.await.unwrap();
    let rest: usize = replicas.iter().map(|replica| loaded(&replica.webhook.seen.lock().unwrap())).sum();
    assert!(failures.is_empty(), "{} of {count} calls failed, such as {}", failures.len(), failures[0]);
    assert_eq!(answered + rest, count, "calls that the webhook answered");
    assert!(rest > 0, "the new replicas were never asked");
    asked.end::<ValidatingWebhookConfiguration>().await;
}

fn loaded(seen: &[String]) -> usize {
    seen.iter().filter(|name| name.starts_with("load-")).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_over_http_2_fails_while_replicas_are_replaced() {
    let asked = Asked::new("admission-rolling").await;
    let url = |service: &Service| json!({"url": format!("https://{}{PATH}", service.address())});
    no_call_fails_while_replicas_are_replaced(asked, url, "127.0.0.1").await;
}

/// At an address that it does not take for its own machine's, though the kernel does, the API server asks over HTTP/1.1, as it
/// does through a Service: on as many connections as it has requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_over_http_1_fails_while_replicas_are_replaced() {
    let asked = Asked::new("admission-rolling-one").await;
    let url = |service: &Service| json!({"url": format!("https://0.0.0.0:{}{PATH}", service.address().port())});
    no_call_fails_while_replicas_are_replaced(asked, url, "0.0.0.0").await;
}
