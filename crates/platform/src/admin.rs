//! The one port for people and probes: `/metrics`, `/healthz`, `/readyz`.
//!
//! `/healthz` answers 200 as long as the process can answer at all. `/readyz` answers 503 until every condition of
//! [`Readiness`] is met; `?verbose` names them all.

use std::{io, net::SocketAddr};

use axum::{
    Router,
    extract::{RawQuery, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{
    metrics::{self, Registry},
    readiness::Readiness,
};

/// Why the admin server could not be started.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {listen} for metrics and probes: {reason}; choose another address with admin.listen")]
pub struct ListenError {
    listen: SocketAddr,
    reason: String,
}

/// A bound, not yet serving admin server: a port that is in use is found out before anything else starts.
pub struct AdminServer {
    listener: TcpListener,
    router: Router,
}

#[derive(Clone)]
struct Shown {
    registry: Registry,
    readiness: Readiness,
}

impl AdminServer {
    /// Takes the port.
    pub async fn bind(listen: SocketAddr, registry: Registry, readiness: Readiness) -> Result<Self, ListenError> {
        let listener = TcpListener::bind(listen).await.map_err(|error| {
            let reason = why_not_listening(&error);
            ListenError { listen, reason }
        })?;
        Ok(Self { listener, router: router(registry, readiness) })
    }

    /// The address that was bound; tells the port when 0 was asked for.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop` is cancelled.
    pub async fn serve(self, stop: CancellationToken) -> io::Result<()> {
        axum::serve(self.listener, self.router).with_graceful_shutdown(stop.cancelled_owned()).await
    }
}

/// Why a port cannot be had, for whoever chose it.
pub(crate) fn why_not_listening(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => "the port is in use by another process".to_owned(),
        io::ErrorKind::AddrNotAvailable => "this machine does not have that address".to_owned(),
        io::ErrorKind::PermissionDenied => "this user may not listen on that port".to_owned(),
        _ => error.to_string(),
    }
}

fn router(registry: Registry, readiness: Readiness) -> Router {
    Router::new()
        .route("/metrics", get(serve_metrics))
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(serve_readiness))
        .with_state(Shown { registry, readiness })
}

async fn serve_metrics(State(shown): State<Shown>) -> Response {
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], shown.registry.encode()).into_response()
}

async fn serve_readiness(State(shown): State<Shown>, RawQuery(query): RawQuery) -> Response {
    let verbose = query.is_some_and(|query| query.split('&').any(|part| part.starts_with("verbose")));
    match (shown.readiness.is_ready(), verbose) {
        (true, false) => "ok".into_response(),
        (true, true) => shown.readiness.report().into_response(),
        (false, _) => (StatusCode::SERVICE_UNAVAILABLE, shown.readiness.report()).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use axum::{body::Body, http::Request};
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    use super::*;

    async fn ask(router: &Router, path: &str) -> (StatusCode, String) {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn readiness_names_what_is_missing_until_nothing_is() {
        let readiness = Readiness::default();
        let (pods, claims) = (readiness.gate("the cache of pods"), readiness.gate("the cache of claims"));
        let router = router(Registry::default(), readiness);

        pods.open();
        let (status, body) = ask(&router, "/readyz").await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(body, "[+]the cache of pods ok\n[-]waiting for the cache of claims\nreadyz check failed\n");

        claims.open();
        assert_eq!(ask(&router, "/readyz").await, (StatusCode::OK, "ok".to_owned()));
        let (_, verbose) = ask(&router, "/readyz?verbose").await;
        assert_eq!(verbose, "[+]the cache of pods ok\n[+]the cache of claims ok\nreadyz check passed\n");

        claims.close();
        assert_eq!(ask(&router, "/readyz?verbose=1").await.0, StatusCode::SERVICE_UNAVAILABLE);
    }

    #[tokio::test]
    async fn health_does_not_depend_on_readiness() {
        let readiness = Readiness::default();
        let _never = readiness.gate("something that never comes");
        assert_eq!(ask(&router(Registry::default(), readiness), "/healthz").await.0, StatusCode::OK);
    }

    #[tokio::test]
    async fn a_port_in_use_is_one_clear_sentence() {
        let first = AdminServer::bind(([127, 0, 0, 1], 0).into(), Registry::default(), Readiness::default());
        let taken = first.await.unwrap();
        let listen = taken.address().unwrap();
        let second = AdminServer::bind(listen, Registry::default(), Readiness::default()).await;
        assert_eq!(
            second.err().unwrap().to_string(),
            format!(
                "cannot listen on {listen} for metrics and probes: the port is in use by another process; \
                 choose another address with admin.listen"
            )
        );
    }
}
