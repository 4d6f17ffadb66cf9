//! What is said too often: about an object that is talked about too much, or while the same is still waiting to be told. Pure:
//! time is an argument.
//!
//! It is asked where events are handed in, before anything is composed or passed on: most of what a webhook says about a claim
//! that somebody tries to make for ever is never told, and must cost next to nothing.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use super::{correlator::SERIES_WINDOW, identity::Identity};

/// client-go's spam filter: so many events about one object at once, and then one more in each interval.
const BURST: f64 = 25.0;
const REFILL_INTERVAL: Duration = Duration::from_mins(5);

/// Whether an event may be told.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Admission {
    /// It may, and is waiting from now on; these repetitions of it were not told since the last time.
    Granted(Option<Untold>),
    /// It may, and is told together with the one that is waiting.
    Joined,
    /// Enough was said about this object.
    Limited,
}

/// Repetitions that were not told.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Untold {
    pub(super) count: i32,
    pub(super) first: Instant,
    pub(super) last: Instant,
}

/// How often the same was said while an event was waiting.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Meanwhile {
    pub(super) count: i32,
    /// How many of them may be told.
    pub(super) granted: u32,
}

/// Remembers who was talked about, for a while and up to a limit.
pub(super) struct Limiter {
    capacity: usize,
    buckets: HashMap<u64, Bucket>,
    untold: HashMap<u64, Untold>,
    /// Has as many entries as there are events waiting in the lane, which has its own limit.
    waiting: HashMap<u64, Meanwhile>,
}

struct Bucket {
    tokens: f64,
    filled: Instant,
}

impl Bucket {
    fn level(&self, now: Instant) -> f64 {
        let refilled = now.duration_since(self.filled).as_secs_f64() / REFILL_INTERVAL.as_secs_f64();
        BURST.min(self.tokens + refilled)
    }
}

impl Limiter {
    /// Remembers at most `capacity` objects, and as many events that were not told.
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, buckets: HashMap::new(), untold: HashMap::new(), waiting: HashMap::new() }
    }

    pub(super) fn admit(&mut self, Identity { object, series }: Identity, now: Instant) -> Admission {
        let granted = self.take_token(object, now);
        if let Some(meanwhile) = self.waiting.get_mut(&series) {
            meanwhile.count = meanwhile.count.saturating_add(1);
            meanwhile.granted += u32::from(granted);
            return if granted { Admission::Joined } else { Admission::Limited };
        }
        if granted {
            self.waiting.insert(series, Meanwhile::default());
            return Admission::Granted(self.untold.remove(&series));
        }
        if let Some(untold) = self.untold.get_mut(&series)
            && now.duration_since(untold.last) < SERIES_WINDOW
        {
            untold.count = untold.count.saturating_add(1);
            untold.last = now;
            return Admission::Limited;
        }
        if self.untold.len() >= self.capacity {
            self.untold.retain(|_, untold| now.duration_since(untold.last) < SERIES_WINDOW);
            evict_oldest(&mut self.untold, self.capacity, |untold| untold.last);
        }
        self.untold.insert(series, Untold { count: 1, first: now, last: now });
        Admission::Limited
    }

    /// What was granted waits no longer.
    pub(super) fn is_next(&mut self, series: u64) -> Meanwhile {
        self.waiting.remove(&series).unwrap_or_default()
    }

    fn take_token(&mut self, object: u64, now: Instant) -> bool {
        if self.buckets.len() >= self.capacity && !self.buckets.contains_key(&object) {
            self.buckets.retain(|_, bucket| bucket.level(now) < BURST);
            evict_oldest(&mut self.buckets, self.capacity, |bucket| bucket.filled);
        }
        let bucket = self.buckets.entry(object).or_insert(Bucket { tokens: BURST, filled: now });
        let level = bucket.level(now);
        let granted = level >= 1.0;
        *bucket = Bucket { tokens: if granted { level - 1.0 } else { level }, filled: now };
        granted
    }
}

/// Makes room when nothing has expired. A scan is fine: it happens only while thousands of objects are talked about, and those
/// of a lane are only some of them.
pub(super) fn evict_oldest<V>(entries: &mut HashMap<u64, V>, capacity: usize, age: impl Fn(&V) -> Instant) {
    if entries.len() >= capacity
        && let Some(oldest) = entries.iter().min_by_key(|(_, entry)| age(entry)).map(|(key, _)| *key)
    {
        entries.remove(&oldest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saying(object: u64, series: u64) -> Identity {
        Identity { object, series }
    }

    impl Limiter {
        /// For a lane in which nothing ever waits.
        fn admit_at_once(&mut self, identity: Identity, now: Instant) -> Admission {
            let admission = self.admit(identity, now);
            assert_eq!(self.is_next(identity.series), Meanwhile::default());
            admission
        }
    }

    #[test]
    fn an_object_may_be_talked_about_25_times_and_then_once_in_five_minutes() {
        let (mut limiter, start) = (Limiter::new(16), Instant::now());
        for series in 1..=25 {
            assert_eq!(limiter.admit_at_once(saying(1, series), start), Admission::Granted(None));
        }
        assert_eq!(limiter.admit_at_once(saying(1, 1), start), Admission::Limited);
        assert_eq!(
            limiter.admit_at_once(saying(2, 30), start),
            Admission::Granted(None),
            "other objects are not concerned"
        );
        let later = start + REFILL_INTERVAL;
        assert_eq!(
            limiter.admit_at_once(saying(1, 2), later),
            Admission::Granted(None),
            "of this nothing was left out"
        );
        assert_eq!(limiter.admit_at_once(saying(1, 3), later), Admission::Limited);
    }

    #[test]
    fn what_was_not_told_is_handed_over_once_with_the_time_in_which_it_was_said() {
        let (mut limiter, start) = (Limiter::new(16), Instant::now());
        let minutes = |minutes| start + Duration::from_mins(minutes);
        for _ in 0..25 {
            limiter.admit_at_once(saying(1, 1), start);
        }
        for minute in 1..=3 {
            assert_eq!(limiter.admit_at_once(saying(1, 1), minutes(minute)), Admission::Limited);
        }
        let untold = Untold { count: 3, first: minutes(1), last: minutes(3) };
        assert_eq!(limiter.admit_at_once(saying(1, 1), minutes(5)), Admission::Granted(Some(untold)));
        assert_eq!(limiter.admit_at_once(saying(1, 1), minutes(10)), Admission::Granted(None));
        // What is said after a long silence begins anew.
        assert_eq!(limiter.admit_at_once(saying(1, 1), minutes(10)), Admission::Limited);
        assert_eq!(limiter.admit_at_once(saying(1, 2), minutes(15)), Admission::Granted(None));
        assert_eq!(limiter.admit_at_once(saying(1, 1), minutes(17)), Admission::Limited);
        let untold = Untold { count: 1, first: minutes(17), last: minutes(17) };
        assert_eq!(limiter.admit_at_once(saying(1, 1), minutes(20)), Admission::Granted(Some(untold)));
    }

    #[test]
    fn what_is_said_again_joins_the_one_that_is_waiting() {
        let (mut limiter, now) = (Limiter::new(16), Instant::now());
        assert_eq!(limiter.admit(saying(1, 1), now), Admission::Granted(None));
        assert_eq!(limiter.admit(saying(1, 2), now), Admission::Granted(None), "something else waits on its own");
        for _ in 2..25 {
            assert_eq!(limiter.admit(saying(1, 1), now), Admission::Joined);
        }
        assert_eq!(limiter.admit(saying(1, 1), now), Admission::Limited, "they count like all others");
        assert_eq!(limiter.is_next(1), Meanwhile { count: 24, granted: 23 });
        assert_eq!(limiter.is_next(2), Meanwhile::default());
        let later = now + REFILL_INTERVAL;
        assert_eq!(limiter.admit(saying(1, 1), later), Admission::Granted(None), "what has been told waits no longer");
    }

    #[test]
    fn memory_is_bounded_however_much_is_said_about_however_many() {
        let (mut limiter, start) = (Limiter::new(16), Instant::now());
        for number in 0..1_000 {
            limiter.admit_at_once(saying(number, number), start + Duration::from_millis(number));
        }
        for number in 0..1_000 {
            limiter.admit_at_once(saying(1_000, 1_000 + number), start + Duration::from_millis(1_000 + number));
        }
        assert!(limiter.buckets.len() <= 16 && limiter.untold.len() <= 16);
        assert_eq!(
            limiter.admit_at_once(saying(1_000, 0), start + Duration::from_secs(3)),
            Admission::Limited,
            "it is known"
        );
    }
}
