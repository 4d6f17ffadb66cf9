//! The load generator: a process of its own, compiled as the operator is, that asks a server and tells how it did.

mod closed;
mod http1;
mod open;

use std::{
    fs,
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use tokio_rustls::rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};

use self::closed::Way;
use super::reviews::{self, Review, Rules, Webhook};
use crate::bench::sample::{processor_time_of, processor_time_of_threads};

pub(crate) use self::open::CONNECTIONS as OPEN_CONNECTIONS;

/// How long a server is asked before its answers count.
const WARM_UP: Duration = Duration::from_millis(500);

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Where the server listens
    #[arg(long)]
    address: SocketAddr,
    /// Who signed its certificate
    #[arg(long)]
    authority: PathBuf,
    /// Its process, to see what it uses
    #[arg(long)]
    pid: u32,
    /// For how long
    #[arg(long)]
    seconds: u64,
    /// What it is asked about
    #[arg(long)]
    webhook: Webhook,
    /// How many claims there are in the cluster
    #[arg(long)]
    claims: usize,
    /// By whose rules its answers are right
    #[arg(long)]
    rules: Rules,
    #[command(flatten)]
    load: LoadArguments,
}

#[derive(clap::Args)]
#[group(required = true, multiple = false)]
struct LoadArguments {
    /// As much as goes over so many connections
    #[arg(long)]
    connections: Option<usize>,
    /// As much as goes over so many streams of one HTTP/2 connection
    #[arg(long)]
    streams: Option<usize>,
    /// So many a second
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
}

/// What was measured.
#[derive(Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Requests answered per second.
    pub rate: f64,
    /// Milliseconds.
    pub p50: f64,
    pub p99: f64,
    /// Microseconds of the server's processor time per request, user and system.
    pub processor: f64,
    /// How much of one core the load generator itself used.
    pub own_share: f64,
}

/// Prints what was measured, as JSON.
pub(crate) async fn run(arguments: Arguments) -> Result<()> {
    let Arguments { address, authority, pid, seconds, webhook, claims, rules, load } = arguments;
    let target = Target {
        address,
        authority: CertificateDer::from_pem_slice(&fs::read(&authority)?).context("the authority is no certificate")?,
        pid,
        warm_up: WARM_UP,
        duration: Duration::from_secs(seconds),
        rules,
    };
    let outcome = tokio::task::spawn_blocking(move || {
        let reviews = reviews::all(webhook, rules, claims)?;
        target.ask_each_once(&reviews)?;
        match load {
            LoadArguments { connections: Some(count), .. } => closed::run(target, reviews, Way::Connections(count)),
            LoadArguments { streams: Some(count), .. } => closed::run(target, reviews, Way::Streams(count)),
            LoadArguments { rate, .. } => open::run(target, reviews, rate.context("nothing is asked for")?),
        }
    });
    println!("{}", serde_json::to_string(&outcome.await??)?);
    Ok(())
}

/// The server that is asked.
struct Target {
    address: SocketAddr,
    authority: CertificateDer<'static>,
    pid: u32,
    warm_up: Duration,
    duration: Duration,
    rules: Rules,
}

impl Target {
    fn tls(&self, protocol: &str) -> Result<Arc<ClientConfig>> {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.clone())?;
        let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        Ok(Arc::new(config))
    }

    fn name(&self) -> ServerName<'static> {
        ServerName::from(self.address.ip())
    }

    /// Whether an answer is there; a wrong one is an error.
    fn is_answer(&self, answer: Option<http1::Answer<'_>>, review: &Review) -> Result<bool> {
        let Some(answer) = answer else { return Ok(false) };
        if self.rules != Rules::Any {
            review.check(answer.body)?;
        }
        Ok(true)
    }

    /// The first answer to each question takes us long to read, which must not count as the server's time.
    fn ask_each_once(&self, reviews: &[Review]) -> Result<()> {
        let (mut connection, mut read) = (open::connect(self)?, Vec::new());
        reviews.iter().try_for_each(|review| open::exchange(self, &mut connection, review, &mut read))
    }

    /// The processor time that the server and we have used by now.
    fn used(&self) -> Result<Used> {
        // Our own threads may have ended; they are not to be told so exactly.
        let (server, own) = (processor_time_of_threads(self.pid)?, processor_time_of(std::process::id())?);
        Ok(Used { at: Instant::now(), elapsed: Duration::ZERO, server, own })
    }
}

/// Processor time.
struct Used {
    at: Instant,
    elapsed: Duration,
    server: Duration,
    own: Duration,
}

impl Used {
    fn since(&self, before: &Self) -> Self {
        Self {
            at: self.at,
            elapsed: self.at.duration_since(before.at),
            server: self.server.saturating_sub(before.server),
            own: self.own.saturating_sub(before.own),
        }
    }
}

impl Outcome {
    /// From what was used meanwhile and from the nanoseconds that every answer took.
    fn of(used: &Used, latencies: &mut [u64]) -> Result<Self> {
        ensure!(!latencies.is_empty(), "nothing was answered");
        latencies.sort_unstable();
        let quantile = |percent: usize| {
            let rank = (latencies.len() * percent).div_ceil(100).max(1);
            latencies[rank - 1] as f64 / 1e6
        };
        let count = latencies.len() as f64;
        Ok(Self {
            rate: count / used.elapsed.as_secs_f64(),
            p50: quantile(50),
            p99: quantile(99),
            processor: used.server.as_secs_f64() * 1e6 / count,
            own_share: used.own.div_duration_f64(used.elapsed),
        })
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quantiles_are_of_values_that_were_measured() {
        let (elapsed, server) = (Duration::from_secs(2), Duration::from_millis(200));
        let used = Used { at: Instant::now(), elapsed, server, own: Duration::from_secs(1) };
        let mut latencies: Vec<u64> = (1..=200).rev().map(|milliseconds| milliseconds * 1_000_000).collect();
        let outcome = Outcome::of(&used, &mut latencies).unwrap();
        let figures = [outcome.rate, outcome.p50, outcome.p99, outcome.processor, outcome.own_share];
        assert_eq!(figures.map(|figure| figure.to_string()), ["100", "100", "198", "1000", "0.5"]);
    }
}
