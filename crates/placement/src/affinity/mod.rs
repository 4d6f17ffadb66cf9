//! Ties volumes to their home nodes where nobody tells pods where to run: the scheduler then keeps pods with them.
//!
//! ```text
//! Volume, untied ── home node there? ── yes ──> spec.nodeAffinity: topologyKey In [its label on that node]
//!                                       no ───> left: tied to a node that is gone it could never be used again
//! ```
//!
//! Kubernetes takes a volume's node affinity once. Whether it may be changed later, when the volume has moved, depends on the gate
//! `MutablePVNodeAffinity` of the API server: it is tried, and if the server says no it is told once. Only what has exactly our
//! form is changed: whoever says more about a volume knows more about it.

mod controller;
pub mod decision;

use cluster::{Volume, decision::Account};

use crate::{Caches, home::Home, settings::Settings};
use decision::{AFFINITY, Action, Observation};

pub use controller::Affinity;

/// What is decided about a volume by what these caches know, and why; none if we tie no volumes of its driver.
pub(crate) fn explain(caches: &Caches, settings: &Settings, volume: &Volume) -> Option<Account> {
    let driver = controller::driver_of(volume, settings)?;
    let node = Home::of(volume, driver, settings).and_then(|home| home.find(&caches.nodes));
    let seen = controller::observe(volume, driver, node.as_deref(), settings);
    let about = format!("node affinity of volume {}", volume.key);
    let seen = Observation { has_our_form: Some(true), ..seen };
    Some(AFFINITY.explain(&seen).tell("placement", about, Action::name))
}
