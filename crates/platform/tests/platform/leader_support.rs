//! A candidate that runs beside the test, and the election that watches whether two ever lead.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use platform::{
    client::{self, ClientOptions, Fence},
    leader::{Elector, LeaderConfig, Leadership},
    metrics::Registry,
};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

/// Longer than any step takes; tests that promise a time measure it themselves.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Short enough for a test and with the proportions of the defaults.
pub(crate) fn quick(namespace: &str, identity: &str) -> LeaderConfig {
    LeaderConfig {
        lease_duration: Duration::from_secs(3),
        renew_deadline: Duration::from_secs(2),
        retry_period: Duration::from_millis(500),
        ..LeaderConfig::new("election", namespace, identity)
    }
}

/// How many terms run at this moment and how many ever ran at once.
#[derive(Clone, Default)]
pub(crate) struct Terms {
    running: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Terms {
    pub(crate) fn most_at_once(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }
}

struct RunningTerm {
    terms: Terms,
    leads: watch::Sender<bool>,
}

impl RunningTerm {
    fn begin(terms: Terms, leads: watch::Sender<bool>) -> Self {
        let running = terms.running.fetch_add(1, Ordering::SeqCst) + 1;
        terms.most.fetch_max(running, Ordering::SeqCst);
        leads.send_replace(true);
        Self { terms, leads }
    }
}

impl Drop for RunningTerm {
    fn drop(&mut self) {
        self.terms.running.fetch_sub(1, Ordering::SeqCst);
        self.leads.send_replace(false);
    }
}

pub(crate) struct Candidate {
    pub(crate) fence: Fence,
    pub(crate) registry: Registry,
    pub(crate) leadership: watch::Receiver<Leadership>,
    /// Whether a term's future is alive; independent of what the elector says about itself.
    leads: watch::Sender<bool>,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

impl Candidate {
    pub(crate) fn start(kubeconfig: &Path, config: LeaderConfig, terms: &Terms) -> Self {
        let (registry, fence) = (Registry::default(), Fence::new());
        let client = client_for(kubeconfig, ClientOptions { retry: false, ..ClientOptions::new(&registry) });
        let elector = Elector::new(client, config, &registry, fence.clone()).unwrap();
        let leadership = elector.leadership();
        let shutdown = CancellationToken::new();
        let leads = watch::Sender::new(false);
        let (term_leads, terms) = (leads.clone(), terms.clone());
        let run = elector.run(shutdown.clone(), move |term| {
            let (terms, leads) = (terms.clone(), term_leads.clone());
            async move {
                let _running = RunningTerm::begin(terms, leads);
                term.stopping.cancelled().await;
            }
        });
        let task = tokio::spawn(async move {
            run.await;
        });
        Self { fence, registry, leadership, leads, shutdown, task }
    }

    pub(crate) fn leads(&self) -> bool {
        *self.leads.borrow()
    }

    /// Waits until a term begins and returns how long that took.
    pub(crate) async fn begins(&self) -> Duration {
        self.becomes(true).await
    }

    /// Waits until the term is over and returns how long that took.
    pub(crate) async fn ends(&self) -> Duration {
        self.becomes(false).await
    }

    async fn becomes(&self, wanted: bool) -> Duration {
        let started = Instant::now();
        let mut leads = self.leads.subscribe();
        let change = timeout(PATIENCE, leads.wait_for(|leads| *leads == wanted)).await;
        change.unwrap_or_else(|_| panic!("leading did not become {wanted} within {PATIENCE:?}")).unwrap();
        started.elapsed()
    }

    /// Waits until this candidate knows that `holder` holds the lease.
    pub(crate) async fn knows(&self, holder: &str) {
        let mut leadership = self.leadership.clone();
        let known = leadership.wait_for(|leadership| leadership.holder.as_deref() == Some(holder));
        timeout(PATIENCE, known).await.unwrap().unwrap();
    }

    /// The end that SIGTERM brings.
    pub(crate) async fn shut_down(self) {
        self.shutdown.cancel();
        timeout(PATIENCE, self.task).await.unwrap().unwrap();
    }

    /// The end that SIGKILL brings: nothing is released.
    pub(crate) async fn die(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
    }
}

pub(crate) fn client_for(kubeconfig: &Path, options: ClientOptions) -> Client {
    client::build(client::load_config(Some(kubeconfig)).unwrap(), options).unwrap()
}

pub(crate) async fn holder(leases: &Api<Lease>, name: &str) -> Option<String> {
    let lease = leases.get_opt(name).await.unwrap()?;
    lease.spec?.holder_identity
}
