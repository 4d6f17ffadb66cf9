//! Every interleaving of a node that goes and comes back, or another machine in its name, Kubernetes, a user and two processes
//! around one volume.
//!
//! The processes decide by the real chains on real objects and write the real patches; the checker plays the API server, its
//! watches (each cache is as old as it likes), the controllers, people and time. The data is on machine `a` and nowhere else.
//! What must never happen is noted in the world in which it happens ([`Broken`]). From each world in which the caches have caught up
//! and nobody is at work we also let everything come to rest: a claim that is missing then was forgotten.
//!
//! What the rules rely on and nothing enforces is named in [`Setup`]; the tests show what happens without.

mod process;
mod real;
mod tests;

use stateright::{Checker, Model, Property};

use process::{STEPS, Step, fresh, is_rested, step, work};

const UNBROKEN: &str = "nothing is broken";

/// What is modelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Setup {
    makes: Makes,
    /// Whether nodes say which machine they are.
    identified: bool,
    /// How much people do in all.
    people: u8,
    processes: usize,
    /// The machine does not come back between the last look at the nodes and the write.
    writes_are_prompt: bool,
    /// A machine that came back does not go again before that was noticed.
    returns_are_noticed: bool,
    defect: Option<Defect>,
}

/// Who makes the claim again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Makes {
    StatefulSet,
    Us,
    Nobody,
}

/// A mistake that the checker must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Defect {
    WithoutCheck(&'static str),
    /// The machine is noted as the cache has it.
    NotedUnread,
    /// Whichever machine has the name is noted, however late it came.
    NotedLate,
    /// Before a deletion nobody reads the nodes again.
    NodesUnread,
    /// A node with another uid is another machine.
    KnownByUid,
    /// Whoever has the name is the machine.
    KnownByName,
    /// The claim is deleted whichever it is.
    ClaimByName,
    /// The volume is written whichever version it has.
    AnyVersion,
    /// The claim is deleted before it is written down.
    WrittenDownAfter,
    /// Nothing keeps the volume on which the claim is written down.
    NotKept,
    /// What is written down is taken back as soon as the claim is deleted.
    TakenBackEarly,
    /// What is written down is taken back whenever the claim is not to be deleted, also if it is already.
    TakenBackBlindly,
    /// A claim is made although what was written down is taken back.
    StillUnread,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Node {
    uid: u8,
    is_home: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Claim {
    uid: u8,
    has_volume: bool,
    being_deleted: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Volume {
    bound: bool,
    being_deleted: bool,
    /// The uid of the node that is noted, and whether its machine is the one that has the data.
    note: Option<(u8, bool)>,
    since: Option<u8>,
    /// The uid of the claim after which one is to be made.
    pending: Option<u8>,
    /// Whether that keeps it, and whether its provisioner does.
    kept: (bool, bool),
}

/// A volume as somebody saw it, and whether it still is the newest version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Sight {
    volume: Volume,
    newest: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Write {
    Note,
    Mark,
    NoteClaim(Claim),
    DeleteClaim(Claim),
    DeleteVolume,
    Create,
    Withdraw,
}

/// How far the work on the volume got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Stage {
    Idle,
    /// Decided by the caches to read the node. `anew`: a claim is written down, and was not deleted yet.
    AtNode {
        seen: Sight,
        anew: bool,
    },
    /// Decided to read everything; the volume and the claim were read.
    AtAll {
        seen: Sight,
        claim: Option<Claim>,
        anew: bool,
    },
    /// `node` is what was read.
    Writing {
        seen: Sight,
        node: Option<Node>,
        write: Write,
    },
}

/// One process: its caches, each as old as it likes, and what it is about to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Process {
    node: Option<Node>,
    volume: Option<Sight>,
    stage: Stage,
}

/// What must never happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Broken {
    /// A claim was deleted, or a volume, while the machine with its data was there.
    DataLost,
    /// While the machine had not been gone for long enough.
    TooSoon,
    /// Another claim than the one of the volume was deleted.
    WrongClaim,
    /// A claim was deleted that nobody makes again.
    NobodysClaim,
    /// A claim was made again that nobody was owed.
    MadeTwice,
    /// A volume was deleted whose claim is there.
    BoundVolume,
    /// Nothing happens any more, and a claim is missing, or still waits for a machine that is gone.
    Forgotten,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    node: Option<Node>,
    volume: Option<Volume>,
    claim: Option<Claim>,
    now: u8,
    next_uid: u8,
    left: u8,
    processes: [Process; 2],
    /// Since when no node is the machine with the data.
    gone_since: Option<u8>,
    /// Whether we deleted the claim and nobody has made another one: somebody must, and once.
    owed: bool,
    broken: Option<Broken>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Deed {
    NodeGoes,
    NodeComes { is_home: bool },
    UserDeletesClaim,
    UserMakesClaim,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Event {
    Second,
    ClaimEnds,
    VolumeReleased,
    VolumeEnds,
    /// One that does not need the node.
    ProvisionerDeletes,
    StatefulSetMakes,
}

const EVENTS: [Event; 6] = [
    Event::ClaimEnds,
    Event::VolumeReleased,
    Event::VolumeEnds,
    Event::StatefulSetMakes,
    Event::ProvisionerDeletes,
    Event::Second,
];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Move {
    People(Deed),
    Kubernetes(Event),
    Process(usize, Step),
}

impl World {
    /// The API server takes a write: whoever decided by the version before is refused from now on.
    fn put(&mut self, volume: Option<Volume>) {
        self.volume = volume;
        for process in &mut self.processes {
            process.volume = process.volume.map(|sight| Sight { newest: false, ..sight });
            match &mut process.stage {
                Stage::AtNode { seen, .. } | Stage::AtAll { seen, .. } | Stage::Writing { seen, .. } => {
                    seen.newest = false;
                }
                Stage::Idle => {}
            }
        }
    }

    fn make_claim(&mut self) {
        self.claim = Some(Claim { uid: self.next_uid, has_volume: false, being_deleted: false });
        self.next_uid += 1;
        self.owed = false;
    }

    /// Whether the volume's own claim is there.
    fn is_claimed(&self) -> bool {
        self.claim.is_some_and(|claim| claim.has_volume)
    }
}

impl Model for Setup {
    type State = World;
    type Action = Move;

    /// The volume was just made on machine `a`, of which not every cache knows: the one before may still be there, or nothing.
    fn init_states(&self) -> Vec<World> {
        let home = Node { uid: 2, is_home: true };
        let before = Node { uid: 1, is_home: false };
        let volume =
            Volume { bound: true, being_deleted: false, note: None, since: None, pending: None, kept: (false, true) };
        [Some(home), Some(before), None]
            .map(|node| {
                let sight = Some(Sight { volume, newest: true });
                World {
                    node: Some(home),
                    volume: Some(volume),
                    claim: Some(Claim { uid: 1, has_volume: true, being_deleted: false }),
                    now: 0,
                    next_uid: 3,
                    left: self.people,
                    processes: [Process { node, volume: sight, stage: Stage::Idle }; 2],
                    gone_since: None,
                    owed: false,
                    broken: None,
                }
            })
            .to_vec()
    }

    fn actions(&self, world: &World, moves: &mut Vec<Move>) {
        if world.broken.is_some() {
            return;
        }
        if world.left > 0 {
            let comes = [true, false].map(|is_home| Deed::NodeComes { is_home });
            let deeds = [Deed::NodeGoes, Deed::UserDeletesClaim, Deed::UserMakesClaim].into_iter().chain(comes);
            moves.extend(deeds.map(Move::People));
        }
        moves.extend(EVENTS.map(Move::Kubernetes));
        for who in 0..self.processes {
            moves.extend(STEPS.map(|step| Move::Process(who, step)));
        }
    }

    fn next_state(&self, world: &World, one: Move) -> Option<World> {
        let mut after = match one {
            Move::People(deed) => perform(world, deed, self),
            Move::Kubernetes(event) => happen(world, event, self),
            Move::Process(who, which) => step(self, world, who, which),
        }?;
        for who in self.processes..after.processes.len() {
            after.processes[who] = fresh(&after);
        }
        if self.processes > 1 {
            // They are alike, so that it does not matter which one does what.
            after.processes.sort_unstable();
        }
        if after.broken.is_none() && is_rested(&after) && self.forgets(&after) {
            after.broken = Some(Broken::Forgotten);
        }
        Some(after)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always(UNBROKEN, |_, world: &World| world.broken.is_none())]
    }
}

fn perform(world: &World, deed: Deed, setup: &Setup) -> Option<World> {
    let mut after = world.clone();
    after.left -= 1;
    let possible = match deed {
        Deed::NodeGoes => {
            after.node = None;
            let home = world.node.is_some_and(|node| node.is_home);
            if home {
                after.gone_since = Some(world.now);
            }
            let noticed = world.volume.is_none_or(|volume| volume.since.is_none()) && !is_marking(world);
            world.node.is_some() && (!home || noticed || !setup.returns_are_noticed)
        }
        Deed::NodeComes { is_home } => {
            after.node = Some(Node { uid: world.next_uid, is_home });
            after.next_uid += 1;
            if is_home {
                after.gone_since = None;
            }
            let writes = |stage: &Stage| matches!(stage, Stage::Writing { .. });
            let prompt = !world.processes.iter().any(|process| writes(&process.stage));
            world.node.is_none() && (!is_home || prompt || !setup.writes_are_prompt)
        }
        Deed::UserDeletesClaim => {
            let claim = after.claim.as_mut()?;
            // From the moment at which we read it nobody can tell who deleted it, and it is made again.
            let ours = world.volume.is_some_and(|volume| volume.pending.is_some()) || is_deleting(world);
            let ours = ours && setup.makes == Makes::Us;
            !ours && !std::mem::replace(&mut claim.being_deleted, true)
        }
        Deed::UserMakesClaim => {
            after.make_claim();
            world.claim.is_none()
        }
    };
    possible.then_some(after)
}

/// Whether somebody has read the claim in order to delete it.
fn is_deleting(world: &World) -> bool {
    let deleting = |stage: &Stage| {
        let writes = matches!(stage, Stage::Writing { write: Write::NoteClaim(_) | Write::DeleteClaim(_), .. });
        writes || matches!(stage, Stage::AtAll { .. })
    };
    world.processes.iter().any(|process| deleting(&process.stage))
}

/// Whether somebody is about to note since when the machine is gone, though it is there.
fn is_marking(world: &World) -> bool {
    world.processes.iter().any(|process| matches!(process.stage, Stage::Writing { write: Write::Mark, .. }))
}

fn happen(world: &World, event: Event, setup: &Setup) -> Option<World> {
    let mut after = world.clone();
    let possible = match event {
        Event::Second => {
            // Only whether the grace of one second is over counts.
            after.now += 1;
            let begun = [world.volume.and_then(|volume| volume.since), world.gone_since];
            begun.into_iter().flatten().any(|since| since == world.now)
        }
        Event::ClaimEnds => after.claim.take().is_some_and(|claim| claim.being_deleted),
        Event::VolumeReleased => match world.volume {
            Some(volume) if volume.bound && !world.is_claimed() => {
                after.put(Some(Volume { bound: false, ..volume }));
                true
            }
            _ => false,
        },
        Event::VolumeEnds => {
            let ends = world
                .volume
                .is_some_and(|volume| volume.being_deleted && !volume.bound && volume.kept == (false, false));
            after.put(None);
            ends
        }
        Event::ProvisionerDeletes => match world.volume {
            Some(volume) if !volume.bound && volume.kept.1 => {
                after.put(Some(Volume { being_deleted: true, kept: (volume.kept.0, false), ..volume }));
                true
            }
            _ => false,
        },
        Event::StatefulSetMakes => {
            after.make_claim();
            setup.makes == Makes::StatefulSet && world.claim.is_none()
        }
    };
    possible.then_some(after)
}

impl Setup {
    /// Lets everything come to rest. The machine stays as it is.
    fn forgets(&self, world: &World) -> bool {
        let mut world = world.clone();
        for _ in 0..100 {
            let next = EVENTS.into_iter().find_map(|event| match event {
                Event::ProvisionerDeletes => None,
                event => happen(&world, event, self),
            });
            match next.or_else(|| work(self, &world)) {
                Some(next) if next.broken.is_some() => return false,
                Some(next) => world = next,
                None => return self.is_unfinished(&world),
            }
        }
        true
    }

    fn is_unfinished(&self, world: &World) -> bool {
        let missing = world.owed;
        let note = world.volume.and_then(|volume| volume.note);
        let known = note.is_some_and(|(_, home)| home) && (self.identified || world.node.is_none());
        let waits = world.is_claimed() && world.gone_since.is_some() && known && self.makes != Makes::Nobody;
        let left = world.volume.is_some_and(|volume| volume.pending.is_some());
        missing || waits || left
    }
}

/// How many worlds there are, or how one is broken and the shortest way there.
fn check(setup: Setup) -> Result<usize, (Broken, Vec<Move>)> {
    let checker = setup.checker().threads(2).spawn_bfs().join();
    let Some(path) = checker.discovery(UNBROKEN) else { return Ok(checker.unique_state_count()) };
    Err((path.last_state().broken.unwrap(), path.into_actions()))
}
