//! What was decided, told to the person who looks at the object: Kubernetes Events.
//!
//! ```text
//! publish ──by object──> Lane 1 ──> the same again within minutes?  ── yes ──> PATCH series {count, lastObservedTime}
//!    │                   Lane 2        │        └── no ──> create
//!    │                    ...          └── more than 25 about one object: limited, one in 5 minutes
//!    └── the lane is full: dropped
//! ```
//!
//! Events are for people and may be lost; the work that sends them may not be held up. So [`Recorder::publish`] neither
//! waits nor fails, and a [`Worker`] writes them behind its back. A repetition counts in the event that it repeats, so it has
//! to wait until that one is written. That is why the worker has lanes: each writes one event after the other, and all events
//! about an object are in the same lane. Lanes know nothing of each other; what the API server accepts, and what was logged
//! about it, they have in common.
//!
//! Events are written to events.k8s.io/v1, or to core/v1 where only that is allowed. The limits are those of client-go,
//! because the API server is sized for them.

mod correlator;
mod lane;
mod objects;
mod sink;

use std::{
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt, stream::FuturesUnordered};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use tokio::{sync::mpsc, time::sleep};
use tokio_util::sync::CancellationToken;

use self::{lane::Lane, objects::Composer, sink::Sink};
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

/// Where events are handed in. Cheap to clone.
#[derive(Clone)]
pub struct Recorder {
    lanes: Arc<[mpsc::Sender<Event>]>,
    hasher: RandomState,
    outcomes: Outcomes,
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
        let (senders, lanes): (Vec<_>, Vec<_>) = (0..LANES)
            .map(|_| {
                let (sender, queue) = mpsc::channel(QUEUE_LENGTH / LANES);
                (sender, Lane::new(queue, correlator::CAPACITY / LANES, outcomes.clone()))
            })
            .unzip();
        let sink = Sink::new(client, Composer::new(controller.into(), &instance.into()));
        (Self { lanes: senders.into(), hasher: RandomState::new(), outcomes }, Worker { lanes, sink })
    }

    /// Hands in an event. Returns at once, whatever becomes of it.
    pub fn publish(&self, event: Event) {
        let event = objects::trimmed(event);
        if self.lane(&event).try_send(event).is_err() {
            self.outcomes.count("dropped");
        }
    }

    /// The same for all events about an object, so that they are written in their order.
    fn lane(&self, event: &Event) -> &mpsc::Sender<Event> {
        let hash = self.hasher.hash_one(correlator::object(event));
        #[expect(clippy::cast_possible_truncation, reason = "any part of the hash will do")]
        &self.lanes[hash as usize % self.lanes.len()]
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
        self.0.with(&[outcome]).increment();
    }
}
