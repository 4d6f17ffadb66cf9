//! What was decided, told to the person who looks at the object: Kubernetes Events.
//!
//! ```text
//! publish ──by object──> Limiter 1 ──> Lane 1 ──> the same again within minutes? ── yes ──> PATCH series {count, lastObservedTime}
//!                        Limiter 2     Lane 2        └── no ──> create
//!                         ...           ...
//!                            │           └── the lane is full: dropped
//!                            ├── the same is still waiting in the lane: told together with it
//!                            └── more than 25 about one object: limited, one in 5 minutes
//! ```
//!
//! Events are for people and may be lost; the work that sends them may not be held up. So [`Recorder::publish`] neither
//! waits nor fails, and a [`Worker`] writes them behind its back. A repetition counts in the event that it repeats, so it has
//! to wait until that one is written. That is why the worker has lanes: each writes one event after the other, and all events
//! about an object are in the same lane. Lanes know nothing of each other; what the API server accepts, and what was logged
//! about it, they have in common.
//!
//! What is said too often is found out before it leaves the thread that says it, and is only counted: who says much, and mostly
//! the same, hands in a [`Draft`], which is put into words only if somebody will read them.
//!
//! Events are written to events.k8s.io/v1, or to core/v1 where only that is allowed. The limits are those of client-go,
//! because the API server is sized for them.

mod correlator;
mod identity;
mod lane;
mod limiter;
mod objects;
mod sink;

use std::{fmt, hash::RandomState, sync::Arc, time::Duration};

use futures::{StreamExt, stream::FuturesUnordered};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use parking_lot::Mutex;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use self::{
    identity::Identity,
    lane::{Lane, Queued},
    limiter::{Admission, Limiter},
    objects::Composer,
    sink::Sink,
};
use crate::metrics::{Counter, Family, Registry};

/// So many events are on their way at once: 600 per second get through even if each answer takes 25 ms.
const LANES: usize = 16;

/// So many events wait, in all lanes together: those of thousands of pods that were decided about at once, faster than the API
/// server takes events. An event is about 0.5 KiB, and 1.6 KiB at most, so that full lanes are 4 MiB, and 13 MiB at most. When
/// they are full the API server is away, and old events are of little use.
const QUEUE_LENGTH: usize = 8_192;

/// What may still be told when the process ends.
const FLUSH_DEADLINE: Duration = Duration::from_secs(2);

/// Whether an event is news or a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// All is well.
    Normal,
    /// Somebody may have to do something.
    Warning,
}

impl EventKind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// Something to tell about an object.
#[derive(Clone, Debug)]
pub struct Event {
    /// The object; with its uid, so that a namesake made later does not inherit it.
    pub regarding: ObjectReference,
    /// News or problem.
    pub kind: EventKind,
    /// Why, as one stable CamelCase word.
    pub reason: &'static str,
    /// What was done or tried, as one stable CamelCase word.
    pub action: &'static str,
    /// A sentence for a person; what goes beyond 1 KiB is cut off.
    pub note: String,
}

/// An event that nobody has put into words yet.
#[derive(Clone, Copy, Debug)]
pub struct Draft<'a> {
    /// The object.
    pub regarding: Regarding<'a>,
    /// News or problem.
    pub kind: EventKind,
    /// Why, as one stable CamelCase word.
    pub reason: &'static str,
    /// What was done or tried, as one stable CamelCase word.
    pub action: &'static str,
    /// A sentence for a person; what goes beyond 1 KiB is cut off.
    pub note: fmt::Arguments<'a>,
}

/// The object that a [`Draft`] is about.
#[derive(Clone, Copy, Debug)]
pub struct Regarding<'a> {
    /// Such as `v1`.
    pub api_version: &'a str,
    /// Such as `PersistentVolumeClaim`.
    pub kind: &'a str,
    /// Where it is.
    pub namespace: &'a str,
    /// What it is called.
    pub name: &'a str,
    /// Which one it is, if it exists, so that a namesake made later does not inherit the event.
    pub uid: Option<&'a str>,
}

impl Draft<'_> {
    /// Puts it into words.
    #[must_use]
    pub fn event(&self) -> Event {
        let Regarding { api_version, kind, namespace, name, uid } = self.regarding;
        let regarding = ObjectReference {
            api_version: Some(api_version.to_owned()),
            kind: Some(kind.to_owned()),
            namespace: Some(namespace.to_owned()),
            name: Some(name.to_owned()),
            uid: uid.map(str::to_owned),
            ..ObjectReference::default()
        };
        let Self { kind, reason, action, note, .. } = *self;
        Event { regarding, kind, reason, action, note: note.to_string() }
    }
}

/// Where events are handed in. Cheap to clone.
#[derive(Clone)]
pub struct Recorder {
    entrances: Arc<[Entrance]>,
    hasher: RandomState,
    outcomes: Outcomes,
}

/// Before each lane. Those who hand in events about different objects hardly ever meet here.
struct Entrance {
    limiter: Arc<Mutex<Limiter>>,
    lane: mpsc::Sender<Queued>,
}

impl Recorder {
    /// `controller` is who speaks, as a qualified name (`claimkeeper.dev/ephemeral`); `instance` is which replica. The
    /// events are written by [`Worker::run`]. `client` must have no fence: a standby has things to tell, too.
    #[must_use]
    pub fn new(
        client: Client,
        controller: impl Into<String>,
        instance: impl Into<String>,
        registry: &Registry,
    ) -> (Self, Worker) {
        let outcomes = Outcomes::new(registry);
        let memory = correlator::CAPACITY / LANES;
        let (entrances, lanes): (Vec<_>, Vec<_>) = (0..LANES)
            .map(|_| {
                let (lane, queue) = mpsc::channel(QUEUE_LENGTH / LANES);
                let limiter = Arc::new(Mutex::new(Limiter::new(memory)));
                let entrance = Entrance { limiter: Arc::clone(&limiter), lane };
                (entrance, Lane::new(queue, limiter, memory, outcomes.clone()))
            })
            .unzip();
        let sink = Sink::new(client, Composer::new(controller.into(), &instance.into()));
        (Self { entrances: entrances.into(), hasher: RandomState::new(), outcomes }, Worker { lanes, sink })
    }

    /// Hands in an event. Returns at once, whatever becomes of it.
    pub fn publish(&self, event: Event) {
        let event = objects::trimmed(event);
        self.hand_in(Identity::of_event(&event, &self.hasher), || event);
    }

    /// The same for what is said so often that most of it is not told.
    pub fn publish_draft(&self, draft: &Draft<'_>) {
        self.hand_in(Identity::of_draft(draft, &self.hasher), || objects::trimmed(draft.event()));
    }

    fn hand_in(&self, identity: Identity, event: impl FnOnce() -> Event) {
        // The same for all events about an object, so that they are written in their order.
        #[expect(clippy::cast_possible_truncation, reason = "any part of the number will do")]
        let Entrance { limiter, lane } = &self.entrances[identity.object as usize % self.entrances.len()];
        // What finds no room must not use up what may be said about its object.
        let Ok(room) = lane.try_reserve() else { return self.outcomes.count("dropped") };
        let admission = limiter.lock().admit(identity, Instant::now());
        match admission {
            Admission::Granted(untold) => room.send(Queued { event: event(), series: identity.series, untold }),
            Admission::Joined => {}
            Admission::Limited => self.outcomes.count("limited"),
        }
    }
}

/// Writes what the recorders hand in.
pub struct Worker {
    lanes: Vec<Lane>,
    sink: Sink,
}

impl Worker {
    /// Runs until `shutdown`, then writes what is queued within a short deadline.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let too_late = async {
            shutdown.cancelled().await;
            sleep(FLUSH_DEADLINE).await;
        };
        let writing: FuturesUnordered<_> =
            self.lanes.iter_mut().map(|lane| lane.write_all(&self.sink, &shutdown)).collect();
        tokio::select! {
            () = writing.collect() => {}
            () = too_late => {}
        }
        self.lanes.into_iter().for_each(Lane::drop_the_rest);
    }
}

/// What became of events.
#[derive(Clone)]
struct Outcomes(Arc<Family<Counter>>);

impl Outcomes {
    fn new(registry: &Registry) -> Self {
        let family = registry.counters(
            "claimkeeper_events_total",
            "Events by what became of them: created, aggregated (a repetition counted in an existing event), limited (too \
             many about one object), dropped (too many at once) or failed.",
            &["outcome"],
        );
        Self(Arc::new(family))
    }

    fn count(&self, outcome: &'static str) {
        self.count_all(outcome, 1);
    }

    fn count_all(&self, outcome: &'static str, events: u32) {
        self.0.with(&[outcome]).add(events.into());
    }
}
