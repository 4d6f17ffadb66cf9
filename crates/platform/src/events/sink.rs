//! The way of an event to the API server: which dialect, how often, and what to say when it does not get through.

use std::time::Duration;

use k8s_openapi::api::{core::v1::Event as CoreEvent, events::v1::Event as EventV1};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
    core::Status,
};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::{
    Event,
    objects::{self, Composer},
};

/// An event that is not accepted by then has missed its moment.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Pauses between tries. Trying again is safe: the name stays the same, and a second one is refused.
const PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(1)];

/// Which of the two APIs for the same objects is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialect {
    Events,
    Core,
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

pub(super) struct Sink {
    client: Client,
    dialect: Dialect,
    last_problem: Option<String>,
}

impl Sink {
    pub(super) fn new(client: Client) -> Self {
        Self { client, dialect: Dialect::Events, last_problem: None }
    }

    /// Writes a new event. What went wrong has been logged.
    pub(super) async fn create(&mut self, event: &Event, composer: &mut Composer) -> Result<Written, ()> {
        let name = composer.name(&event.regarding);
        let mut result = self.create_in(self.dialect, event, &name, composer).await;
        if self.dialect == Dialect::Events
            && let Err(problem) = &result
            && problem.concerns_the_dialect()
        {
            let reason = problem.to_string();
            result = self.create_in(Dialect::Core, event, &name, composer).await;
            if result.is_ok() {
                info!("events go to core/v1 from now on, because events.k8s.io/v1 does not take them: {reason}");
                self.dialect = Dialect::Core;
            }
        }
        let namespace = objects::namespace(event).to_owned();
        let dialect = self.dialect;
        self.conclude("created", result).map(|()| Written { namespace, name, dialect })
    }

    /// Counts a repetition; `false` if the event is no longer there.
    pub(super) async fn repeat(&mut self, written: &Written, count: i32) -> Result<bool, ()> {
        let result = match written.dialect {
            Dialect::Events => self.patch::<EventV1>(written, objects::series_patch(count)).await,
            Dialect::Core => self.patch::<CoreEvent>(written, objects::core_series_patch(count)).await,
        };
        match result {
            Err(Problem::Refused(status)) if status.is_not_found() => Ok(false),
            result => self.conclude("updated", result).map(|()| true),
        }
    }

    async fn create_in(&self, dialect: Dialect, event: &Event, name: &str, composer: &Composer) -> Result<(), Problem> {
        let (client, namespace) = (self.client.clone(), objects::namespace(event));
        let parameters = PostParams::default();
        let result = match dialect {
            Dialect::Events => {
                let (api, object) = (Api::<EventV1>::namespaced(client, namespace), composer.event(event, name));
                patiently(|| api.create(&parameters, &object)).await
            }
            Dialect::Core => {
                let (api, object) = (Api::<CoreEvent>::namespaced(client, namespace), composer.core_event(event, name));
                patiently(|| api.create(&parameters, &object)).await
            }
        };
        match result {
            // Our own first try, whose answer was lost.
            Err(Problem::Refused(status)) if status.is_already_exists() => Ok(()),
            result => result,
        }
    }

    async fn patch<K>(&self, written: &Written, patch: serde_json::Value) -> Result<(), Problem>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
        K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
    {
        let api = Api::<K>::namespaced(self.client.clone(), &written.namespace);
        let (parameters, patch) = (PatchParams::default(), Patch::Merge(patch));
        patiently(|| api.patch(&written.name, &parameters, &patch)).await
    }

    /// Logs what is wrong once, not for every event.
    fn conclude(&mut self, done: &str, result: Result<(), Problem>) -> Result<(), ()> {
        let Err(problem) = result else {
            self.last_problem = None;
            return Ok(());
        };
        let text = format!("an event cannot be {done}: {problem}");
        if self.last_problem.as_ref() != Some(&text) {
            warn!("{text}");
            self.last_problem = Some(text);
        }
        Err(())
    }
}

/// Why an event was not written.
#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error("{}{}", .0.message, advice(.0))]
    Refused(Box<Status>),
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
