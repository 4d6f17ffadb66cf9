//! What the API server was asked and how it answered.

use std::time::Duration;

use http::Response;
use tower::BoxError;

use super::{request::Call, service::RequestError};
use crate::metrics::{Counter, Family, Histogram, Registry};

/// client-go's bounds for the same measure, so that panels for both look alike.
const BOUNDS: [f64; 11] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0];

pub(super) struct CallMetrics {
    requests: Family<Counter>,
    durations: Family<Histogram>,
}

impl CallMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
            requests: registry.counters(
                "claimkeeper_api_requests_total",
                "Requests to the API server, by verb, resource and code: an HTTP status, or timeout, not_leader or error.",
                &["verb", "resource", "code"],
            ),
            durations: registry.histograms(
                "claimkeeper_api_request_duration_seconds",
                "How long the API server took to start its answer, by verb and resource.",
                &["verb", "resource"],
                &BOUNDS,
            ),
        }
    }

    pub(super) fn observe<B>(&self, call: &Call, took: Duration, result: &Result<Response<B>, BoxError>) {
        let status = result.as_ref().map(Response::status);
        let code = match &status {
            Ok(status) => status.as_str(),
            Err(error) => match error.downcast_ref::<RequestError>() {
                Some(RequestError::NotLeader { .. }) => "not_leader",
                Some(RequestError::NoAnswer { .. } | RequestError::Unfinished { .. }) => "timeout",
                None => "error",
            },
        };
        self.requests.with(&[call.verb, &call.resource, code]).increment();
        self.durations.with(&[call.verb, &call.resource]).observe(took.as_secs_f64());
    }
}
