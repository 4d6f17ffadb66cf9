//! Every interleaving of two keepers, API servers that are behind, replicas that are behind, crashes, a Secret that is deleted
//! and a caBundle that is emptied.
//!
//! The keepers decide with `decision.rs`; the checker only plays the cluster and time. Nothing keeps both keepers from writing at
//! once: that there is a Lease is not needed for safety. What must hold in every world: whatever leaf a replica may serve,
//! every bundle that an API server may use verifies it. Only ages are kept, never points in time, and what cannot matter any more
//! is forgotten, so that the number of worlds is finite and the walk leaves nothing out.

use std::{
    collections::{HashSet, VecDeque},
    time::Duration,
};

use jiff::Timestamp;

use super::decision::{Decision, Id, Leaf, Observation, Patience, Step, Stored, Trusted, Validity, decide};

/// Durations in ticks.
#[derive(Clone, Copy)]
struct Rules {
    settle: u8,
    grace: u8,
    /// For how long an API server uses a bundle that was replaced.
    lag: u8,
    /// For how long a replica serves a leaf that was replaced.
    pickup: u8,
    /// The mistake of reading the Secret first.
    secret_first: bool,
    /// The mistake of not carrying along what is published when the Secret is gone.
    forgets_published: bool,
}

const SAFE: Rules = Rules { settle: 2, grace: 2, lag: 1, pickup: 1, secret_first: false, forgets_published: false };

/// So many authorities are made at most.
const AUTHORITIES: u8 = 3;

const LONG_AGO: i64 = -250 * 86_400;
const DAYS_LEFT: i64 = 115 * 86_400;

/// A set of authorities, a bit each.
type Bundle = u8;

const fn only(authority: u8) -> Bundle {
    1 << authority
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Secret {
    signer: u8,
    authorities: Bundle,
    /// By whom it was signed.
    leaf: Option<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Configuration {
    /// Empty where no call is expected to work: before the first bundle, or after somebody removed it.
    bundle: Bundle,
    /// For each bundle, for how long API servers may still use it.
    earlier: [u8; 1 << AUTHORITIES],
}

/// What a keeper has read, and whether it is what is there now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Read<T> {
    value: T,
    fresh: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Keeper {
    configurations: Option<[Read<Bundle>; 2]>,
    secret: Option<Read<Option<Secret>>>,
    /// The bundle that was seen everywhere and that nobody has touched since, and for how long.
    published: Option<(Bundle, u8)>,
    leaf: Option<(u8, u8)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct World {
    secret: Option<Secret>,
    configurations: [Configuration; 2],
    /// By whom leaves were signed that replicas may serve as the newest.
    newest: Bundle,
    /// For each authority, for how long replicas may still serve what it signed though there is a newer leaf.
    older: [u8; AUTHORITIES as usize],
    keepers: [Keeper; 2],
    made: u8,
    /// Whether the authority that signs is old.
    due: bool,
    deletions: u8,
    drifts: u8,
}

impl World {
    /// All authorities that must be trusted.
    fn served(&self) -> Bundle {
        (0..AUTHORITIES)
            .filter(|issuer| self.older[usize::from(*issuer)] > 0)
            .map(only)
            .fold(self.newest, |all, one| all | one)
    }

    fn broken(&self) -> bool {
        let served = self.served();
        let lacks = |bundle: Bundle| bundle != 0 && bundle & served != served;
        self.configurations.iter().any(|seen| {
            let earlier = seen.earlier.iter().zip(0..).any(|(age, bundle)| *age > 0 && lacks(bundle));
            earlier || lacks(seen.bundle)
        })
    }

    fn forget_reads(&mut self, place: usize) {
        for keeper in &mut self.keepers {
            keeper.published = None;
            if let Some(read) = &mut keeper.configurations {
                read[place].fresh = false;
            }
        }
    }

    fn set_secret(&mut self, secret: Option<Secret>) {
        self.secret = secret;
        for read in self.keepers.iter_mut().filter_map(|keeper| keeper.secret.as_mut()) {
            read.fresh = false;
        }
    }
}

struct Model {
    rules: Rules,
}

impl Model {
    fn next(&self, world: &World) -> Vec<World> {
        let mut next = vec![self.tick(world), self.advance(world, 0), self.advance(world, 1)];
        if world.secret.is_some() && !world.due && world.made < AUTHORITIES {
            next.push(World { due: true, ..*world });
        }
        if world.secret.is_some() && world.deletions > 0 && world.made < AUTHORITIES {
            let mut after = World { deletions: world.deletions - 1, ..*world };
            after.set_secret(None);
            next.push(after);
        }
        if world.drifts > 0 {
            let mut after = World { drifts: world.drifts - 1, ..*world };
            self.set_bundle(&mut after, 0, 0);
            next.push(after);
        }
        for who in [0, 1] {
            let mut crashed = *world;
            crashed.keepers[who] = Keeper::default();
            next.push(crashed);
        }
        // Which of them is which does not matter.
        for world in &mut next {
            world.keepers.sort();
        }
        next
    }

    fn set_bundle(&self, world: &mut World, place: usize, bundle: Bundle) {
        let configuration = &mut world.configurations[place];
        let old = std::mem::replace(&mut configuration.bundle, bundle);
        configuration.earlier[usize::from(old)] = self.rules.lag + 1;
        world.forget_reads(place);
    }

    fn tick(&self, world: &World) -> World {
        let mut after = *world;
        let ages = after.configurations.iter_mut().flat_map(|seen| &mut seen.earlier).chain(&mut after.older);
        ages.for_each(|age| *age = age.saturating_sub(1));
        for keeper in &mut after.keepers {
            if let Some((_, age)) = &mut keeper.published {
                *age = self.rules.settle.min(*age + 1);
            }
            if let Some((_, age)) = &mut keeper.leaf {
                *age = self.rules.grace.min(*age + 1);
            }
        }
        after
    }

    /// A keeper reads the one, then the other, then acts.
    fn advance(&self, world: &World, who: usize) -> World {
        let mut after = *world;
        let keeper = &mut after.keepers[who];
        let bundles = [0, 1].map(|place| Read { value: world.configurations[place].bundle, fresh: true });
        let secret = Read { value: world.secret, fresh: true };
        match (keeper.configurations, keeper.secret) {
            (Some(_), Some(_)) => return self.act(world, who),
            (None, None) if self.rules.secret_first => keeper.secret = Some(secret),
            (None, _) => keeper.configurations = Some(bundles),
            (Some(_), None) => keeper.secret = Some(secret),
        }
        after
    }

    fn act(&self, world: &World, who: usize) -> World {
        let mut after = *world;
        let keeper = &mut after.keepers[who];
        let (Some(configurations), Some(secret)) = (keeper.configurations.take(), keeper.secret.take()) else {
            return after;
        };
        let decision = self.decide(world, keeper, configurations, secret.value);
        let stored = secret.value.unwrap_or_default();
        if decision.step == Step::Publish {
            for (place, read) in configurations.iter().enumerate() {
                if read.fresh && read.value != stored.authorities {
                    self.set_bundle(&mut after, place, stored.authorities);
                }
            }
        } else if secret.fresh {
            self.write(&mut after, &decision.step, stored);
        }
        after
    }

    fn write(&self, world: &mut World, step: &Step, stored: Secret) {
        match step {
            Step::CreateAuthority if world.made < AUTHORITIES => {
                let signer = world.made;
                // Read anew: what was published since the first look counts, too.
                let published = world.configurations.iter().fold(0, |all, seen| all | seen.bundle);
                let published = if self.rules.forgets_published { 0 } else { published };
                (world.made, world.due) = (signer + 1, false);
                let authorities = only(signer) | stored.authorities | published;
                world.set_secret(Some(Secret { signer, authorities, ..stored }));
            }
            Step::IssueLeaf => {
                for issuer in (0..AUTHORITIES).filter(|issuer| world.newest & only(*issuer) != 0) {
                    world.older[usize::from(issuer)] = self.rules.pickup + 1;
                }
                world.newest = only(stored.signer);
                world.set_secret(Some(Secret { leaf: Some(stored.signer), ..stored }));
            }
            Step::Retire => world.set_secret(Some(Secret { authorities: only(stored.signer), ..stored })),
            _ => {}
        }
    }

    fn decide(
        &self,
        world: &World,
        keeper: &mut Keeper,
        configurations: [Read<Bundle>; 2],
        secret: Option<Secret>,
    ) -> Decision {
        let trusted = secret.map(|secret| secret.authorities).unwrap_or_default();
        let everywhere = configurations.iter().all(|read| read.value == trusted);
        let fresh = configurations.iter().all(|read| read.fresh);
        let published =
            everywhere.then(|| keeper.published.filter(|(known, _)| *known == trusted).unwrap_or((trusted, 0)));
        // What was changed meanwhile is not what will be seen next.
        keeper.published = published.filter(|_| fresh);
        let leaf = secret.and_then(|secret| secret.leaf);
        keeper.leaf = leaf.map(|leaf| keeper.leaf.filter(|(known, _)| *known == leaf).unwrap_or((leaf, 0)));
        let ticks = |ticks: u8| Duration::from_secs(ticks.into());
        decide(&Observation {
            now: Timestamp::UNIX_EPOCH,
            stored: secret.map(|secret| facts(secret, world.due)),
            published_for: published.map(|(_, age)| ticks(age)),
            leaf_for: keeper.leaf.map(|(_, age)| ticks(age)).unwrap_or_default(),
            served: None,
            patience: Patience { settle: ticks(self.rules.settle), grace: ticks(self.rules.grace) },
        })
    }

    /// Walks all reachable worlds; returns them, or the first in which a call may fail.
    fn check(&self, first: World) -> Result<HashSet<World>, Box<World>> {
        let mut known = HashSet::from([first]);
        let mut todo = VecDeque::from([first]);
        while let Some(world) = todo.pop_front() {
            if world.broken() {
                return Err(Box::new(world));
            }
            for next in self.next(&world) {
                if known.insert(next) {
                    todo.push_back(next);
                }
            }
        }
        Ok(known)
    }
}

fn facts(secret: Secret, due: bool) -> Stored {
    let id = |number: u8| Id::of(&[number, 0]);
    let time = |seconds| Timestamp::from_second(seconds).unwrap();
    let authority = |number: u8| {
        let until = if due && number == secret.signer { DAYS_LEFT } else { -LONG_AGO };
        Trusted { id: id(number), validity: Validity { from: time(LONG_AGO), until: time(until) } }
    };
    let trusts = |number: &u8| secret.authorities & only(*number) != 0;
    let others = (0..AUTHORITIES).filter(|number| *number != secret.signer && trusts(number));
    let leaf = secret.leaf.map(|issuer| Leaf {
        id: Id::of(&[issuer, 1]),
        validity: Validity { from: time(-86_400), until: time(29 * 86_400) },
        issuer: Some(issuer).filter(trusts).map(id),
        fits_names: true,
    });
    let authorities = [secret.signer].into_iter().chain(others).map(authority).collect();
    Stored { authorities, can_sign: true, leaf }
}

fn steady() -> World {
    let published = Configuration { bundle: only(0), ..Configuration::default() };
    World {
        secret: Some(Secret { signer: 0, authorities: only(0), leaf: Some(0) }),
        configurations: [published; 2],
        newest: only(0),
        older: [0; AUTHORITIES as usize],
        keepers: Default::default(),
        made: 1,
        due: false,
        deletions: 1,
        drifts: 1,
    }
}

fn from_nothing() -> World {
    World { secret: None, configurations: Default::default(), newest: 0, made: 0, deletions: 0, drifts: 0, ..steady() }
}

fn check(rules: Rules) -> Result<HashSet<World>, Box<World>> {
    Model { rules }.check(steady())
}

/// Whether everything has changed over to the last authority.
fn is_done(world: &World) -> bool {
    let last = only(AUTHORITIES - 1);
    world.served() == last && world.configurations.iter().all(|seen| seen.bundle == last)
}

#[test]
fn no_call_fails_through_rotations_crashes_deletions_and_drift() {
    for first in [World { drifts: 0, ..steady() }, World { made: 2, ..steady() }, from_nothing()] {
        match (Model { rules: SAFE }).check(first) {
            Ok(worlds) => {
                assert!(worlds.len() > 10_000, "only {} worlds: the model lost its steps", worlds.len());
                assert!(worlds.iter().any(is_done), "no rotation ever ends");
            }
            Err(world) => panic!("a call may fail in {world:#?}"),
        }
    }
}

#[test]
fn the_checker_finds_a_leaf_that_comes_before_its_authority_is_known() {
    assert!(check(Rules { settle: 1, lag: 1, ..SAFE }).is_err());
}

#[test]
fn the_checker_finds_an_authority_that_is_withdrawn_while_its_leaf_is_served() {
    assert!(check(Rules { grace: 1, pickup: 1, ..SAFE }).is_err());
}

#[test]
fn the_checker_finds_that_bundles_must_be_read_before_the_secret() {
    assert!(check(Rules { secret_first: true, ..SAFE }).is_err());
}

#[test]
fn the_checker_finds_that_what_is_published_outlives_the_secret() {
    assert!(check(Rules { forgets_published: true, ..SAFE }).is_err());
}
