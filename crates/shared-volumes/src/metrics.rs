//! What is counted and measured.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use platform::metrics::{Counter, DEFAULT_BUCKETS, Family, Histogram, Registry};

use crate::state::State;

#[derive(Clone)]
pub(crate) struct Metrics {
    /// The original's.
    pub(crate) reconciles: Histogram,
    pub(crate) decisions: Family<Counter>,
    pub(crate) failovers: Histogram,
    pub(crate) changed_addresses: Counter,
    pub(crate) failures: Family<Counter>,
}

impl Metrics {
    pub(crate) fn register(registry: &Registry, state: &Arc<Mutex<State>>) -> Self {
        observe_volumes(registry, state);
        let failures = registry.counters(
            "claimkeeper_shared_volumes_failures_total",
            "Attempts that failed and are repeated, by who refused or did not answer: kubernetes or source.",
            &["at"],
        );
        // From the start, because who counts the increase of a series does not see its first value.
        for at in ["kubernetes", "source"] {
            drop(failures.with(&[at]));
        }
        Self {
            reconciles: registry.histogram(
                "storageos_shared_volume_reconcile_duration_seconds",
                "Distribution of the length of time to reconcile all shared volumes.",
                &DEFAULT_BUCKETS,
            ),
            decisions: registry.counters(
                "claimkeeper_shared_volumes_decisions_total",
                "Decisions about shared volumes, by what was decided and why.",
                &["decision", "reason"],
            ),
            failovers: registry.histogram(
                "claimkeeper_shared_volumes_failover_duration_seconds",
                "Time from the moment at which a server was seen elsewhere until its address led there.",
                &DEFAULT_BUCKETS,
            ),
            changed_addresses: registry.counter(
                "claimkeeper_shared_volumes_changed_addresses_total",
                "Volumes that could not get their address again, so that clients see stale file handles.",
            ),
            failures,
        }
    }
}

/// How many volumes there are, by what was decided about each of them last.
fn observe_volumes(registry: &Registry, state: &Arc<Mutex<State>>) {
    let volumes = registry.gauges(
        "claimkeeper_shared_volumes",
        "Volumes that their source tells of, by what was decided about each of them last.",
        &["reason"],
    );
    // Weak, because the registry outlives the feature.
    let state = Arc::downgrade(state);
    let shown = Mutex::new(HashMap::<&'static str, u32>::new());
    registry.before_scrape(move || {
        let Some(state) = state.upgrade() else { return };
        let mut shown = shown.lock();
        shown.values_mut().for_each(|count| *count = 0);
        for entry in state.lock().entries() {
            *shown.entry(entry.told.unwrap_or("NotDecidedYet")).or_default() += 1;
        }
        for (reason, count) in shown.iter() {
            volumes.with(&[reason]).set(f64::from(*count));
        }
    });
}
