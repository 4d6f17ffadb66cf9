//! Every interleaving of two candidates, a server, lost answers, stalls and drifting clocks.
//!
//! The candidates decide with the functions of `decision.rs`; the checker only plays network, server and time. A candidate
//! that does nothing for a while is a stalled one, so stalls need no step of their own. A request that its sender gave up
//! may still arrive later. Only ages are kept, never points in time, and what cannot matter any more is forgotten: that
//! makes the number of worlds finite, so the walk ends by itself and leaves nothing out.

use std::{
    collections::{HashSet, VecDeque},
    time::Duration,
};

use jiff::Timestamp;
use tokio::time::Instant;

use super::decision::{Decision, Record, Sight, act_until, claim, decide, release};

const NAMES: [&str; 2] = ["a", "b"];

/// Durations in ticks.
#[derive(Clone, Copy)]
struct Rules {
    lease: u8,
    renew: u8,
    /// How many ticks a clock may fall behind in all.
    drift: u8,
    /// The mistake of counting a renewal from its answer instead of from its sending.
    count_from_answer: bool,
}

const SAFE: Rules = Rules { lease: 4, renew: 2, drift: 1, count_from_answer: false };

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Holder {
    Nobody,
    Candidate(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Claim,
    Release,
}

impl Kind {
    fn leaves(self, who: usize) -> Holder {
        if self == Self::Claim { Holder::Candidate(who) } else { Holder::Nobody }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Flight {
    /// On its way, and so far nobody else has written: otherwise it is as good as refused.
    Outbound { kind: Kind, age: u8 },
    /// Carried out; the answer is on its way. `latest`: nobody has written since.
    Accepted { kind: Kind, age: u8, latest: bool },
}

/// What a candidate last saw: the lease with this holder, unchanged for `age` ticks of its clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Seen {
    holder: Holder,
    age: u8,
    /// Whether it is what the server has now, so that a write against it would be accepted.
    latest: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Candidate {
    /// Ticks that its clock may still lose.
    drift: u8,
    seen: Option<Seen>,
    /// Ticks of its clock for which it may still write.
    open_for: u8,
    flight: Option<Flight>,
    /// Given up by its sender and still on its way.
    orphan: Option<Kind>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct World {
    /// Nothing until somebody creates it.
    lease: Option<Holder>,
    candidates: [Candidate; 2],
}

struct Model {
    rules: Rules,
    /// Any moment will do: ages are counted back from it.
    now: Instant,
}

impl Model {
    fn next(&self, world: &World) -> Vec<World> {
        let mut next = Vec::new();
        for slow in [None, Some(0), Some(1)] {
            next.extend(self.tick(world, slow));
        }
        for who in [0, 1] {
            self.candidate_steps(world, who, &mut next);
            network_steps(world, who, &mut next);
        }
        next
    }

    fn tick(&self, world: &World, slow: Option<usize>) -> Option<World> {
        let mut after = *world;
        for (who, candidate) in after.candidates.iter_mut().enumerate() {
            if slow == Some(who) {
                candidate.drift = candidate.drift.checked_sub(1)?;
                continue;
            }
            candidate.open_for = candidate.open_for.saturating_sub(1);
            if let Some(seen) = &mut candidate.seen {
                seen.age = self.rules.lease.min(seen.age + 1);
            }
            if let Some(Flight::Outbound { age, .. } | Flight::Accepted { age, .. }) = &mut candidate.flight {
                *age = self.rules.renew.min(*age + 1);
            }
        }
        Some(after)
    }

    fn candidate_steps(&self, world: &World, who: usize, next: &mut Vec<World>) {
        let me = world.candidates[who];
        let mut step = |candidate: Candidate| {
            let mut after = *world;
            after.candidates[who] = candidate;
            next.push(after);
        };
        match me.flight {
            None => {
                if let Some(holder) = world.lease {
                    let unchanged = me.seen.filter(|seen| seen.latest);
                    step(Candidate { seen: unchanged.or(Some(Seen { holder, age: 0, latest: true })), ..me });
                }
                let current = me.seen.map_or_else(|| world.lease.is_none(), |seen| seen.latest);
                let outbound = |kind| current.then_some(Flight::Outbound { kind, age: 0 });
                if !matches!(self.decide(me, who), Decision::WaitUntil(_)) {
                    step(Candidate { flight: outbound(Kind::Claim), ..me });
                }
                if me.open_for > 0 {
                    step(Candidate { flight: outbound(Kind::Release), open_for: 0, ..me });
                }
            }
            Some(Flight::Accepted { kind, age, latest }) => {
                let holder = kind.leaves(who);
                let seen = Some(Seen { holder, age: 0, latest });
                let age = if self.rules.count_from_answer { 0 } else { age };
                let open_for = if kind == Kind::Claim { self.open_for(age) } else { 0 };
                step(Candidate { flight: None, seen, open_for, ..me });
            }
            Some(Flight::Outbound { .. }) => {}
        }
    }

    fn decide(&self, me: Candidate, who: usize) -> Decision {
        let sight = me.seen.map(|seen| Sight {
            record: self.record(seen.holder),
            since: self.now - Duration::from_secs(seen.age.into()),
        });
        decide(sight.as_ref(), sight.is_some(), NAMES[who], self.now)
    }

    fn record(&self, holder: Holder) -> Record {
        let (duration, time) = (Duration::from_secs(self.rules.lease.into()), Timestamp::UNIX_EPOCH);
        match holder {
            Holder::Candidate(who) => claim(None, NAMES[who], duration, time),
            Holder::Nobody => release(&claim(None, NAMES[0], duration, time), time),
        }
    }

    /// For how long a candidate may act whose renewal was sent `age` ticks ago.
    fn open_for(&self, age: u8) -> u8 {
        let until = act_until(self.now - Duration::from_secs(age.into()), Duration::from_secs(self.rules.renew.into()));
        u8::try_from(until.duration_since(self.now).as_secs()).unwrap()
    }

    /// Walks all reachable worlds; returns how many there are, or the first one in which both may write.
    fn check(&self) -> Result<usize, World> {
        let candidate = Candidate { drift: self.rules.drift, ..Candidate::default() };
        let first = World { lease: None, candidates: [candidate; 2] };
        let mut known = HashSet::from([first]);
        let mut todo = VecDeque::from([first]);
        while let Some(world) = todo.pop_front() {
            if world.candidates.iter().all(|candidate| candidate.open_for > 0) {
                return Err(world);
            }
            for next in self.next(&world) {
                if known.insert(next) {
                    todo.push_back(next);
                }
            }
        }
        Ok(known.len())
    }
}

fn network_steps(world: &World, who: usize, next: &mut Vec<World>) {
    let me = world.candidates[who];
    if let Some(Flight::Outbound { kind, age }) = me.flight {
        let mut arrived = *world;
        arrived.candidates[who].flight = None;
        serve(&mut arrived, who, kind);
        arrived.candidates[who].flight = Some(Flight::Accepted { kind, age, latest: true });
        next.push(arrived);
        let mut abandoned = *world;
        abandoned.candidates[who].flight = None;
        abandoned.candidates[who].orphan = Some(kind);
        next.push(abandoned);
    }
    if let Some(Flight::Accepted { .. }) = me.flight {
        let mut lost = *world;
        lost.candidates[who].flight = None;
        next.push(lost);
    }
    if let Some(kind) = me.orphan {
        let mut late = *world;
        late.candidates[who].orphan = None;
        serve(&mut late, who, kind);
        next.push(late);
    }
}

/// The API server: after a write everything that was sent against the version before is refused.
fn serve(world: &mut World, who: usize, kind: Kind) {
    world.lease = Some(kind.leaves(who));
    for candidate in &mut world.candidates {
        candidate.orphan = None;
        match &mut candidate.flight {
            Some(Flight::Outbound { .. }) => candidate.flight = None,
            Some(Flight::Accepted { latest, .. }) => *latest = false,
            None => {}
        }
        if let Some(seen) = &mut candidate.seen {
            seen.latest = false;
        }
    }
}

fn check(rules: Rules) -> Result<usize, World> {
    Model { rules, now: Instant::now() }.check()
}

#[test]
fn two_candidates_never_lead_at_once() {
    match check(SAFE) {
        Ok(worlds) => assert!(worlds > 10_000, "only {worlds} worlds: the model lost its steps"),
        Err(world) => panic!("both lead in {world:#?}"),
    }
}

#[test]
fn the_checker_finds_a_renewal_deadline_that_outlasts_the_lease() {
    assert!(check(Rules { renew: 5, ..SAFE }).is_err());
}

#[test]
fn the_checker_finds_clocks_that_drift_by_more_than_the_margin() {
    assert!(check(Rules { drift: 3, ..SAFE }).is_err());
}

#[test]
fn the_checker_finds_renewals_that_are_counted_from_their_answer() {
    assert!(check(Rules { count_from_answer: true, ..SAFE }).is_err());
}
