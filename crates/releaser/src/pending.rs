//! What we have written and the watch has not shown yet: until then, counting on the cache alone would give away too much.

use std::collections::HashMap;

use cluster::{ObjectKey, Volume, store::Index, volume::VolumePhase};
use parking_lot::Mutex;

use crate::{decision::To, seen::Candidate};

/// Volumes that were released to the pool and that Kubernetes has not noted as Available yet, by the name of their class.
pub(crate) const FREED_BY_CLASS: Index<Volume> = Index {
    name: "freed-by-class",
    values: |volume| is_freed(volume).then(|| volume.class.clone()).into_iter().collect(),
};

/// Whether it is free but for its phase, which Kubernetes changes when it comes to it.
pub(crate) fn is_freed(volume: &Volume) -> bool {
    volume.phase == VolumePhase::Released && volume.claim.is_none()
}

/// The releases that are on their way.
#[derive(Default)]
pub(crate) struct Pending(Mutex<HashMap<ObjectKey, Release>>);

struct Release {
    /// The version of the volume that it was decided for.
    version: Box<str>,
    class: Box<str>,
    to: To,
}

impl Pending {
    /// A volume is about to be released.
    pub(crate) fn begin(&self, volume: &Volume, to: &To) {
        let release = Release { version: volume.version.clone(), class: volume.class.clone(), to: to.clone() };
        self.0.lock().insert(volume.key.clone(), release);
    }

    /// It was not.
    pub(crate) fn fail(&self, volume: &Volume) {
        self.0.lock().remove(&volume.key);
    }

    /// The watch showed a volume, or its end: the cache is right about it again.
    pub(crate) fn seen(&self, volume: &Volume, gone: bool) {
        let mut releases = self.0.lock();
        if releases.get(&volume.key).is_some_and(|release| gone || release.version != volume.version) {
            releases.remove(&volume.key);
        }
    }

    /// Whether this very version of a volume was given away already: the cache is behind, and what is decided by it would be
    /// decided twice.
    pub(crate) fn is_written(&self, volume: &Volume) -> bool {
        self.0.lock().get(&volume.key).is_some_and(|release| release.version == volume.version)
    }

    /// How many volumes of a class are on their way to the pool.
    pub(crate) fn to_pool(&self, class: &str) -> usize {
        self.0.lock().values().filter(|release| &*release.class == class && release.to == To::Pool).count()
    }

    /// Whether a claim is about to get a volume.
    pub(crate) fn has(&self, candidate: &Candidate) -> bool {
        self.0.lock().values().any(|release| matches!(&release.to, To::Claim(to) if to.uid == candidate.uid))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::sample::{volume, volume_with};

    #[test]
    fn a_volume_counts_from_the_write_until_kubernetes_has_made_it_available() {
        let (pending, before) = (Pending::default(), volume());
        let counts = |now: &Volume| {
            usize::from(now.is_free()) + (FREED_BY_CLASS.values)(now).len() + pending.to_pool(&now.class)
        };
        assert_eq!(counts(&before), 0);
        pending.begin(&before, &To::Pool);
        assert!(pending.is_written(&before), "whoever looks at the cache again does nothing");
        assert_eq!(counts(&before), 1);
        for (version, phase) in [("8", "Released"), ("9", "Available")] {
            let change = json!({
                "metadata": {"resourceVersion": version}, "spec": {"claimRef": null}, "status": {"phase": phase},
            });
            let now = volume_with(&change);
            pending.seen(&now, false);
            assert_eq!((counts(&now), pending.is_written(&now)), (1, false), "{phase}");
        }
    }
}
