//! What is remembered of claims from one look to the next: nothing that could not be forgotten without harm.

use std::collections::HashMap;

use cluster::{ObjectKey, Pod};
use parking_lot::Mutex;

/// It grows with the ended pods that exist and shrinks with them.
#[derive(Default)]
pub(super) struct Memory {
    claims: Mutex<HashMap<ObjectKey, Remembered>>,
    /// Who waits for a volume to be detached. A volume has one claim, and that has one owner.
    waiting: Mutex<HashMap<Box<str>, ObjectKey>>,
}

/// One claim of one pod.
#[derive(Default)]
struct Remembered {
    pod: Box<str>,
    freed: Option<Box<str>>,
    told: Option<(Box<str>, &'static str)>,
    driver: Option<Box<str>>,
    polls: u32,
}

impl Memory {
    /// The uid of the claim of this name that was freed for the pod.
    pub(super) fn freed(&self, pod: &Pod, claim: &ObjectKey) -> Option<Box<str>> {
        // Only looking must not make it grow.
        let claims = self.claims.lock();
        claims.get(claim).filter(|known| known.pod == pod.uid).and_then(|known| known.freed.clone())
    }

    /// The claim was freed.
    pub(super) fn note_freed(&self, pod: &Pod, claim: &ObjectKey, uid: &str) {
        self.of(pod, claim, |known| known.freed = Some(uid.into()));
    }

    /// Whether this is news about the claim of this uid. From now on it is not.
    pub(super) fn is_news(&self, pod: &Pod, claim: &ObjectKey, uid: &str, reason: &'static str) -> bool {
        self.of(pod, claim, |known| {
            let news = known.told.as_ref().is_none_or(|told| (&*told.0, told.1) != (uid, reason));
            known.told = Some((uid.into(), reason));
            news
        })
    }

    /// How often the claim was looked at before without being told to; from now on once more.
    pub(super) fn count_poll(&self, pod: &Pod, claim: &ObjectKey) -> u32 {
        self.of(pod, claim, |known| {
            let before = known.polls;
            known.polls = before.saturating_add(1);
            before
        })
    }

    /// What is decided about the claim depends on this CSI driver. To be called before looking at the driver.
    pub(super) fn note_driver(&self, pod: &Pod, claim: &ObjectKey, driver: &str) {
        self.of(pod, claim, |known| known.driver = Some(driver.into()));
    }

    /// The claims about which something was decided that depends on this CSI driver.
    pub(super) fn claims_of_driver(&self, driver: &str) -> Vec<ObjectKey> {
        let claims = self.claims.lock();
        let known = claims.iter().filter(|(_, known)| known.driver.as_deref() == Some(driver));
        known.map(|(claim, _)| claim.clone()).collect()
    }

    /// Nothing of the pod is needed any more.
    pub(super) fn forget(&self, pod: &Pod) {
        let mut claims = self.claims.lock();
        for volume in &pod.ephemeral_volumes {
            let claim = pod.claim_key(volume);
            if claims.get(&claim).is_some_and(|known| known.pod == pod.uid) {
                claims.remove(&claim);
            }
        }
    }

    /// The pod is to be woken when the volume is detached. To be called before looking whether it is attached.
    pub(super) fn wait_for(&self, volume: &str, pod: &ObjectKey) {
        self.waiting.lock().insert(volume.into(), pod.clone());
    }

    /// Who waited for this volume; nobody does any more.
    pub(super) fn take_waiting(&self, volume: &str) -> Option<ObjectKey> {
        self.waiting.lock().remove(volume)
    }

    fn of<R>(&self, pod: &Pod, claim: &ObjectKey, use_it: impl FnOnce(&mut Remembered) -> R) -> R {
        let mut claims = self.claims.lock();
        let known = claims.entry(claim.clone()).or_default();
        if known.pod != pod.uid {
            *known = Remembered { pod: pod.uid.clone(), ..Remembered::default() };
        }
        use_it(known)
    }
}

#[cfg(test)]
mod tests {
    use cluster::store::Slim;
    use serde_json::json;

    use super::*;

    fn pod(uid: &str) -> Pod {
        let volume = json!({"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}});
        let pod = json!({"metadata": {"namespace": "ci", "name": "build", "uid": uid}, "spec": {"volumes": [volume]}});
        Pod::from_wire(serde_json::from_str(&pod.to_string()).unwrap()).unwrap()
    }

    #[test]
    fn everything_is_news_once_for_each_claim_and_reason() {
        let (memory, pod) = (Memory::default(), pod("p1"));
        let claim = pod.claim_key(&pod.ephemeral_volumes[0]);
        let news = |uid, reason| memory.is_news(&pod, &claim, uid, reason);
        assert!(news("c1", "Reclaimable"));
        assert!(!news("c1", "Reclaimable"));
        assert!(news("c1", "UnmountNotProvable"));
        assert!(news("c2", "UnmountNotProvable"));
    }

    #[test]
    fn a_pod_inherits_nothing_from_its_namesake() {
        let memory = Memory::default();
        let (first, second) = (pod("p1"), pod("p2"));
        let claim = first.claim_key(&first.ephemeral_volumes[0]);
        memory.note_freed(&first, &claim, "c1");
        assert_eq!(memory.freed(&first, &claim).as_deref(), Some("c1"));
        assert_eq!(memory.freed(&second, &claim), None);
        assert_eq!((memory.count_poll(&second, &claim), memory.count_poll(&second, &claim)), (0, 1));
        // The end of the first is told late.
        memory.forget(&first);
        assert_eq!(memory.count_poll(&second, &claim), 2);
    }

    #[test]
    fn claims_are_found_by_the_driver_that_they_depend_on() {
        let (memory, pod) = (Memory::default(), pod("p1"));
        let claim = pod.claim_key(&pod.ephemeral_volumes[0]);
        memory.note_driver(&pod, &claim, "disks.example.dev");
        assert_eq!(memory.claims_of_driver("disks.example.dev"), [claim]);
        assert!(memory.claims_of_driver("other.example.dev").is_empty());
    }

    #[test]
    fn a_pod_that_is_gone_leaves_nothing_behind() {
        let (memory, pod) = (Memory::default(), pod("p1"));
        let claim = pod.claim_key(&pod.ephemeral_volumes[0]);
        memory.note_freed(&pod, &claim, "c1");
        memory.forget(&pod);
        assert!(memory.claims.lock().is_empty());
    }
}
