//! One event after the other: what is said about an object again finds that the first time has been written.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    Event, Outcomes,
    correlator::Correlator,
    limiter::{Limiter, Meanwhile, Untold},
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
    /// Who let them in, and knows what was said again since.
    limiter: Arc<Mutex<Limiter>>,
    correlator: Correlator,
    outcomes: Outcomes,
}

impl Lane {
    pub(super) fn new(
        queue: mpsc::Receiver<Queued>,
        limiter: Arc<Mutex<Limiter>>,
        memory: usize,
        outcomes: Outcomes,
    ) -> Self {
        Self { queue, limiter, correlator: Correlator::new(memory), outcomes }
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
            self.write(&queued, sink).await;
        }
    }

    /// Counts what nobody will write any more.
    pub(super) fn drop_the_rest(mut self) {
        self.queue.close();
        while let Ok(Queued { series, .. }) = self.queue.try_recv() {
            let Meanwhile { granted, .. } = self.limiter.lock().is_next(series);
            self.outcomes.count_all("dropped", 1 + granted);
        }
    }

    async fn write(&mut self, Queued { event, series, untold }: &Queued, sink: &Sink) {
        let Meanwhile { count: again, granted } = self.limiter.lock().is_next(*series);
        if let Some((written, count)) =
            self.correlator.repeat(*series, *untold, again.saturating_add(1), Instant::now())
        {
            match sink.repeat(&written, count).await {
                Ok(true) => return self.outcomes.count_all("aggregated", 1 + granted),
                // It was deleted or has faded: tell it anew.
                Ok(false) => {}
                Err(()) => return self.outcomes.count_all("failed", 1 + granted),
            }
        }
        let Ok(written) = sink.create(event).await else { return self.outcomes.count_all("failed", 1 + granted) };
        self.outcomes.count("created");
        self.correlator.created(*series, written, Instant::now());
        let repeated = self.correlator.repeat(*series, None, again, Instant::now());
        // What may not be told is only counted.
        if let Some((written, count)) = repeated
            && granted > 0
        {
            let counted = sink.repeat(&written, count).await == Ok(true);
            self.outcomes.count_all(if counted { "aggregated" } else { "failed" }, granted);
        }
    }
}
