//! What we have written and the watch has not shown yet: until then, counting on the cache alone would give away too much.

use std::collections::HashMap;

use cluster::{ObjectKey, Volume};
use parking_lot::Mutex;

use crate::{decision::To, seen::Candidate};

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

    /// How many volumes of a class are on their way to the pool.
    pub(crate) fn to_pool(&self, class: &str) -> usize {
        self.0.lock().values().filter(|release| &*release.class == class && release.to == To::Pool).count()
    }

    /// Whether a claim is about to get a volume.
    pub(crate) fn has(&self, candidate: &Candidate) -> bool {
        self.0.lock().values().any(|release| matches!(&release.to, To::Claim(to) if to.uid == candidate.uid))
    }
}
