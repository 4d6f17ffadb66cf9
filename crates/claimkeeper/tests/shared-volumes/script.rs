//! Where servers go: a random story, the same for the same seed.
//!
//! No two servers are ever in one place. But there are few places, and whoever moves likes best to go where another one has just
//! been: whoever is led by old news is led to a stranger.

use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};

/// Places that are free while all servers run. The fewer there are, the sooner each is used again.
const SPARE: usize = 40;

const HOSTS: usize = 20;

/// What happens to one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Move {
    /// It is gone for now.
    Down(usize),
    /// It runs there.
    To(usize, String),
}

pub(crate) struct Script {
    random: StdRng,
    /// Where each server is and was, the latest last; `None` while it is gone.
    past: Vec<Vec<Option<String>>>,
    /// Where nobody is; the last one was left last.
    free: Vec<String>,
    failovers: usize,
}

impl Script {
    pub(crate) fn new(seed: u64, volumes: usize) -> Self {
        let places = (0..volumes + SPARE).map(|n| format!("10.77.0.{}:{}", n % HOSTS + 1, 25_705 + n / HOSTS));
        let mut free: Vec<String> = places.collect();
        let past = free.drain(..volumes).map(|place| vec![Some(place)]).collect();
        Self { random: StdRng::seed_from_u64(seed), past, free, failovers: 0 }
    }

    pub(crate) fn random(&mut self) -> &mut StdRng {
        &mut self.random
    }

    /// How often a server was somewhere else than before.
    pub(crate) fn failovers(&self) -> usize {
        self.failovers
    }

    /// Where a server is and was.
    pub(crate) fn past(&self, volume: usize) -> &[Option<String>] {
        &self.past[volume]
    }

    pub(crate) fn place(&self, volume: usize) -> Option<&str> {
        self.past[volume].last()?.as_deref()
    }

    /// What happens until so many servers have moved, to those of the first volumes.
    pub(crate) fn step(&mut self, failovers: usize, volumes: usize) -> Vec<Move> {
        let (end, mut moves) = (self.failovers + failovers, Vec::new());
        while self.failovers < end {
            let down: Vec<usize> = (0..volumes).filter(|volume| self.place(*volume).is_none()).collect();
            let one = self.random.random_range(0..volumes);
            let other = self.random.random_range(0..volumes);
            match self.random.random_range(0..100) {
                // Most come back soon, and elsewhere.
                0..30 => {
                    if let Some(volume) = down.choose(&mut self.random) {
                        moves.extend(self.go(*volume));
                    }
                }
                30..55 => moves.extend(self.leave(one)),
                55..65 if one != other => moves.extend(self.change_places(one, other)),
                _ => moves.extend(self.go(one)),
            }
        }
        moves
    }

    /// All servers that are gone come back.
    pub(crate) fn everybody_back(&mut self) -> Vec<Move> {
        let down: Vec<usize> = (0..self.past.len()).filter(|volume| self.place(*volume).is_none()).collect();
        down.into_iter().filter_map(|volume| self.go(volume)).collect()
    }

    fn leave(&mut self, volume: usize) -> Option<Move> {
        let place = self.past[volume].last()?.clone()?;
        self.free.push(place);
        self.past[volume].push(None);
        Some(Move::Down(volume))
    }

    fn go(&mut self, volume: usize) -> Option<Move> {
        let last = if self.random.random_range(0..100) < 70 {
            self.free.len().checked_sub(1)?
        } else {
            self.random.random_range(0..self.free.len())
        };
        let place = self.free.remove(last);
        if self.past[volume].contains(&Some(place.clone())) {
            // Nobody could tell news from old news.
            self.free.insert(0, place);
            return None;
        }
        self.free.extend(self.past[volume].last().cloned().flatten());
        Some(self.arrive(volume, place))
    }

    /// Each goes where the other was; for a moment one of them is gone.
    fn change_places(&mut self, one: usize, other: usize) -> Vec<Move> {
        let (Some(here), Some(there)) = (self.place(one).map(str::to_owned), self.place(other).map(str::to_owned))
        else {
            return Vec::new();
        };
        let seen_before =
            self.past[one].contains(&Some(there.clone())) || self.past[other].contains(&Some(here.clone()));
        if seen_before {
            return Vec::new();
        }
        self.past[one].push(None);
        vec![Move::Down(one), self.arrive(other, here), self.arrive(one, there)]
    }

    fn arrive(&mut self, volume: usize, place: String) -> Move {
        self.past[volume].push(Some(place.clone()));
        self.failovers += 1;
        Move::To(volume, place)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_servers_are_ever_in_one_place_and_most_places_are_used_again() {
        let mut script = Script::new(1, 50);
        let mut at: Vec<Option<String>> = (0..50).map(|volume| script.place(volume).map(str::to_owned)).collect();
        let mut moves = script.step(500, 50);
        moves.extend(script.everybody_back());
        for step in &moves {
            match step {
                Move::Down(volume) => at[*volume] = None,
                Move::To(volume, place) => {
                    assert!(!at.contains(&Some(place.clone())), "{step:?}: somebody is there");
                    at[*volume] = Some(place.clone());
                }
            }
        }
        assert!(
            at.iter().enumerate().all(|(volume, place)| place.is_some() && place.as_deref() == script.place(volume))
        );
        let places: BTreeSet<&String> = (0..50).flat_map(|volume| script.past(volume).iter().flatten()).collect();
        let visits: usize = (0..50).map(|volume| script.past(volume).iter().flatten().count()).sum();
        assert!(visits > places.len() * 5, "{visits} visits of {} places", places.len());
    }
}
