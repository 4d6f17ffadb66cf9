//! The work queue: which key is worked on next, by whom, and when again.
//!
//! ```text
//!  add ───────────────────────────┐
//!  add_after ──> delayed ──due──> ready ──next──> processing ──done──> (ready again if it was added meanwhile)
//!  add_rate_limited ──^           one line per tenant, tenants take turns
//! ```
//!
//! The rules are those of client-go's `workqueue`, because every controller author knows them and because its metrics are
//! what dashboards and alerts are made for:
//!
//! - A key is never worked on twice at once, and it waits at most once: adding what already waits changes nothing.
//! - A key that is added while it is worked on runs once more afterwards, however often it was added.
//! - Of several delayed adds of a key the earliest counts.
//! - Every failure of a key doubles its delay, up to a cap, until [`Queue::forget`].
//!
//! Where we differ: ready keys wait in one line per tenant (namespace) and tenants take turns, so the ten thousand keys
//! of one delay the single key of another by one turn; and there is no background task: due keys are moved by whoever looks
//! next, dated back to the moment they were due, so that everything looks as if a timer had moved them in time.
//!
//! Features use [`run`], which works on keys and turns the [`Outcome`] of each into the right calls here.

mod backoff;
mod delayed;
mod metrics;
mod run;
mod state;
#[cfg(test)]
mod tests;
mod turns;

use std::{fmt, hash::Hash, ops::Deref, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use self::{
    metrics::QueueMetrics,
    state::{State, Turn},
};
use crate::metrics::Registry;

pub use backoff::Backoff;
pub use run::{Outcome, run};

/// What a queue holds: the name of an object, cheap to clone.
pub trait Key: Clone + Eq + Hash + fmt::Debug + Send + Sync + 'static {
    /// Whose turn this key counts as: its namespace, or `""` when it is cluster-scoped.
    fn tenant(&self) -> &str;
}

/// A handle to a work queue; clones are handles to the same queue.
pub struct Queue<K: Key> {
    shared: Arc<Shared<K>>,
}

struct Shared<K: Key> {
    name: &'static str,
    backoff: Backoff,
    metrics: Arc<QueueMetrics>,
    state: Mutex<State<K>>,
    /// Rung after every change. All who wait look again: there are few of them, and nobody can miss or lose a wake-up.
    bell: Notify,
}

impl<K: Key> Queue<K> {
    /// A queue with client-go's backoff. `name` is the label of its metrics, which are visible with 0 from now on.
    #[must_use]
    pub fn new(name: &'static str, registry: &Registry) -> Self {
        Self::with_backoff(name, registry, Backoff::default())
    }

    /// A queue with a backoff of its own.
    #[must_use]
    pub fn with_backoff(name: &'static str, registry: &Registry, backoff: Backoff) -> Self {
        let metrics = Arc::new(QueueMetrics::register(name, registry));
        let state = Mutex::new(State::new(Arc::clone(&metrics)));
        let shared = Arc::new(Shared { name, backoff, metrics, state, bell: Notify::new() });
        // Weak, because the registry outlives every queue and must not keep the keys of one that is gone.
        let observed = Arc::downgrade(&shared);
        registry.before_scrape(move || {
            if let Some(shared) = observed.upgrade() {
                shared.state.lock().observe(Instant::now());
            }
        });
        Self { shared }
    }

    /// The name that the queue's metrics carry.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.shared.name
    }

    /// The key needs work. Ignored after [`Queue::shut_down`].
    pub fn add(&self, key: K) {
        self.update(|state, now| state.add(key, now));
    }

    /// The key needs work when `delay` is over, unless it is wanted earlier by another delayed add.
    pub fn add_after(&self, key: K, delay: Duration) {
        self.update(|state, now| state.add_after(key, delay, now));
    }

    /// The key failed and needs work after a delay that doubles with every failure. Returns that delay.
    pub fn add_rate_limited(&self, key: K) -> Duration {
        self.update(|state, now| {
            let delay = self.shared.backoff.delay(state.count_failure(&key));
            state.add_after(key, delay, now);
            delay
        })
    }

    /// The key succeeded, or is given up: its next failure starts with the smallest delay again.
    pub fn forget(&self, key: &K) {
        self.shared.state.lock().forget(key);
    }

    /// How often the key failed since it was last forgotten.
    #[must_use]
    pub fn retries(&self, key: &K) -> u32 {
        self.shared.state.lock().failures(key)
    }

    /// How many keys are ready to be worked on.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.state.lock().ready(Instant::now())
    }

    /// Whether no key is ready to be worked on.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits for the next key and locks it until the [`Item`] is dropped. `None` once the queue is shut down and nothing
    /// is left to do. Dropping the future loses nothing.
    pub async fn next(&self) -> Option<Item<K>> {
        loop {
            // Listening starts before looking, so that no change falls in between.
            let changed = self.shared.bell.notified();
            let turn = self.shared.state.lock().take(Instant::now());
            match turn {
                Turn::Key(key) => return Some(Item { queue: self.clone(), key }),
                Turn::WaitUntil(due) => tokio::select! {
                    () = changed => {}
                    () = tokio::time::sleep_until(due) => {}
                },
                Turn::Wait => changed.await,
                Turn::End => return None,
            }
        }
    }

    /// Ends the queue: nothing is added any more and delayed keys are dropped; keys that already wait are still handed out.
    pub fn shut_down(&self) {
        self.update(State::shut_down);
    }

    fn update<R>(&self, change: impl FnOnce(&mut State<K>, Instant) -> R) -> R {
        let result = change(&mut self.shared.state.lock(), Instant::now());
        self.shared.bell.notify_waiters();
        result
    }
}

impl<K: Key> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

/// A key that is being worked on, and by nobody else. Dropping it, for whatever reason, ends the work.
pub struct Item<K: Key> {
    queue: Queue<K>,
    key: K,
}

impl<K: Key> Deref for Item<K> {
    type Target = K;

    fn deref(&self) -> &K {
        &self.key
    }
}

impl<K: Key> Drop for Item<K> {
    fn drop(&mut self) {
        self.queue.update(|state, now| state.done(&self.key, now));
    }
}
