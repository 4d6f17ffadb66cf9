//! The layer between kube's client and the wire: fence, time limits, retries and metrics for every request.

use std::{
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::{BodyExt, Limited};
use kube::client::Body;
use tokio::{
    sync::Mutex,
    time::{Instant, Sleep, sleep, sleep_until, timeout, timeout_at},
};
use tower::{BoxError, Layer, Service, ServiceExt};

use super::{
    ClientOptions,
    metrics::CallMetrics,
    request::Call,
    retry::{self, Answer},
};

/// The body of an error is a Status of a few hundred bytes; reading it lets the connection be used again.
const MAX_DISCARDED: usize = 64 * 1024;
const DISCARD_TIMEOUT: Duration = Duration::from_secs(1);

/// Why a request ended without an answer of the API server. kube hands it on inside [`kube::Error::Service`].
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The fence is closed.
    #[error(
        "not the leader: {call} was refused because this replica does not hold the lease; the replica that does will do it"
    )]
    NotLeader {
        /// Verb and resource.
        call: String,
    },
    /// No response header came in time.
    #[error("the API server did not answer {call} within {limit:?}; it is overloaded or cannot be reached")]
    NoAnswer {
        /// Verb and resource.
        call: String,
        /// How long it had.
        limit: Duration,
    },
    /// The header came and the body did not end in time.
    #[error(
        "the API server's answer to {call} was not complete within {limit:?}; it is overloaded or cannot be reached"
    )]
    Unfinished {
        /// Verb and resource.
        call: String,
        /// How long it had.
        limit: Duration,
    },
}

impl RequestError {
    /// The reason behind a failed call, if it was one of ours.
    #[must_use]
    pub fn behind(error: &kube::Error) -> Option<&Self> {
        match error {
            kube::Error::Service(source) => source.downcast_ref(),
            _ => None,
        }
    }

    /// Whether a write was refused because this process does not lead: no failure, somebody else does the work.
    #[must_use]
    pub fn is_not_leader(error: &kube::Error) -> bool {
        matches!(Self::behind(error), Some(Self::NotLeader { .. }))
    }
}

pub(super) struct ApiLayer {
    pub(super) options: ClientOptions,
}

impl<S> Layer<S> for ApiLayer {
    type Service = ApiService<S>;

    fn layer(&self, inner: S) -> ApiService<S> {
        let metrics = CallMetrics::new(&self.options.registry);
        ApiService { sender: Arc::new(Sender { inner: Mutex::new(inner), options: self.options.clone(), metrics }) }
    }
}

pub(super) struct ApiService<S> {
    sender: Arc<Sender<S>>,
}

impl<S, B> Service<Request<Body>> for ApiService<S>
where
    S: Service<Request<Body>, Response = Response<B>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<AnswerBody<B>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        // The inner service is awaited anew for every try.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let sender = Arc::clone(&self.sender);
        Box::pin(async move { sender.send(request).await })
    }
}

struct Sender<S> {
    /// kube's stack cannot be cloned; the lock is held while a request is handed over, not while it is answered.
    inner: Mutex<S>,
    options: ClientOptions,
    metrics: CallMetrics,
}

impl<S, B> Sender<S>
where
    S: Service<Request<Body>, Response = Response<B>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    async fn send(&self, mut request: Request<Body>) -> Result<Response<AnswerBody<B>>, BoxError> {
        let call = Call::of(&request);
        let started = Instant::now();
        let limit = self.options.timeouts.request;
        let deadline = (!call.watches()).then(|| started + limit);
        let mut retries = 0;
        loop {
            let again = if self.options.retry { copy(&request) } else { None };
            let result = self.attempt(&call, request, deadline).await;
            let jitter = rand::random();
            let pause =
                answer(&result).and_then(|answer| retry::pause(&call, answer, retries, started.elapsed(), jitter));
            let (Some(again), Some(pause)) = (again, pause) else {
                return result.map(|response| response.map(|body| AnswerBody::new(body, call, deadline, limit)));
            };
            if let Ok(response) = result {
                discard(response.into_body()).await;
            }
            sleep(pause).await;
            request = again;
            retries += 1;
        }
    }

    /// One try: its metrics and, for writes, the fence that is watched until the answer is there.
    async fn attempt(
        &self,
        call: &Call,
        request: Request<Body>,
        deadline: Option<Instant>,
    ) -> Result<Response<B>, BoxError> {
        let started = Instant::now();
        let answer = self.answer_in_time(call, request, deadline);
        let result = match &self.options.fence {
            Some(fence) if call.writes => tokio::select! {
                biased;
                () = fence.closed() => Err(RequestError::NotLeader { call: call.to_string() }.into()),
                result = answer => result,
            },
            _ => answer.await,
        };
        self.metrics.observe(call, started.elapsed(), &result);
        result
    }

    async fn answer_in_time(
        &self,
        call: &Call,
        request: Request<Body>,
        deadline: Option<Instant>,
    ) -> Result<Response<B>, BoxError> {
        let limit = self.options.timeouts.response_header;
        let header_by = Instant::now() + limit;
        let answer = async {
            let answer = self.inner.lock().await.ready().await.map_err(Into::into)?.call(request);
            answer.await.map_err(Into::into)
        };
        match timeout_at(deadline.map_or(header_by, |deadline| deadline.min(header_by)), answer).await {
            Ok(result) => result,
            Err(_) => Err(RequestError::NoAnswer { call: call.to_string(), limit }.into()),
        }
    }
}

/// What a retry may react to: our own errors are decisions, not faults.
fn answer<B>(result: &Result<Response<B>, BoxError>) -> Option<Answer> {
    match result {
        Ok(response) => Some(Answer::of(response.status(), response.headers())),
        Err(error) if error.is::<RequestError>() => None,
        Err(_) => Some(Answer::Broken),
    }
}

fn copy(request: &Request<Body>) -> Option<Request<Body>> {
    let mut copy = Request::new(request.body().try_clone()?);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = request.version();
    *copy.headers_mut() = request.headers().clone();
    *copy.extensions_mut() = request.extensions().clone();
    Some(copy)
}

async fn discard<B>(body: B)
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    // If it fails the connection is closed instead of used again, which is all that is at stake.
    let _ = timeout(DISCARD_TIMEOUT, Limited::new(body, MAX_DISCARDED).collect()).await;
}

/// A response body that must end in time, unless it belongs to a watch.
pub(super) struct AnswerBody<B> {
    inner: B,
    limit: Option<BodyLimit>,
}

struct BodyLimit {
    over: Pin<Box<Sleep>>,
    call: Call,
    limit: Duration,
}

impl<B> AnswerBody<B> {
    fn new(inner: B, call: Call, deadline: Option<Instant>, limit: Duration) -> Self {
        let limit = deadline.map(|deadline| BodyLimit { over: Box::pin(sleep_until(deadline)), call, limit });
        Self { inner, limit }
    }
}

impl<B> HttpBody for AnswerBody<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Poll::Ready(frame) = pin!(&mut self.inner).poll_frame(cx) {
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let Some(BodyLimit { over, call, limit }) = &mut self.limit else { return Poll::Pending };
        over.as_mut()
            .poll(cx)
            .map(|()| Some(Err(RequestError::Unfinished { call: call.to_string(), limit: *limit }.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
