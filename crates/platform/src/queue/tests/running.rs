use std::{
    cell::{Cell, RefCell},
    time::Duration,
};

use futures::FutureExt as _;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{drain, metric, name, queue, soon};
use crate::{
    metrics::Registry,
    queue::{Outcome, Queue, run},
};

#[tokio::test(start_paused = true)]
async fn a_retry_comes_later_every_time_until_it_is_done() {
    let queue = queue();
    queue.add(name("a", 1));
    let started = Instant::now();
    let runs = RefCell::new(Vec::new());
    let handler = async |_| {
        runs.borrow_mut().push(started.elapsed().as_millis());
        if runs.borrow().len() < 4 {
            return Outcome::Retry;
        }
        queue.shut_down();
        Outcome::Done
    };
    soon(run(&queue, 1, CancellationToken::new(), handler)).await;
    assert_eq!(*runs.borrow(), [0, 5, 5 + 10, 5 + 10 + 20]);
    assert_eq!(queue.retries(&name("a", 1)), 0);
}

#[tokio::test(start_paused = true)]
async fn looking_again_later_is_no_failure() {
    let queue = queue();
    queue.add_rate_limited(name("a", 1));
    let started = Instant::now();
    let runs = RefCell::new(Vec::new());
    let handler = async |_| {
        runs.borrow_mut().push(started.elapsed().as_millis());
        if runs.borrow().len() == 3 {
            queue.shut_down();
        }
        Outcome::After(Duration::from_secs(1))
    };
    soon(run(&queue, 1, CancellationToken::new(), handler)).await;
    assert_eq!(*runs.borrow(), [5, 1005, 2005]);
    assert_eq!(queue.retries(&name("a", 1)), 0);
}

#[tokio::test(start_paused = true)]
async fn never_more_handlers_than_allowed_run_at_once() {
    for (concurrency, expected) in [(0, 1), (1, 1), (3, 3), (100, 10)] {
        let queue = queue();
        (0..10).for_each(|number| queue.add(name("a", number)));
        queue.shut_down();
        let (running, most) = (Cell::new(0), Cell::new(0));
        let handler = async |_| {
            running.set(running.get() + 1);
            most.set(most.get().max(running.get()));
            sleep(Duration::from_millis(10)).await;
            running.set(running.get() - 1);
            Outcome::Done
        };
        soon(run(&queue, concurrency, CancellationToken::new(), handler)).await;
        assert_eq!(most.get(), expected);
        assert_eq!(running.get(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_counted_and_retried_and_the_others_do_not_notice() {
    let registry = Registry::default();
    let queue = Queue::new("test", &registry);
    queue.add(name("a", 1));
    queue.add(name("a", 2));
    let calm = Cell::new(false);
    let handler = |key: super::Name| {
        // One panic outside of the future and one inside of it.
        assert!(key.number == 2 || queue.retries(&key) != 0, "on purpose");
        let (queue, calm) = (&queue, &calm);
        async move {
            sleep(Duration::from_millis(100)).await;
            if key.number == 2 {
                calm.set(true);
            } else {
                assert!(queue.retries(&key) != 1, "on purpose");
                queue.shut_down();
            }
            Outcome::Done
        }
    };
    soon(run(&queue, 2, CancellationToken::new(), handler)).await;
    assert!(calm.get());
    assert_eq!(metric(&registry, "claimkeeper_workqueue_panics_total").to_bits(), 2.0_f64.to_bits());
    assert_eq!(metric(&registry, "workqueue_retries_total").to_bits(), 2.0_f64.to_bits());
}

#[tokio::test(start_paused = true)]
async fn dropping_the_run_stops_every_handler_and_keeps_their_keys() {
    let queue = queue();
    (0..3).for_each(|number| queue.add(name("a", number)));
    let (started, finished) = (Cell::new(0), Cell::new(0));
    let handler = async |_| {
        started.set(started.get() + 1);
        sleep(Duration::from_mins(1)).await;
        finished.set(finished.get() + 1);
        Outcome::Done
    };
    assert!(timeout(Duration::from_secs(1), run(&queue, 2, CancellationToken::new(), handler)).await.is_err());
    sleep(Duration::from_mins(2)).await;
    assert_eq!((started.get(), finished.get()), (2, 0));
    let mut keys = drain(&queue);
    keys.sort();
    assert_eq!(keys, [name("a", 0), name("a", 1), name("a", 2)]);
}

#[tokio::test]
async fn handlers_that_never_wait_do_not_keep_the_run_from_being_dropped() {
    let queue = queue();
    queue.add(name("a", 1));
    let runs = Cell::new(0_u32);
    let handler = async |_| {
        runs.set(runs.get() + 1);
        if runs.get() == 100_000 {
            queue.shut_down();
        }
        Outcome::After(Duration::ZERO)
    };
    tokio::select! {
        biased;
        () = run(&queue, 1, CancellationToken::new(), handler) => panic!("the run never gave way"),
        () = tokio::task::yield_now() => {}
    }
    assert!(runs.get() > 0);
}

#[tokio::test(start_paused = true)]
async fn a_stopped_run_finishes_what_it_has_begun_and_leaves_the_rest() {
    let queue = queue();
    (0..5).for_each(|number| queue.add(name("a", number)));
    let stop = CancellationToken::new();
    let finished = RefCell::new(Vec::new());
    let handler = async |key: super::Name| {
        sleep(Duration::from_secs(1)).await;
        stop.cancel();
        sleep(Duration::from_secs(1)).await;
        finished.borrow_mut().push(key.number);
        Outcome::Done
    };
    soon(run(&queue, 2, stop.clone(), handler)).await;
    finished.borrow_mut().sort_unstable();
    assert_eq!(*finished.borrow(), [0, 1]);
    assert_eq!(drain(&queue), [2, 3, 4].map(|number| name("a", number)));
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_stopped_before_it_starts_touches_no_key() {
    let queue = queue();
    queue.add(name("a", 1));
    let stop = CancellationToken::new();
    stop.cancel();
    soon(run(&queue, 1, stop, async |_| panic!("it was stopped"))).await;
    assert_eq!(queue.len(), 1);
}

#[tokio::test]
async fn a_run_can_be_spawned() {
    let queue = queue();
    queue.add(name("a", 1));
    queue.shut_down();
    let spawned = queue.clone();
    let handler = |_| tokio::task::yield_now().map(|()| Outcome::Done);
    let running = tokio::spawn(async move { run(&spawned, 4, CancellationToken::new(), handler).await });
    soon(running).await.unwrap();
    assert!(soon(queue.next()).await.is_none());
}
