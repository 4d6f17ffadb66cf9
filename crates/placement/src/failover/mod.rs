//! Tells when a volume was left behind: where it is now, that it began empty there, and how often that happened.
//!
//! ```text
//! Pod runs on b ──> Volume, known to be on a ── we note it ──> selected-node: b, blank-recreations: {"count": 1, "to": "b", …}
//! driver notes b ──────────┘                                             └──> the same on the claim, events on claim and pod
//! ```
//!
//! What is known of a volume is written on it, and nowhere else: the node in our note, or else its first home. A move is what
//! differs from that, and it is written in the same patch that counts it, for that very version of the volume. So each counts once,
//! whoever leads and however often it is looked at:
//!
//! | order                                               | what happens                                                       |
//! |-----------------------------------------------------|--------------------------------------------------------------------|
//! | driver notes b, then the pod runs on b              | counted with the driver's note; the pod finds the volume at home   |
//! | the pod runs on b, then the driver notes b          | nothing until the driver has noted it, then counted                |
//! | we note it ourselves: the pod runs on b             | counted, b noted, in one patch                                     |
//! | we end before that patch                            | whoever leads next finds the same difference, and counts it        |
//! | we end after it, before the claim has the note      | no difference on the volume; the claim's count is behind: written  |
//! | two replicas count at once                          | the version has changed for the second; it finds no difference     |
//!
//! What counts: for drivers that note it themselves, that they did. For others, that a pod runs there; one that was only
//! scheduled there, and deleted before it ran, has mounted nothing. If pods on several nodes use a volume, it stays where it is
//! known to be as long as one of them is there.

mod controller;
pub mod decision;
pub mod note;
mod observe;

use cluster::{Volume, decision::Account};

use crate::{Caches, settings::Settings};
use decision::{Action, FAILOVER};

pub use controller::Failover;

/// What is decided about a volume by what these caches know, and why; none if it is none of ours.
pub(crate) fn explain(caches: &Caches, settings: &Settings, volume: &Volume) -> Option<Account> {
    let driver = observe::driver_of(volume, settings)?;
    let mut seen = observe::Eyes { caches, settings }.observe(volume, driver);
    seen.live = true;
    let about = format!("failover of volume {}", volume.key);
    Some(FAILOVER.explain(&seen).tell("placement", about, Action::name))
}
