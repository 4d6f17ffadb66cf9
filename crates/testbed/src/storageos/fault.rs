//! What can go wrong on the way to the API and in it.

use std::time::Duration;

use super::{Call, Route};

/// What happens to a request instead of its answer, or to its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Effect {
    Delay(Duration),
    Hold(Duration),
    Status(u16, Option<String>),
    Hang,
    Reset,
    LoseAnswer,
    Truncate,
    Break,
    ContentType(String),
    Body(String),
}

/// One thing that goes wrong: what, where, how often.
///
/// ```
/// use testbed::storageos::{Fault, Route};
/// Fault::status(503).on(Route::Volumes).namespace("team-a").times(3);
/// Fault::hang().on(Route::MountEndpoint).after(10).times(1);
/// Fault::reset().every(7); // any request, until it is cleared
/// ```
///
/// Where several hit one request their delays add up, and the first that does more than delay decides.
#[derive(Debug, Clone)]
pub struct Fault {
    pub(super) effect: Effect,
    route: Option<Route>,
    namespace: Option<String>,
    volume: Option<String>,
    spared: u32,
    left: Option<u32>,
    every: u32,
    seen: u32,
}

impl Fault {
    fn new(effect: Effect) -> Self {
        Self { effect, route: None, namespace: None, volume: None, spared: 0, left: None, every: 1, seen: 0 }
    }

    /// The server answers with this status and the error text that goes with it. Nothing else happens.
    #[must_use]
    pub fn status(status: u16) -> Self {
        Self::new(Effect::Status(status, None))
    }

    /// The same with a body of one's own, JSON or not.
    #[must_use]
    pub fn status_with(status: u16, body: impl Into<String>) -> Self {
        Self::new(Effect::Status(status, Some(body.into())))
    }

    /// The server takes this long before it looks at the request; then it answers with what is true.
    #[must_use]
    pub fn delay(delay: Duration) -> Self {
        Self::new(Effect::Delay(delay))
    }

    /// The server makes its answer at once and sends it this much later, when it may be no longer true.
    #[must_use]
    pub fn hold(delay: Duration) -> Self {
        Self::new(Effect::Hold(delay))
    }

    /// The server takes the request and never answers.
    #[must_use]
    pub fn hang() -> Self {
        Self::new(Effect::Hang)
    }

    /// The connection is reset; nothing else happens.
    #[must_use]
    pub fn reset() -> Self {
        Self::new(Effect::Reset)
    }

    /// The server does what it was asked to do, and then the connection is reset.
    #[must_use]
    pub fn lose_answer() -> Self {
        Self::new(Effect::LoseAnswer)
    }

    /// The answer is complete for HTTP, but its JSON is cut off in the middle.
    #[must_use]
    pub fn truncated_json() -> Self {
        Self::new(Effect::Truncate)
    }

    /// The connection ends in the middle of the answer's body.
    #[must_use]
    pub fn broken_body() -> Self {
        Self::new(Effect::Break)
    }

    /// The answer says that it is of this content type.
    #[must_use]
    pub fn content_type(content_type: impl Into<String>) -> Self {
        Self::new(Effect::ContentType(content_type.into()))
    }

    /// The answer has this body instead of its own; the status stays.
    #[must_use]
    pub fn body(body: impl Into<String>) -> Self {
        Self::new(Effect::Body(body.into()))
    }

    /// Only requests of this kind.
    #[must_use]
    pub fn on(mut self, route: Route) -> Self {
        self.route = Some(route);
        self
    }

    /// Only requests about this namespace, by its name, and what is in it.
    #[must_use]
    pub fn namespace(mut self, name: impl Into<String>) -> Self {
        self.namespace = Some(name.into());
        self
    }

    /// Only requests about this volume, by its id.
    #[must_use]
    pub fn volume(mut self, id: impl Into<String>) -> Self {
        self.volume = Some(id.into());
        self
    }

    /// So often, and never again. Otherwise until it is cleared.
    #[must_use]
    pub fn times(mut self, times: u32) -> Self {
        self.left = Some(times);
        self
    }

    /// Spares this many of its requests first.
    #[must_use]
    pub fn after(mut self, requests: u32) -> Self {
        self.spared = requests;
        self
    }

    /// Only each so-many-th of its requests.
    #[must_use]
    pub fn every(mut self, requests: u32) -> Self {
        self.every = requests.max(1);
        self
    }

    fn concerns(&self, call: &Call) -> bool {
        self.route.is_none_or(|route| route == call.route)
            && (self.namespace.is_none() || self.namespace == call.namespace)
            && (self.volume.is_none() || self.volume == call.volume)
    }

    /// Whether this request is hit; counts it if it could be.
    fn hits(&mut self, call: &Call) -> bool {
        if self.left == Some(0) || !self.concerns(call) {
            return false;
        }
        self.seen += 1;
        let is_due = self.seen > self.spared && (self.seen - self.spared).is_multiple_of(self.every);
        if is_due && let Some(left) = &mut self.left {
            *left -= 1;
        }
        is_due
    }
}

/// The faults in force, each with the number that it is cleared by.
#[derive(Debug, Default)]
pub(super) struct Faults {
    faults: Vec<(u64, Fault)>,
    added: u64,
}

impl Faults {
    pub(super) fn add(&mut self, fault: Fault) -> u64 {
        self.added += 1;
        self.faults.push((self.added, fault));
        self.added
    }

    pub(super) fn remove(&mut self, number: u64) {
        self.faults.retain(|(other, _)| *other != number);
    }

    pub(super) fn clear(&mut self) {
        self.faults.clear();
    }

    /// How long the request is delayed, and what else happens to it.
    pub(super) fn strike(&mut self, call: &Call) -> (Duration, Option<Effect>) {
        let (mut delay, mut decided) = (Duration::ZERO, None);
        for (_, fault) in &mut self.faults {
            // Decided requests do not count, so that `times` are times that were seen.
            let is_delay = matches!(fault.effect, Effect::Delay(_));
            if (is_delay || decided.is_none()) && fault.hits(call) {
                match &fault.effect {
                    Effect::Delay(length) => delay += *length,
                    other => decided = Some(other.clone()),
                }
            }
        }
        self.faults.retain(|(_, fault)| fault.left != Some(0));
        (delay, decided)
    }
}
