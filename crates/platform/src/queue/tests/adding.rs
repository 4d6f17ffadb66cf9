use std::time::Duration;

use futures::FutureExt as _;

use super::{drain, metric, name, next_ready, queue, soon};
use crate::{
    metrics::Registry,
    queue::{Backoff, Queue},
};

#[tokio::test]
async fn a_key_that_waits_is_not_queued_twice() {
    let queue = queue();
    queue.add(name("a", 1));
    queue.add(name("a", 1));
    assert_eq!(queue.len(), 1);
    assert_eq!(drain(&queue), [name("a", 1)]);
}

#[tokio::test]
async fn keys_of_one_namespace_come_in_the_order_of_their_adds() {
    let queue = queue();
    for number in [3, 1, 2, 1] {
        queue.add(name("a", number));
    }
    assert_eq!(drain(&queue), [name("a", 3), name("a", 1), name("a", 2)]);
}

#[tokio::test]
async fn a_key_is_not_handed_out_while_it_is_worked_on() {
    let queue = queue();
    queue.add(name("a", 1));
    let item = next_ready(&queue).unwrap();
    queue.add(name("a", 1));
    assert!(queue.is_empty());
    assert!(next_ready(&queue).is_none());
    drop(item);
    assert_eq!(drain(&queue), [name("a", 1)]);
}

#[tokio::test]
async fn a_key_that_is_added_often_while_it_is_worked_on_runs_once_more() {
    let queue = queue();
    queue.add(name("a", 1));
    let item = next_ready(&queue).unwrap();
    for _ in 0..3 {
        queue.add(name("a", 1));
    }
    drop(item);
    assert_eq!(drain(&queue), [name("a", 1)]);
}

#[tokio::test]
async fn a_worker_that_is_cancelled_or_panics_leaves_no_key_locked() {
    let queue = queue();
    queue.add(name("a", 1));
    let worker = tokio::spawn({
        let queue = queue.clone();
        async move {
            let _item = queue.next().await;
            panic!("on purpose");
        }
    });
    assert!(worker.await.unwrap_err().is_panic());
    queue.add(name("a", 1));
    assert_eq!(drain(&queue), [name("a", 1)]);
}

#[tokio::test]
async fn whoever_waits_is_woken_by_an_add() {
    let queue = queue();
    let waiting = tokio::spawn({
        let queue = queue.clone();
        async move { queue.next().await.map(|item| item.clone()) }
    });
    tokio::task::yield_now().await;
    queue.add(name("a", 1));
    assert_eq!(soon(waiting).await.unwrap(), Some(name("a", 1)));
}

#[tokio::test]
async fn a_shut_down_queue_takes_nothing_and_hands_out_what_it_has() {
    let queue = queue();
    queue.add(name("a", 1));
    queue.add_after(name("a", 2), Duration::from_secs(1));
    queue.shut_down();
    queue.add(name("a", 3));
    queue.add_after(name("a", 4), Duration::ZERO);
    assert_eq!(soon(queue.next()).await.map(|item| item.clone()), Some(name("a", 1)));
    assert!(soon(queue.next()).await.is_none());
}

#[tokio::test]
async fn a_key_added_while_worked_on_survives_the_shutdown_and_then_everybody_is_released() {
    let queue = queue();
    queue.add(name("a", 1));
    let item = next_ready(&queue).unwrap();
    queue.add(name("a", 1));
    queue.shut_down();
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            let queue = queue.clone();
            tokio::spawn(async move { queue.next().await.map(|item| item.clone()) })
        })
        .collect();
    tokio::task::yield_now().await;
    assert!(waiting.iter().all(|waiter| !waiter.is_finished()));
    drop(item);
    let answers = soon(futures::future::join_all(waiting)).await;
    let keys: Vec<_> = answers.into_iter().filter_map(Result::unwrap).collect();
    assert_eq!(keys, [name("a", 1)]);
}

#[test]
fn delays_double_with_every_failure_up_to_the_cap() {
    let queue = queue();
    let delays: Vec<_> = (0..20).map(|_| queue.add_rate_limited(name("a", 1)).as_millis()).collect();
    let expected: Vec<_> = (0..20).map(|failures| (5_u128 << failures).min(1_000_000)).collect();
    assert_eq!(delays, expected);
    assert_eq!(queue.retries(&name("a", 1)), 20);
    assert_eq!(queue.retries(&name("a", 2)), 0);
    queue.forget(&name("a", 1));
    assert_eq!(queue.retries(&name("a", 1)), 0);
    assert_eq!(queue.add_rate_limited(name("a", 1)).as_millis(), 5);
}

#[test]
fn delays_stay_at_the_cap_however_often_a_key_fails() {
    let backoff = Backoff { base: Duration::from_secs(1), cap: Duration::MAX };
    assert_eq!(backoff.delay(31), Duration::from_secs(1 << 31));
    assert_eq!(backoff.delay(32), Duration::MAX);
    assert_eq!(backoff.delay(u32::MAX), Duration::MAX);
    assert_eq!(Backoff { cap: Duration::from_millis(3), ..Backoff::default() }.delay(0), Duration::from_millis(3));
}

#[tokio::test(start_paused = true)]
async fn an_idle_queue_remembers_nothing() {
    let queue = queue();
    let namespaces = ["a", "b", "c", "d"];
    for number in 0..10_000 {
        let key = name(namespaces[number as usize % 4], number);
        queue.add_rate_limited(key.clone());
        queue.add(key);
    }
    tokio::time::advance(Duration::from_secs(1)).await;
    while let Some(item) = next_ready(&queue) {
        queue.forget(&item);
    }
    assert!(queue.shared.state.lock().remembers_nothing());
}

#[test]
fn the_registry_keeps_no_queue_alive() {
    let registry = Registry::default();
    let queue: Queue<super::Name> = Queue::new("test", &registry);
    queue.add(name("a", 1));
    let shared = std::sync::Arc::downgrade(&queue.shared);
    drop(queue);
    assert!(shared.upgrade().is_none());
    assert!(registry.encode().contains("workqueue_adds_total{name=\"test\"} 1\n"));
}

#[test]
fn all_series_are_visible_before_the_first_key() {
    let registry = Registry::default();
    let queue: Queue<super::Name> = Queue::new("ephemeral_volume", &registry);
    let text = registry.encode();
    for series in [
        "workqueue_adds_total{name=\"ephemeral_volume\"} 0\n",
        "workqueue_depth{name=\"ephemeral_volume\"} 0\n",
        "workqueue_longest_running_processor_seconds{name=\"ephemeral_volume\"} 0\n",
        "workqueue_queue_duration_seconds_bucket{name=\"ephemeral_volume\",le=\"9.999999999999999e-05\"} 0\n",
        "workqueue_queue_duration_seconds_sum{name=\"ephemeral_volume\"} 0\n",
        "workqueue_retries_total{name=\"ephemeral_volume\"} 0\n",
        "workqueue_unfinished_work_seconds{name=\"ephemeral_volume\"} 0\n",
        "workqueue_work_duration_seconds_bucket{name=\"ephemeral_volume\",le=\"+Inf\"} 0\n",
        "workqueue_work_duration_seconds_count{name=\"ephemeral_volume\"} 0\n",
    ] {
        assert!(text.contains(series), "{series} is missing in\n{text}");
    }
    assert_eq!(queue.name(), "ephemeral_volume");
}

#[tokio::test(start_paused = true)]
async fn work_in_progress_is_measured_at_the_moment_of_the_scrape() {
    let registry = Registry::default();
    let queue = Queue::new("test", &registry);
    queue.add(name("a", 1));
    queue.add(name("a", 2));
    let first = next_ready(&queue).unwrap();
    tokio::time::advance(Duration::from_secs(2)).await;
    let second = next_ready(&queue).unwrap();
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(metric(&registry, "workqueue_unfinished_work_seconds").to_bits(), 4.0_f64.to_bits());
    assert_eq!(metric(&registry, "workqueue_longest_running_processor_seconds").to_bits(), 3.0_f64.to_bits());
    drop((first, second));
    assert_eq!(metric(&registry, "workqueue_unfinished_work_seconds").to_bits(), 0);
    assert_eq!(metric(&registry, "workqueue_work_duration_seconds_sum").to_bits(), 4.0_f64.to_bits());
    assert!(queue.next().now_or_never().is_none());
}
