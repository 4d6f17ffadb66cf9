//! Cleans a volume before it goes to the pool: a Job gets it, alone, and only if the Job succeeded does the next claim.
//!
//! ```text
//! Volume pv-1, Released, claimRef: ci/cache (uid 1)
//!   1  claim ops/scrub-<uid of pv-1> (uid 2), made for pv-1 alone          volume: still Released, still uid 1
//!   2  claimRef: uid 2, previous-claim: ci/cache, scrub: {claim: 2}        volume: Bound to the scrub claim
//!      (a note on the claim, so that Kubernetes looks at it again)         claim: Bound to the volume
//!   3  Job ops/scrub-<uid of pv-1>, owned by claim uid 2                   volume: Bound, mounted by the Job's pod
//!   4  Job Complete: scrub: {claim: 2, done}                               volume: Bound, clean
//!   5  Job and its pods deleted, then the claim                            volume: Released, claimRef: uid 2
//!   6  claimRef gone, scrub gone (crate::write::release)                   volume: Available
//!   4' Job Failed: quarantined, scrub: {claim: 2, failedJob}               volume: Bound, until an administrator says so
//! ```
//!
//! From 1 to 5 the volume refers to a claim by uid, so no other claim can have it; and it leaves 5 only if the note on the
//! volume itself says that the very claim it refers to is the one for which it was cleaned. Whoever ends anywhere, or finds
//! something gone, looks at what is there:
//!
//! | ended after                   | what is seen                             | what is done                                  |
//! |-------------------------------|------------------------------------------|-----------------------------------------------|
//! | claim made                    | Released, uid 1, a claim of ours         | all rules again, then 2; or the claim goes    |
//! | claimRef written              | uid 2, no Job                            | 3, as soon as Kubernetes has bound it         |
//! | claim noted                   | uid 2, no Job, a claim with the note     | 3                                             |
//! | Job made                      | uid 2, a Job that uid 2 owns             | wait for it                                   |
//! | Job ended                     | uid 2, that Job Complete or Failed       | 4 or 4'                                       |
//! | marked done                   | done for uid 2, Bound                    | 5                                             |
//! | Job deleted                   | done for uid 2, Bound, no Job            | the claim goes                                |
//! | claim deleted                 | done for uid 2, Released                 | 6                                             |
//! | claim deleted by hand         | uid 2, Released, not done                | a new claim (uid 3), 2: what uid 2 did is void |
//! | Job deleted by hand           | uid 2, Bound, no Job                     | 3                                             |
//! | quarantined                   | quarantined                              | nothing                                       |
//! | quarantine lifted             | that Job is the failed one               | the Job goes, then 3                          |
//! | volume deleted                | a claim or a Job without volume          | both go                                       |
//!
//! The claim comes first, because the volume has to refer to it by uid: a volume that waits for a claim of a name is
//! everybody's who can make one. But when Kubernetes sees the claim, the volume is still uid 1's, so it lets the claim wait;
//! and when it sees the volume change, it looks at the volume alone. Without the note it would look at the claim only when it
//! looks at everything, 15 seconds later; that is what happens if we end before the note is written.

use std::{collections::HashSet, sync::Arc};

use cluster::{Job, ObjectKey, Store, Volume, store::Index, volume::VolumePhase};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

pub mod decision;
pub(crate) mod look;
mod objects;
mod template;
mod work;

/// On a volume: how far its scrub is ([`Progress`]). As a label of scrub claims and Jobs: the uid of their volume.
pub const SCRUB: &str = "claimkeeper.dev/scrub";
/// On a volume: why it is released to nobody until an administrator removes this.
pub const QUARANTINED: &str = "claimkeeper.dev/quarantined";

/// Volumes that will be free when their scrub has succeeded, by the name of their class.
pub const UNDERWAY_BY_CLASS: Index<Volume> = Index {
    name: "scrub-underway-by-class",
    values: |volume| if is_underway(volume) { vec![volume.class.clone()] } else { Vec::new() },
};

/// What is known and needed where volumes are scrubbed.
pub struct Scrub {
    /// Where templates, scrub claims and Jobs are: the operator's own namespace.
    pub(crate) namespace: Arc<str>,
    jobs: Store<Job>,
    /// Volumes for which a claim was made and that may not refer to it yet.
    begun: Mutex<HashSet<ObjectKey>>,
}

impl Scrub {
    /// In this namespace. Somebody else feeds the store of Jobs.
    #[must_use]
    pub fn new(namespace: &str) -> Self {
        Self { namespace: namespace.into(), jobs: Store::new(vec![|_| true], vec![]), begun: Mutex::default() }
    }

    /// The namespace of the Jobs.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// All Jobs with the label [`SCRUB`].
    #[must_use]
    pub fn jobs(&self) -> &Store<Job> {
        &self.jobs
    }

    /// Where the scrub claim of a volume is, and its Job.
    pub(crate) fn key(&self, volume: &Volume) -> ObjectKey {
        ObjectKey::new(&self.namespace, &name(volume))
    }

    /// Whether the volume is in our hands and not ready to be released.
    pub(crate) fn has(&self, volume: &Volume) -> bool {
        volume.claim.as_ref().is_some_and(|claim| claim.key == self.key(volume)) && !is_ready(volume)
    }

    /// The key under which scrub claims and Jobs without a volume are looked for.
    pub(crate) fn sweep(&self) -> ObjectKey {
        ObjectKey::new(&self.namespace, "")
    }
}

/// How far the scrub of a volume is: what its annotation says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// The template of the Job.
    pub template: String,
    /// The uid of the scrub claim.
    pub claim: String,
    /// Whether the Job has succeeded.
    #[serde(default)]
    pub done: bool,
    /// The uid of the Job that has failed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_job: Option<String>,
}

impl Progress {
    /// What the volume says about the claim that it refers to. What it says about any other claim is void.
    #[must_use]
    pub fn of(volume: &Volume) -> Option<Self> {
        let progress: Self = serde_json::from_str(volume.annotations.get(SCRUB)?).ok()?;
        let uid = volume.claim.as_ref()?.uid.as_deref()?;
        (has_scrub_name(volume) && progress.claim == uid).then_some(progress)
    }
}

/// The name of the scrub claim of a volume, and of its Job.
fn name(volume: &Volume) -> String {
    format!("scrub-{}", volume.uid)
}

/// Whether the claim in `claimRef` is a scrub claim, and no tenant's: the note on the volume says so, which no tenant can
/// write, and names it by uid.
pub(crate) fn refers_to_scrub_claim(volume: &Volume) -> bool {
    Progress::of(volume).is_some()
}

/// Whether the claim in `claimRef` has the name of the scrub claim, which anybody can give to a claim.
pub(crate) fn has_scrub_name(volume: &Volume) -> bool {
    volume.claim.as_ref().is_some_and(|claim| claim.key.name() == name(volume))
}

/// Whether a volume that refers to its scrub claim may go on to the pool.
fn is_ready(volume: &Volume) -> bool {
    volume.phase == VolumePhase::Released && is_scrubbed(volume)
}

/// Whether somebody scrubs the volume.
pub(crate) fn is_being_scrubbed(volume: &Volume) -> bool {
    refers_to_scrub_claim(volume) && !is_ready(volume)
}

/// Whether a Job has cleaned the volume, and nobody had it since.
#[must_use]
pub fn is_scrubbed(volume: &Volume) -> bool {
    Progress::of(volume).is_some_and(|progress| progress.done)
}

/// Whether an administrator has to look at it first.
pub(crate) fn is_quarantined(volume: &Volume) -> bool {
    volume.annotations.contains_key(QUARANTINED)
}

/// Whether the volume will be free when its scrub has succeeded.
pub(crate) fn is_underway(volume: &Volume) -> bool {
    refers_to_scrub_claim(volume) && !is_quarantined(volume) && !volume.being_deleted
}
