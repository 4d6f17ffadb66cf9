//! A replica: what it knows, and how it acts by the real rules.

use std::{net::SocketAddr, sync::Arc};

use cluster::{Service, Slice, decision::Check};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::{Broken, Defect, Place, Setup, Volume, Which, World};
use crate::{
    address::{self, ADDRESS, PUBLISH, Publication, Ready, remembered},
    decision::{Action, ClaimSeen, Observation, TARGET},
    names::VOLUME_ID,
    sample,
    settings::EndpointGone,
    source::SharedVolume,
    way::{self, WAY},
};

/// A slice as somebody saw it, and whether that is its newest version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(clippy::option_option, reason = "it may be missing, lead nowhere, or lead somewhere")]
pub(super) struct Sight {
    pub(super) slice: Option<Option<Place>>,
    pub(super) newest: bool,
}

/// A request on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Doing {
    Slice { which: Which, to: Option<Place>, newest: bool, is_news: bool },
    Service { which: Which, asked: Option<u8> },
    Publish { which: Which, address: u8, newest: bool },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Replica {
    pub(super) leads: bool,
    /// What the source told last; nothing before the first poll.
    pub(super) heard: Option<[(Option<Place>, Option<u8>); 2]>,
    pub(super) cache: [Sight; 2],
    /// Where addresses lead, or may, by what it wrote: bits of places.
    pub(super) leads_to: [u8; 2],
    /// Where they may lead by a write that had no answer.
    pub(super) unanswered: [u8; 2],
    pub(super) doing: Option<Doing>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Step {
    /// It asks the source.
    Poll,
    /// Its cache hears of everything.
    Watch,
    /// It decides about a volume by its cache, and sends what follows.
    Cached(Which),
    /// It decides by what it reads live.
    Live(Which),
    /// What it sent arrives and is answered.
    Land,
    /// It arrives, but the answer is lost.
    LandUnheard,
    /// It does not arrive, and nobody knows.
    Vanish,
    /// The process ends, and another one begins.
    Crash,
    /// It begins to lead; the other one does not any more.
    Lead,
}

impl Step {
    pub(super) const ALL: [Self; 11] = [
        Self::Poll,
        Self::Watch,
        Self::Cached(0),
        Self::Cached(1),
        Self::Live(0),
        Self::Live(1),
        Self::Land,
        Self::LandUnheard,
        Self::Vanish,
        Self::Crash,
        Self::Lead,
    ];
}

fn bit(place: Place) -> u8 {
    1 << place as u8
}

impl Replica {
    pub(super) fn idle(volumes: &[Volume; 2]) -> Self {
        let cache = volumes.map(|volume| Sight { slice: volume.slice, newest: true });
        Self { leads: false, heard: None, cache, leads_to: [0; 2], unanswered: [0; 2], doing: None }
    }

    /// Its cache hears of everything.
    pub(super) fn hear(&mut self, volumes: &[Volume; 2]) {
        self.cache = volumes.map(|volume| Sight { slice: volume.slice, newest: true });
    }

    /// Whether it leads, knows everything and waits for nothing.
    pub(super) fn is_up_to_date(&self, world: &World) -> bool {
        let heard = world.volumes.map(|volume| (volume.at, volume.published));
        let knows = world.late.is_none()
            && self.unanswered == [0; 2]
            && self.heard == Some(heard)
            && self.cache.iter().all(|sight| sight.newest);
        self.leads && knows && world.replicas.iter().all(|replica| replica.doing.is_none())
    }

    /// One that has just begun to lead: it has read where addresses lead.
    pub(super) fn leading(volumes: &[Volume; 2]) -> Self {
        let leads_to = volumes.map(|volume| volume.slice.flatten().map_or(0, bit));
        Self { leads: true, leads_to, ..Self::idle(volumes) }
    }
}

/// What becomes of the world; nothing if the step cannot be taken.
pub(super) fn step(setup: &Setup, world: &World, who: usize, which: Step) -> Option<World> {
    let mut after = world.clone();
    let me = world.replicas[who];
    let volumes = world.volumes;
    match which {
        Step::Poll => {
            let heard = volumes.map(|volume| (volume.at, volume.published));
            (me.leads && me.heard != Some(heard)).then(|| after.replicas[who].heard = Some(heard))?;
        }
        Step::Watch => {
            after.replicas[who].hear(&volumes);
            (after.replicas[who].cache != me.cache).then_some(())?;
        }
        Step::Cached(volume) => return decide(setup, world, who, volume, me.cache[volume]),
        Step::Live(volume) => {
            let live = Sight { slice: volumes[volume].slice, newest: true };
            return decide(setup, world, who, volume, live);
        }
        Step::Land | Step::LandUnheard => {
            let doing = me.doing?;
            after.replicas[who].doing = None;
            let done = land(setup, &mut after, doing);
            if which == Step::Land {
                answered(setup, &mut after.replicas[who], doing, done);
            }
        }
        Step::Vanish => {
            let doing = me.doing.filter(|_| world.late.is_none())?;
            (after.replicas[who].doing, after.late) = (None, Some(doing));
            if let Doing::Slice { which, to: Some(place), .. } = doing {
                after.replicas[who].unanswered[which] |= bit(place);
            }
        }
        Step::Crash => {
            // It loses the lease with everything else; what is on its way arrives, or does not.
            (me.leads && me.doing.is_none() && world.late.is_none())
                .then(|| after.replicas[who] = Replica::idle(&volumes))?;
        }
        Step::Lead => {
            let (other, fenced) = (1 - who, setup.defect != Some(Defect::NoFence));
            if me.leads || (fenced && (world.replicas[other].doing.is_some() || world.late.is_some())) {
                return None;
            }
            after.replicas[other].leads = false;
            let first_look = Replica::leading(&volumes).leads_to;
            after.replicas[who] = Replica {
                leads: true,
                heard: None,
                leads_to: if setup.defect == Some(Defect::NoFirstLook) { [0; 2] } else { first_look },
                ..me
            };
        }
    }
    Some(after)
}

/// What the leader does by itself when nobody disturbs; nothing once it has nothing to do.
pub(super) fn rest(setup: &Setup, world: &World, who: usize) -> Option<World> {
    let steps = [Step::Land, Step::Poll, Step::Watch, Step::Live(0), Step::Live(1)];
    steps.into_iter().find_map(|one| step(setup, world, who, one))
}

fn real(which: Which, heard: (Option<Place>, Option<u8>)) -> SharedVolume {
    let (at, published) = heard;
    SharedVolume {
        endpoint: at.map(|place| place.endpoint().into()),
        published: published.map(|number| format!("10.0.0.{number}:2049").into()),
        ..sample::volume(["v1", "v2"][which])
    }
}

fn real_service(which: Which, address: u8) -> Service {
    sample::service("files", &format!("10.0.0.{address}"), &[(VOLUME_ID, ["v1", "v2"][which])])
}

fn real_slice(which: Which, to: Option<Place>) -> Slice {
    let mut slice = sample::slice("files", "10.1.0.4", 25_705);
    slice.labels.insert(VOLUME_ID.into(), ["v1", "v2"][which].into());
    slice.owners =
        vec![OwnerReference { kind: "Service".into(), uid: "uid-of-files".into(), ..OwnerReference::default() }];
    if let Some(endpoint) = to.and_then(|place| place.endpoint().parse::<SocketAddr>().ok()) {
        slice.targets[0].addresses = vec![endpoint.ip().to_string().into()];
    } else {
        (slice.targets[0].ready, slice.targets[0].serving) = (false, false);
    }
    slice
}

/// The first rule that has an opinion, as the chain has it, but for the one that is missing.
fn without<O, A>(checks: &[Check<O, A>], missing: Option<&str>, seen: &O) -> Option<cluster::decision::Decision<A>> {
    checks.iter().filter(|check| Some(check.holds) != missing).find_map(|check| (check.run)(seen))
}

fn decide(setup: &Setup, world: &World, who: usize, which: Which, sight: Sight) -> Option<World> {
    let me = world.replicas[who];
    let heard = me.heard.filter(|_| me.leads && me.doing.is_none())?;
    let mut after = world.clone();
    let volume = Arc::new(real(which, heard[which]));
    let seen = observe(setup, &me, heard, which, &volume, sight);
    let missing = match setup.defect {
        Some(Defect::WithoutTarget(holds)) => Some(holds),
        _ => None,
    };
    let decision = without(TARGET.checks, missing, &seen).unwrap_or_else(|| (TARGET.otherwise)(&seen));
    let to = match decision.action {
        Action::Leave => return None,
        Action::Withdraw | Action::Wait if setup.defect == Some(Defect::LeftOpen) => return None,
        Action::Withdraw | Action::Wait => None,
        Action::Serve(endpoint) => Some(Place::of(endpoint)?),
    };
    let truth = world.volumes[which];
    let Some(address) = truth.service else {
        // Without a Service nothing leads anywhere.
        if to.is_none() {
            (me.leads_to[which] != 0).then(|| after.replicas[who].leads_to[which] = 0)?;
            return Some(after);
        }
        after.replicas[who].doing = Some(create(setup, world, which, &volume)?);
        return Some(after);
    };
    if matches!(setup.defect, Some(Defect::WithoutPublication(_)))
        && to.is_some()
        && sight.slice.flatten() != to
        && publication(setup, &volume, which, address, to, sight).is_some()
    {
        after.broken = Some(Broken::PublishedNothing);
        return Some(after);
    }
    let service = Arc::new(real_service(which, address));
    let slices: Vec<Slice> = sight.slice.map(|to| real_slice(which, to)).into_iter().collect();
    let endpoint = to.and_then(|place| place.endpoint().parse().ok());
    let way = way::Observation { volume: Arc::clone(&volume), service, slices, mirrored: false, endpoint };
    match WAY.decide(&way).action {
        way::Action::Write(_) => {
            let mut is_news = false;
            if let Some(place) = to {
                misled(world, &mut after, which, place, heard);
                is_news = me.leads_to[which] & bit(place) == 0;
                after.replicas[who].leads_to[which] |= bit(place);
            }
            after.replicas[who].doing = Some(Doing::Slice { which, to, newest: sight.newest, is_news });
        }
        // Only what was read live counts as verified.
        way::Action::Settled if sight.newest => {
            let led = to.map_or(0, bit);
            let publish = publication(setup, &volume, which, address, to, sight);
            if me.leads_to[which] == led && publish.is_none() {
                return None;
            }
            if publish.is_some() && (to.is_none() || sight.slice.flatten() != to) {
                after.broken = Some(Broken::PublishedNothing);
            }
            after.replicas[who].leads_to[which] = led;
            after.replicas[who].doing = publish;
        }
        _ => return None,
    }
    Some(after)
}

fn observe(
    setup: &Setup,
    me: &Replica,
    heard: [(Option<Place>, Option<u8>); 2],
    which: Which,
    volume: &Arc<SharedVolume>,
    sight: Sight,
) -> Observation {
    let other = 1 - which;
    let name = || Some(Arc::from(["v1", "v2"][other]));
    let (at, _) = heard[which];
    let remembers = setup.defect != Some(Defect::NoMemory);
    let cached = me.cache[other].slice.flatten();
    let written = if setup.defect == Some(Defect::NotLate) { 0 } else { me.unanswered[other] } | me.leads_to[other];
    let holds = |place: Place| (remembers && written & bit(place) != 0) || cached == Some(place);
    let leads_there = |place: Place| me.leads_to[which] & bit(place) != 0 || sight.slice.flatten() == Some(place);
    Observation {
        volume: Arc::clone(volume),
        gone: false,
        looked_after: None,
        allowed: Arc::new([]),
        services: Arc::new([]),
        endpoint_gone: if setup.keeps { EndpointGone::Keep } else { EndpointGone::Withdraw },
        rival: at.filter(|place| heard[other].0 == Some(*place)).and_then(|_| name()),
        taken_by: heard[other].0.filter(|place| leads_there(*place)).and_then(|_| name()),
        holder: at.filter(|place| holds(*place)).and_then(|_| name()),
        claim: ClaimSeen::There,
    }
}

/// By what was heard last, the address may lead there.
fn misled(world: &World, after: &mut World, which: Which, place: Place, heard: [(Option<Place>, Option<u8>); 2]) {
    let told = heard[which].0 == Some(place) && heard[1 - which].0 != Some(place);
    if !told && world.broken.is_none() {
        after.broken = Some(Broken::Misled);
    }
}

fn create(setup: &Setup, world: &World, which: Which, volume: &SharedVolume) -> Option<Doing> {
    let remembered = remembered(volume);
    let taken = volume.published.as_deref().and_then(number).is_some_and(|address| !is_free(world, address));
    let seen = address::Observation {
        id: Box::from(&*volume.id),
        endpoint: volume.endpoint.as_deref()?.parse().ok()?,
        service: None,
        free_name: Some("files".to_owned()),
        remembered,
        refused: taken,
    };
    let address::Action::Create { address, .. } = ADDRESS.decide(&seen).action else { return None };
    let asked = address.and(volume.published.as_deref()).and_then(number);
    let asked = asked.filter(|_| setup.defect != Some(Defect::AnyAddress));
    Some(Doing::Service { which, asked })
}

/// Whether nobody has an address.
fn is_free(world: &World, address: u8) -> bool {
    world.stolen & (1 << address) == 0 && world.volumes.iter().all(|volume| volume.service != Some(address))
}

/// The last number of an address.
fn number(published: &str) -> Option<u8> {
    published.strip_prefix("10.0.0.")?.strip_suffix(":2049")?.parse().ok()
}

fn publication(
    setup: &Setup,
    volume: &SharedVolume,
    which: Which,
    address: u8,
    to: Option<Place>,
    sight: Sight,
) -> Option<Doing> {
    let ready = Ready {
        endpoint: to.and_then(|place| place.endpoint().parse().ok()),
        service: Some(real_service(which, address)),
        slices: Some(sight.slice.map(|to| real_slice(which, to)).into_iter().collect()),
        published: volume.published.clone(),
        answers: None,
    };
    let missing = match setup.defect {
        Some(Defect::WithoutPublication(holds)) => Some(holds),
        _ => None,
    };
    let decision = without(PUBLISH.checks, missing, &ready).unwrap_or_else(|| (PUBLISH.otherwise)(&ready));
    match decision.action {
        Publication::Publish(socket) => {
            Some(Doing::Publish { which, address: number(&socket.to_string())?, newest: true })
        }
        Publication::Leave | Publication::Wait => None,
    }
}

/// The server does what it is asked, if its conditions hold. Whether it did.
pub(super) fn land(setup: &Setup, world: &mut World, doing: Doing) -> bool {
    match doing {
        Doing::Slice { which, to, newest, .. } => {
            if (!newest && setup.defect != Some(Defect::AnyVersion)) || world.volumes[which].service.is_none() {
                return false;
            }
            world.volumes[which].slice = Some(to);
            world.changed(which);
            let other = world.volumes[1 - which].slice.flatten();
            if to.is_some() && to == other {
                world.broken = Some(Broken::Shared);
            }
            true
        }
        Doing::Service { which, asked } => {
            let volume = world.volumes[which];
            let free = |address: u8| is_free(world, address);
            if volume.service.is_some() || asked.is_some_and(|address| !free(address)) {
                return false;
            }
            // Whoever asks for nothing gets what nobody ever had.
            let new = || (3..8).find(|number| free(*number));
            let Some(address) = asked.or_else(new) else { return false };
            if volume.published.is_some_and(|published| published != address && free(published)) {
                world.broken = Some(Broken::AddressChanged);
            }
            world.volumes[which].service = Some(address);
            true
        }
        Doing::Publish { which, address, .. } => {
            world.volumes[which].published = Some(address);
            true
        }
    }
}

/// The replica hears what became of it.
fn answered(setup: &Setup, me: &mut Replica, doing: Doing, done: bool) {
    match doing {
        Doing::Slice { which, to: Some(place), is_news, .. }
            if !done && (is_news || setup.defect == Some(Defect::ForgetsRefused)) =>
        {
            me.leads_to[which] &= !bit(place);
        }
        Doing::Slice { which, to, .. } if done => (me.leads_to[which], me.unanswered[which]) = (to.map_or(0, bit), 0),
        Doing::Publish { which, address, .. } if done => {
            if let Some(heard) = &mut me.heard {
                heard[which].1 = Some(address);
            }
        }
        _ => {}
    }
    if setup.defect == Some(Defect::NoMemory) {
        me.leads_to = [0; 2];
    }
}
