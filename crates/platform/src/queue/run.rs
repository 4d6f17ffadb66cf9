//! Works on a queue's keys, several at a time.

use std::{any::Any, panic::AssertUnwindSafe, time::Duration};

use futures::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use tokio_util::sync::CancellationToken;

use super::{Item, Key, Queue};

/// How the work on a key ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing is left to do until the key is added again.
    Done,
    /// It failed: try again, later with every failure.
    Retry,
    /// It is as it should be, but look again when this time is over.
    After(Duration),
}

impl Outcome {
    /// What a key needs whose work has several parts that ended differently: a failure is retried before a look is due.
    #[must_use]
    pub fn or_sooner(self, other: Self) -> Self {
        match (self, other) {
            (Self::Retry, _) | (_, Self::Retry) => Self::Retry,
            (Self::After(one), Self::After(other)) => Self::After(one.min(other)),
            (Self::Done, other) => other,
            (one, Self::Done) => one,
        }
    }
}

/// Hands each of the queue's keys to `handler`, at most `concurrency` (but at least one) at a time, until the queue is shut
/// down and empty, or until `stop` is cancelled: then handlers that have begun may finish, and the other keys stay in the queue.
///
/// All handlers run inside this one future. They wait for the API server together but compute one after another, which is
/// no loss (decisions take microseconds) and makes the future a switch: once it is dropped no handler runs another
/// instruction. That is how losing the lease stops all writers. (If it was spawned, aborting the task only asks for the drop;
/// it has happened when the task's handle has been awaited.) Keys that were cut off are added to the queue again, for
/// whoever runs it next.
///
/// A handler that panics fails like one that asks for [`Outcome::Retry`]; the others don't notice.
pub async fn run<K, F, Fut>(queue: &Queue<K>, concurrency: usize, stop: CancellationToken, handler: F)
where
    K: Key,
    F: Fn(K) -> Fut,
    Fut: Future<Output = Outcome>,
{
    let mut working = FuturesUnordered::new();
    let mut open = true;
    while open || !working.is_empty() {
        // Handlers that never have to wait would otherwise keep our caller from noticing that we are to be dropped.
        tokio::task::coop::consume_budget().await;
        tokio::select! {
            biased;
            () = stop.cancelled(), if open => open = false,
            Some(()) = working.next(), if !working.is_empty() => {}
            item = queue.next(), if open && working.len() < concurrency.max(1) => match item {
                Some(item) => working.push(work(queue, Attempt { item, settled: false }, &handler)),
                None => open = false,
            },
        }
    }
}

async fn work<K, F, Fut>(queue: &Queue<K>, mut attempt: Attempt<K>, handler: &F)
where
    K: Key,
    F: Fn(K) -> Fut,
    Fut: Future<Output = Outcome>,
{
    let key = K::clone(&attempt.item);
    // The handler is called inside, because it may also panic before it returns its future.
    let ended = AssertUnwindSafe(async { handler(key.clone()).await }).catch_unwind().await;
    let outcome = ended.unwrap_or_else(|panic| {
        queue.shared.metrics.panics.increment();
        tracing::error!(
            queue = queue.name(),
            ?key,
            panic = message(&*panic),
            "working on a key panicked; it is tried again"
        );
        Outcome::Retry
    });
    match outcome {
        Outcome::Done => queue.forget(&key),
        Outcome::Retry => {
            queue.add_rate_limited(key);
        }
        Outcome::After(delay) => {
            queue.forget(&key);
            queue.add_after(key, delay);
        }
    }
    attempt.settled = true;
}

/// Work on a key that has begun. Until it is settled, the key still needs it.
struct Attempt<K: Key> {
    item: Item<K>,
    settled: bool,
}

impl<K: Key> Drop for Attempt<K> {
    fn drop(&mut self) {
        if !self.settled {
            self.item.queue.add(K::clone(&self.item));
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
