//! One request: whether it is one that we answer, within which limits, and the answer.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use tokio::time::{Instant, timeout};

use super::{
    answer::{Reply, answer},
    limits::{MOST_BODY, MOST_BUFFERED, MOST_DISCARDED},
    metrics::{Limit, ServerMetrics},
    webhook::Webhook,
};
use crate::metrics::Histogram;

/// What all connections share.
pub(super) struct Service {
    routes: Vec<Route>,
    request_timeout: Duration,
    max_in_flight: usize,
    in_flight: AtomicUsize,
    buffered: AtomicUsize,
    pub(super) metrics: ServerMetrics,
}

struct Route {
    webhook: Arc<dyn Webhook>,
    path: &'static str,
    durations: Histogram,
}

/// Why there is no review: the code, one sentence, and which limit it was if it was one.
struct Refusal {
    code: StatusCode,
    sentence: String,
    limit: Option<Limit>,
}

impl Refusal {
    fn new(code: StatusCode, sentence: impl Into<String>) -> Self {
        Self { code, sentence: sentence.into(), limit: None }
    }

    fn limit(limit: Limit, code: StatusCode, sentence: impl Into<String>) -> Self {
        Self { limit: Some(limit), ..Self::new(code, sentence) }
    }
}

impl Service {
    pub(super) fn new(
        webhooks: Vec<Arc<dyn Webhook>>,
        request_timeout: Duration,
        max_in_flight: usize,
        metrics: ServerMetrics,
    ) -> Self {
        let route = |webhook: Arc<dyn Webhook>| {
            let path = webhook.path();
            Route { webhook, path, durations: metrics.durations_of(path) }
        };
        Self {
            routes: webhooks.into_iter().map(route).collect(),
            request_timeout,
            max_in_flight,
            in_flight: AtomicUsize::new(0),
            buffered: AtomicUsize::new(0),
            metrics,
        }
    }

    /// Answers one request, whatever it is.
    pub(super) async fn respond<B>(&self, request: Request<B>) -> Response<Full<Bytes>>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let reply = match self.review(request).await {
            Ok(reply) => reply,
            Err(Refusal { code, sentence, limit }) => {
                if let Some(limit) = limit {
                    self.metrics.rejects(limit);
                }
                tracing::debug!(code = code.as_u16(), "{sentence}");
                Reply::sentence(code.as_u16(), &sentence)
            }
        };
        let mut response = Response::new(Full::new(Bytes::from(reply.body)));
        *response.status_mut() = StatusCode::from_u16(reply.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        match response.status() {
            // The API server tries again after that while it has time left.
            StatusCode::SERVICE_UNAVAILABLE => {
                response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            StatusCode::METHOD_NOT_ALLOWED => {
                response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
            }
            _ => {}
        }
        response
    }

    async fn review<B>(&self, request: Request<B>) -> Result<Reply, Refusal>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let began = Instant::now();
        let route = self.route(&request)?;
        let _turn = self.turn()?;
        let review = async {
            let mut body = Buffered { service: self, bytes: Bytes::new(), counted: 0 };
            body.read(request).await?;
            Ok(answer(&*route.webhook, &body.bytes).await)
        };
        let reply = timeout(self.request_timeout, review).await.unwrap_or_else(|_| {
            let sentence = format!("the request could not be answered within {:?}", self.request_timeout);
            Err(Refusal::limit(Limit::Time, StatusCode::GATEWAY_TIMEOUT, sentence))
        });
        route.durations.observe(began.elapsed().as_secs_f64());
        if reply.as_ref().is_ok_and(|reply| reply.panicked) {
            self.metrics.panics.increment();
            tracing::error!(path = route.path, "a webhook panicked over a request, which was answered with 500");
        }
        reply
    }

    /// The query is not looked at: the API server puts its own time limit there, rounded up to seconds.
    fn route<B>(&self, request: &Request<B>) -> Result<&Route, Refusal> {
        let path = request.uri().path();
        let Some(route) = self.routes.iter().find(|route| route.path == path) else {
            let known: Vec<&str> = self.routes.iter().map(|route| route.path).collect();
            let sentence = format!("there is nothing at this path; what is answered: {}", known.join(", "));
            return Err(Refusal::new(StatusCode::NOT_FOUND, sentence));
        };
        if request.method() != Method::POST {
            let sentence = format!("{} is asked with POST only", route.path);
            return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, sentence));
        }
        if !is_json(request.headers()) {
            let sentence = "the Content-Type must be application/json";
            return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, sentence));
        }
        Ok(route)
    }

    fn turn(&self) -> Result<Turn<'_>, Refusal> {
        if self.in_flight.fetch_add(1, Ordering::Relaxed) >= self.max_in_flight {
            self.in_flight.fetch_sub(1, Ordering::Relaxed);
            let sentence = format!("{} requests are being answered already; try again", self.max_in_flight);
            return Err(Refusal::limit(Limit::InFlight, StatusCode::SERVICE_UNAVAILABLE, sentence));
        }
        self.metrics.in_flight.add(1.0);
        Ok(Turn(self))
    }
}

/// One of the requests that are answered at once.
struct Turn<'a>(&'a Service);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.0.metrics.in_flight.add(-1.0);
    }
}

/// A body in memory, counted as long as it is there.
struct Buffered<'a> {
    service: &'a Service,
    bytes: Bytes,
    counted: usize,
}

impl Buffered<'_> {
    async fn read<B>(&mut self, request: Request<B>) -> Result<(), Refusal>
    where
        B: Body<Data = Bytes> + Unpin,
    {
        let mut body = request.into_body();
        let announced = body.size_hint().exact();
        let mut rest = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let broken = |_| Refusal::new(StatusCode::BAD_REQUEST, "the body ends before it is complete");
            let Ok(data) = frame.map_err(broken)?.into_data() else { continue };
            let length = self.bytes.len() + rest.len() + data.len();
            if length > MOST_BODY {
                self.forget();
                drop(rest);
                discard(body).await;
                let sentence = format!("the body is longer than {MOST_BODY} bytes");
                return Err(Refusal::limit(Limit::Body, StatusCode::PAYLOAD_TOO_LARGE, sentence));
            }
            self.count(data.len())?;
            // Nearly all bodies come in one piece, which need not be copied.
            if announced == Some(data.len() as u64) && length == data.len() {
                self.bytes = data;
            } else {
                rest.extend_from_slice(&data);
            }
        }
        if !rest.is_empty() {
            self.bytes = rest.freeze();
        }
        Ok(())
    }

    fn count(&mut self, more: usize) -> Result<(), Refusal> {
        self.counted += more;
        if self.service.buffered.fetch_add(more, Ordering::Relaxed) + more <= MOST_BUFFERED {
            return Ok(());
        }
        let sentence = format!("the requests that are being answered have {MOST_BUFFERED} bytes already; try again");
        Err(Refusal::limit(Limit::InFlight, StatusCode::SERVICE_UNAVAILABLE, sentence))
    }

    fn forget(&mut self) {
        self.bytes = Bytes::new();
        self.service.buffered.fetch_sub(std::mem::take(&mut self.counted), Ordering::Relaxed);
    }
}

impl Drop for Buffered<'_> {
    fn drop(&mut self) {
        self.forget();
    }
}

async fn discard<B: Body<Data = Bytes> + Unpin>(mut body: B) {
    let mut discarded = 0;
    while let Some(Ok(frame)) = body.frame().await {
        discarded += frame.data_ref().map_or(0, |data| data.len() as u64);
        if discarded > MOST_DISCARDED {
            return;
        }
    }
}

/// Parameters such as a charset are not looked at: JSON has none.
fn is_json(headers: &HeaderMap) -> bool {
    let essence = |value: &HeaderValue| {
        let text = value.to_str().unwrap_or_default();
        text.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json")
    };
    headers.get(header::CONTENT_TYPE).is_some_and(essence)
}

#[cfg(test)]
mod tests;
