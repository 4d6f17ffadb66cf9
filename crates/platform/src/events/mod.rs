//! What was decided, told to the person who looks at the object: Kubernetes Events.
//!
//! ```text
//! publish ──bounded queue──> Worker ──> the same again within minutes?  ── yes ──> PATCH series {count, lastObservedTime}
//!    │ full: dropped            │            └── no ──> create
//!    └── never waits            └── more than 25 about one object: limited, one in 5 minutes
//! ```
//!
//! Events are for people and may be lost; the work that sends them may not be held up. So [`Recorder::publish`] neither
//! waits nor fails, and one [`Worker`] writes them one after the other. They are written to events.k8s.io/v1, or to
//! core/v1 where only that is allowed. The limits are those of client-go, because the API server is sized for them.

mod correlator;
mod objects;
mod sink;

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use self::{
    correlator::{Correlator, Verdict},
    objects::Composer,
    sink::Sink,
};
use crate::metrics::{Counter, Family, Registry};

/// More than a burst needs; when it is full the API server is away and old events are of little use.
const QUEUE_LENGTH: usize = 1_000;

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
    queue: mpsc::Sender<Event>,
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
        let (sender, queue) = mpsc::channel(QUEUE_LENGTH);
        let outcomes = Outcomes::new(registry);
        let worker = Worker {
            queue,
            correlator: Correlator::default(),
            composer: Composer::new(controller.into(), &instance.into()),
            sink: Sink::new(client),
            outcomes: outcomes.clone(),
        };
        (Self { queue: sender, outcomes }, worker)
    }

    /// Hands in an event. Returns at once, whatever becomes of it.
    pub fn publish(&self, event: Event) {
        if self.queue.try_send(event).is_err() {
            self.outcomes.count("dropped");
        }
    }
}

/// Writes what the recorders hand in.
pub struct Worker {
    queue: mpsc::Receiver<Event>,
    correlator: Correlator,
    composer: Composer,
    sink: Sink,
    outcomes: Outcomes,
}

impl Worker {
    /// Runs until `shutdown`, then writes what is queued within a short deadline.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let too_late = async {
            shutdown.cancelled().await;
            sleep(FLUSH_DEADLINE).await;
        };
        tokio::select! {
            () = self.write_all(&shutdown) => {}
            () = too_late => {}
        }
        self.queue.close();
        while self.queue.try_recv().is_ok() {
            self.outcomes.count("dropped");
        }
    }

    async fn write_all(&mut self, shutdown: &CancellationToken) {
        loop {
            let next = tokio::select! {
                biased;
                next = self.queue.recv() => next,
                () = shutdown.cancelled(), if !self.queue.is_closed() => {
                    self.queue.close();
                    continue;
                }
            };
            let Some(event) = next else { return };
            let outcome = self.write(event).await;
            self.outcomes.count(outcome);
        }
    }

    async fn write(&mut self, event: Event) -> &'static str {
        let event = objects::trimmed(event);
        let written = match self.correlator.observe(&event, Instant::now()) {
            Verdict::Limited => return "limited",
            Verdict::Repeat { written, count } => {
                match self.sink.repeat(&written, count).await {
                    Ok(true) => return "aggregated",
                    // It was deleted or has faded: tell it anew.
                    Ok(false) => self.sink.create(&event, &mut self.composer).await,
                    Err(()) => return "failed",
                }
            }
            Verdict::New => self.sink.create(&event, &mut self.composer).await,
        };
        match written {
            Ok(written) => {
                self.correlator.created(&event, written, Instant::now());
                "created"
            }
            Err(()) => "failed",
        }
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
