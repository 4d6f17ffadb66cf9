//! Which events say the same again. Pure: time is an argument.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    limiter::{Untold, evict_oldest},
    sink::Written,
};

/// client-go's: a repetition within this time belongs to the same series.
pub(super) const SERIES_WINDOW: Duration = Duration::from_mins(6);

/// client-go's size of the same caches: so much is remembered in all lanes together.
pub(super) const CAPACITY: usize = 4_096;

/// Remembers what was told, for a while and up to a limit.
pub(super) struct Correlator {
    capacity: usize,
    series: HashMap<u64, Series>,
}

struct Series {
    written: Arc<Written>,
    count: i32,
    last: Instant,
}

impl Series {
    /// Counts what was not told as well, if it was said soon enough after what was told.
    fn count(&mut self, untold: Option<Untold>) {
        let goes_on = |untold: &Untold| untold.first.saturating_duration_since(self.last) < SERIES_WINDOW;
        if let Some(Untold { count, last, .. }) = untold.filter(goes_on) {
            self.count = self.count.saturating_add(count);
            self.last = self.last.max(last);
        }
    }
}

impl Correlator {
    /// Remembers at most `capacity` events.
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, series: HashMap::new() }
    }

    /// Counts what was told before and is said again, `times` times: what to tell it with, and for which time. None if nobody has
    /// heard of it.
    pub(super) fn repeat(
        &mut self,
        series: u64,
        untold: Option<Untold>,
        times: i32,
        now: Instant,
    ) -> Option<(Arc<Written>, i32)> {
        let series = self.series.get_mut(&series)?;
        series.count(untold);
        if now.duration_since(series.last) >= SERIES_WINDOW {
            return None;
        }
        series.count = series.count.saturating_add(times);
        series.last = now;
        Some((Arc::clone(&series.written), series.count))
    }

    pub(super) fn created(&mut self, series: u64, written: Written, now: Instant) {
        if self.series.len() >= self.capacity {
            self.series.retain(|_, series| now.duration_since(series.last) < SERIES_WINDOW);
            evict_oldest(&mut self.series, self.capacity, |series| series.last);
        }
        self.series.insert(series, Series { written: Arc::new(written), count: 1, last: now });
    }
}

#[cfg(test)]
mod tests {
    use std::hash::RandomState;

    use k8s_openapi::api::core::v1::ObjectReference;

    use super::{
        super::{
            Event, EventKind,
            identity::Identity,
            limiter::{Admission, Limiter, Meanwhile},
        },
        *,
    };

    fn event(uid: &str, note: &str) -> Event {
        Event {
            regarding: ObjectReference { uid: Some(uid.into()), ..ObjectReference::default() },
            kind: EventKind::Warning,
            reason: "Reason",
            action: "Act",
            note: note.into(),
        }
    }

    /// The way of an event: from where it is handed in to where it is written.
    struct Way {
        numbers: RandomState,
        limiter: Limiter,
        correlator: Correlator,
    }

    impl Way {
        fn new() -> Self {
            let (limiter, correlator) = (Limiter::new(CAPACITY), Correlator::new(CAPACITY));
            Self { numbers: RandomState::new(), limiter, correlator }
        }

        /// For which time it is told, or 0 if it is not.
        fn tell(&mut self, event: &Event, now: Instant) -> i32 {
            let identity = Identity::of_event(event, &self.numbers);
            let Admission::Granted(untold) = self.limiter.admit(identity, now) else { return 0 };
            let Meanwhile { count, .. } = self.limiter.is_next(identity.series);
            if let Some((_, count)) = self.correlator.repeat(identity.series, untold, 1 + count, now) {
                return count;
            }
            self.correlator.created(identity.series, Written::sample(), now);
            1
        }
    }

    #[test]
    fn the_same_within_six_minutes_is_a_repetition_and_anything_else_is_new() {
        let (mut way, start) = (Way::new(), Instant::now());
        let minutes = |minutes| start + Duration::from_mins(minutes);
        for (event, at, expected) in [
            (event("a", "note"), 0, 1),
            (event("a", "note"), 1, 2),
            (event("a", "other note"), 1, 1),
            (event("b", "note"), 1, 1),
            (Event { kind: EventKind::Normal, ..event("a", "note") }, 1, 1),
            (Event { reason: "Other", ..event("a", "note") }, 1, 1),
            (Event { action: "Other", ..event("a", "note") }, 1, 1),
            // Counted from the last time, not from the first.
            (event("a", "note"), 6, 3),
            (event("a", "note"), 12, 1),
            (event("a", "note"), 13, 2),
        ] {
            assert_eq!(way.tell(&event, minutes(at)), expected, "{event:?} after {at} min");
        }
    }

    #[test]
    fn an_object_gets_25_events_and_then_one_in_five_minutes_and_repetitions_are_still_counted() {
        let (mut way, start) = (Way::new(), Instant::now());
        for number in 1..=25 {
            assert_eq!(way.tell(&event("a", "note"), start), number);
        }
        assert_eq!(way.tell(&event("a", "note"), start), 0);
        assert_eq!(way.tell(&event("a", "other"), start), 0);
        assert_eq!(way.tell(&event("b", "note"), start), 1, "other objects are not concerned");
        let later = start + Duration::from_mins(5);
        assert_eq!(way.tell(&event("a", "note"), later), 27);
        assert_eq!(way.tell(&event("a", "note"), later), 0);
    }

    #[test]
    fn what_is_not_told_keeps_a_series_going_until_it_is_not_said_for_six_minutes() {
        for (silence, expected) in [(5, 32), (6, 1)] {
            let (mut way, start) = (Way::new(), Instant::now());
            let minutes = |minutes| start + Duration::from_mins(minutes);
            for _ in 0..25 {
                way.tell(&event("a", "note"), start);
            }
            // Another note takes the one event that is granted every five minutes.
            for minute in 1..=6 {
                way.tell(&event("a", "other"), minutes(minute));
                assert_eq!(way.tell(&event("a", "note"), minutes(minute)), 0);
            }
            assert_eq!(way.tell(&event("a", "note"), minutes(6 + silence)), expected, "after {silence} min");
        }
    }

    #[test]
    fn what_is_not_told_belongs_to_no_series_that_ended_before() {
        let (mut way, start) = (Way::new(), Instant::now());
        let minutes = |minutes| start + Duration::from_mins(minutes);
        for _ in 0..25 {
            way.tell(&event("a", "note"), start);
        }
        assert_eq!(way.tell(&event("a", "other"), minutes(5)), 1);
        assert_eq!(way.tell(&event("a", "note"), minutes(7)), 0);
        assert_eq!(way.tell(&event("a", "note"), minutes(10)), 1);
    }

    #[test]
    fn what_was_left_out_while_the_first_time_was_on_its_way_is_counted_too() {
        let (mut correlator, start) = (Correlator::new(CAPACITY), Instant::now());
        let later = start + Duration::from_secs(10);
        assert_eq!(correlator.repeat(1, None, 1, later), None);
        correlator.created(1, Written::sample(), later);
        let untold = Untold { count: 7, first: start, last: start };
        assert_eq!(correlator.repeat(1, Some(untold), 1, later).map(|(_, count)| count), Some(9));
    }

    #[test]
    fn an_event_that_could_not_be_created_is_tried_anew() {
        let (mut correlator, now) = (Correlator::new(CAPACITY), Instant::now());
        assert_eq!(correlator.repeat(1, None, 1, now), None);
        assert_eq!(correlator.repeat(1, None, 1, now), None);
    }

    #[test]
    fn memory_is_bounded_however_many_objects_are_in_trouble() {
        let (mut way, start) = (Way::new(), Instant::now());
        for number in 0..CAPACITY + 100 {
            way.tell(&event(&number.to_string(), "note"), start + Duration::from_millis(number as u64));
        }
        assert!(way.correlator.series.len() <= CAPACITY);
        let (newest, now) = (CAPACITY + 99, start + Duration::from_mins(1));
        assert_eq!(way.tell(&event(&newest.to_string(), "note"), now), 2, "the newest is known");
    }
}
