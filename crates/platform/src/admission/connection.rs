//! One connection: the handshake, HTTP in the version that both sides know, and the end.

use std::{convert::Infallible, error::Error, io, pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, Version, header};
use http_body_util::Full;
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::graceful::GracefulConnection,
};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, sleep_until, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::sync::CancellationToken;

use super::{
    limits::{FIRST_REQUEST, HANDSHAKE, IDLE, MOST_HEADER_BYTES, MOST_STREAMS},
    service::Service,
    tls::HTTP_2,
};
use crate::trouble::causes;

/// Failed handshakes come with every new connection; the log needs to be told now and then.
const TELL_AGAIN: Duration = Duration::from_mins(1);

/// What bytes come and go through.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Stream for S {}

/// What all connections of a server have in common.
pub(super) struct Connections {
    pub(super) service: Service,
    /// From now on every answer of HTTP/1.1 ends its connection. HTTP/2 needs no such time: it can tell its clients to ask no more.
    pub(super) last_call: CancellationToken,
    /// The moment to end what is idle, and the rest once it is answered.
    pub(super) ending: CancellationToken,
    /// How long that may take.
    pub(super) farewell: Duration,
    pub(super) told: Mutex<Option<Instant>>,
}

impl Connections {
    /// Serves one connection to its end.
    pub(super) async fn serve<S: Stream>(self: Arc<Self>, stream: S, tls: TlsAcceptor) {
        let stream = match timeout(HANDSHAKE, tls.accept(stream)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return self.tell_failure(&error),
            Err(_) => return self.tell_failure(&io::ErrorKind::TimedOut.into()),
        };
        if let Err(error) = self.speak(stream).await {
            tracing::debug!(error = %causes(&*error), "a connection to the admission server broke");
        }
    }

    async fn speak<S: Stream>(self: &Arc<Self>, stream: TlsStream<S>) -> Result<(), Box<dyn Error + Send + Sync>> {
        let activity = Arc::new(Activity::default());
        let http_2 = stream.get_ref().1.alpn_protocol() == Some(HTTP_2);
        let (connections, asked) = (Arc::clone(self), Arc::clone(&activity));
        let service = service_fn(move |request| {
            let (connections, asked) = (Arc::clone(&connections), Arc::clone(&asked));
            async move { connections.answer(request, &asked).await }
        });
        let stream = TokioIo::new(stream);
        if http_2 {
            let mut http = http2::Builder::new(TokioExecutor::new());
            http.timer(TokioTimer::new()).max_concurrent_streams(MOST_STREAMS).max_header_list_size(MOST_HEADER_BYTES);
            Ok(self.watch(http.serve_connection(stream, service), http_2, &activity).await?)
        } else {
            let mut http = http1::Builder::new();
            // Its time limit for headers would also count the pauses between requests; `Activity` tells them apart.
            http.timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(MOST_HEADER_BYTES as usize);
            Ok(self.watch(http.serve_connection(stream, service), http_2, &activity).await?)
        }
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
        activity: &Activity,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        let _busy = activity.begin();
        let version = request.version();
        let mut response = self.service.respond(request).await;
        if version < Version::HTTP_2 && self.last_call.is_cancelled() {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(response)
    }

    /// Lets a connection go on until nobody needs it.
    async fn watch<C: GracefulConnection>(
        &self,
        connection: C,
        http_2: bool,
        activity: &Activity,
    ) -> Result<(), C::Error> {
        let mut connection = pin!(connection);
        let end = if http_2 { &self.last_call } else { &self.ending };
        let mut ending = pin!(end.cancelled());
        let expired = loop {
            tokio::select! {
                biased;
                ended = connection.as_mut() => return ended,
                () = &mut ending => break false,
                () = sleep_until(activity.patience()) => if activity.patience() <= Instant::now() { break true },
            }
        };
        // Who has just connected is about to ask, and HTTP/1.1 would hang up on them; their answer ends the connection.
        if http_2 || expired || activity.has_begun() {
            connection.as_mut().graceful_shutdown();
        }
        // What has not ended by then is dropped, and closed by that.
        timeout(self.farewell, connection).await.unwrap_or(Ok(()))
    }

    fn tell_failure(&self, error: &io::Error) {
        self.service.metrics.handshake_failures.increment();
        let about_tls = error.get_ref().is_some_and(<dyn Error + Send + Sync>::is::<rustls::Error>);
        let mut told = self.told.lock();
        // Who only looks whether the port is open says nothing about certificates.
        if about_tls && told.is_none_or(|told| told.elapsed() > TELL_AGAIN) {
            *told = Some(Instant::now());
            tracing::warn!(error = %causes(error), "a TLS handshake with the admission server failed");
        } else {
            tracing::debug!(error = %causes(error), "a TLS handshake with the admission server failed");
        }
    }
}

/// What happens on one connection, as far as its end depends on it.
struct Activity {
    state: Mutex<State>,
}

struct State {
    /// Requests that are being answered.
    open: usize,
    asked: bool,
    /// When the last request came or was answered.
    last: Instant,
}

impl Default for Activity {
    fn default() -> Self {
        Self { state: Mutex::new(State { open: 0, asked: false, last: Instant::now() }) }
    }
}

impl Activity {
    fn begin(&self) -> Busy<'_> {
        let mut state = self.state.lock();
        state.open += 1;
        state.asked = true;
        Busy(self)
    }

    /// Whether anything was ever asked.
    fn has_begun(&self) -> bool {
        self.state.lock().asked
    }

    /// Until when it is left alone.
    fn patience(&self) -> Instant {
        let state = self.state.lock();
        match *state {
            // Requests have a time limit of their own.
            State { open: 1.., .. } => Instant::now() + IDLE,
            State { asked: true, last, .. } => last + IDLE,
            State { asked: false, last, .. } => last + FIRST_REQUEST,
        }
    }
}

/// A request on a connection.
struct Busy<'a>(&'a Activity);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.open -= 1;
        state.last = Instant::now();
    }
}

#[cfg(test)]
mod tests;
