//! A process: it takes up the volume as its caches show it, reads, and writes, as `controller.rs` does. At every `await` others may
//! come between; a crash forgets all but what is in the cluster.
//!
//! Both may write whenever they like. The lease forbids that, so more can happen here than in a cluster.

use super::{
    Broken, Claim, Defect, Makes, Node, Process, Setup, Sight, Stage, Volume, World, Write,
    real::{self, Answer, Change},
};
use crate::gone::recreate;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Step {
    SeeNode,
    SeeVolume,
    Crash,
    Begin,
    ReadNode,
    ReadNodes,
    Write,
}

pub(super) const STEPS: [Step; 7] =
    [Step::SeeNode, Step::SeeVolume, Step::Crash, Step::Begin, Step::ReadNode, Step::ReadNodes, Step::Write];

/// One that has just started.
pub(super) fn fresh(world: &World) -> Process {
    let volume = world.volume.map(|volume| Sight { volume, newest: true });
    Process { node: world.node, volume, stage: Stage::Idle }
}

pub(super) fn is_rested(world: &World) -> bool {
    world.processes.iter().all(|process| *process == fresh(world))
}

pub(super) fn step(setup: &Setup, world: &World, who: usize, step: Step) -> Option<World> {
    let mut after = world.clone();
    let me = &mut after.processes[who];
    let before = *me;
    match step {
        Step::SeeNode => me.node = world.node,
        Step::SeeVolume => me.volume = fresh(world).volume,
        Step::Crash if me.stage != Stage::Idle => *me = fresh(world),
        Step::Crash => return None,
        Step::Begin => me.stage = begin(setup, world, me)?,
        Step::ReadNode => me.stage = read_node(setup, world, me)?,
        Step::ReadNodes => me.stage = read_nodes(setup, world, me)?,
        Step::Write => {
            let Stage::Writing { seen, node, write: which } = me.stage else { return None };
            me.stage = Stage::Idle;
            write(setup, &mut after, who, seen, node, which);
            return Some(after);
        }
    }
    (after.processes[who] != before).then_some(after)
}

fn begin(setup: &Setup, world: &World, me: &Process) -> Option<Stage> {
    let seen = me.volume.filter(|_| me.stage == Stage::Idle)?;
    if seen.volume.pending.is_some() {
        let write = match real::pending(setup, &seen.volume, world.volume, world.claim) {
            recreate::Action::Create => Write::Create,
            recreate::Action::Withdraw => Write::Withdraw,
            recreate::Action::Wait if setup.defect == Some(Defect::TakenBackEarly) => Write::Withdraw,
            recreate::Action::Wait | recreate::Action::Leave => return None,
            recreate::Action::DecideAnew => return Some(by_caches(setup, world, me, seen, true)),
        };
        return Some(Stage::Writing { seen, node: me.node, write });
    }
    Some(by_caches(setup, world, me, seen, false)).filter(|stage| *stage != Stage::Idle)
}

fn by_caches(setup: &Setup, world: &World, me: &Process, seen: Sight, anew: bool) -> Stage {
    let unread = setup.defect == Some(Defect::NotedUnread);
    proceed(setup, world, seen, me.node, unread, anew)
}

/// What follows from a look at the node. Whoever decides anew about a claim that is written down, and not to delete it, takes
/// that back.
fn proceed(setup: &Setup, world: &World, seen: Sight, node: Option<Node>, looked: bool, anew: bool) -> Stage {
    let writing = |write| Stage::Writing { seen, node, write: if anew { Write::Withdraw } else { write } };
    match real::answer(setup, &seen.volume, node, looked, None, world.now) {
        Answer::LookAtNode => Stage::AtNode { seen, anew },
        Answer::Note => writing(Write::Note),
        Answer::Mark => writing(Write::Mark),
        // The volume and its claim are read first.
        Answer::LookAtAll => match world.volume {
            Some(volume) => Stage::AtAll { seen: Sight { volume, newest: true }, claim: world.claim, anew },
            None => Stage::Idle,
        },
        Answer::DeleteClaim | Answer::DeleteVolume | Answer::Nothing if anew => writing(Write::Withdraw),
        Answer::DeleteClaim | Answer::DeleteVolume | Answer::Nothing => Stage::Idle,
    }
}

fn read_node(setup: &Setup, world: &World, me: &Process) -> Option<Stage> {
    let Stage::AtNode { seen, anew } = me.stage else { return None };
    Some(proceed(setup, world, seen, world.node, true, anew))
}

fn read_nodes(setup: &Setup, world: &World, me: &Process) -> Option<Stage> {
    let Stage::AtAll { seen, claim, anew } = me.stage else { return None };
    let node = if setup.defect == Some(Defect::NodesUnread) { me.node } else { world.node };
    let writing = |write| Stage::Writing { seen, node, write };
    // The claim that the volume refers to.
    let own = claim.filter(|claim| claim.has_volume);
    let blindly = setup.defect == Some(Defect::TakenBackBlindly);
    let goes = own.is_none_or(|claim| claim.being_deleted) && !blindly;
    Some(match (real::answer(setup, &seen.volume, node, true, Some(own), world.now), own) {
        (Answer::DeleteClaim, Some(claim)) => {
            let late = setup.defect == Some(Defect::WrittenDownAfter);
            let written = seen.volume.pending == Some(claim.uid) || late || setup.makes != Makes::Us;
            writing(if written { Write::DeleteClaim(claim) } else { Write::NoteClaim(claim) })
        }
        _ if anew => {
            if goes {
                Stage::Idle
            } else {
                writing(Write::Withdraw)
            }
        }
        (Answer::DeleteVolume, _) => writing(Write::DeleteVolume),
        (Answer::Note, _) => writing(Write::Note),
        (Answer::Mark, _) => writing(Write::Mark),
        _ => Stage::Idle,
    })
}

fn write(setup: &Setup, world: &mut World, who: usize, seen: Sight, node: Option<Node>, which: Write) {
    let Some(volume) = world.volume else { return };
    let accepted = seen.newest || setup.defect == Some(Defect::AnyVersion);
    let change = |change| real::written(setup, &volume, &seen.volume, node, change);
    match which {
        Write::Note if accepted => put(world, change(Change::Note)),
        Write::Mark if accepted => put(world, change(Change::Mark(world.now))),
        Write::NoteClaim(claim) if accepted => {
            let written = change(Change::WriteDown(claim.uid));
            put(world, written);
            if setup.defect != Some(Defect::WrittenDownAfter) {
                let seen = Sight { volume: written, newest: true };
                world.processes[who].stage = Stage::Writing { seen, node, write: Write::DeleteClaim(claim) };
            }
        }
        Write::DeleteClaim(claim) => delete_claim(setup, world, who, seen, node, claim),
        Write::DeleteVolume if accepted => {
            judge(world, Broken::DataLost);
            if world.is_claimed() {
                world.broken = Some(Broken::BoundVolume);
            }
            put(world, Volume { being_deleted: true, kept: (volume.kept.0, false), ..volume });
        }
        Write::Create => {
            if world.claim.is_none() {
                world.broken = (!world.owed).then_some(Broken::MadeTwice);
                world.make_claim();
            }
            world.processes[who].stage = Stage::Writing { seen, node, write: Write::Withdraw };
        }
        Write::Withdraw if accepted => put(world, change(Change::Withdraw)),
        _ => {}
    }
}

fn delete_claim(setup: &Setup, world: &mut World, who: usize, seen: Sight, node: Option<Node>, claim: Claim) {
    let Some(now) = world.claim else { return };
    // The preconditions: this claim, in this version.
    if now != claim && setup.defect != Some(Defect::ClaimByName) {
        return;
    }
    if now.uid != claim.uid {
        world.broken = Some(Broken::WrongClaim);
        return;
    }
    judge(world, Broken::DataLost);
    if setup.makes == Makes::Nobody {
        world.broken = Some(Broken::NobodysClaim);
    }
    world.claim = Some(Claim { being_deleted: true, ..now });
    world.owed = true;
    if setup.defect == Some(Defect::WrittenDownAfter) && setup.makes == Makes::Us {
        world.processes[who].stage = Stage::Writing { seen, node, write: Write::NoteClaim(claim) };
    }
}

/// Whether the machine with the data is gone, for at least the second of grace.
fn judge(world: &mut World, lost: Broken) {
    world.broken = match world.gone_since {
        None => Some(lost),
        Some(since) if world.now <= since => Some(Broken::TooSoon),
        Some(_) => None,
    };
}

fn put(world: &mut World, volume: Volume) {
    if world.volume != Some(volume) {
        world.put(Some(volume));
    }
}

/// Lets a process whose caches have caught up work on the volume until it has written; none if it has nothing to write.
pub(super) fn work(setup: &Setup, world: &World) -> Option<World> {
    let mut world = World { processes: [fresh(world); 2], ..world.clone() };
    loop {
        let writes = matches!(world.processes[0].stage, Stage::Writing { .. });
        let steps = [Step::Begin, Step::ReadNode, Step::ReadNodes, Step::Write];
        world = steps.into_iter().find_map(|which| step(setup, &world, 0, which))?;
        if world.processes[0].stage == Stage::Idle {
            return writes.then_some(world);
        }
    }
}
