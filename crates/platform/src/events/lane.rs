//! One event after the other: what is said about an object again finds that the first time has been written.

use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    Event, Outcomes,
    correlator::{Correlator, Verdict},
    limiter::Untold,
    sink::Sink,
};

/// An event on its way.
pub(super) struct Queued {
    pub(super) event: Event,
    /// What is said about its object, as a number.
    pub(super) series: u64,
    /// The repetitions of it that were not told since the last time.
    pub(super) untold: Option<Untold>,
}

/// Writes the events about some of the objects, in the order in which they were handed in.
pub(super) struct Lane {
    queue: mpsc::Receiver<Queued>,
    correlator: Correlator,
    outcomes: Outcomes,
}

impl Lane {
    pub(super) fn new(queue: mpsc::Receiver<Queued>, memory: usize, outcomes: Outcomes) -> Self {
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
            let Some(queued) = next else { return };
            let outcome = self.write(&queued, sink).await;
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

    async fn write(&mut self, Queued { event, series, untold }: &Queued, sink: &Sink) -> &'static str {
        let written = match self.correlator.observe(*series, *untold, Instant::now()) {
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
                self.correlator.created(*series, written, Instant::now());
                "created"
            }
            Err(()) => "failed",
        }
    }
}
