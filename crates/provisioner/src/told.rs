//! What was told to whom, so that looking often does not mean telling often: who is told too much is told nothing in the end.

use std::{collections::HashMap, time::Duration};

use cluster::{ObjectKey, Pod};
use parking_lot::Mutex;
use tokio::time::Instant;

/// Events fade after an hour, the trouble does not.
pub(crate) const REMINDER: Duration = Duration::from_mins(5);

/// It grows with the pods that are in trouble and shrinks with them.
#[derive(Default)]
pub(crate) struct Told(Mutex<HashMap<ObjectKey, Vec<Telling>>>);

/// What was said last about a volume of a pod.
struct Telling {
    pod: Box<str>,
    volume: Box<str>,
    message: String,
    next: Instant,
}

impl Told {
    /// Whether this is to be told now. If so, it is not for a while.
    pub(crate) fn is_due(&self, pod: &Pod, volume: &str, message: &str) -> bool {
        let mut told = self.0.lock();
        let tellings = told.entry(pod.key.clone()).or_default();
        let now = Instant::now();
        let same = |telling: &Telling| telling.pod == pod.uid && *telling.volume == *volume;
        if tellings.iter().any(|telling| same(telling) && telling.message == message && now < telling.next) {
            return false;
        }
        tellings.retain(|telling| telling.pod == pod.uid && !same(telling));
        let (message, next) = (message.to_owned(), now + REMINDER);
        tellings.push(Telling { pod: pod.uid.clone(), volume: volume.into(), message, next });
        true
    }

    /// The pod is out of trouble, or gone.
    pub(crate) fn forget(&self, pod: &ObjectKey) {
        self.0.lock().remove(pod);
    }
}

#[cfg(test)]
mod tests {
    use cluster::store::Slim;
    use serde_json::json;

    use super::*;

    fn pod(uid: &str) -> Pod {
        let pod = json!({"metadata": {"namespace": "ci", "name": "build", "uid": uid}});
        Pod::from_wire(serde_json::from_value(pod).unwrap()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_is_told_again_only_after_a_while() {
        let (told, pod) = (Told::default(), pod("p1"));
        assert!(told.is_due(&pod, "cache", "no"));
        assert!(!told.is_due(&pod, "cache", "no"));
        assert!(told.is_due(&pod, "data", "no"), "another volume");
        assert!(told.is_due(&pod, "cache", "still no"), "another trouble");
        assert!(!told.is_due(&pod, "data", "no"));
        tokio::time::advance(REMINDER).await;
        assert!(told.is_due(&pod, "cache", "still no"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_inherits_nothing_from_its_namesake_and_leaves_nothing_behind() {
        let told = Told::default();
        assert!(told.is_due(&pod("p1"), "cache", "no"));
        assert!(told.is_due(&pod("p2"), "cache", "no"));
        assert_eq!(told.0.lock()[&pod("p2").key].len(), 1);
        told.forget(&pod("p2").key);
        assert!(told.0.lock().is_empty());
    }
}
