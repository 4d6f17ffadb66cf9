//! Waiting for a condition instead of for a time.

use std::{fmt::Display, time::Duration};

use anyhow::{Result, bail};
use tokio::time::{Instant, sleep, timeout_at};

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
    let end = Instant::now() + deadline;
    let mut last_seen = "nothing".to_owned();
    while Instant::now() < end {
        // An API server that is paused never answers, so asking has to end as well.
        match timeout_at(end, condition()).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(not_yet)) => last_seen = format!("{not_yet:#}"),
            Err(_) => break,
        }
        sleep(PAUSE).await;
    }
    bail!("waiting for {what} took longer than {deadline:?}; last seen: {last_seen}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_stays_no_ends_with_what_was_seen_last() {
        let error = eventually("pigs to fly", async || Err::<(), _>("still on the ground")).await.unwrap_err();
        assert_eq!(error.to_string(), "waiting for pigs to fly took longer than 30s; last seen: still on the ground");
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_that_is_never_answered_ends_too() {
        let condition = async || std::future::pending::<Result<()>>().await;
        let error = eventually("silence to end", condition).await.unwrap_err();
        assert_eq!(error.to_string(), "waiting for silence to end took longer than 30s; last seen: nothing");
    }

    #[tokio::test]
    async fn a_no_is_asked_again_until_it_is_a_yes() {
        let mut answers = [Err("no"), Err("not yet"), Ok("yes")].into_iter();
        let answer = eventually("a yes", async || answers.next().unwrap_or(Err("asked too often"))).await;
        assert_eq!(answer.unwrap(), "yes");
    }
}
