//! Which events say the same again, and which objects are talked about too much. Pure: time is an argument.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::{Event, sink::Written};

/// client-go's: a repetition within this time belongs to the same series.
const SERIES_WINDOW: Duration = Duration::from_mins(6);

/// client-go's spam filter: so many events about one object at once, and then one more in each interval.
const BURST: f64 = 25.0;
const REFILL_INTERVAL: Duration = Duration::from_mins(5);

/// client-go's size of the same caches: so much is remembered in all lanes together.
pub(super) const CAPACITY: usize = 4_096;

/// What to do about an event.
#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    /// Nobody has heard of it.
    New,
    /// It was told before, now for the `count`th time.
    Repeat { written: Arc<Written>, count: i32 },
    /// Enough was said about this object.
    Limited,
}

/// Remembers what was told, for a while and up to a limit.
///
/// Only hashes are kept. Two events whose hashes collide, one pair in 10¹⁹, would share a series: that is bearable.
pub(super) struct Correlator {
    capacity: usize,
    hasher: RandomState,
    series: HashMap<u64, Series>,
    buckets: HashMap<u64, Bucket>,
}

struct Series {
    written: Arc<Written>,
    count: i32,
    last: Instant,
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

impl Correlator {
    /// Remembers at most `capacity` events and as many objects.
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, hasher: RandomState::new(), series: HashMap::new(), buckets: HashMap::new() }
    }

    pub(super) fn observe(&mut self, event: &Event, now: Instant) -> Verdict {
        let key = self.hasher.hash_one(identity(event));
        let repeated = match self.series.get_mut(&key) {
            Some(series) if now.duration_since(series.last) < SERIES_WINDOW => {
                series.count = series.count.saturating_add(1);
                series.last = now;
                Some((Arc::clone(&series.written), series.count))
            }
            _ => None,
        };
        if !self.take_token(event, now) {
            return Verdict::Limited;
        }
        repeated.map_or(Verdict::New, |(written, count)| Verdict::Repeat { written, count })
    }

    pub(super) fn created(&mut self, event: &Event, written: Written, now: Instant) {
        let key = self.hasher.hash_one(identity(event));
        if self.series.len() >= self.capacity {
            self.series.retain(|_, series| now.duration_since(series.last) < SERIES_WINDOW);
            evict_oldest(&mut self.series, self.capacity, |series| series.last);
        }
        self.series.insert(key, Series { written: Arc::new(written), count: 1, last: now });
    }

    fn take_token(&mut self, event: &Event, now: Instant) -> bool {
        let key = self.hasher.hash_one(object(event));
        if self.buckets.len() >= self.capacity && !self.buckets.contains_key(&key) {
            self.buckets.retain(|_, bucket| bucket.level(now) < BURST);
            evict_oldest(&mut self.buckets, self.capacity, |bucket| bucket.filled);
        }
        let bucket = self.buckets.entry(key).or_insert(Bucket { tokens: BURST, filled: now });
        let level = bucket.level(now);
        let granted = level >= 1.0;
        *bucket = Bucket { tokens: if granted { level - 1.0 } else { level }, filled: now };
        granted
    }
}

/// Makes room when nothing has expired. A scan is fine: it happens only while thousands of objects are talked about, and a
/// lane remembers only some of them.
fn evict_oldest<V>(entries: &mut HashMap<u64, V>, capacity: usize, age: impl Fn(&V) -> Instant) {
    if entries.len() >= capacity
        && let Some(oldest) = entries.iter().min_by_key(|(_, entry)| age(entry)).map(|(key, _)| *key)
    {
        entries.remove(&oldest);
    }
}

/// Which object an event is about.
pub(super) fn object(event: &Event) -> impl std::hash::Hash {
    let regarding = &event.regarding;
    (regarding.uid.as_deref(), regarding.kind.as_deref(), regarding.namespace.as_deref(), regarding.name.as_deref())
}

fn identity(event: &Event) -> impl std::hash::Hash {
    (object(event), event.kind, event.reason, event.action, event.note.as_str())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ObjectReference;

    use super::{super::EventKind, *};

    fn event(uid: &str, note: &str) -> Event {
        Event {
            regarding: ObjectReference { uid: Some(uid.into()), ..ObjectReference::default() },
            kind: EventKind::Warning,
            reason: "Reason",
            action: "Act",
            note: note.into(),
        }
    }

    fn tell(correlator: &mut Correlator, event: &Event, now: Instant) -> Verdict {
        let verdict = correlator.observe(event, now);
        if verdict == Verdict::New {
            correlator.created(event, Written::sample(), now);
        }
        verdict
    }

    fn count(verdict: &Verdict) -> i32 {
        match verdict {
            Verdict::New => 1,
            Verdict::Repeat { count, .. } => *count,
            Verdict::Limited => 0,
        }
    }

    #[test]
    fn the_same_within_six_minutes_is_a_repetition_and_anything_else_is_new() {
        let (mut correlator, start) = (Correlator::new(CAPACITY), Instant::now());
        let minutes = |minutes| start + Duration::from_mins(minutes);
        for (event, at, expected) in [
            (event("a", "note"), 0, 1),
            (event("a", "note"), 1, 2),
            (event("a", "other note"), 1, 1),
            (event("b", "note"), 1, 1),
            (Event { kind: EventKind::Normal, ..event("a", "note") }, 1, 1),
            (Event { reason: "Other", ..event("a", "note") }, 1, 1),
            // Counted from the last time, not from the first.
            (event("a", "note"), 6, 3),
            (event("a", "note"), 12, 1),
            (event("a", "note"), 13, 2),
        ] {
            assert_eq!(count(&tell(&mut correlator, &event, minutes(at))), expected, "{event:?} after {at} min");
        }
    }

    #[test]
    fn an_object_gets_25_events_and_then_one_in_five_minutes_and_repetitions_are_still_counted() {
        let (mut correlator, start) = (Correlator::new(CAPACITY), Instant::now());
        for number in 1..=25 {
            assert_eq!(count(&tell(&mut correlator, &event("a", "note"), start)), number);
        }
        assert_eq!(tell(&mut correlator, &event("a", "note"), start), Verdict::Limited);
        assert_eq!(tell(&mut correlator, &event("a", "other"), start), Verdict::Limited);
        assert_eq!(count(&tell(&mut correlator, &event("b", "note"), start)), 1, "other objects are not concerned");
        let later = start + REFILL_INTERVAL;
        assert_eq!(count(&tell(&mut correlator, &event("a", "note"), later)), 27);
        assert_eq!(tell(&mut correlator, &event("a", "note"), later), Verdict::Limited);
    }

    #[test]
    fn an_event_that_could_not_be_created_is_tried_anew() {
        let (mut correlator, now) = (Correlator::new(CAPACITY), Instant::now());
        assert_eq!(correlator.observe(&event("a", "note"), now), Verdict::New);
        assert_eq!(correlator.observe(&event("a", "note"), now), Verdict::New);
    }

    #[test]
    fn memory_is_bounded_however_many_objects_are_in_trouble() {
        let (mut correlator, start) = (Correlator::new(CAPACITY), Instant::now());
        for number in 0..CAPACITY + 100 {
            tell(&mut correlator, &event(&number.to_string(), "note"), start + Duration::from_millis(number as u64));
        }
        assert!(correlator.series.len() <= CAPACITY && correlator.buckets.len() <= CAPACITY);
        let (newest, now) = (CAPACITY + 99, start + Duration::from_mins(1));
        assert_eq!(count(&tell(&mut correlator, &event(&newest.to_string(), "note"), now)), 2, "the newest is known");
    }
}
