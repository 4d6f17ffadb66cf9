//! When this replica acts: always, while it is elected, or never.

use std::time::Duration;

use kube::Config as KubeConfig;
use platform::{
    client::{self, ClientOptions, Fence},
    leader::{Elector, LeaderConfig},
    metrics::Registry,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::config::LeaderElection;

/// Who acts, as far as this replica is concerned.
pub(crate) enum Election {
    /// There is no other replica.
    Alone(Fence),
    /// Whoever is elected.
    Candidate(Box<Elector>),
    /// Others: this one only answers and tells. Its fence stays closed.
    Observer,
}

impl Election {
    /// `leadership` is the Lease, `fence` what opens while this replica acts.
    pub(crate) fn new(
        config: &LeaderElection,
        leadership: LeaderConfig,
        kube: &KubeConfig,
        registry: &Registry,
        fence: &Fence,
    ) -> anyhow::Result<Self> {
        if !config.candidate {
            return Ok(Self::Observer);
        }
        if !config.enabled {
            return Ok(Self::Alone(fence.clone()));
        }
        // It has a rhythm of its own.
        let impatient = ClientOptions { retry: false, ..ClientOptions::new(registry) };
        let client = client::build(kube.clone(), impatient)?;
        Ok(Self::Candidate(Box::new(Elector::new(client, leadership, registry, fence.clone())?)))
    }

    /// Acts whenever it is this replica's turn, until `stop`; `act` ends once the token that it is given is cancelled.
    pub(crate) async fn run<F: Future<Output = ()>>(
        self,
        stop: CancellationToken,
        act: impl Fn(CancellationToken) -> F,
    ) {
        match self {
            Self::Alone(fence) => {
                fence.open_until(far_future());
                act(stop).await;
            }
            Self::Candidate(elector) => drop(elector.run(stop, |term| act(term.stopping)).await),
            Self::Observer => stop.cancelled().await,
        }
    }
}

/// Without a Lease nobody ever closes the fence.
fn far_future() -> Instant {
    Instant::now() + Duration::from_hours(24 * 365 * 30)
}
