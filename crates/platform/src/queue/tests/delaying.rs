use std::time::Duration;

use futures::FutureExt as _;
use tokio::time::{Instant, advance};

use super::{drain, metric, name, next_ready, queue, soon};
use crate::{metrics::Registry, queue::Queue};

#[tokio::test(start_paused = true)]
async fn a_delayed_key_comes_when_it_is_due_and_not_before() {
    let queue = queue();
    queue.add_after(name("a", 1), Duration::from_millis(20));
    advance(Duration::from_millis(19)).await;
    assert!(next_ready(&queue).is_none());
    advance(Duration::from_millis(1)).await;
    assert_eq!(drain(&queue), [name("a", 1)]);
    assert_eq!(drain(&queue), []);
}

#[tokio::test(start_paused = true)]
async fn no_delay_means_now() {
    let queue = queue();
    queue.add_after(name("a", 1), Duration::ZERO);
    assert_eq!(drain(&queue), [name("a", 1)]);
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_is_woken_when_a_key_is_due() {
    let queue = queue();
    let started = Instant::now();
    let waiting: Vec<_> = (0..2)
        .map(|_| {
            let queue = queue.clone();
            tokio::spawn(async move { queue.next().await.map(|item| item.number) })
        })
        .collect();
    tokio::task::yield_now().await;
    queue.add_after(name("a", 1), Duration::from_secs(10));
    tokio::task::yield_now().await;
    // Both already wait for the key above and must now wait for an earlier one.
    queue.add_after(name("a", 2), Duration::from_secs(5));
    let mut numbers: Vec<_> = soon(futures::future::join_all(waiting)).await.into_iter().map(Result::unwrap).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [Some(1), Some(2)]);
    assert_eq!(started.elapsed(), Duration::from_secs(10));
}

#[tokio::test(start_paused = true)]
async fn the_earliest_of_several_delays_counts() {
    for delays in [[50, 20], [20, 50]] {
        let queue = queue();
        for delay in delays {
            queue.add_after(name("a", 1), Duration::from_millis(delay));
        }
        advance(Duration::from_millis(20)).await;
        assert_eq!(drain(&queue), [name("a", 1)]);
        advance(Duration::from_millis(30)).await;
        assert_eq!(drain(&queue), [], "the later of {delays:?} is gone");
    }
}

#[tokio::test(start_paused = true)]
async fn keys_come_in_the_order_in_which_they_are_due() {
    let queue = queue();
    for (number, delay) in [(1, 30), (2, 10), (3, 20), (4, 10)] {
        queue.add_after(name("a", number), Duration::from_millis(delay));
    }
    advance(Duration::from_secs(1)).await;
    assert_eq!(drain(&queue), [2, 4, 3, 1].map(|number| name("a", number)));
}

#[tokio::test(start_paused = true)]
async fn an_add_does_not_cancel_a_delayed_one() {
    let queue = queue();
    queue.add_after(name("a", 1), Duration::from_millis(20));
    queue.add(name("a", 1));
    assert_eq!(drain(&queue), [name("a", 1)]);
    advance(Duration::from_millis(20)).await;
    assert_eq!(drain(&queue), [name("a", 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_becomes_due_while_it_is_worked_on_runs_afterwards() {
    let queue = queue();
    queue.add(name("a", 1));
    let item = next_ready(&queue).unwrap();
    queue.add_after(name("a", 1), Duration::from_millis(20));
    advance(Duration::from_millis(20)).await;
    assert!(next_ready(&queue).is_none());
    drop(item);
    assert_eq!(drain(&queue), [name("a", 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_due_key_that_nobody_has_seen_yet_does_not_swallow_a_later_one() {
    let queue = queue();
    queue.add_after(name("a", 1), Duration::from_millis(10));
    advance(Duration::from_millis(20)).await;
    queue.add_after(name("a", 1), Duration::from_millis(5));
    assert_eq!(drain(&queue), [name("a", 1)]);
    advance(Duration::from_millis(5)).await;
    assert_eq!(drain(&queue), [name("a", 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_was_due_before_the_shutdown_is_still_handed_out() {
    let queue = queue();
    queue.add_after(name("a", 1), Duration::from_millis(10));
    queue.add_after(name("a", 2), Duration::from_millis(30));
    advance(Duration::from_millis(20)).await;
    queue.shut_down();
    assert_eq!(drain(&queue), [name("a", 1)]);
    assert!(soon(queue.next()).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_due_key_has_waited_since_it_was_due_however_late_somebody_looks() {
    let registry = Registry::default();
    let queue = Queue::new("test", &registry);
    queue.add_after(name("a", 1), Duration::from_secs(1));
    advance(Duration::from_secs(3)).await;
    assert_eq!(metric(&registry, "workqueue_adds_total").to_bits(), 1.0_f64.to_bits());
    assert_eq!(metric(&registry, "workqueue_depth").to_bits(), 1.0_f64.to_bits());
    assert_eq!(drain(&queue), [name("a", 1)]);
    assert_eq!(metric(&registry, "workqueue_queue_duration_seconds_sum").to_bits(), 2.0_f64.to_bits());
}

#[tokio::test(start_paused = true)]
async fn the_longest_imaginable_delay_is_no_accident() {
    let queue = queue();
    queue.add_after(name("a", 1), Duration::MAX);
    assert!(queue.next().now_or_never().is_none());
}
