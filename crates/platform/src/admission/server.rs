//! The server: a port, a thread with a runtime of its own, and an end without a lost request.
//!
//! ```text
//! stop ──> drain_delay ─────────────> last call ──────────────────────────> farewell ───────────────────> ended
//!          not ready any more,        each answer of HTTP/1.1 ends its      accepts no more, idle
//!          serves all who come        connection, HTTP/2 sends GOAWAY       connections are closed
//! ```

use std::{
    future::Future,
    io,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use futures::FutureExt;
use parking_lot::Mutex;
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::{Builder, EnterGuard, Handle},
    sync::oneshot,
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    connection::Connections,
    limits::{FAREWELL, LAST_CALL, REREAD, Settings},
    metrics::{Limit, ServerMetrics},
    service::Service,
    tls::{ClientCaError, ServedCertificate, Tls},
    webhook::Webhook,
};
use crate::{
    admin::why_not_listening,
    metrics::Registry,
    readiness::{Gate, Readiness},
};

/// When no connection can be accepted, for want of file descriptors, the next try has to wait for one to be closed.
const PAUSE: Duration = Duration::from_millis(100);

/// Why there is no admission server.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The port cannot be had.
    #[error("cannot listen on {listen} for admission requests: {reason}; choose another address with webhook.listen")]
    Listen {
        /// What was asked for.
        listen: SocketAddr,
        /// Why not.
        reason: String,
    },
    /// The CAs of clients cannot be used.
    #[error(transparent)]
    ClientCa(#[from] ClientCaError),
    /// TLS cannot be set up.
    #[error("TLS cannot be set up for admission requests: {0}")]
    Tls(#[from] rustls::Error),
    /// The machine gave no thread or no runtime.
    #[error("the thread for admission requests cannot be started: {0}")]
    Thread(#[source] io::Error),
    /// It ended though nobody asked for it.
    #[error("the thread for admission requests ended unasked")]
    Ended,
}

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A bound, not yet serving admission server: a port that is in use is found out before anything else starts.
pub struct AdmissionServer {
    settings: Settings,
    listener: TcpListener,
    tls: Tls,
    certificate: ServedCertificate,
    registry: Registry,
    readiness: Readiness,
    /// Met once there is a certificate to show.
    certified: Gate,
    runtime: Handle,
    work: oneshot::Sender<Work>,
}

impl AdmissionServer {
    /// Takes the port and starts the thread. From now on readiness waits for the certificate.
    pub async fn bind(
        settings: Settings,
        certificate: ServedCertificate,
        registry: &Registry,
        readiness: &Readiness,
    ) -> Result<Self, ServerError> {
        let tls = Tls::new(&certificate, settings.client_ca.as_deref())?;
        let listen = settings.listen;
        let listener = TcpListener::bind(listen)
            .await
            .map_err(|error| ServerError::Listen { listen, reason: why_not_listening(&error) })?;
        let (runtime, work) = start_thread().map_err(ServerError::Thread)?;
        Ok(Self {
            settings,
            listener,
            tls,
            certificate,
            registry: registry.clone(),
            readiness: readiness.clone(),
            certified: readiness.gate("the webhook's certificate"),
            runtime,
            work,
        })
    }

    /// The address that was bound; tells the port when 0 was asked for.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// While the guard is held, whatever needs a runtime gets that of the admission thread: how the clients of webhooks are
    /// built.
    pub fn enter(&self) -> EnterGuard<'_> {
        self.runtime.enter()
    }

    /// Serves until `stop` is cancelled and the last request is answered. Dropped before, it cuts off what is under way.
    pub async fn serve(self, webhooks: Vec<Arc<dyn Webhook>>, stop: CancellationToken) -> Result<(), ServerError> {
        let Self { settings, listener, tls, certificate, registry, readiness, certified, work, .. } = self;
        let service =
            Service::new(webhooks, settings.request_timeout, settings.max_in_flight, ServerMetrics::new(&registry));
        let connections = Connections {
            service,
            last_call: CancellationToken::new(),
            ending: CancellationToken::new(),
            farewell: settings.request_timeout + FAREWELL,
            told: Mutex::new(None),
        };
        // Sockets belong to the runtime that waits for them.
        let listener = listener.into_std().map_err(ServerError::Thread)?;
        // To be waited for it must be closed, which keeps nothing out.
        let open = TaskTracker::new();
        open.close();
        let serving = Serving { connections: Arc::new(connections), open, settings, tls };
        let cut_off = CancellationToken::new();
        let _cut_off_when_dropped = cut_off.clone().drop_guard();
        let (end, ended) = oneshot::channel();
        let serve = async move {
            let certify = async {
                certificate.served().await;
                certified.open();
                std::future::pending::<()>().await;
            };
            let outcome = tokio::select! {
                outcome = serving.run(listener, stop, &readiness) => outcome,
                () = certify => Ok(()),
                () = cut_off.cancelled() => Ok(()),
            };
            // Nobody waits any more if it was cut off.
            let _ = end.send(outcome);
        };
        work.send(Box::pin(serve)).map_err(|_| ServerError::Ended)?;
        ended.await.map_err(|_| ServerError::Ended)?.map_err(ServerError::Thread)
    }
}

/// A thread that runs one piece of work, on a runtime that is there before it.
fn start_thread() -> io::Result<(Handle, oneshot::Sender<Work>)> {
    let (work, given) = oneshot::channel::<Work>();
    let (tell, told) = mpsc::channel();
    thread::Builder::new().name("admission".to_owned()).spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build();
        let (told, runtime) = match runtime {
            Ok(runtime) => (Ok(runtime.handle().clone()), Some(runtime)),
            Err(error) => (Err(error), None),
        };
        // Who started the thread waits for this.
        let _ = tell.send(told);
        if let Some(runtime) = runtime {
            runtime.block_on(async {
                if let Ok(work) = given.await {
                    work.await;
                }
            });
        }
    })?;
    let handle = told.recv().map_err(io::Error::other)??;
    Ok((handle, work))
}

struct Serving {
    connections: Arc<Connections>,
    open: TaskTracker,
    settings: Settings,
    tls: Tls,
}

impl Serving {
    async fn run(
        self,
        listener: std::net::TcpListener,
        stop: CancellationToken,
        readiness: &Readiness,
    ) -> io::Result<()> {
        let listener = TcpListener::from_std(listener)?;
        {
            let mut drained = pin!(self.drained(stop, readiness));
            let mut reread = tokio::time::interval(REREAD);
            loop {
                tokio::select! {
                    accepted = listener.accept() => match accepted {
                        Ok((stream, _)) => self.take(stream),
                        Err(error) => {
                            tracing::warn!(%error, "a connection to the admission server cannot be accepted");
                            sleep(PAUSE).await;
                        }
                    },
                    _ = reread.tick() => self.tls.reread(),
                    () = &mut drained => break,
                }
            }
        }
        // Whoever has connected by now is served.
        while let Some(Ok((stream, _))) = listener.accept().now_or_never() {
            self.take(stream);
        }
        drop(listener);
        self.connections.ending.cancel();
        // Each connection sees to its end itself; the rest is for those that were still shaking hands.
        if timeout(self.connections.farewell + FAREWELL, self.open.wait()).await.is_err() {
            tracing::warn!(connections = self.open.len(), "admission requests were still under way and are cut off");
        }
        Ok(())
    }

    async fn drained(&self, stop: CancellationToken, readiness: &Readiness) {
        stop.cancelled().await;
        // Never met: this process does not become ready again.
        let _ = readiness.gate("the end of this process");
        sleep(self.settings.drain_delay).await;
        self.connections.last_call.cancel();
        // Without connections there is nobody to wait for.
        let _ = timeout(LAST_CALL, self.open.wait()).await;
    }

    fn take(&self, stream: TcpStream) {
        let metrics = &self.connections.service.metrics;
        if self.open.len() >= self.settings.max_connections {
            // Closed at once: the API server then knows, instead of waiting.
            return metrics.rejects(Limit::Connections);
        }
        // Answers are small and complete; if that cannot be set they are late, not wrong.
        let _ = stream.set_nodelay(true);
        let connections = Arc::clone(&self.connections);
        let tls = self.tls.acceptor();
        self.open.spawn(async move {
            let gauge = connections.service.metrics.connections.clone();
            gauge.add(1.0);
            connections.serve(stream, tls).await;
            gauge.add(-1.0);
        });
    }
}
