//! The way of an event to the API server: which dialect, how often, and what to say when it does not get through.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use k8s_openapi::api::{core::v1::Event as CoreEvent, events::v1::Event as EventV1};
use kube::{
    Client, Resource,
    api::{Patch, PatchParams, PostParams},
    core::{
        Status,
        request::{Error as BuildError, Request},
    },
};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use super::{
    Event,
    objects::{self, Composer},
};
use crate::trouble::Trouble;

/// An event that is not accepted by then has missed its moment.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Pauses between tries. Trying again is safe: the name stays the same, and a second one is refused.
const PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(1)];

/// What is wrong with events is no emergency, and `claimkeeper_events_total` has the number.
const WARNING_INTERVAL: Duration = Duration::from_mins(1);

/// Which of the two APIs for the same objects is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialect {
    Events,
    Core,
}

impl Dialect {
    fn request(self, namespace: &str) -> Request {
        Request::new(match self {
            Self::Events => EventV1::url_path(&(), Some(namespace)),
            Self::Core => CoreEvent::url_path(&(), Some(namespace)),
        })
    }
}

/// An event that is on the API server.
#[derive(Debug, PartialEq)]
pub(super) struct Written {
    namespace: String,
    name: String,
    dialect: Dialect,
}

impl Written {
    #[cfg(test)]
    pub(super) fn sample() -> Self {
        Self { namespace: "default".into(), name: "sample".into(), dialect: Dialect::Events }
    }
}

/// What the lanes have in common.
pub(super) struct Sink {
    client: Client,
    composer: Composer,
    only_core: AtomicBool,
    problems: Mutex<Problems>,
}

impl Sink {
    pub(super) fn new(client: Client, composer: Composer) -> Self {
        Self { client, composer, only_core: AtomicBool::new(false), problems: Mutex::default() }
    }

    /// Writes a new event. What went wrong has been logged.
    pub(super) async fn create(&self, event: &Event) -> Result<Written, ()> {
        let name = self.composer.name(&event.regarding);
        let mut dialect = if self.only_core.load(Relaxed) { Dialect::Core } else { Dialect::Events };
        let mut result = self.create_in(dialect, event, &name).await;
        if dialect == Dialect::Events
            && let Err(problem) = &result
            && problem.concerns_the_dialect()
        {
            let reason = problem.to_string();
            dialect = Dialect::Core;
            result = self.create_in(dialect, event, &name).await;
            // Other lanes may have found out at the same time.
            if result.is_ok() && !self.only_core.swap(true, Relaxed) {
                info!("events go to core/v1 from now on, because events.k8s.io/v1 does not take them: {reason}");
            }
        }
        let namespace = objects::namespace(event).to_owned();
        self.conclude("created", result).map(|()| Written { namespace, name, dialect })
    }

    /// Counts a repetition; `false` if the event is no longer there.
    pub(super) async fn repeat(&self, written: &Written, count: i32) -> Result<bool, ()> {
        let patch = Patch::Merge(match written.dialect {
            Dialect::Events => objects::series_patch(count),
            Dialect::Core => objects::core_series_patch(count),
        });
        let request = written.dialect.request(&written.namespace);
        match self.send(request.patch(&written.name, &PatchParams::default(), &patch)).await {
            Err(Problem::Refused(status)) if status.is_not_found() => Ok(false),
            result => self.conclude("updated", result).map(|()| true),
        }
    }

    async fn create_in(&self, dialect: Dialect, event: &Event, name: &str) -> Result<(), Problem> {
        let body = match dialect {
            Dialect::Events => serde_json::to_vec(&self.composer.event(event, name)),
            Dialect::Core => serde_json::to_vec(&self.composer.core_event(event, name)),
        };
        let request = dialect.request(objects::namespace(event));
        let request =
            body.map_err(BuildError::SerializeBody).and_then(|body| request.create(&PostParams::default(), body));
        match self.send(request).await {
            // Our own first try, whose answer was lost.
            Err(Problem::Refused(status)) if status.is_already_exists() => Ok(()),
            result => result,
        }
    }

    /// The answer to a write is the event, which we know; only a refusal is read.
    async fn send(&self, request: Result<http::Request<Vec<u8>>, BuildError>) -> Result<(), Problem> {
        let request = request?;
        patiently(|| self.client.request_text(request.clone())).await
    }

    fn conclude(&self, done: &str, result: Result<(), Problem>) -> Result<(), ()> {
        let mut problems = self.problems.lock();
        let Err(problem) = result else {
            problems.end();
            return Ok(());
        };
        let text = format!("an event cannot be {done}: {problem}");
        if problems.are_news(&text, Instant::now()) {
            warn!("{text}");
        }
        Err(())
    }
}

/// What was logged. The same is not said again until an event got through, nor anything too soon: when many events fail, in
/// several lanes or with their own names in the text, one of them says enough.
#[derive(Default)]
struct Problems {
    trouble: Trouble,
    last_warning: Option<Instant>,
}

impl Problems {
    fn are_news(&mut self, text: &str, now: Instant) -> bool {
        let too_soon = self.last_warning.is_some_and(|last| now.duration_since(last) < WARNING_INTERVAL);
        let news = !too_soon && self.trouble.begins(text);
        if news {
            self.last_warning = Some(now);
        }
        news
    }

    fn end(&mut self) {
        self.trouble.ends();
    }
}

/// Why an event was not written.
#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error("{}{}", .0.message, advice(.0))]
    Refused(Box<Status>),
    #[error("{0}")]
    Unbuildable(#[from] BuildError),
    #[error("{0}")]
    Unreachable(kube::Error),
    #[error("no answer came within {REQUEST_TIMEOUT:?}")]
    TooSlow,
}

impl Problem {
    /// Whether the other API may accept what this one did not.
    fn concerns_the_dialect(&self) -> bool {
        match self {
            Self::Refused(status) if status.is_forbidden() || status.code == 403 => !is_terminating(status),
            // A missing namespace is named in the details; a missing API is not.
            Self::Refused(status) if status.code == 404 => {
                status.details.as_ref().is_none_or(|details| details.kind != "namespaces")
            }
            _ => false,
        }
    }

    fn may_pass(&self) -> bool {
        match self {
            Self::Refused(status) => status.code >= 500,
            Self::Unbuildable(_) => false,
            Self::Unreachable(_) | Self::TooSlow => true,
        }
    }
}

fn advice(status: &Status) -> &'static str {
    if status.is_forbidden() && !is_terminating(status) {
        "; grant create and patch on events.events.k8s.io"
    } else {
        ""
    }
}

/// Nothing may be created in a namespace that is going away; that says nothing about permissions.
fn is_terminating(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes.into_iter().any(|cause| cause.reason == "NamespaceTerminating")
}

async fn patiently<T, Fut>(request: impl Fn() -> Fut) -> Result<(), Problem>
where
    Fut: Future<Output = Result<T, kube::Error>>,
{
    let mut pauses = PAUSES.into_iter();
    loop {
        let problem = match timeout(REQUEST_TIMEOUT, request()).await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(kube::Error::Api(status))) => Problem::Refused(status),
            Ok(Err(error)) => Problem::Unreachable(error),
            Err(_) => Problem::TooSlow,
        };
        match pauses.next() {
            Some(pause) if problem.may_pass() => sleep(pause).await,
            _ => return Err(problem),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_logged_once_until_an_event_gets_through_and_never_twice_in_a_minute() {
        let (mut problems, start) = (Problems::default(), Instant::now());
        let mut are_news = |text, seconds| match text {
            "" => {
                problems.end();
                false
            }
            text => problems.are_news(text, start + Duration::from_secs(seconds)),
        };
        for (text, seconds, expected) in [
            ("forbidden", 0, true),
            ("forbidden", 1, false),
            ("unreachable", 2, false),
            ("forbidden", 100, false),
            // What was passed over a minute ago is said if it is still so.
            ("unreachable", 101, true),
            ("", 102, false),
            ("unreachable", 103, false),
            ("unreachable", 161, true),
        ] {
            assert_eq!(are_news(text, seconds), expected, "{text} after {seconds} s");
        }
    }
}
