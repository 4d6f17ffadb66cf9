//! The original's metrics, to the letter but for one: an error is told by its class, because texts have no end.

use std::time::Instant;

use http::Method;
use platform::metrics::{Counter, DEFAULT_BUCKETS, Family, Gauge, Histogram, Registry};

use crate::source::SourceError;

#[derive(Clone)]
pub(super) struct Metrics {
    helper_durations: Family<Histogram>,
    helpers: Family<Counter>,
    in_flight: Gauge,
    requests: Family<Counter>,
    durations: Family<Histogram>,
}

/// A request that waits for its answer.
pub(super) struct InFlight<'a> {
    metrics: &'a Metrics,
    method: &'static str,
    start: Instant,
}

impl Metrics {
    pub(super) fn register(registry: &Registry) -> Self {
        Self {
            helper_durations: registry.histograms(
                "storageos_api_helper_duration_seconds",
                "Distribution of the length of time api helpers take to complete.",
                &["function"],
                &DEFAULT_BUCKETS,
            ),
            helpers: registry.counters(
                "storageos_api_helper_total",
                "Number of api helper calls, partitioned by function name and error string.",
                &["error", "function"],
            ),
            in_flight: registry
                .gauge("storageos_api_in_flight_requests", "A gauge of in-flight requests for the api client."),
            requests: registry.counters(
                "storageos_api_requests_total",
                "A counter for requests from the api client.",
                &["code", "method"],
            ),
            durations: registry.histograms(
                "storageos_api_request_duration_seconds",
                "A histogram of request latencies.",
                &["method"],
                &DEFAULT_BUCKETS,
            ),
        }
    }

    /// Counts and measures one of the original's functions.
    pub(super) async fn helper<T>(
        &self,
        function: &'static str,
        work: impl Future<Output = Result<T, SourceError>>,
    ) -> Result<T, SourceError> {
        let start = Instant::now();
        let result = work.await;
        self.helper_durations.with(&[function]).observe(start.elapsed().as_secs_f64());
        self.count(function, result.as_ref().err());
        result
    }

    /// Counts one of those that the original does not measure.
    pub(super) fn count(&self, function: &'static str, error: Option<&SourceError>) {
        self.helpers.with(&[error.map_or("", |error| error.class.name()), function]).increment();
    }

    pub(super) fn begin(&self, method: &Method) -> InFlight<'_> {
        self.in_flight.add(1.0);
        let method = match *method {
            Method::POST => "post",
            Method::PUT => "put",
            _ => "get",
        };
        InFlight { metrics: self, method, start: Instant::now() }
    }
}

impl InFlight<'_> {
    /// The answer is there. Requests without one are not counted, by the original either.
    pub(super) fn answered(&self, code: u16) {
        let Self { metrics, method, start } = self;
        metrics.requests.with(&[&code.to_string(), method]).increment();
        metrics.durations.with(&[method]).observe(start.elapsed().as_secs_f64());
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.metrics.in_flight.add(-1.0);
    }
}
