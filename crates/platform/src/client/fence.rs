//! Leader-only writes as a mechanism instead of a habit.

use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

/// Says until when this process may write. The elector opens and closes it; every client that was built with it asks before
/// each write. It closes by itself when its time is over, so a process that was frozen for a minute and wakes up finds its
/// writes refused even before its elector has noticed anything.
///
/// Cheap to clone; all clones are the same fence.
#[derive(Clone, Debug)]
pub struct Fence {
    open_until: watch::Sender<Option<Instant>>,
}

impl Default for Fence {
    fn default() -> Self {
        Self::new()
    }
}

impl Fence {
    /// A fence that is closed until an elector opens it.
    #[must_use]
    pub fn new() -> Self {
        Self { open_until: watch::Sender::new(None) }
    }

    /// Lets writes pass until `deadline`.
    pub fn open_until(&self, deadline: Instant) {
        self.open_until.send_replace(Some(deadline));
    }

    /// Refuses writes from now on, also those that wait for an answer.
    pub fn close(&self) {
        self.open_until.send_replace(None);
    }

    /// Whether a write may start now.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open_until.borrow().is_some_and(|deadline| Instant::now() < deadline)
    }

    /// Returns when the fence is closed, at once if it already is.
    pub async fn closed(&self) {
        let mut changes = self.open_until.subscribe();
        loop {
            let deadline = match *changes.borrow_and_update() {
                Some(deadline) if Instant::now() < deadline => deadline,
                _ => return,
            };
            tokio::select! {
                () = sleep_until(deadline) => {}
                // The sender lives as long as `self`.
                _ = changes.changed() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{advance, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_is_closed_from_the_start_and_closes_by_itself() {
        let fence = Fence::new();
        assert!(!fence.is_open());
        fence.open_until(Instant::now() + Duration::from_secs(10));
        assert!(fence.is_open());
        advance(Duration::from_secs(10)).await;
        assert!(!fence.is_open());
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_for_the_end_follows_extensions_and_notices_a_close_at_once() {
        let fence = Fence::new();
        fence.open_until(Instant::now() + Duration::from_secs(10));
        let other = fence.clone();
        let start = Instant::now();
        let extended = tokio::spawn(async move {
            other.closed().await;
            start.elapsed()
        });
        advance(Duration::from_secs(5)).await;
        fence.open_until(Instant::now() + Duration::from_secs(10));
        assert_eq!(extended.await.unwrap().as_secs(), 15);

        fence.open_until(Instant::now() + Duration::from_secs(10));
        let other = fence.clone();
        let closed = tokio::spawn(async move { other.closed().await });
        tokio::task::yield_now().await;
        fence.close();
        timeout(Duration::from_millis(1), closed).await.unwrap().unwrap();
    }
}
