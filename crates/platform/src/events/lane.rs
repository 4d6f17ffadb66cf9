//! One event after the other: what is said about an object again finds that the first time has been written.

use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    Event, Outcomes,
    correlator::{Correlator, Verdict},
    sink::Sink,
};

/// Writes the events about some of the objects, in the order in which they were handed in.
pub(super) struct Lane {
    queue: mpsc::Receiver<Event>,
    correlator: Correlator,
    outcomes: Outcomes,
}

impl Lane {
    pub(super) fn new(queue: mpsc::Receiver<Event>, memory: usize, outcomes: Outcomes) -> Self {
        Self { queue, correlator: Correlator::new(memory), outcomes }
    }

    /// Runs until there are no recorders any more, or until `shutdown` and nothing is left.
    pub(super) async fn write_all(&mut self, sink: &Sink, shutdown: &CancellationToken) {
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
            let outcome = self.write(&event, sink).await;
            self.outcomes.count(outcome);
        }
    }

    /// Counts what nobody will write any more.
    pub(super) fn drop_the_rest(mut self) {
        self.queue.close();
        while self.queue.try_recv().is_ok() {
            self.outcomes.count("dropped");
        }
    }

    async fn write(&mut self, event: &Event, sink: &Sink) -> &'static str {
        let written = match self.correlator.observe(event, Instant::now()) {
            Verdict::Limited => return "limited",
            Verdict::Repeat { written, count } => {
                match sink.repeat(&written, count).await {
                    Ok(true) => return "aggregated",
                    // It was deleted or has faded: tell it anew.
                    Ok(false) => sink.create(event).await,
                    Err(()) => return "failed",
                }
            }
            Verdict::New => sink.create(event).await,
        };
        match written {
            Ok(written) => {
                self.correlator.created(event, written, Instant::now());
                "created"
            }
            Err(()) => "failed",
        }
    }
}
