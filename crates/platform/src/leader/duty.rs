//! What is true while a process leads and must end with it, however that comes.

use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use super::Leadership;
use crate::{client::Fence, metrics::Gauge};

/// Leading, as long as this value lives.
pub(super) struct Duty {
    pub(super) fence: Fence,
    pub(super) status: Gauge,
    pub(super) leadership: watch::Sender<Leadership>,
    pub(super) stopping: CancellationToken,
}

impl Duty {
    pub(super) fn begin(&self, until: Instant) {
        self.fence.open_until(until);
        self.status.set(1.0);
        self.leadership.send_modify(|leadership| leadership.leading = true);
    }
}

impl Drop for Duty {
    fn drop(&mut self) {
        self.fence.close();
        self.stopping.cancel();
        self.status.set(0.0);
        self.leadership.send_modify(|leadership| leadership.leading = false);
    }
}
