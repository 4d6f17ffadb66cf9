//! The queue's rules, without a clock, a lock or a task: time is an argument.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Key, delayed::Delayed, metrics::QueueMetrics, turns::Turns};

/// Longer delays than this are cut, because instants end somewhere. No process lives that long.
const LONGEST_DELAY: Duration = Duration::from_hours(10 * 365 * 24);

/// The room that is kept when the queue runs empty; a burst's room goes back, because bursts come with a restart and the
/// process then idles for weeks.
const IDLE_CAPACITY: usize = 256;

/// What a key that waits, or is worked on, is up to. A key that does neither is not known at all.
#[derive(Default)]
struct Standing {
    /// Since when the key needs work.
    dirty: Option<Instant>,
    /// Since when the key is worked on.
    processing: Option<Instant>,
}

/// What somebody who asks for work gets.
pub(super) enum Turn<K> {
    /// This key.
    Key(K),
    /// Nothing before that moment, unless something changes.
    WaitUntil(Instant),
    /// Nothing unless something changes.
    Wait,
    /// Nothing any more.
    End,
}

pub(super) struct State<K> {
    keys: HashMap<K, Standing>,
    /// How many of `keys` are dirty: those in `ready`, and those that wait for their current work to end.
    dirty: usize,
    ready: Turns<K>,
    delayed: Delayed<K>,
    failures: HashMap<K, u32>,
    shutting_down: bool,
    metrics: Arc<QueueMetrics>,
}

impl<K: Key> State<K> {
    pub(super) fn new(metrics: Arc<QueueMetrics>) -> Self {
        Self {
            keys: HashMap::new(),
            dirty: 0,
            ready: Turns::new(),
            delayed: Delayed::new(),
            failures: HashMap::new(),
            shutting_down: false,
            metrics,
        }
    }

    pub(super) fn add(&mut self, key: K, now: Instant) {
        self.promote(now);
        if !self.shutting_down {
            self.mark_dirty(key, now);
        }
    }

    pub(super) fn add_after(&mut self, key: K, delay: Duration, now: Instant) {
        self.promote(now);
        if self.shutting_down {
            return;
        }
        self.metrics.retries.increment();
        if delay.is_zero() {
            self.mark_dirty(key, now);
        } else {
            self.delayed.insert(key, now + delay.min(LONGEST_DELAY));
        }
    }

    pub(super) fn take(&mut self, now: Instant) -> Turn<K> {
        self.promote(now);
        let Some(key) = self.ready.pop() else {
            return self.delayed.earliest().map_or_else(|| self.wait_or_end(), Turn::WaitUntil);
        };
        let standing = self.keys.entry(key.clone()).or_default();
        let waited = standing.dirty.take().map_or(Duration::ZERO, |since| now.duration_since(since));
        standing.processing = Some(now);
        self.dirty -= 1;
        self.metrics.taken(waited);
        Turn::Key(key)
    }

    pub(super) fn done(&mut self, key: &K, now: Instant) {
        self.promote(now);
        let Some(standing) = self.keys.get_mut(key) else { return };
        if let Some(since) = standing.processing.take() {
            self.metrics.done(now.duration_since(since));
        }
        if standing.dirty.is_some() {
            self.ready.push(key.clone());
            return;
        }
        self.keys.remove(key);
        if self.keys.is_empty() {
            self.keys.shrink_to(IDLE_CAPACITY);
        }
    }

    /// Counts one more failure and returns how many there were before it.
    pub(super) fn count_failure(&mut self, key: &K) -> u32 {
        let failures = self.failures.entry(key.clone()).or_default();
        let before = *failures;
        *failures = before.saturating_add(1);
        before
    }

    pub(super) fn failures(&self, key: &K) -> u32 {
        self.failures.get(key).copied().unwrap_or_default()
    }

    pub(super) fn forget(&mut self, key: &K) {
        self.failures.remove(key);
    }

    pub(super) fn ready(&mut self, now: Instant) -> usize {
        self.promote(now);
        self.ready.len()
    }

    pub(super) fn shut_down(&mut self, now: Instant) {
        self.promote(now);
        self.delayed.clear();
        self.shutting_down = true;
    }

    /// Brings the metrics that grow with time up to date.
    pub(super) fn observe(&mut self, now: Instant) {
        self.promote(now);
        let started = self.keys.values().filter_map(|standing| standing.processing);
        self.metrics.observe_unfinished(started.map(|since| now.duration_since(since)));
    }

    /// Adds what has become due, as of the moment it was due. Called before everything else, so that nobody can tell that
    /// it was not done by a timer.
    fn promote(&mut self, now: Instant) {
        while let Some((key, due)) = self.delayed.pop_due(now) {
            self.mark_dirty(key, due);
        }
    }

    fn mark_dirty(&mut self, key: K, since: Instant) {
        let standing = self.keys.entry(key.clone()).or_default();
        if standing.dirty.is_some() {
            return;
        }
        standing.dirty = Some(since);
        self.dirty += 1;
        self.metrics.added();
        if standing.processing.is_none() {
            self.ready.push(key);
        }
    }

    /// After a shutdown a key that was added while it is worked on still comes, when that work is done.
    fn wait_or_end(&self) -> Turn<K> {
        if self.shutting_down && self.dirty == 0 { Turn::End } else { Turn::Wait }
    }

    #[cfg(test)]
    pub(super) fn remembers_nothing(&self) -> bool {
        self.keys.is_empty()
            && self.keys.capacity() <= 2 * IDLE_CAPACITY
            && self.ready.tenants() == 0
            && self.delayed.earliest().is_none()
            && self.failures.is_empty()
    }
}
