//! Pods that must not run without their volume wait behind a gate until its node is back.
//!
//! ```text
//! Pod, gated ── claims ──> volumes ── home node there? ── no ──> waits (told once), until it is back or given up
//!                                          └── yes ──> read live ──> one patch: required terms in, gate off
//! ```
//!
//! Kubernetes lets a gated pod's node affinity only get narrower, and only while the gate is there: that is why the terms come
//! with the gate's end, in one write. A pod without our gate that insists on a node which is gone cannot be helped that way. It is
//! told, with the command that makes it anew.

mod controller;
pub mod decision;
mod live;
pub mod stranded;
mod wake;

use cluster::{ObjectKey, decision::Account};
use kube::Client;

use crate::settings::Settings;
use decision::GATE;
use stranded::STRANDED;

pub use controller::Gate;

/// What is decided about a pod behind the gate, or about one that waits for nothing, and why; none if it is neither. Everything is
/// read live.
pub async fn explain(client: &Client, settings: &Settings, pod: &ObjectKey) -> kube::Result<Option<Account>> {
    let Some(pod) = live::read(client, pod).await?.filter(|pod| controller::is_unscheduled(&pod.slim)) else {
        return Ok(None);
    };
    let key = &pod.slim.key;
    if pod.slim.waits_for_home {
        let seen = live::observe(client, settings, &pod.slim).await?;
        let about = format!("gate of pod {key}");
        return Ok(Some(GATE.explain(&seen).tell("placement", about, decision::Action::name)));
    }
    let (volumes, live) = live::look(client, settings, &pod).await?;
    let seen = stranded::Observation { live, ..live::first_sight(&pod.slim, volumes) };
    let explanation = STRANDED.explain(&seen);
    let is_stranded = explanation.decision.action == stranded::Action::Report;
    let about = format!("wait of pod {key}");
    Ok(is_stranded.then(|| explanation.tell("placement", about, stranded::Action::name)))
}
