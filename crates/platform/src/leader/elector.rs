//! The candidate: stands by, leads, stands by again.

use std::{pin::pin, time::Duration};

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::{api::coordination::v1::Lease, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{Api, Client, api::PostParams};
use tokio::{
    sync::watch,
    time::{Instant, error::Elapsed, sleep_until, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    LeaderConfig, LeaderConfigError, Leadership, Term,
    decision::{self, Decision, Record, Sight},
    duty::Duty,
    lease::{self, Signal},
    trouble::LeaseTrouble,
};
use crate::{
    client::{Fence, owner_in},
    metrics::{Counter, Gauge, Registry},
};

/// A broken watch is tried again less often than the lease, which is polled meanwhile.
const WATCH_PAUSE: u32 = 5;

/// Takes part in the election for one Lease.
pub struct Elector {
    leases: Api<Lease>,
    config: LeaderConfig,
    fence: Fence,
    status: Gauge,
    changes: Counter,
    leadership: watch::Sender<Leadership>,
    seen: Seen,
    trouble: LeaseTrouble,
    watch_trouble: LeaseTrouble,
}

/// The lease as this candidate knows it.
#[derive(Default)]
struct Seen {
    /// Name and resource version to write against; nothing if the lease is not there or was never read.
    metadata: Option<ObjectMeta>,
    sight: Option<Sight>,
}

impl Seen {
    fn decide(&self, identity: &str) -> Decision {
        decision::decide(self.sight.as_ref(), self.metadata.is_some(), identity, Instant::now())
    }

    fn record(&self) -> Option<&Record> {
        self.sight.as_ref().map(|sight| &sight.record)
    }
}

/// How a term ended, other than by its own will.
enum Lost {
    TakenBy(String),
    NotRenewed,
}

enum Renewal {
    /// The lease is ours, counted from the moment before the request was sent.
    Sent(Instant),
    TakenBy(String),
}

impl Elector {
    /// `client` must have neither a fence, which would keep it from ever opening that fence, nor retries, which would
    /// outlast the deadlines.
    pub fn new(
        client: Client,
        config: LeaderConfig,
        registry: &Registry,
        fence: Fence,
    ) -> Result<Self, LeaderConfigError> {
        config.validate()?;
        let status = registry.gauges(
            "leader_election_master_status",
            "Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, 1 indicates master. \
             'name' is the string used to identify the lease. Please make sure to group by name.",
            &["name"],
        );
        let changes = registry.counter(
            "claimkeeper_leader_transitions_total",
            "How often this process saw the lease pass to a new leader.",
        );
        Ok(Self {
            leases: Api::namespaced(client, &config.namespace),
            status: status.with(&[&config.name]),
            config,
            fence,
            changes,
            leadership: watch::Sender::default(),
            seen: Seen::default(),
            trouble: LeaseTrouble::default(),
            watch_trouble: LeaseTrouble::default(),
        })
    }

    /// Follows who leads; for readiness, dashboards and tests.
    #[must_use]
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.leadership.subscribe()
    }

    /// Stands by and leads in turns until `shutdown`; `term` is started each time this process becomes the leader.
    ///
    /// The term's future is dropped when the lease is lost. When it returns, by itself or because its
    /// [`stopping`](Term::stopping) was cancelled, the lease is released and its output is returned. `None` means that
    /// the shutdown came while this process did not lead.
    pub async fn run<F, Fut>(mut self, shutdown: CancellationToken, term: F) -> Option<Fut::Output>
    where
        F: Fn(Term) -> Fut,
        Fut: Future,
    {
        loop {
            let sent = self.stand_by(&shutdown).await?;
            if let Some(output) = self.lead(sent, &shutdown, &term).await {
                return Some(output);
            }
        }
    }

    /// Waits for the lease and takes it. Returns when the request that took it was sent, or nothing at shutdown.
    async fn stand_by(&mut self, shutdown: &CancellationToken) -> Option<Instant> {
        let watch_pause = self.config.retry_period * WATCH_PAUSE;
        let mut signals = lease::signals(self.leases.clone(), &self.config.name, watch_pause);
        let mut watching = false;
        let mut retry_at = Instant::now();
        let mut poll_at = retry_at;
        loop {
            let due = match self.seen.decide(&self.config.identity) {
                Decision::WaitUntil(expiry) if watching => expiry,
                Decision::WaitUntil(expiry) => expiry.min(poll_at),
                _ => retry_at,
            };
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                Some(signal) = signals.next() => {
                    watching = self.heed(signal, &mut retry_at);
                    continue;
                }
                () = sleep_until(due) => {}
            }
            let known = self.seen.sight.clone();
            let taken = self.try_to_take().await;
            if taken.is_some() && !shutdown.is_cancelled() {
                return taken;
            }
            poll_at = Instant::now() + self.config.jittered_retry();
            match self.seen.decide(&self.config.identity) {
                // A watch that is alive would have told us this before.
                Decision::WaitUntil(_) if watching && self.seen.sight != known => {
                    signals = lease::signals(self.leases.clone(), &self.config.name, watch_pause);
                    watching = false;
                }
                Decision::WaitUntil(_) => {}
                _ => retry_at = poll_at,
            }
        }
        // Taken at the last moment, or still in our name after a term that ended badly: nobody should wait for that.
        if self.seen.record().is_some_and(|record| record.holder == self.config.identity) {
            self.release().await;
        }
        None
    }

    /// Takes in what the watch says, and returns whether it can be relied upon.
    fn heed(&mut self, signal: Signal, retry_at: &mut Instant) -> bool {
        let changed = match signal {
            Signal::Seen(lease) => self.see(Some(*lease)),
            Signal::Gone => self.see(None),
            Signal::Down(error) => {
                self.watch_trouble.report(&self.config, "watched and is polled instead", Some(&error));
                return false;
            }
        };
        self.watch_trouble.over(&self.config);
        if changed {
            *retry_at = Instant::now();
        }
        true
    }

    /// One try. It is never cut short by a shutdown: a request that is on its way may take the lease, and then it must
    /// be released.
    async fn try_to_take(&mut self) -> Option<Instant> {
        let attempt = timeout(self.config.call_timeout(), self.take()).await;
        match flatten(attempt) {
            Ok(taken) => {
                self.trouble.over(&self.config);
                taken
            }
            // Somebody was faster: the normal end of a race.
            Err(Some(kube::Error::Api(status))) if status.is_conflict() || status.is_already_exists() => None,
            Err(error) => {
                self.trouble.report(&self.config, "taken", error.as_ref());
                None
            }
        }
    }

    async fn take(&mut self) -> Result<Option<Instant>, kube::Error> {
        let lease = self.leases.get_opt(&self.config.name).await?;
        self.see(lease);
        match self.seen.decide(&self.config.identity) {
            Decision::WaitUntil(_) => Ok(None),
            Decision::Create | Decision::Take | Decision::Renew => self.write_claim().await.map(Some),
        }
    }

    /// Runs one term. Returns its output if it ended by itself, nothing if the lease was lost.
    async fn lead<F, Fut>(&mut self, sent: Instant, shutdown: &CancellationToken, term: &F) -> Option<Fut::Output>
    where
        F: Fn(Term) -> Fut,
        Fut: Future,
    {
        let stopping = shutdown.child_token();
        let duty = Duty {
            fence: self.fence.clone(),
            status: self.status.clone(),
            leadership: self.leadership.clone(),
            stopping: stopping.clone(),
        };
        duty.begin(decision::act_until(sent, self.config.renew_deadline));
        info!(lease = self.config.name, identity = self.config.identity, "leading");
        let mut work = pin!(term(Term { stopping }));
        let outcome = {
            let lost = pin!(self.keep(sent));
            tokio::select! {
                biased;
                lost = lost => Err(lost),
                output = &mut work => Ok(output),
            }
        };
        // First the fence, then the work: nothing that is dropped below can get a last write through.
        drop(duty);
        match outcome {
            Ok(output) => {
                self.release().await;
                Some(output)
            }
            Err(lost) => {
                self.log_loss(&lost);
                None
            }
        }
    }

    fn log_loss(&self, lost: &Lost) {
        let LeaderConfig { name: lease, renew_deadline, .. } = &self.config;
        match lost {
            Lost::TakenBy(holder) if holder.is_empty() => {
                warn!(lease, "stopped leading: somebody released the lease; standing by");
            }
            Lost::TakenBy(holder) => {
                warn!(lease, holder, "stopped leading: somebody else took the lease; standing by");
            }
            Lost::NotRenewed => {
                warn!(lease, "stopped leading: the lease was not renewed within {renew_deadline:?}; standing by");
            }
        }
    }

    /// Renews until that is no longer possible.
    async fn keep(&mut self, mut sent: Instant) -> Lost {
        let mut next = sent + self.config.retry_period;
        loop {
            let deadline = decision::act_until(sent, self.config.renew_deadline);
            sleep_until(next.min(deadline)).await;
            let now = Instant::now();
            // Also after the whole process was frozen: the clock has gone on.
            if now >= deadline {
                return Lost::NotRenewed;
            }
            next = now + self.config.retry_period;
            let renewal = timeout_at(deadline.min(now + self.config.call_timeout()), self.renew()).await;
            match flatten(renewal) {
                Ok(Renewal::Sent(at)) => {
                    sent = at;
                    self.fence.open_until(decision::act_until(sent, self.config.renew_deadline));
                    self.trouble.over(&self.config);
                }
                Ok(Renewal::TakenBy(holder)) => return Lost::TakenBy(holder),
                Err(error) => self.trouble.report(&self.config, "renewed", error.as_ref()),
            }
        }
    }

    async fn renew(&mut self) -> Result<Renewal, kube::Error> {
        if self.seen.metadata.is_some() {
            match self.write_claim().await {
                Ok(sent) => return Ok(Renewal::Sent(sent)),
                // Our own lost answer, or somebody else: look.
                Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        let lease = self.leases.get_opt(&self.config.name).await?;
        let exists = lease.is_some();
        self.see(lease);
        match self.seen.record() {
            Some(record) if exists && record.holder != self.config.identity => {
                Ok(Renewal::TakenBy(record.holder.clone()))
            }
            _ => self.write_claim().await.map(Renewal::Sent),
        }
    }

    /// Writes our name into the lease, on condition that it still is as we saw it.
    async fn write_claim(&mut self) -> Result<Instant, kube::Error> {
        let old = self.seen.metadata.as_ref().and_then(|_| self.seen.record());
        let duration = Duration::from_secs(self.config.lease_seconds());
        let record = decision::claim(old, &self.config.identity, duration, Timestamp::now());
        let sent = Instant::now();
        self.write(record).await?;
        Ok(sent)
    }

    async fn write(&mut self, record: Record) -> Result<(), kube::Error> {
        let parameters = PostParams::default();
        let written = if let Some(metadata) = self.seen.metadata.clone() {
            let lease = lease::lease_with(metadata, record);
            self.leases.replace(&self.config.name, &parameters, &lease).await?
        } else {
            let owner = owner_in(&self.leases.clone().into_client(), &self.config.namespace).await?;
            let metadata = ObjectMeta {
                name: Some(self.config.name.clone()),
                owner_references: owner.map(|owner| vec![owner]),
                ..ObjectMeta::default()
            };
            self.leases.create(&parameters, &lease::lease_with(metadata, record)).await?
        };
        self.see(Some(written));
        Ok(())
    }

    /// Lets the next one in at once. If it fails the lease merely has to expire.
    async fn release(&mut self) {
        match flatten(timeout(self.config.call_timeout(), self.write_release()).await) {
            Ok(()) => info!(lease = self.config.name, "released the lease"),
            Err(error) => self.trouble.report(&self.config, "released and has to expire", error.as_ref()),
        }
    }

    async fn write_release(&mut self) -> Result<(), kube::Error> {
        loop {
            let lease = self.leases.get_opt(&self.config.name).await?;
            let exists = lease.is_some();
            self.see(lease);
            let Some(record) = self.seen.record().filter(|record| exists && record.holder == self.config.identity)
            else {
                return Ok(());
            };
            let released = decision::release(record, Timestamp::now());
            match self.write(released).await {
                // A renewal that was cut off has arrived in between.
                Err(kube::Error::Api(status)) if status.is_conflict() => {}
                result => return result,
            }
        }
    }

    /// Takes in the lease as it was just read; returns whether the record is news.
    fn see(&mut self, lease: Option<Lease>) -> bool {
        let now = Instant::now();
        let Some(lease) = lease else {
            return self.seen.metadata.take().is_some();
        };
        let changed = Sight::update(&mut self.seen.sight, lease::record_of(&lease), now);
        // managedFields would only travel back and forth.
        let metadata = ObjectMeta { managed_fields: None, ..lease.metadata };
        self.seen.metadata = Some(metadata);
        let holder = self.seen.record().map(|record| record.holder.clone()).filter(|holder| !holder.is_empty());
        let last = self.leadership.borrow().holder.clone();
        if holder != last {
            if let Some(holder) = &holder {
                self.changes.increment();
                info!(lease = self.config.name, holder, "the lease has a new holder");
            }
            self.leadership.send_modify(|leadership| leadership.holder = holder);
        }
        changed
    }
}

/// A call that took too long becomes an error without a reason.
fn flatten<T>(result: Result<Result<T, kube::Error>, Elapsed>) -> Result<T, Option<kube::Error>> {
    match result {
        Ok(result) => result.map_err(Some),
        Err(_) => Err(None),
    }
}
