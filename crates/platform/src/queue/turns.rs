//! Ready keys: one line per tenant, and tenants take turns.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use super::Key;

pub(super) struct Turns<K> {
    lines: HashMap<Arc<str>, VecDeque<K>>,
    /// The tenants that have a line, each once, in the order of their turns.
    order: VecDeque<Arc<str>>,
    len: usize,
}

impl<K: Key> Turns<K> {
    pub(super) fn new() -> Self {
        Self { lines: HashMap::new(), order: VecDeque::new(), len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn push(&mut self, key: K) {
        self.len += 1;
        if let Some(line) = self.lines.get_mut(key.tenant()) {
            line.push_back(key);
            return;
        }
        let tenant: Arc<str> = key.tenant().into();
        self.order.push_back(Arc::clone(&tenant));
        self.lines.insert(tenant, VecDeque::from([key]));
    }

    pub(super) fn pop(&mut self) -> Option<K> {
        let tenant = self.order.pop_front()?;
        let line = self.lines.get_mut(&tenant)?;
        let key = line.pop_front()?;
        self.len -= 1;
        if line.is_empty() {
            // Tenants come and go for as long as the process lives.
            self.lines.remove(&tenant);
        } else {
            self.order.push_back(tenant);
        }
        Some(key)
    }

    #[cfg(test)]
    pub(super) fn tenants(&self) -> usize {
        debug_assert_eq!(self.lines.len(), self.order.len());
        self.lines.len()
    }
}
