//! How many volumes wait, and how long.

use std::collections::{BTreeMap, BTreeSet};

use cluster::{Store, Volume, volume::VolumePhase};
use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use platform::metrics::Registry;

/// Counts them whenever somebody asks.
pub(crate) fn observe(volumes: &Store<Volume>, registry: &Registry) {
    let released = registry.gauges("claimkeeper_releaser_released_volumes", "Released volumes by class.", &["class"]);
    let oldest = registry.gauges(
        "claimkeeper_releaser_oldest_released_seconds",
        "For how long the volume of the class has been Released that has been so longest.",
        &["class"],
    );
    let (volumes, known) = (volumes.clone(), Mutex::new(BTreeSet::<Box<str>>::new()));
    registry.before_scrape(move || {
        let now = Timestamp::now();
        let mut backlog: BTreeMap<Box<str>, (usize, f64)> = BTreeMap::new();
        for volume in volumes.filter(|volume| volume.phase == VolumePhase::Released) {
            let age = volume.phase_since.map_or(0.0, |since| now.duration_since(since).as_secs_f64());
            let (count, oldest) = backlog.entry(volume.class.clone()).or_default();
            (*count, *oldest) = (*count + 1, oldest.max(age));
        }
        // A class without any must not stay at what it was.
        let mut known = known.lock();
        known.extend(backlog.keys().cloned());
        for class in &*known {
            let (count, age) = backlog.get(class).copied().unwrap_or_default();
            released.with(&[class]).set(count as f64);
            oldest.with(&[class]).set(age);
        }
    });
}
