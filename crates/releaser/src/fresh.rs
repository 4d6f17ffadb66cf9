//! Reads that are shared by all who wait for them, and yet newer than everybody's question.
//!
//! A hundred volumes are decided about at the same time, and each decision needs a list that is newer than what it was made
//! from. One list answers all that asked before it began; who asks later waits for the next.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use tokio::time::Instant;

/// The newest read of one thing. It is kept only as long as somebody asks.
pub(crate) struct Fresh<T> {
    turn: tokio::sync::Mutex<()>,
    newest: Mutex<Option<(Instant, Arc<T>)>>,
    asking: AtomicUsize,
}

impl<T> Default for Fresh<T> {
    fn default() -> Self {
        Self { turn: tokio::sync::Mutex::default(), newest: Mutex::default(), asking: AtomicUsize::default() }
    }
}

impl<T> Fresh<T> {
    /// What `read` returns, begun after this call.
    pub(crate) async fn get<E>(&self, read: impl AsyncFnOnce() -> Result<T, E>) -> Result<Arc<T>, E> {
        let asked = Instant::now();
        let _asking = Asking::begin(self);
        let _turn = self.turn.lock().await;
        let newest = self.newest.lock().as_ref().filter(|(begun, _)| *begun > asked).map(|(_, kept)| Arc::clone(kept));
        if let Some(newest) = newest {
            return Ok(newest);
        }
        let begun = Instant::now();
        let read = Arc::new(read().await?);
        *self.newest.lock() = Some((begun, Arc::clone(&read)));
        Ok(read)
    }
}

/// Somebody who waits for an answer, or stopped waiting for it.
struct Asking<'a, T>(&'a Fresh<T>);

impl<'a, T> Asking<'a, T> {
    fn begin(fresh: &'a Fresh<T>) -> Self {
        fresh.asking.fetch_add(1, Ordering::Relaxed);
        Self(fresh)
    }
}

impl<T> Drop for Asking<'_, T> {
    fn drop(&mut self) {
        if self.0.asking.fetch_sub(1, Ordering::Relaxed) == 1 {
            *self.0.newest.lock() = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::atomic::{AtomicUsize, Ordering},
        time::Duration,
    };

    use futures::future::join_all;
    use tokio::time::sleep;

    use super::*;

    /// Tells the how many-th read it is, after a while.
    async fn read(reads: &AtomicUsize) -> Result<usize, Infallible> {
        let number = reads.fetch_add(1, Ordering::Relaxed) + 1;
        sleep(Duration::from_millis(10)).await;
        Ok(number)
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_at_the_same_time_shares_a_read_that_began_later() {
        let (fresh, reads) = (Fresh::default(), AtomicUsize::new(0));
        let first = fresh.get(async || read(&reads).await);
        let late = async {
            // While the first read is on its way: what it returns may be older than this question.
            sleep(Duration::from_millis(5)).await;
            // Each looks at the answer and lets go of it, as one does who only wants to know one thing.
            join_all((0..50).map(async |_| *fresh.get(async || read(&reads).await).await.unwrap())).await
        };
        let (first, late) = tokio::join!(first, late);
        assert_eq!(*first.unwrap(), 1);
        assert_eq!(late, vec![2; 50], "all of them share the second read");
        assert!(fresh.newest.lock().is_none(), "nobody needs it any more");
    }

    #[tokio::test(start_paused = true)]
    async fn a_later_question_is_never_answered_by_an_earlier_read() {
        let (fresh, reads) = (Fresh::default(), AtomicUsize::new(0));
        let kept = fresh.get(async || read(&reads).await).await.unwrap();
        sleep(Duration::from_millis(1)).await;
        assert_eq!((*kept, *fresh.get(async || read(&reads).await).await.unwrap()), (1, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_nobody_elses() {
        let fresh = Fresh::default();
        let failed = fresh.get(async || Err::<u8, _>("away"));
        let (failed, next) = tokio::join!(failed, fresh.get(async || Ok::<u8, &str>(1)));
        assert_eq!((failed.unwrap_err(), *next.unwrap()), ("away", 1));
    }
}
