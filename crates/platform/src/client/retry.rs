//! When to send a request again. Reads may be repeated; a write is repeated only if the server said that it did nothing.

use std::time::Duration;

use http::{HeaderMap, StatusCode, header::RETRY_AFTER};

use super::request::Call;

/// Together with the budget this bounds what one call can cost a worker; whoever needs more patience has a queue.
const MAX_RETRIES: u32 = 4;
const BUDGET: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// What came back from one try.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    Status {
        code: StatusCode,
        retry_after: Option<Duration>,
    },
    /// The connection could not be made or broke: nobody knows what the server did.
    Broken,
}

impl Answer {
    pub(super) fn of(code: StatusCode, headers: &HeaderMap) -> Self {
        let seconds = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        Self::Status { code, retry_after: seconds.map(Duration::from_secs) }
    }
}

/// How long to wait before the next try, if there should be one. `jitter` is a random number from 0 to 1.
pub(super) fn pause(call: &Call, answer: Answer, retries: u32, spent: Duration, jitter: f64) -> Option<Duration> {
    if retries >= MAX_RETRIES {
        return None;
    }
    let backoff = FIRST_PAUSE * 3u32.saturating_pow(retries);
    let backoff = backoff.mul_f64(0.5 + jitter);
    let pause = match answer {
        // Priority and fairness turned the request away before anything happened: safe for every verb.
        Answer::Status { code: StatusCode::TOO_MANY_REQUESTS, retry_after: Some(asked) } => asked.max(backoff),
        Answer::Status {
            code: StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT,
            retry_after,
        } if !call.writes => retry_after.unwrap_or_default().max(backoff),
        Answer::Broken if !call.writes => backoff,
        _ => return None,
    };
    (spent.saturating_add(pause) <= BUDGET).then_some(pause)
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn call(method: &str) -> Call {
        Call::of(&Request::builder().method(method).uri("/api/v1/namespaces/a/pods/b").body(()).unwrap())
    }

    fn status(code: u16, retry_after: Option<u64>) -> Answer {
        let retry_after = retry_after.map(Duration::from_secs);
        Answer::Status { code: StatusCode::from_u16(code).unwrap(), retry_after }
    }

    #[test]
    fn reads_are_repeated_after_overload_and_broken_connections_writes_only_when_turned_away() {
        for (method, answer, repeated) in [
            ("GET", status(429, None), true),
            ("GET", status(503, None), true),
            ("GET", status(504, None), true),
            ("GET", Answer::Broken, true),
            ("GET", status(500, None), false),
            ("GET", status(404, None), false),
            ("GET", status(410, None), false),
            ("POST", status(429, Some(1)), true),
            ("PATCH", status(429, Some(1)), true),
            ("DELETE", status(429, Some(1)), true),
            ("POST", status(429, None), false),
            ("POST", status(503, Some(1)), false),
            ("PUT", status(504, None), false),
            ("PATCH", Answer::Broken, false),
            ("DELETE", Answer::Broken, false),
        ] {
            let pause = pause(&call(method), answer, 0, Duration::ZERO, 0.5);
            assert_eq!(pause.is_some(), repeated, "{method} {answer:?}");
        }
    }

    #[test]
    fn the_server_is_never_asked_again_sooner_than_it_said() {
        let pause = pause(&call("POST"), status(429, Some(3)), 0, Duration::ZERO, 0.0);
        assert_eq!(pause, Some(Duration::from_secs(3)));
    }

    #[test]
    fn patience_is_bounded_in_tries_and_in_time() {
        let get = call("GET");
        let mut spent = Duration::ZERO;
        let mut retries = 0;
        while let Some(pause) = pause(&get, Answer::Broken, retries, spent, 1.0) {
            spent += pause;
            retries += 1;
        }
        assert!(retries <= MAX_RETRIES && spent <= BUDGET, "{retries} retries in {spent:?}");
        assert_eq!(pause(&get, status(429, Some(60)), 0, Duration::ZERO, 0.0), None);
        assert_eq!(pause(&get, status(429, Some(u64::MAX)), 0, Duration::ZERO, 0.0), None);
    }
}
