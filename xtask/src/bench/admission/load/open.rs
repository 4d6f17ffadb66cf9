//! So many requests a second, whether the server keeps up or not.
//!
//! Each request has its moment, and its answer's time counts from that moment: a server that stalls is charged for those who
//! wait behind, too. The timers of an event loop are good to a millisecond only, so every connection has a thread of its own
//! that sleeps until its moment.

use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow, ensure};
use tokio_rustls::rustls::{ClientConnection, StreamOwned};

use super::{Outcome, Target, http1, nanoseconds};
use crate::bench::admission::reviews::Review;

/// Over how many connections the requests are spread.
pub(crate) const CONNECTIONS: u32 = 16;

/// Enough to open all connections before the first request is due.
const HEAD_START: Duration = Duration::from_millis(300);

/// No answer takes longer in a run that tells anything.
const PATIENCE: Duration = Duration::from_secs(10);

/// When one connection asks.
struct Pace {
    first: Instant,
    every: Duration,
    /// Answers count from here …
    opens: Instant,
    /// … to here.
    closes: Instant,
}

pub(super) type Connection = StreamOwned<ClientConnection, TcpStream>;

pub(super) fn run(target: Target, reviews: Vec<Review>, rate: u32) -> Result<Outcome> {
    let (target, reviews) = (Arc::new(target), Arc::new(reviews));
    let start = Instant::now() + HEAD_START;
    let opens = start + target.warm_up;
    let closes = opens + target.duration;
    let turns = Duration::from_secs(1) / rate;
    let asking: Vec<_> = (0..CONNECTIONS)
        .map(|number| {
            let (target, reviews) = (Arc::clone(&target), Arc::clone(&reviews));
            let pace = Pace { first: start + turns * number, every: turns * CONNECTIONS, opens, closes };
            thread::spawn(move || ask(&target, &reviews, number as usize, &pace))
        })
        .collect();
    sleep_until(opens);
    let used = target.used()?;
    sleep_until(closes);
    let used = target.used()?.since(&used);
    let mut latencies = Vec::new();
    for asked in asking {
        latencies.extend(asked.join().map_err(|_| anyhow!("a connection's thread panicked"))??);
    }
    Outcome::of(&used, &mut latencies)
}

/// Asks at every moment of its pace and tells how many nanoseconds each answer came after it.
fn ask(target: &Target, reviews: &[Review], first: usize, pace: &Pace) -> Result<Vec<u64>> {
    let mut connection = connect(target)?;
    let (mut read, mut latencies) = (Vec::new(), Vec::new());
    let (mut due, mut next) = (pace.first, first % reviews.len());
    while due < pace.closes {
        sleep_until(due);
        exchange(target, &mut connection, &reviews[next], &mut read)?;
        if due >= pace.opens {
            latencies.push(nanoseconds(due.elapsed()));
        }
        (due, next) = (due + pace.every, (next + 1) % reviews.len());
    }
    Ok(latencies)
}

pub(super) fn connect(target: &Target) -> Result<Connection> {
    let stream = TcpStream::connect(target.address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let connection = ClientConnection::new(target.tls("http/1.1")?, target.name())?;
    Ok(StreamOwned::new(connection, stream))
}

pub(super) fn exchange(
    target: &Target,
    connection: &mut Connection,
    review: &Review,
    read: &mut Vec<u8>,
) -> Result<()> {
    connection.write_all(&http1::request(review))?;
    connection.flush()?;
    read.clear();
    let mut chunk = [0; 4096];
    while !target.is_answer(http1::answer(read)?, review)? {
        let count = connection.read(&mut chunk)?;
        ensure!(count > 0, "the server closed a connection");
        read.extend_from_slice(&chunk[..count]);
    }
    Ok(())
}

fn sleep_until(moment: Instant) {
    thread::sleep(moment.saturating_duration_since(Instant::now()));
}
