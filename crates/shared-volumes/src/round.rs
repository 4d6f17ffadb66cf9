//! One poll and all that came of it: how long it takes until every volume that it was about has settled.

use platform::metrics::Histogram;
use tokio::time::Instant;

/// Held by the poll and by each volume that is worked on because of it; whoever is the last to let go ends it.
pub(crate) struct Round {
    start: Instant,
    durations: Histogram,
}

impl std::fmt::Debug for Round {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Round").field("start", &self.start).finish_non_exhaustive()
    }
}

impl Round {
    pub(crate) fn begin(durations: &Histogram) -> Self {
        Self { start: Instant::now(), durations: durations.clone() }
    }
}

impl Drop for Round {
    fn drop(&mut self) {
        self.durations.observe(self.start.elapsed().as_secs_f64());
    }
}
