//! Who waits for room in a namespace's quota.
//!
//! A refused claim could be tried again and again until it fits, but five thousand pods that wait would then keep the API
//! server busy with refusals, or sleep through the moment when there is room. So they stand in line: room calls the first few,
//! every claim that fits calls one more, and who is refused again goes to the end, so that a claim which is too big for what
//! is left does not hold up smaller ones.

use std::collections::{BTreeMap, HashMap};

use cluster::ObjectKey;
use parking_lot::Mutex;

/// One line per namespace.
#[derive(Default)]
pub(crate) struct QuotaLine {
    namespaces: Mutex<HashMap<Box<str>, Line>>,
}

#[derive(Default)]
struct Line {
    next_place: u64,
    pods: BTreeMap<u64, ObjectKey>,
    places: HashMap<ObjectKey, u64>,
}

impl QuotaLine {
    /// The pod waits, behind all others of its namespace.
    pub(crate) fn join(&self, pod: &ObjectKey) {
        let mut namespaces = self.namespaces.lock();
        let line = namespaces.entry(pod.namespace().into()).or_default();
        line.remove(pod);
        line.pods.insert(line.next_place, pod.clone());
        line.places.insert(pod.clone(), line.next_place);
        line.next_place += 1;
    }

    /// The pod does not wait any more.
    pub(crate) fn leave(&self, pod: &ObjectKey) {
        let mut namespaces = self.namespaces.lock();
        let Some(line) = namespaces.get_mut(pod.namespace()) else { return };
        line.remove(pod);
        if line.pods.is_empty() {
            namespaces.remove(pod.namespace());
        }
    }

    /// There may be room: the first `count` leave the line and try again.
    pub(crate) fn call(&self, namespace: &str, count: usize) -> Vec<ObjectKey> {
        let mut namespaces = self.namespaces.lock();
        let Some(line) = namespaces.get_mut(namespace) else { return Vec::new() };
        let called: Vec<ObjectKey> =
            std::iter::from_fn(|| line.pods.pop_first()).take(count).map(|(_, pod)| pod).collect();
        for pod in &called {
            line.remove(pod);
        }
        if line.pods.is_empty() {
            namespaces.remove(namespace);
        }
        called
    }
}

impl Line {
    fn remove(&mut self, pod: &ObjectKey) {
        if let Some(place) = self.places.remove(pod) {
            self.pods.remove(&place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str) -> ObjectKey {
        ObjectKey::new("ci", name)
    }

    #[test]
    fn who_came_first_is_called_first_and_who_joins_again_goes_to_the_end() {
        let line = QuotaLine::default();
        for name in ["big", "small", "other"] {
            line.join(&pod(name));
        }
        assert_eq!(line.call("ci", 1), [pod("big")]);
        line.join(&pod("big"));
        line.join(&pod("small"));
        assert_eq!(line.call("ci", 9), [pod("other"), pod("big"), pod("small")]);
        assert!(line.call("ci", 9).is_empty());
    }

    #[test]
    fn namespaces_do_not_stand_in_each_others_way_and_nothing_is_kept_of_who_left() {
        let line = QuotaLine::default();
        line.join(&pod("one"));
        line.join(&pod("two"));
        line.join(&ObjectKey::new("shop", "web"));
        line.leave(&pod("one"));
        line.leave(&pod("never-came"));
        assert_eq!(line.call("ci", 9), [pod("two")]);
        line.leave(&ObjectKey::new("shop", "web"));
        assert!(line.namespaces.lock().is_empty());
    }
}
