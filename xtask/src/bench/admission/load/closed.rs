//! As many requests as the server answers: each connection, or each stream, asks again when it has its answer.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use bytes::{Bytes, BytesMut};
use futures::future::try_join_all;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::{client::conn::http2, rt::Executor};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Notify,
    task::{LocalSet, spawn_local},
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{Outcome, Target, http1, nanoseconds};
use crate::bench::admission::reviews::Review;

/// How the server is asked.
#[derive(Clone, Copy)]
pub(super) enum Way {
    /// So many connections of HTTP/1.1 with keep-alive.
    Connections(usize),
    /// One connection of HTTP/2 with so many streams at once, as the API server does it.
    Streams(usize),
}

/// What all who ask share. They live on one thread.
struct Shared {
    target: Target,
    reviews: Vec<Review>,
    /// Told when all connections are open.
    connected: Notify,
    phase: Cell<Phase>,
    /// Nanoseconds that each answer took.
    latencies: RefCell<Vec<u64>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    WarmingUp,
    Measuring,
    Over,
}

pub(super) fn run(target: Target, reviews: Vec<Review>, way: Way) -> Result<Outcome> {
    let (connected, phase) = (Notify::new(), Cell::new(Phase::WarmingUp));
    let shared = Rc::new(Shared { target, reviews, connected, phase, latencies: RefCell::default() });
    // One thread, so that the server has the rest of the machine.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        let asking = async {
            match way {
                Way::Connections(count) => ask_on_connections(&shared, count).await,
                Way::Streams(count) => ask_on_streams(&shared, count).await,
            }
        };
        let ((), outcome) = tokio::try_join!(asking, shared.measure())?;
        Ok(outcome)
    })
}

impl Shared {
    async fn measure(&self) -> Result<Outcome> {
        self.connected.notified().await;
        tokio::time::sleep(self.target.warm_up).await;
        let used = self.target.used()?;
        self.phase.set(Phase::Measuring);
        tokio::time::sleep(self.target.duration).await;
        let used = self.target.used()?.since(&used);
        self.phase.set(Phase::Over);
        Outcome::of(&used, &mut self.latencies.borrow_mut())
    }

    /// Asks one thing after the other until the time is over.
    async fn ask(&self, first: usize, mut once: impl AsyncFnMut(usize) -> Result<()>) -> Result<()> {
        let mut next = first % self.reviews.len();
        while self.phase.get() != Phase::Over {
            let asked = Instant::now();
            once(next).await?;
            if self.phase.get() == Phase::Measuring {
                self.latencies.borrow_mut().push(nanoseconds(asked.elapsed()));
            }
            next = (next + 1) % self.reviews.len();
        }
        Ok(())
    }

    async fn connect(&self, protocol: &str) -> Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.target.address).await?;
        stream.set_nodelay(true)?;
        let tls = TlsConnector::from(self.target.tls(protocol)?);
        tls.connect(self.target.name(), stream).await.context("no TLS connection")
    }
}

async fn ask_on_connections(shared: &Rc<Shared>, count: usize) -> Result<()> {
    let requests: Rc<[Vec<u8>]> = shared.reviews.iter().map(http1::request).collect();
    let connections = try_join_all((0..count).map(|_| shared.connect("http/1.1"))).await?;
    shared.connected.notify_one();
    let asking = connections.into_iter().enumerate().map(|(number, mut connection)| {
        let (shared, requests) = (Rc::clone(shared), Rc::clone(&requests));
        spawn_local(async move {
            let mut read = BytesMut::new();
            let once = async |next: usize| {
                connection.write_all(&requests[next]).await?;
                connection.flush().await?;
                read.clear();
                while !shared.target.is_answer(http1::answer(&read)?, &shared.reviews[next])? {
                    ensure!(connection.read_buf(&mut read).await? > 0, "the server closed a connection");
                }
                Ok(())
            };
            shared.ask(number, once).await
        })
    });
    try_join_all(asking).await?.into_iter().collect()
}

async fn ask_on_streams(shared: &Rc<Shared>, count: usize) -> Result<()> {
    let connection = shared.connect("h2").await?;
    ensure!(connection.get_ref().1.alpn_protocol() == Some(b"h2"), "the server does not speak HTTP/2");
    let (sender, connection) = http2::handshake(OnThisThread, TokioIo::new(connection)).await?;
    shared.connected.notify_one();
    // How a connection ends is seen by whoever uses it.
    spawn_local(async move { drop(connection.await) });
    let requests: Rc<[Request<Full<Bytes>>]> = shared.reviews.iter().map(request).collect::<Result<_>>()?;
    let asking = (0..count).map(|number| {
        let (shared, requests, mut sender) = (Rc::clone(shared), Rc::clone(&requests), sender.clone());
        spawn_local(async move {
            let once = async |next: usize| {
                sender.ready().await?;
                let answer = sender.send_request(requests[next].clone()).await?;
                ensure!(answer.status() == StatusCode::OK, "answered with {}", answer.status());
                let body = answer.into_body().collect().await?.to_bytes();
                let right = shared.target.is_answer(Some(http1::Answer { body: &body }), &shared.reviews[next])?;
                ensure!(right, "an answer without a body");
                Ok(())
            };
            shared.ask(number, once).await
        })
    });
    try_join_all(asking).await?.into_iter().collect()
}

fn request(review: &Review) -> Result<Request<Full<Bytes>>> {
    let request = Request::post(format!("https://127.0.0.1{}?timeout=10s", review.path))
        .header(header::USER_AGENT, http1::USER_AGENT)
        .header(header::ACCEPT, http1::ACCEPT)
        .header(header::CONTENT_TYPE, "application/json");
    Ok(request.body(Full::new(review.body.clone().into()))?)
}

#[derive(Clone)]
struct OnThisThread;

impl<F: Future + 'static> Executor<F> for OnThisThread {
    fn execute(&self, task: F) {
        spawn_local(async move { drop(task.await) });
    }
}
