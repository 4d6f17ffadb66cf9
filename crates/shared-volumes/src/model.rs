//! Every interleaving of a source, an administrator and two replicas around two volumes and the endpoints that they share.
//!
//! The replicas decide by the real chains on real objects; the checker plays the source, the API server, the watches (each cache is as
//! old as it likes), the lease, crashes and lost answers. People do only so much in all, so the number of worlds is finite and the walk
//! leaves none of them out. Whatever must never happen is noted in the world in which it happens ([`Broken`]). From each world we also
//! let everything come to rest: what is then still to be done was forgotten.
//!
//! What is relied on: a replica that does not lead any more has no write on its way (the lease's fence). The tests show what
//! happens without that, and without each of the rules.

mod replica;
#[cfg(test)]
mod tests;

use stateright::{Checker, Model, Property};

use replica::{Doing, Replica, Step, land, rest, step};

const UNBROKEN: &str = "nothing is broken";

/// Where servers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Place {
    Here,
    There,
}

impl Place {
    const ALL: [Self; 2] = [Self::Here, Self::There];

    fn endpoint(self) -> &'static str {
        match self {
            Self::Here => "10.1.0.4:25705",
            Self::There => "10.1.0.5:25705",
        }
    }

    fn of(endpoint: std::net::SocketAddr) -> Option<Self> {
        Self::ALL.into_iter().find(|place| place.endpoint() == endpoint.to_string())
    }
}

/// Which of the two volumes.
type Which = usize;

/// A volume and its objects, as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(clippy::option_option, reason = "a slice may be missing, lead nowhere, or lead somewhere")]
struct Volume {
    /// Where its source says that its server is.
    at: Option<Place>,
    /// The address that is published.
    published: Option<u8>,
    /// The address of its Service, if there is one.
    service: Option<u8>,
    /// Where its slice leads, if there is one.
    slice: Option<Option<Place>>,
}

/// What must never be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Broken {
    /// Two addresses lead to one server.
    Shared,
    /// An address leads to where its volume is not told to be, by who wrote it.
    Misled,
    /// An address is published that no Service of the volume ever had, or that was not seen to lead anywhere.
    PublishedNothing,
    /// The address changed, though it was free.
    AddressChanged,
    /// All is quiet, and yet not as it should be.
    Forgotten,
}

/// All there is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    volumes: [Volume; 2],
    replicas: [Replica; 2],
    /// How much people may still do.
    deeds: u8,
    /// A write that had no answer and may still be carried out.
    late: Option<Doing>,
    /// The addresses that somebody else has, as bits.
    stolen: u8,
    broken: Option<Broken>,
}

/// What is modelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Setup {
    replicas: usize,
    deeds: u8,
    /// Whether ways to servers that are gone are kept.
    keeps: bool,
    defect: Option<Defect>,
}

/// A mistake that the checker must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Defect {
    /// A rule of the target is missing.
    WithoutTarget(&'static str),
    /// A rule of the publication is missing, and nobody waits until the slices have settled.
    WithoutPublication(&'static str),
    /// Writes carry no version.
    AnyVersion,
    /// Nobody remembers what was written until the watch shows it.
    NoMemory,
    /// A write that was refused is taken for one that never led anywhere.
    ForgetsRefused,
    /// Nobody waits for writes that had no answer.
    NotLate,
    /// Who begins to lead does not read where addresses lead.
    NoFirstLook,
    /// A write may be on its way when another replica begins to lead.
    NoFence,
    /// A new Service gets any address.
    AnyAddress,
    /// What was withdrawn is not closed.
    LeftOpen,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Move {
    /// The source tells something else from now on.
    Told(Which, Option<Place>),
    /// Somebody deletes a Service; its slice goes with it.
    Deleted(Which),
    /// Somebody else gets the address of a Service that is gone.
    Stolen(Which),
    /// A write that had no answer is carried out after all.
    Late,
    /// Nobody can be that late.
    TooLate,
    Replica(usize, Step),
}

impl Setup {
    const fn new(replicas: usize, deeds: u8) -> Self {
        Self { replicas, deeds, keeps: false, defect: None }
    }
}

impl Model for Setup {
    type State = World;
    type Action = Move;

    fn init_states(&self) -> Vec<World> {
        let volume = |number: u8, at| Volume {
            at: Some(at),
            published: Some(number),
            service: Some(number),
            slice: Some(Some(at)),
        };
        let volumes = [volume(1, Place::Here), volume(2, Place::There)];
        let new = Volume { at: Some(Place::There), published: None, service: None, slice: None };
        let world = |volumes: [Volume; 2]| World {
            replicas: [Replica::leading(&volumes), Replica::idle(&volumes)],
            volumes,
            deeds: self.deeds,
            late: None,
            stolen: 0,
            broken: None,
        };
        vec![world(volumes), world([volumes[0], new])]
    }

    fn actions(&self, world: &World, moves: &mut Vec<Move>) {
        if world.broken.is_some() {
            return;
        }
        for which in 0..2 {
            moves.extend([None, Some(Place::Here), Some(Place::There)].map(|place| Move::Told(which, place)));
            moves.extend([Move::Deleted(which), Move::Stolen(which)]);
        }
        moves.extend([Move::Late, Move::TooLate]);
        for who in 0..self.replicas {
            moves.extend(Step::ALL.map(|step| Move::Replica(who, step)));
        }
    }

    fn next_state(&self, world: &World, one: Move) -> Option<World> {
        let mut after = match one {
            Move::Told(which, place) => world.deed(|world| {
                let told = &mut world.volumes[which].at;
                (*told != place).then(|| *told = place)
            }),
            Move::Deleted(which) => world.deed(|world| {
                let volume = &mut world.volumes[which];
                volume.service.take()?;
                if volume.slice.take().is_some() {
                    world.changed(which);
                }
                Some(())
            }),
            Move::Stolen(which) => world.deed(|world| {
                let volume = world.volumes[which];
                let address = volume.published.filter(|_| volume.service.is_none())?;
                let stolen = world.stolen | (1 << address);
                (stolen != world.stolen).then(|| world.stolen = stolen)
            }),
            Move::Late => world.late.map(|doing| {
                let mut after = World { late: None, ..world.clone() };
                land(self, &mut after, doing);
                after
            }),
            Move::TooLate => world.too_late(),
            Move::Replica(who, which) => step(self, world, who, which),
        }?;
        after.broken = after.broken.or_else(|| self.breaks_by_itself(&after));
        Some(after)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always(UNBROKEN, |_, world: &World| world.broken.is_none())]
    }
}

impl World {
    /// What people do, as long as they may.
    fn deed(&self, change: impl FnOnce(&mut Self) -> Option<()>) -> Option<Self> {
        let mut world = self.clone();
        world.deeds = self.deeds.checked_sub(1)?;
        change(&mut world)?;
        Some(world)
    }

    /// So much time has passed that what had no answer will never be carried out, and that watches have shown what was.
    fn too_late(&self) -> Option<Self> {
        let mut after = Self { late: None, ..self.clone() };
        for replica in &mut after.replicas {
            replica.unanswered = [0; 2];
            replica.hear(&self.volumes);
        }
        (after != *self).then_some(after)
    }

    /// A slice has another version now, and nobody has seen it.
    fn changed(&mut self, which: Which) {
        for replica in &mut self.replicas {
            replica.cache[which].newest = false;
        }
        let sent = self.replicas.iter_mut().filter_map(|replica| replica.doing.as_mut());
        for doing in sent.chain(&mut self.late) {
            if let Doing::Slice { which: written, newest, .. } = doing
                && *written == which
            {
                *newest = false;
            }
        }
    }
}

impl Setup {
    /// What is not as it should be though nobody disturbs any more.
    fn breaks_by_itself(&self, world: &World) -> Option<Broken> {
        // From every other world, its own steps lead to such a one.
        let leader = world.replicas.iter().position(|replica| replica.is_up_to_date(world))?;
        let mut world = world.clone();
        for _ in 0..60 {
            match rest(self, &world, leader) {
                Some(next) if next.broken.is_some() => return next.broken,
                Some(next) => world = next,
                None => return world.broken.or_else(|| self.is_unfinished(&world).then_some(Broken::Forgotten)),
            }
        }
        Some(Broken::Forgotten)
    }

    fn is_unfinished(&self, world: &World) -> bool {
        let [one, other] = world.volumes;
        let unfinished = |volume: &Volume, other: &Volume| match volume.at {
            Some(place) if other.at == Some(place) => volume.slice.flatten().is_some(),
            Some(place) => {
                volume.slice != Some(Some(place)) || volume.published.is_none() || volume.published != volume.service
            }
            // What is kept stays until somebody else is there.
            None if self.keeps => volume.slice.flatten().is_some_and(|place| other.at == Some(place)),
            None => volume.slice.flatten().is_some(),
        };
        unfinished(&one, &other) || unfinished(&other, &one)
    }
}

/// How many worlds there are, or how one is broken and the shortest way there.
fn check(setup: Setup) -> Result<usize, (Broken, Vec<Move>)> {
    let checker = setup.checker().threads(2).spawn_bfs().join();
    let Some(path) = checker.discovery(UNBROKEN) else { return Ok(checker.unique_state_count()) };
    let broken = path.last_state().broken;
    Err((broken.unwrap_or(Broken::Forgotten), path.into_actions()))
}
