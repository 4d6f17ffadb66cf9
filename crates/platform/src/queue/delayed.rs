//! Keys that are to become ready later, the earliest first.

use std::collections::{BTreeMap, HashMap};

use tokio::time::Instant;

use super::Key;

/// When a key is due; the number keeps keys that are due at the same moment apart, and in the order of their adds.
type Due = (Instant, u64);

pub(super) struct Delayed<K> {
    keys: BTreeMap<Due, K>,
    due: HashMap<K, Due>,
    adds: u64,
}

impl<K: Key> Delayed<K> {
    pub(super) fn new() -> Self {
        Self { keys: BTreeMap::new(), due: HashMap::new(), adds: 0 }
    }

    /// Makes the key due at `at`, unless it is due earlier anyway.
    pub(super) fn insert(&mut self, key: K, at: Instant) {
        if let Some(known) = self.due.get(&key) {
            if known.0 <= at {
                return;
            }
            self.keys.remove(known);
        }
        self.adds += 1;
        let due = (at, self.adds);
        self.due.insert(key.clone(), due);
        self.keys.insert(due, key);
    }

    /// When the next key is due.
    pub(super) fn earliest(&self) -> Option<Instant> {
        self.keys.first_key_value().map(|((at, _), _)| *at)
    }

    /// The next key that is due by `now`, and since when.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<(K, Instant)> {
        if self.earliest()? > now {
            return None;
        }
        let ((at, _), key) = self.keys.pop_first()?;
        self.due.remove(&key);
        Some((key, at))
    }

    pub(super) fn clear(&mut self) {
        self.keys.clear();
        self.due = HashMap::new();
    }
}
