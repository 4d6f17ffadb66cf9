//! What keeps a mistake from becoming a catastrophe: nothing is deleted where too many nodes vanish together, and never much at
//! once.
//!
//! Somebody who deletes all Node objects, a control plane that was restored from an old backup, a cloud that forgets a zone: all
//! of these look like many lost machines, and in none of them is the data gone. So the nodes are counted that vanished around the
//! time at which the volume's own did. The brake does not wear off: as long as they stay away, somebody has to say that it is
//! meant (`placement.nodeGoneBrake: 100%`), or delete by hand.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use cluster::ObjectKey;
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use crate::settings::Percent;

/// So few are never too many: who loses one machine of three has lost a third.
const AT_LEAST: usize = 2;

/// How many deletions may follow each other at once: those of a small node.
const BURST: u32 = 10;

/// How long each of the others takes: the fifty claims of a node are made anew in two minutes, and the thousand of a mistake
/// take most of an hour, in which somebody notices.
const PERIOD: Duration = Duration::from_secs(3);

/// How long it is remembered that a node was there.
const MEMORY: Duration = Duration::from_hours(24);

/// How many of the nodes vanished together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fleet {
    /// Those that did.
    pub lost: usize,
    /// All, with those.
    pub all: usize,
}

impl Fleet {
    /// Whether that is too many to be believed.
    #[must_use]
    pub fn brakes(self, limit: Percent) -> bool {
        self.lost >= AT_LEAST && self.lost * 100 > usize::from(limit.0) * self.all
    }
}

/// What is known of nodes that are gone.
#[derive(Debug, Default)]
pub struct Losses {
    /// Nodes that this process saw vanish, and when.
    vanished: HashMap<Box<str>, Timestamp>,
    /// The noted node of each volume, and since when it is known to be gone.
    noted: HashMap<ObjectKey, (Box<str>, Option<Timestamp>)>,
}

impl Losses {
    /// A node vanished.
    pub fn vanish(&mut self, node: &str, now: Timestamp) {
        self.vanished.retain(|_, since| !is_over(*since, MEMORY, now));
        self.vanished.insert(node.into(), now);
    }

    /// A node is there.
    pub fn appear(&mut self, node: &str) {
        self.vanished.remove(node);
    }

    /// What a volume says about its node.
    pub fn note(&mut self, volume: &ObjectKey, node: Option<(&str, Option<Timestamp>)>) {
        match node {
            Some((node, since)) => drop(self.noted.insert(volume.clone(), (node.into(), since))),
            None => drop(self.noted.remove(volume)),
        }
    }

    /// How many nodes vanished about when this one did, give or take `window`. A node that is noted and not `there`, and of which
    /// nobody has said since when, vanished just now.
    #[must_use]
    pub fn around(&self, since: Timestamp, window: Duration, there: &HashSet<&str>, now: Timestamp) -> Fleet {
        let near = |other: Timestamp| since.duration_since(other).unsigned_abs() <= window;
        let vanished = self.vanished.iter().filter(|(node, _)| !there.contains(&***node));
        let vanished = vanished.map(|(node, since)| (&**node, *since));
        let noted = self.noted.values().filter_map(|(node, since)| match since {
            Some(since) => Some((&**node, *since)),
            None => (!there.contains(&**node)).then_some((&**node, now)),
        });
        let lost: HashSet<&str> = vanished.chain(noted).filter(|(_, time)| near(*time)).map(|(node, _)| node).collect();
        Fleet { lost: lost.len(), all: lost.union(there).count() }
    }
}

/// Whether this much time has passed since then.
pub(super) fn is_over(since: Timestamp, time: Duration, now: Timestamp) -> bool {
    remaining(since, time, now).is_zero()
}

/// How much of this time is left. A time that is noted in the future began now: clocks differ.
pub(super) fn remaining(since: Timestamp, time: Duration, now: Timestamp) -> Duration {
    let passed = Duration::try_from(now.duration_since(since)).unwrap_or_default();
    time.saturating_sub(passed)
}

/// Lets so many deletions pass, and no more.
#[derive(Debug)]
pub struct Limiter {
    left: u32,
    /// Since when `left` is right.
    since: Instant,
}

impl Limiter {
    /// A full one.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { left: BURST, since: now }
    }

    /// How long to wait for the next turn; none if it is now.
    pub fn wait(&mut self, now: Instant) -> Option<Duration> {
        let passed = now.saturating_duration_since(self.since);
        let turns = u32::try_from(passed.as_millis() / PERIOD.as_millis()).unwrap_or(BURST);
        self.since = if turns >= BURST { now } else { self.since + PERIOD * turns };
        self.left = self.left.saturating_add(turns).min(BURST);
        if self.left == BURST {
            self.since = now;
        }
        (self.left == 0).then(|| PERIOD.saturating_sub(now.saturating_duration_since(self.since)))
    }

    /// Takes a turn; if there is none, tells how long to wait.
    pub fn take(&mut self, now: Instant) -> Result<(), Duration> {
        if let Some(time) = self.wait(now) {
            return Err(time);
        }
        self.left -= 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::SignedDuration;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_secs(1_000_000 + second)
    }

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new("", name)
    }

    #[test]
    fn one_lost_machine_never_brakes_and_more_than_the_limit_do() {
        let brakes = |lost, all, limit| Fleet { lost, all }.brakes(Percent(limit));
        assert!(!brakes(1, 3, 20), "a third, but one");
        assert!(!brakes(1, 1, 0));
        assert!(brakes(2, 3, 20));
        assert!(!brakes(2, 10, 20), "not more than a fifth");
        assert!(brakes(3, 10, 20));
        assert!(brakes(2, 1000, 0));
        assert!(!brakes(10, 10, 100), "the brake is off");
    }

    #[test]
    fn nodes_that_vanished_about_the_same_time_count_once_each_whoever_knows_of_them() {
        let mut losses = Losses::default();
        losses.vanish("a", at(0));
        losses.note(&key("pv-a"), Some(("a", Some(at(2)))));
        losses.note(&key("pv-b"), Some(("b", Some(at(5)))));
        losses.note(&key("pv-b2"), Some(("b", Some(at(6)))));
        losses.note(&key("pv-late"), Some(("late", Some(at(100)))));
        losses.note(&key("pv-here"), Some(("here", None)));
        losses.note(&key("pv-new"), Some(("unmarked", None)));
        let there = HashSet::from(["here", "x"]);
        let fleet = losses.around(at(1), Duration::from_secs(10), &there, at(8));
        assert_eq!(fleet, Fleet { lost: 3, all: 5 }, "a, b and the one that nobody has marked yet");
        let fleet = losses.around(at(1), Duration::from_secs(10), &there, at(50));
        assert_eq!(fleet, Fleet { lost: 2, all: 4 });
    }

    #[test]
    fn a_node_that_is_back_does_not_count_and_one_that_another_machine_replaced_does() {
        let mut losses = Losses::default();
        losses.vanish("a", at(0));
        losses.vanish("b", at(0));
        losses.appear("a");
        losses.note(&key("pv-c"), Some(("c", Some(at(0)))));
        let there = HashSet::from(["a", "b", "c"]);
        assert_eq!(losses.around(at(0), Duration::from_secs(9), &there, at(9)), Fleet { lost: 1, all: 3 });
        losses.note(&key("pv-c"), None);
        assert_eq!(losses.around(at(0), Duration::from_secs(9), &there, at(9)), Fleet { lost: 0, all: 3 });
    }

    #[test]
    fn what_vanished_long_ago_is_forgotten() {
        let mut losses = Losses::default();
        losses.vanish("a", at(0));
        losses.vanish("b", at(24 * 3600));
        assert_eq!(losses.vanished.len(), 1);
    }

    #[test]
    fn time_that_was_noted_in_the_future_has_not_passed() {
        assert_eq!(remaining(at(10), Duration::from_secs(5), at(0)), Duration::from_secs(5));
        assert_eq!(remaining(at(0), Duration::from_secs(5), at(2)), Duration::from_secs(3));
        assert!(is_over(at(0), Duration::from_secs(5), at(5)));
    }

    #[test]
    fn after_the_first_few_deletions_take_turns() {
        let start = Instant::now();
        let mut limiter = Limiter::new(start);
        for _ in 0..BURST {
            assert_eq!(limiter.take(start), Ok(()));
        }
        assert_eq!(limiter.take(start), Err(PERIOD));
        assert_eq!(limiter.wait(start + PERIOD / 2), Some(PERIOD / 2));
        assert_eq!(limiter.take(start + PERIOD), Ok(()));
        assert_eq!(limiter.take(start + PERIOD), Err(PERIOD));
        // Whoever waits long has no more than the first few.
        let later = start + PERIOD * 1000;
        let passed = (0..100).filter(|_| limiter.take(later).is_ok()).count();
        assert_eq!(passed, 10);
    }
}
