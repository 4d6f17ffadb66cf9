//! What the keeper of the certificates does next, and which certificate a replica serves. Pure: no clock, no cluster.
//!
//! The order that keeps every call alive: an authority is published everywhere before it signs anything that is served,
//! and it is withdrawn only when nothing that it signed is served any more. `model.rs` walks through every interleaving.

use std::{fmt, sync::Arc, time::Duration};

use jiff::Timestamp;

/// Even if nothing is due, everything is looked at once in a while: clocks are set, and machines sleep.
pub(super) const LONGEST_WAIT: Duration = Duration::from_mins(10);

/// How often is asked whether this replica has changed over to the newest leaf.
const CHANGE_OVER: Duration = Duration::from_secs(1);

/// Which certificate: all of its bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Id(Arc<[u8]>);

impl Id {
    pub(super) fn of(der: &[u8]) -> Self {
        Self(der.into())
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// From 0 to 1, different for each: certificates end with their signature.
    fn fraction(&self) -> f64 {
        f64::from(self.0.last().copied().unwrap_or_default()) / 255.0
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Id(…{:02x?})", self.0.last_chunk::<4>())
    }
}

/// When a certificate is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Validity {
    pub(super) from: Timestamp,
    pub(super) until: Timestamp,
}

impl Validity {
    /// From now on for a lifetime, and `backdate` earlier for clocks that are behind.
    pub(super) fn starting(now: Timestamp, lifetime: Duration, backdate: Duration) -> Self {
        Self {
            from: now.saturating_sub(backdate).unwrap_or(now),
            until: now.saturating_add(lifetime).unwrap_or(Timestamp::MAX),
        }
    }

    fn lifetime(self) -> Duration {
        until(self.from, self.until)
    }

    pub(super) fn holds(self, now: Timestamp) -> bool {
        self.from <= now && now < self.until
    }

    /// When it is to be replaced: with a third of its life left, or up to a tenth of its life earlier, so that what was made
    /// together is not renewed together.
    fn due(self, id: &Id) -> Timestamp {
        let left = self.lifetime() / 3 + (self.lifetime() / 10).mul_f64(id.fraction());
        self.until.saturating_sub(left).unwrap_or(self.from)
    }
}

/// The time from one moment to another, none if it is over.
fn until(from: Timestamp, to: Timestamp) -> Duration {
    to.duration_since(from).try_into().unwrap_or_default()
}

/// An authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trusted {
    pub(super) id: Id,
    pub(super) validity: Validity,
}

/// A leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Leaf {
    pub(super) id: Id,
    pub(super) validity: Validity,
    /// Which authority of the Secret vouches for it.
    pub(super) issuer: Option<Id>,
    /// Whether it is made out to the names under which we are called.
    pub(super) fits_names: bool,
}

/// What the Secret holds, as far as it can be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Stored {
    /// All that are to be trusted. The first one signs.
    pub(super) authorities: Vec<Trusted>,
    /// Whether the key of the first one is there.
    pub(super) can_sign: bool,
    pub(super) leaf: Option<Leaf>,
}

/// What the keeper looks at. Configurations are read before the Secret: a bundle that is put into them is then never older
/// than what they had.
#[derive(Clone, Debug)]
pub(super) struct Observation {
    pub(super) now: Timestamp,
    pub(super) stored: Option<Stored>,
    /// For how long every configuration was seen to carry just the Secret's authorities; nothing if one does not.
    pub(super) published_for: Option<Duration>,
    /// For how long the Secret was seen to hold its leaf.
    pub(super) leaf_for: Duration,
    /// The authority behind what this replica serves.
    pub(super) served: Option<Trusted>,
    pub(super) patience: Patience,
}

/// How long others may take to notice.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// How long an API server may use a configuration after it was changed.
    pub(super) settle: Duration,
    /// How long a replica may serve a leaf after it was replaced in the Secret.
    pub(super) grace: Duration,
}

/// What to do next, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Decision {
    pub(super) step: Step,
    /// One stable word.
    pub(super) reason: &'static str,
}

/// One step of a rotation. Every one can be the last before a crash: whoever comes next decides anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Put a new authority in front of those that are there.
    CreateAuthority,
    /// Trust the authority behind what this replica serves until that is replaced.
    Adopt(Id),
    /// Put the Secret's authorities into the configurations.
    Publish,
    /// Let the first authority sign a leaf.
    IssueLeaf,
    /// Trust the first authority only.
    Retire,
    /// Look again then, or when something changes.
    Wait(Duration),
}

impl Decision {
    fn of(step: Step, reason: &'static str) -> Self {
        Self { step, reason }
    }
}

/// What to do next.
pub(super) fn decide(observation: &Observation) -> Decision {
    let empty = Stored::default();
    let stored = observation.stored.as_ref().unwrap_or(&empty);
    let Some((signer, others)) = stored.authorities.split_first() else {
        let reason = if observation.stored.is_none() { "SecretMissing" } else { "AuthorityUnreadable" };
        return Decision::of(Step::CreateAuthority, reason);
    };
    let look = Look { observation, stored, signer, others };
    let checks = [Look::signs, Look::lasts, Look::keeps, Look::publishes, Look::serves, Look::retires];
    checks.iter().find_map(|check| check(&look)).unwrap_or_else(|| look.rest())
}

/// An observation with an authority in it.
struct Look<'a> {
    observation: &'a Observation,
    stored: &'a Stored,
    signer: &'a Trusted,
    others: &'a [Trusted],
}

impl Look<'_> {
    fn signs(&self) -> Option<Decision> {
        (!self.stored.can_sign).then(|| Decision::of(Step::CreateAuthority, "AuthorityKeyUnusable"))
    }

    /// One rotation after the other: an authority that is due waits until the one before is gone, if it can.
    fn lasts(&self) -> Option<Decision> {
        let Trusted { id, validity } = self.signer;
        let now = self.observation.now;
        match () {
            () if !validity.holds(now) => Some(Decision::of(Step::CreateAuthority, "AuthorityExpired")),
            () if self.others.is_empty() && validity.due(id) <= now => {
                Some(Decision::of(Step::CreateAuthority, "AuthorityDue"))
            }
            () => None,
        }
    }

    /// Somebody has put another authority into the Secret, but what is served was signed by this one.
    fn keeps(&self) -> Option<Decision> {
        let served = self.observation.served.as_ref().filter(|served| served.validity.holds(self.observation.now))?;
        let known = self.stored.authorities.iter().any(|authority| authority.id == served.id);
        (!known).then(|| Decision::of(Step::Adopt(served.id.clone()), "ServedAuthorityMissing"))
    }

    fn publishes(&self) -> Option<Decision> {
        self.observation.published_for.is_none().then(|| Decision::of(Step::Publish, "BundleDiffers"))
    }

    fn serves(&self) -> Option<Decision> {
        let reason = self.fault_of_leaf()?;
        let waits = self.observation.patience.settle.saturating_sub(self.observation.published_for.unwrap_or_default());
        // With one authority nothing is served that was signed by another, so nobody has to learn anything first.
        if self.others.is_empty() || waits.is_zero() {
            return Some(Decision::of(Step::IssueLeaf, reason));
        }
        Some(Decision::of(Step::Wait(waits), "Settling"))
    }

    fn fault_of_leaf(&self) -> Option<&'static str> {
        let Some(leaf) = &self.stored.leaf else { return Some("LeafUnreadable") };
        let now = self.observation.now;
        match () {
            () if leaf.issuer.as_ref() != Some(&self.signer.id) => Some("AuthorityChanged"),
            () if !leaf.fits_names => Some("NamesChanged"),
            () if !leaf.validity.holds(now) => Some("LeafExpired"),
            () if leaf.validity.due(&leaf.id) <= now => Some("LeafDue"),
            () => None,
        }
    }

    fn retires(&self) -> Option<Decision> {
        if self.others.is_empty() {
            return None;
        }
        let Observation { served, patience, leaf_for, .. } = self.observation;
        if served.as_ref().is_some_and(|served| served.id != self.signer.id) {
            return Some(Decision::of(Step::Wait(CHANGE_OVER), "StillServed"));
        }
        match patience.grace.saturating_sub(*leaf_for) {
            Duration::ZERO => Some(Decision::of(Step::Retire, "NoLongerServed")),
            waits => Some(Decision::of(Step::Wait(waits), "StillServed")),
        }
    }

    fn rest(&self) -> Decision {
        let leaf = self.stored.leaf.as_ref().map(|leaf| leaf.validity.due(&leaf.id));
        let due = self.signer.validity.due(&self.signer.id);
        let wait = until(self.observation.now, leaf.map_or(due, |leaf| leaf.min(due)));
        Decision::of(Step::Wait(wait.min(LONGEST_WAIT)), "NothingDue")
    }
}

/// What a replica knows when it chooses what to serve.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    /// Whether it serves something that is valid and that every bundle verifies.
    pub(super) good: bool,
    /// For how long every bundle was seen to verify the Secret's leaf; nothing if one does not.
    pub(super) verified_for: Option<Duration>,
    pub(super) settle: Duration,
}

/// Whether to change over to the Secret's leaf, and if not yet, when to ask again. What works is given up only for what every
/// API server knows already, even if the Secret was replaced by somebody who does not wait.
pub(super) fn change_over(choice: Choice) -> Option<Duration> {
    if !choice.good {
        return Some(Duration::ZERO);
    }
    choice.verified_for.map(|verified| choice.settle.saturating_sub(verified))
}

#[cfg(test)]
mod tests;
