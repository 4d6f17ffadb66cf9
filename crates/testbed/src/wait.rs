//! Waiting for a condition instead of for a time.

use std::{fmt::Display, time::Duration};

use anyhow::{Result, bail};
use tokio::time::{Instant, sleep};

/// Longer than anything takes on a busy machine, short enough to lose patience with.
pub const PATIENCE: Duration = Duration::from_secs(30);

const PAUSE: Duration = Duration::from_millis(50);

/// Asks again and again until the answer is `Ok`, for [`PATIENCE`] at most. `what` completes the sentence "waiting for …"; the
/// error repeats the last answer.
pub async fn eventually<T, E: Display>(what: &str, condition: impl AsyncFnMut() -> Result<T, E>) -> Result<T> {
    within(PATIENCE, what, condition).await
}

/// The same with a deadline of one's own.
pub async fn within<T, E: Display>(
    deadline: Duration,
    what: &str,
    mut condition: impl AsyncFnMut() -> Result<T, E>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        match condition().await {
            Ok(answer) => return Ok(answer),
            Err(not_yet) if start.elapsed() > deadline => {
                bail!("waiting for {what} took longer than {deadline:?}; last seen: {not_yet:#}")
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}
