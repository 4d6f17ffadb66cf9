//! What a candidate may do about the lease, given what it has seen of it and when: client-go's rules, as a pure function.
//!
//! No clock of another machine is ever believed. A record counts as alive for its own duration, measured on the local
//! monotonic clock from the moment at which this candidate first saw it. The holder measures its renewal deadline from the
//! moment before it *sent* its last successful renewal. Sending comes before seeing and the deadline is shorter than the
//! duration, so a holder has stopped before anybody may follow, whatever the network did in between.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

/// The part of a Lease that elections are about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Record {
    /// Empty after a release.
    pub(super) holder: String,
    pub(super) duration: Duration,
    pub(super) transitions: i32,
    pub(super) acquired: Option<Timestamp>,
    pub(super) renewed: Option<Timestamp>,
}

/// A record and since when it has been unchanged in the eyes of this candidate.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Sight {
    pub(super) record: Record,
    pub(super) since: Instant,
}

impl Sight {
    /// Takes in what was read at `now`; a record that did not change keeps its age.
    pub(super) fn update(sight: &mut Option<Self>, record: Record, now: Instant) -> bool {
        if sight.as_ref().is_some_and(|known| known.record == record) {
            return false;
        }
        *sight = Some(Self { record, since: now });
        true
    }

    fn expires(&self) -> Instant {
        self.since + self.record.duration
    }
}

/// What to do about the lease now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Create it: there is none.
    Create,
    /// Replace the holder: the lease was released or has expired.
    Take,
    /// Write a new time into it: it is ours.
    Renew,
    /// Somebody else holds it and may be alive until then.
    WaitUntil(Instant),
}

/// `exists` is whether the lease was there when it was last looked at.
pub(super) fn decide(sight: Option<&Sight>, exists: bool, identity: &str, now: Instant) -> Decision {
    let foreign = sight.filter(|sight| !sight.record.holder.is_empty() && sight.record.holder != identity);
    match foreign {
        // Also when the lease was deleted: its holder does not know yet and goes on until its deadline.
        Some(sight) if now < sight.expires() => Decision::WaitUntil(sight.expires()),
        _ if !exists => Decision::Create,
        _ if sight.is_some_and(|sight| sight.record.holder == identity) => Decision::Renew,
        _ => Decision::Take,
    }
}

/// The record that carries a decision out at wall-clock time `now`, as client-go would write it.
pub(super) fn claim(old: Option<&Record>, identity: &str, duration: Duration, now: Timestamp) -> Record {
    let fresh =
        Record { holder: identity.to_owned(), duration, transitions: 0, acquired: Some(now), renewed: Some(now) };
    match old {
        None => fresh,
        Some(old) if old.holder == identity => Record { transitions: old.transitions, acquired: old.acquired, ..fresh },
        Some(old) => Record { transitions: old.transitions.saturating_add(1), ..fresh },
    }
}

/// The record that lets the next candidate in at once. The second of duration is client-go's, for readers that do not
/// know that an empty holder means free.
pub(super) fn release(old: &Record, now: Timestamp) -> Record {
    Record {
        holder: String::new(),
        duration: Duration::from_secs(1),
        transitions: old.transitions,
        acquired: Some(now),
        renewed: Some(now),
    }
}

/// Until when a holder may act after a renewal that it began to send at `sent` and that succeeded.
pub(super) fn act_until(sent: Instant, renew_deadline: Duration) -> Instant {
    sent + renew_deadline
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(holder: &str, seconds: u64) -> Record {
        let duration = Duration::from_secs(seconds);
        Record { holder: holder.into(), duration, transitions: 3, acquired: None, renewed: None }
    }

    #[test]
    fn a_lease_is_taken_when_free_or_expired_renewed_when_ours_and_waited_for_otherwise() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        for (holder, duration, exists, now, expected) in [
            ("other", 15, true, 0, Decision::WaitUntil(after(15))),
            ("other", 15, true, 14, Decision::WaitUntil(after(15))),
            ("other", 15, true, 15, Decision::Take),
            // The record's own duration counts, not ours.
            ("other", 60, true, 15, Decision::WaitUntil(after(60))),
            ("other", 0, true, 0, Decision::Take),
            ("", 1, true, 0, Decision::Take),
            ("me", 15, true, 0, Decision::Renew),
            ("me", 15, true, 100, Decision::Renew),
            ("other", 15, false, 14, Decision::WaitUntil(after(15))),
            ("other", 15, false, 15, Decision::Create),
            ("me", 15, false, 0, Decision::Create),
            ("", 1, false, 0, Decision::Create),
        ] {
            let sight = Sight { record: record(holder, duration), since: start };
            let decision = decide(Some(&sight), exists, "me", after(now));
            assert_eq!(decision, expected, "{holder:?} for {duration} s after {now} s, exists: {exists}");
        }
        assert_eq!(decide(None, false, "me", start), Decision::Create);
    }

    #[test]
    fn a_record_ages_from_when_it_was_first_seen_and_any_change_makes_it_young() {
        let start = Instant::now();
        let mut sight = None;
        assert!(Sight::update(&mut sight, record("other", 15), start));
        assert!(!Sight::update(&mut sight, record("other", 15), start + Duration::from_secs(9)));
        assert_eq!(sight.as_ref().map(|sight| sight.since), Some(start));
        let renewed = Record { renewed: Some(Timestamp::UNIX_EPOCH), ..record("other", 15) };
        assert!(Sight::update(&mut sight, renewed, start + Duration::from_secs(10)));
        assert_eq!(sight.map(|sight| sight.since), Some(start + Duration::from_secs(10)));
    }

    #[test]
    fn transitions_and_the_time_of_acquisition_are_kept_by_a_renewal_and_change_with_the_holder() {
        let (then, now) = (Timestamp::UNIX_EPOCH, Timestamp::from_second(1_000).unwrap());
        let duration = Duration::from_secs(10);
        let ours = Record { acquired: Some(then), renewed: Some(then), ..record("me", 15) };
        let renewed = claim(Some(&ours), "me", duration, now);
        assert_eq!(renewed, Record { duration, renewed: Some(now), ..ours.clone() });
        let taken = claim(Some(&record("other", 15)), "me", duration, now);
        assert_eq!((taken.transitions, taken.acquired), (4, Some(now)));
        assert_eq!(claim(None, "me", duration, now).transitions, 0);
        let released = release(&ours, now);
        assert_eq!((released.holder.as_str(), released.duration.as_secs(), released.transitions), ("", 1, 3));
    }
}
