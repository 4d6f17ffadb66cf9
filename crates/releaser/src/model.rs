//! Every interleaving of Kubernetes, an administrator, two tenants and two releasers around one volume.
//!
//! The releasers decide by the real chains on real objects and write the real patches; the checker plays the API server, its
//! watches (each cache is as old as it likes), Kubernetes' binding, people and time. People do only so much in all, so the
//! number of worlds is finite and the walk leaves none of them out. Whatever must never happen is noted in the world in
//! which it happens ([`world::Broken`]). From each world in which all caches have caught up we also let everything come to
//! rest: what is then still to be done was forgotten. That whoever sees a change looks again is taken for granted here.
//!
//! What the rules rely on and nothing enforces is named in [`Setup`]; the tests show what happens without.

mod kubernetes;
mod real;
mod replica;
mod world;

use stateright::{Checker, Model, Property};

use kubernetes::{Deed, EVENTS, Event, deeds, happen, perform};
use replica::{STEPS, Step, fresh, is_rested, step, work};
use world::{Broken, Has, Namespace, Phase, Promise, Reference, Slot, Word, World};

const UNBROKEN: &str = "nothing is broken";

/// What is modelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "a table of what may differ")]
struct Setup {
    word: Word,
    /// How much people do in all.
    people: u8,
    /// How many processes the releaser has.
    replicas: usize,
    /// One more annotation of the class.
    option: Option<(&'static str, &'static str)>,
    provisions_at_once: bool,
    only_namespace: Option<&'static str>,
    dry_run: bool,
    /// Whether one of these means that nothing may be released.
    forbidden: bool,
    /// Nobody makes a namespace anew between the last look at it and the write.
    writes_are_prompt: bool,
    /// Nobody makes a namespace anew, or gives the volume to anybody, before Kubernetes has noted what became of the volume.
    phases_are_prompt: bool,
    /// A tenant of a namespace that was made anew may be faster than the take-back of what was kept for a name.
    late_take_back_is_excused: bool,
    /// Whether there is neither an administrator nor a pod, and another volume only where labels decide: that leaves room for
    /// more of the rest.
    only_tenants: bool,
    defect: Option<Defect>,
}

/// A mistake that the checker must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Defect {
    WithoutCheck(&'static str),
    AnyVersion,
    CachesForLive,
    AssociationByName,
    ClaimByName,
    LabelStays,
    NamespaceBeforeCandidates,
    AssociationBeforeBinding,
    TakeBackUnread,
}

impl Setup {
    const fn new(word: Word, replicas: usize, people: u8) -> Self {
        Self {
            word,
            people,
            replicas,
            option: None,
            provisions_at_once: false,
            only_namespace: None,
            dry_run: false,
            forbidden: false,
            writes_are_prompt: true,
            phases_are_prompt: true,
            late_take_back_is_excused: true,
            only_tenants: false,
            defect: None,
        }
    }

    /// Whether the labels of claims decide.
    fn by_label(&self) -> bool {
        self.word == Word::Nothing
    }

    /// Whether claims may get other volumes.
    fn other_volumes(&self) -> bool {
        self.by_label() || !self.only_tenants
    }

    /// Whether it matters whose namespace it is.
    fn needs_namespaces(&self) -> bool {
        matches!(self.word, Word::Soft | Word::Namespace)
    }

    fn reads_cached_claims(&self) -> bool {
        self.by_label() || self.defect == Some(Defect::CachesForLive)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Move {
    People(Deed),
    Kubernetes(Event),
    Releaser(usize, Step),
}

impl Model for Setup {
    type State = World;
    type Action = Move;

    fn init_states(&self) -> Vec<World> {
        let labelled: &[bool] = if self.by_label() { &[true, false] } else { &[false] };
        labelled.iter().map(|labelled| World::new(self.word, *labelled, self.people)).collect()
    }

    fn actions(&self, world: &World, moves: &mut Vec<Move>) {
        if world.truth.broken.is_some() {
            return;
        }
        moves.extend(deeds(world, self).into_iter().map(Move::People));
        moves.extend(EVENTS.map(Move::Kubernetes));
        for who in 0..self.replicas {
            moves.extend(STEPS.map(|step| Move::Releaser(who, step)));
        }
    }

    fn next_state(&self, world: &World, one: Move) -> Option<World> {
        let mut after = match one {
            Move::People(deed) => perform(world, deed, self),
            Move::Kubernetes(event) => happen(world, event, self),
            Move::Releaser(who, which) => step(self, world, who, which),
        }?;
        self.forget_what_nobody_reads(&mut after);
        if after.truth.broken.is_none() && is_rested(&after) && self.forgets(&after) {
            after.truth.broken = Some(Broken::Forgotten);
        }
        if self.replicas > 1 {
            // They are alike, so that it does not matter which one does what.
            after.replicas.sort_unstable();
        }
        Some(after)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always(UNBROKEN, |_, world: &World| world.truth.broken.is_none())]
    }
}

impl Setup {
    /// What can make no difference must not make two worlds of one.
    fn forget_what_nobody_reads(&self, world: &mut World) {
        for replica in &mut world.replicas {
            if !self.reads_cached_claims() {
                replica.claims = world.claims;
            }
        }
        for who in self.replicas..world.replicas.len() {
            world.replicas[who] = fresh(world);
        }
    }

    /// Whether a volume that should be released, taken back or associated stays as it is though nobody disturbs any more.
    /// All caches are right when this begins: from every other world, the watches lead to such a one.
    fn forgets(&self, world: &World) -> bool {
        let by_itself = |world: &World| {
            let events = EVENTS.into_iter().filter(|event| *event != Event::Second);
            events.into_iter().find_map(|event| happen(world, event, self)).or_else(|| work(self, world))
        };
        let mut world = world.clone();
        for _ in 0..100 {
            match by_itself(&world) {
                Some(next) => world = next,
                None => return self.is_unfinished(&world),
            }
        }
        true
    }

    fn is_unfinished(&self, world: &World) -> bool {
        let World { volume, truth, .. } = world;
        let Some(Reference { slot, uid }) = volume.claim else { return false };
        if self.forbidden || volume.being_deleted {
            return false;
        }
        let (_, _, tenant) = truth.owner;
        let lost = slot != Slot::Shop && (world.namespace < Namespace::There(0) || tenant != truth.tenant);
        // Within one second nobody knows what came first.
        let there = !lost && (slot == Slot::Shop || world.namespace < Namespace::There(volume.since));
        if uid.is_none() {
            // Nor may it be left to the name of a claim that got another volume, as long as that one is there: once it is
            // gone, nothing tells the name from an administrator's word.
            let named = world.claim(slot).filter(|claim| claim.has == Has::AnotherOne).map(|claim| (slot, claim.uid));
            let elsewhere = named.is_some() && named == volume.previous.and_then(|previous| previous.next);
            let kept = truth.promise == Promise::OneClaim && elsewhere;
            return kept || (truth.promise != Promise::Everybody && lost);
        }
        let waits = |slot: &Slot| world.claim(*slot).is_some_and(|claim| claim.has == Has::Nothing);
        let eligible = match world.class {
            Word::Never => false,
            Word::Nothing if volume.phase == Phase::Bound => truth.asked && !volume.associated,
            Word::Nothing => volume.associated,
            Word::Pool => true,
            Word::Soft => there && world.claim(slot).is_none_or(|claim| claim.has == Has::Nothing),
            Word::Namespace => {
                there && Slot::ALL.iter().any(|other| other.namespace() == slot.namespace() && waits(other))
            }
        };
        let associable = volume.phase == Phase::Bound && world.class == Word::Nothing;
        eligible && (associable || (volume.phase == Phase::Released && volume.retained && world.referred().is_none()))
    }
}

/// How many worlds there are, or how one is broken and the shortest way there.
fn check(setup: Setup) -> Result<usize, (Broken, Vec<Move>)> {
    let checker = setup.checker().threads(2).spawn_bfs().join();
    let Some(path) = checker.discovery(UNBROKEN) else { return Ok(checker.unique_state_count()) };
    Err((path.last_state().truth.broken.unwrap(), path.into_actions()))
}

#[cfg(test)]
mod tests;
