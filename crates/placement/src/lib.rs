//! Keeps pods with their local volumes, tells when a volume was left behind, and cleans up after nodes that are gone.
//!
//! ```text
//! Pod web-0 ──claim──> Claim data-web-0 ──volumeName──> Volume pvc-1 ── home node: annotation, attribute or affinity ──> Node a
//!    │                                                     │                                                          │
//!    │ made: affinity to Node a (`steer`)                  │ tied to Node a (`affinity`)                              │ gone:
//!    │ waits for Node a behind a gate (`gate`)             │ found on Node b: noted, told (`failover`)                v
//!    └─────────────────────────────────────────────────────┴──────────────────────────────── claims made anew (`gone`)
//! ```
//!
//! * Why: what is written to a disk of a node is only there. A pod that runs elsewhere finds an empty volume, or none.
//! * Who writes what: every replica answers about new pods. Only the leader lifts gates, ties volumes, notes where they went and
//!   deletes what is tied to nodes that are gone.

mod act;
pub mod affinity;
pub mod explain;
pub mod failover;
pub mod followed;
pub mod gate;
pub mod gone;
pub mod home;
pub mod patch;
pub mod pod;
pub mod settings;
pub mod steer;
pub mod terms;
pub mod why;

use std::sync::Arc;

use affinity::Affinity;
use cluster::{
    Claim, Class, Node, Pod, Store, Volume,
    decision::Decision,
    pod::{BY_EPHEMERAL_CLAIM, BY_USED_CLAIM},
    store::Index,
    volume::BY_CLAIM,
};
use failover::Failover;
use gate::Gate;
use gone::Gone;
use home::Home;
use platform::{
    client::FencedClient,
    events::Recorder,
    metrics::{Counter, Family, Registry},
};
use tokio_util::sync::CancellationToken;

pub use settings::Settings;
pub use steer::Steering;

/// The indexes that the store of pods needs.
pub const INDEXES_OF_PODS: [Index<Pod>; 2] = [BY_USED_CLAIM, BY_EPHEMERAL_CLAIM];

/// The indexes that the store of volumes needs.
pub const INDEXES_OF_VOLUMES: [Index<Volume>; 2] = [BY_CLAIM, gone::BY_TIE];

/// The indexes that the store of nodes needs.
pub const INDEXES_OF_NODES: [Index<Node>; 1] = [home::BY_LABEL];

/// Which pods may follow a volume.
#[must_use]
pub fn interesting_pod(pod: &Pod) -> bool {
    !pod.ephemeral_volumes.is_empty() || !pod.used_claims.is_empty()
}

/// Which volumes may be followed, or are lost with their node.
#[must_use]
pub fn interesting_volume(volume: &Volume, settings: &Settings) -> bool {
    settings.driver(&volume.driver).is_some() || Home::tied(volume, settings).is_some()
}

/// What the feature knows of the cluster; somebody else feeds it.
#[derive(Clone)]
pub struct Caches {
    /// Pods that use claims, with [`INDEXES_OF_PODS`].
    pub pods: Store<Pod>,
    /// All claims.
    pub claims: Store<Claim>,
    /// All classes.
    pub classes: Store<Class>,
    /// Local volumes, with [`INDEXES_OF_VOLUMES`].
    pub volumes: Store<Volume>,
    /// All nodes, with [`INDEXES_OF_NODES`].
    pub nodes: Store<Node>,
}

/// What every part that acts works with.
#[derive(Clone)]
pub struct Context {
    /// What is known.
    pub caches: Caches,
    /// Writes while this replica leads; reads live.
    pub client: FencedClient,
    /// Tells.
    pub recorder: Recorder,
    /// What is configured.
    pub settings: Arc<Settings>,
    /// Where metrics go.
    pub registry: Registry,
    /// Counts what is decided.
    pub counts: Counts,
}

/// How often was decided what.
#[derive(Clone)]
pub struct Counts(Family<Counter>);

impl Counts {
    /// The same for all parts.
    #[must_use]
    pub fn new(registry: &Registry) -> Self {
        Self(registry.counters(
            "claimkeeper_placement_decisions_total",
            "Decisions about pods, local volumes and their nodes, by what was decided and why.",
            &["decision", "reason"],
        ))
    }

    /// Counts a decision; `name` is what its action is called.
    pub fn count<A>(&self, decision: &Decision<A>, name: &'static str) {
        self.0.with(&[name, decision.reason]).increment();
    }
}

/// What the leader does.
pub struct Placement {
    context: Context,
    gate: Gate,
    failover: Failover,
    affinity: Affinity,
    gone: Gone,
}

impl Placement {
    /// The feature on top of caches that somebody else feeds.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self {
            context: context.clone(),
            gate: Gate::new(context),
            failover: Failover::new(context),
            affinity: Affinity::new(context),
            gone: Gone::new(context),
        }
    }

    /// Acts until `stop` is cancelled (then it finishes what it has begun) or the future is dropped (then it ends at once).
    pub async fn run(&self, stop: CancellationToken) {
        let Caches { pods, claims, classes, volumes, nodes } = &self.context.caches;
        let synced = async {
            tokio::join!(pods.synced(), claims.synced(), classes.synced(), volumes.synced(), nodes.synced());
        };
        if stop.run_until_cancelled(synced).await.is_none() {
            return;
        }
        tokio::join!(
            self.gate.run(stop.clone()),
            self.failover.run(stop.clone()),
            self.affinity.run(stop.clone()),
            self.gone.run(stop)
        );
    }
}
