//! The releaser: it takes up the volume as its caches show it, reads, and writes, as `controller.rs` and `live.rs` do. At every
//! `await` of theirs others may come between; a crash forgets all but what is in the cluster.
//!
//! Both replicas may write whenever they like. The lease forbids that, so more can happen here than in a cluster; what was
//! sent by a replica that crashed is the write of one that is slow.

use super::{
    Defect, Setup, real,
    real::Answer,
    world::{
        AtFirst, Broken, Has, Look, Namespace, Phase, Promise, Replica, Sight, Slot, Stage, Stands, To, Word, World,
        Write,
    },
};
use crate::{policy::Mode, reservation::Action};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Step {
    SeeVolume,
    SeeClass,
    SeeNamespace,
    SeeClaims,
    Crash,
    Begin,
    Read(Thing),
    ReadGivenTo,
    ReadNamespaceAgain,
    Write,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Thing {
    Class,
    Claim,
    Attachments,
    Candidates,
    Namespace,
}

pub(super) const STEPS: [Step; 14] = [
    Step::SeeVolume,
    Step::SeeClass,
    Step::SeeNamespace,
    Step::SeeClaims,
    Step::Crash,
    Step::Begin,
    Step::Read(Thing::Class),
    Step::Read(Thing::Claim),
    Step::Read(Thing::Attachments),
    Step::Read(Thing::Candidates),
    Step::Read(Thing::Namespace),
    Step::ReadGivenTo,
    Step::ReadNamespaceAgain,
    Step::Write,
];

/// The second tenant's namespace was always there.
fn namespace_of(slot: Slot, first: Namespace) -> Namespace {
    if slot == Slot::Shop { Namespace::There(0) } else { first }
}

pub(super) fn step(setup: &Setup, world: &World, who: usize, step: Step) -> Option<World> {
    let mut after = world.clone();
    let me = &mut after.replicas[who];
    let before = *me;
    match step {
        Step::SeeVolume => me.volume = Sight { volume: world.volume, newest: true },
        Step::SeeClass => me.class = world.class,
        Step::SeeNamespace if setup.needs_namespaces() => me.namespace = world.namespace,
        // Only associations are decided by cached claims.
        Step::SeeClaims if setup.reads_cached_claims() => me.claims = world.claims,
        Step::Crash if me.stage != Stage::Idle => *me = fresh(world),
        Step::SeeNamespace | Step::SeeClaims | Step::Crash => return None,
        Step::Begin => me.stage = begin(setup, world, me)?,
        Step::Read(thing) => me.stage = read(setup, world, me, thing)?,
        Step::ReadGivenTo => me.stage = read_given_to(setup, world, me)?,
        Step::ReadNamespaceAgain => me.stage = read_namespace_again(world, me)?,
        Step::Write => {
            let Stage::Writing { seen, write, first } = me.stage else { return None };
            me.stage = Stage::Idle;
            if let Some(volume) = real::written(setup, &world.volume, &seen.volume, seen.newest, write) {
                judge(setup, &mut after, write, first);
                if volume != world.volume {
                    after.put(volume);
                }
            }
        }
    }
    (step == Step::Write || after.replicas[who] != before).then_some(after)
}

/// A replica that has just started.
pub(super) fn fresh(world: &World) -> Replica {
    Replica {
        volume: Sight { volume: world.volume, newest: true },
        class: world.class,
        namespace: world.namespace,
        claims: world.claims,
        stage: Stage::Idle,
    }
}

fn begin(setup: &Setup, world: &World, me: &Replica) -> Option<Stage> {
    if me.stage != Stage::Idle {
        return None;
    }
    let seen = me.volume;
    let named = seen.volume.claim.and_then(|claim| world.claim(claim.slot));
    let first = AtFirst {
        never: world.class == Word::Never,
        served: named.filter(|claim| claim.has == Has::AnotherOne).map(|claim| claim.uid),
    };
    // The controller asks for the phase before the rules do; who forgets the one has forgotten the other.
    let any_phase = setup.defect == Some(Defect::WithoutCheck("the volume is Released"));
    if seen.volume.phase == Phase::Released || any_phase {
        return match real::release(setup, &seen.volume, me.class, None) {
            Answer::Nothing => None,
            Answer::Look => Some(Stage::Looking { seen, look: Look::default(), first }),
            Answer::Release(to) => Some(Stage::Writing { seen, write: Write::Release(to), first }),
        };
    }
    if let Some(slot) = real::kept_for(&seen.volume) {
        let idle = real::keep(&seen.volume, namespace_of(slot, me.namespace), None) == Action::Leave;
        return (!idle).then_some(Stage::Keeping { seen, elsewhere: None });
    }
    let associate = real::associate(setup, &seen.volume, me.class, &me.claims);
    associate.then_some(Stage::Writing { seen, write: Write::Associate, first })
}

/// The very claim that the volume was given to.
fn read_given_to(setup: &Setup, world: &World, me: &Replica) -> Option<Stage> {
    let Stage::Keeping { seen, elsewhere: None } = me.stage else { return None };
    let (slot, uid) = seen.volume.previous?.next?;
    let served = world.claim(slot).is_some_and(|claim| claim.uid == uid && claim.has == Has::AnotherOne);
    let elsewhere = Some(served || setup.defect == Some(Defect::TakeBackUnread));
    let restore = real::keep(&seen.volume, namespace_of(slot, me.namespace), elsewhere) == Action::Restore;
    Some(if restore { Stage::Keeping { seen, elsewhere } } else { Stage::Idle })
}

fn read_namespace_again(world: &World, me: &Replica) -> Option<Stage> {
    let Stage::Keeping { seen, elsewhere } = me.stage else { return None };
    let slot = seen.volume.claim?.slot;
    match real::keep(&seen.volume, namespace_of(slot, world.namespace), elsewhere) {
        Action::Look => None,
        Action::Leave => Some(Stage::Idle),
        Action::Restore => Some(Stage::Writing { seen, write: Write::Restore, first: AtFirst::default() }),
    }
}

/// What is read next. The class and the attachments are read at the same time, so either may be the first.
fn next_reads(setup: &Setup, seen: &Sight, look: Look) -> Vec<Thing> {
    let attachments = look.attached.is_none().then_some(Thing::Attachments);
    let Some(word) = look.class else { return [Thing::Class].into_iter().chain(attachments).collect() };
    let mode = real::mode(setup, &seen.volume, word);
    if let Some(next) = attachments.or_else(|| look.claim.is_none().then_some(Thing::Claim)) {
        return vec![next];
    }
    let candidates = (mode == Mode::Namespace && look.candidate.is_none()).then_some(Thing::Candidates);
    let fenced = matches!(mode, Mode::Soft | Mode::Namespace);
    let namespace = (fenced && look.namespace.is_none()).then_some(Thing::Namespace);
    let namespace_first = setup.defect == Some(Defect::NamespaceBeforeCandidates);
    let next = if namespace_first { namespace.or(candidates) } else { candidates.or(namespace) };
    next.into_iter().collect()
}

fn read(setup: &Setup, world: &World, me: &Replica, thing: Thing) -> Option<Stage> {
    let Stage::Looking { seen, mut look, first } = me.stage else { return None };
    if !next_reads(setup, &seen, look).contains(&thing) {
        return None;
    }
    let cached = setup.defect == Some(Defect::CachesForLive);
    let by_name = setup.defect == Some(Defect::ClaimByName);
    let (class, claims, namespace) =
        if cached { (me.class, &me.claims, me.namespace) } else { (world.class, &world.claims, world.namespace) };
    let reference = seen.volume.claim?;
    match thing {
        Thing::Class => look.class = Some(class),
        Thing::Claim => {
            look.claim = Some(match claims[reference.slot as usize] {
                None => Stands::Gone,
                Some(claim) if Some(claim.uid) == reference.uid || by_name => Stands::Same,
                Some(claim) if claim.has != Has::Nothing => Stands::Served,
                Some(_) => Stands::Waiting,
            });
        }
        Thing::Attachments => look.attached = Some(world.attached && !cached),
        Thing::Candidates => {
            let here = Slot::ALL.into_iter().filter(|slot| slot.namespace() == reference.slot.namespace());
            let waiting = here.filter_map(|slot| Some((slot, claims[slot as usize]?)));
            let waiting = waiting.filter(|(_, claim)| claim.has == Has::Nothing).map(|(slot, claim)| (slot, claim.uid));
            look.candidate = Some(waiting.min_by_key(|(_, uid)| *uid));
        }
        Thing::Namespace => look.namespace = Some(namespace_of(reference.slot, namespace)),
    }
    if !next_reads(setup, &seen, look).is_empty() {
        return Some(Stage::Looking { seen, look, first });
    }
    Some(match real::release(setup, &seen.volume, look.class?, Some(look)) {
        Answer::Release(to) => Stage::Writing { seen, write: Write::Release(to), first },
        Answer::Look | Answer::Nothing => Stage::Idle,
    })
}

/// Whether a write that the server takes was right at that moment, and what it promises.
fn judge(setup: &Setup, world: &mut World, write: Write, first: AtFirst) {
    let (owner, _, tenant) = world.truth.owner;
    let lost = |(slot, to): (Slot, u8)| {
        slot != Slot::Shop && (to != world.truth.tenant || !matches!(world.namespace, Namespace::There(_)))
    };
    let given = world.truth.given;
    // An administrator's word holds as long as there is whom it was given to.
    let undone = given.is_some_and(|given| write != Write::Restore || !lost(given));
    let volume = &world.volume;
    let named = volume.claim.and_then(|claim| world.claim(claim.slot)).map(|claim| claim.uid);
    let served = first.served.is_some() && first.served == named;
    let faults = [
        (volume.phase == Phase::Bound, Broken::BoundVolume),
        (world.referred().is_some(), Broken::ClaimThere),
        (world.attached, Broken::Attached),
        (undone, Broken::PreBinding),
    ];
    let to = match write {
        Write::Associate => return,
        Write::Restore => None,
        Write::Release(to) => Some(to),
    };
    let faults_of_releases = [
        (setup.forbidden, Broken::Forbidden),
        (first.never, Broken::SaidNever),
        (volume.being_deleted || !volume.retained, Broken::GoingAway),
        (setup.by_label() && !world.truth.asked, Broken::NotAsked),
        (served && to == Some(To::SameName), Broken::ServedElsewhere),
        (setup.word == Word::Namespace && to == Some(To::SameName), Broken::NobodyWaited),
    ];
    let mut faults = faults.into_iter().chain(faults_of_releases.into_iter().filter(|_| to.is_some()));
    world.truth.broken = faults.find_map(|(found, broken)| found.then_some(broken));
    world.truth.given = None;
    world.truth.promise = match to {
        None => Promise::Owner,
        // Nobody has had it since it was everybody's.
        Some(_) if world.truth.promise == Promise::Everybody => Promise::Everybody,
        Some(To::Pool) => Promise::Everybody,
        Some(To::SameName) => Promise::SameName { kept: owner == Slot::Shop || tenant == world.truth.tenant },
        Some(To::Claim(..)) => Promise::OneClaim,
    };
}

/// Whether nobody is at work and all caches have caught up.
pub(super) fn is_rested(world: &World) -> bool {
    world.replicas.iter().all(|replica| *replica == fresh(world))
}

/// Lets a replica whose caches have caught up work on the volume until it has written; none if it has nothing to write.
pub(super) fn work(setup: &Setup, world: &World) -> Option<World> {
    let mut world = World { replicas: [fresh(world); 2], ..world.clone() };
    loop {
        let writes = matches!(world.replicas[0].stage, Stage::Writing { .. });
        let mut at_work = STEPS.into_iter().filter(|step| {
            matches!(step, Step::Begin | Step::Read(_) | Step::ReadGivenTo | Step::ReadNamespaceAgain | Step::Write)
        });
        world = at_work.find_map(|which| step(setup, &world, 0, which))?;
        if world.replicas[0].stage == Stage::Idle {
            return writes.then_some(world);
        }
    }
}
