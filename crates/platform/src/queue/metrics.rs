//! The queue's metrics, with the names, label and texts that Kubernetes' own components serve.
//!
//! `[BETA]` is part of the texts: it is how Kubernetes marks metrics that are promised not to change.

use std::time::Duration;

use crate::metrics::{Counter, Gauge, Histogram, Registry, exponential_buckets};

pub(super) struct QueueMetrics {
    adds: Counter,
    depth: Gauge,
    pub(super) retries: Counter,
    pub(super) panics: Counter,
    queue_duration: Histogram,
    work_duration: Histogram,
    unfinished_work: Gauge,
    longest_running: Gauge,
}

impl QueueMetrics {
    pub(super) fn register(name: &'static str, registry: &Registry) -> Self {
        let counter = |metric, help| registry.counters(metric, help, &["name"]).with(&[name]);
        let gauge = |metric, help| registry.gauges(metric, help, &["name"]).with(&[name]);
        let buckets = exponential_buckets(10e-9, 10.0, 10);
        let histogram = |metric, help| registry.histograms(metric, help, &["name"], &buckets).with(&[name]);
        Self {
            adds: counter("workqueue_adds_total", "[BETA] Total number of adds handled by workqueue"),
            depth: gauge("workqueue_depth", "[BETA] Current depth of workqueue"),
            retries: counter("workqueue_retries_total", "[BETA] Total number of retries handled by workqueue"),
            panics: counter(
                "claimkeeper_workqueue_panics_total",
                "How often working on a key ended in a panic. The key is tried again; the log says where it happened.",
            ),
            queue_duration: histogram(
                "workqueue_queue_duration_seconds",
                "[BETA] How long in seconds an item stays in workqueue before being requested.",
            ),
            work_duration: histogram(
                "workqueue_work_duration_seconds",
                "[BETA] How long in seconds processing an item from workqueue takes.",
            ),
            unfinished_work: gauge(
                "workqueue_unfinished_work_seconds",
                "[BETA] How many seconds of work has done that is in progress and hasn't been observed by work_duration. \
                 Large values indicate stuck threads. One can deduce the number of stuck threads by observing the rate at \
                 which this increases.",
            ),
            longest_running: gauge(
                "workqueue_longest_running_processor_seconds",
                "[BETA] How many seconds has the longest running processor for workqueue been running.",
            ),
        }
    }

    pub(super) fn added(&self) {
        self.adds.increment();
        self.depth.add(1.0);
    }

    pub(super) fn taken(&self, waited: Duration) {
        self.depth.add(-1.0);
        self.queue_duration.observe(waited.as_secs_f64());
    }

    pub(super) fn done(&self, worked: Duration) {
        self.work_duration.observe(worked.as_secs_f64());
    }

    /// `ages` says for how long each key that is being worked on has been.
    pub(super) fn observe_unfinished(&self, ages: impl Iterator<Item = Duration>) {
        let (total, longest) = ages.fold((0.0_f64, 0.0_f64), |(total, longest), age| {
            let age = age.as_secs_f64();
            (total + age, longest.max(age))
        });
        self.unfinished_work.set(total);
        self.longest_running.set(longest);
    }
}
