//! Kubernetes and the people who use it.
//!
//! The binding follows `pv_controller.go`: a volume without `claimRef`, or with one without uid, becomes Available; one whose
//! claim is not there any more becomes Released; a claim takes a volume in three writes (`claimRef`, phase, `volumeName`)
//! between which anything may happen; a volume that refers to a claim with another volume is given up, down to the name if
//! the reference was not Kubernetes' own. A claim may name its volume, so that the phase keeps nobody from binding.

use super::{
    Setup,
    world::{Broken, Claim, Has, Namespace, Phase, Promise, Reference, Slot, Stage, To, Volume, Word, World, Write},
};

/// What people do, each at the cost of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Deed {
    Create(Slot, bool),
    Delete(Slot),
    DeleteNamespace,
    MakeNamespaceAnew,
    Attach,
    GetAnotherVolume(Slot),
    PreBind(Slot),
    SayNever,
    DeleteVolume,
    SetPolicyDelete,
}

/// What happens by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Event {
    Second,
    Detach,
    NamespaceLosesClaim(Slot),
    NamespaceEnds,
    SyncVolume,
    SyncClaim(Slot),
}

pub(super) const EVENTS: [Event; 9] = [
    Event::Second,
    Event::Detach,
    Event::NamespaceLosesClaim(Slot::Build),
    Event::NamespaceLosesClaim(Slot::Next),
    Event::NamespaceEnds,
    Event::SyncVolume,
    Event::SyncClaim(Slot::Build),
    Event::SyncClaim(Slot::Next),
    Event::SyncClaim(Slot::Shop),
];

pub(super) fn deeds(world: &World, setup: &Setup) -> Vec<Deed> {
    if world.left == 0 {
        return Vec::new();
    }
    let mut deeds = Vec::new();
    if !setup.only_tenants {
        deeds.extend([Deed::Attach, Deed::SayNever, Deed::DeleteVolume, Deed::SetPolicyDelete]);
        deeds.extend(Slot::ALL.map(Deed::PreBind));
    }
    if setup.other_volumes() {
        deeds.extend(Slot::ALL.map(Deed::GetAnotherVolume));
    }
    if setup.needs_namespaces() {
        deeds.extend([Deed::DeleteNamespace, Deed::MakeNamespaceAnew]);
    }
    // To all others one more claim of the first tenant is like the second tenant's.
    let slots = Slot::ALL.into_iter().filter(|slot| *slot != Slot::Next || setup.word == Word::Namespace);
    for slot in slots {
        deeds.extend([Deed::Create(slot, false), Deed::Delete(slot)]);
        deeds.extend(setup.by_label().then_some(Deed::Create(slot, true)));
    }
    deeds
}

pub(super) fn perform(world: &World, deed: Deed, setup: &Setup) -> Option<World> {
    let mut after = world.clone();
    after.left -= 1;
    let possible = match deed {
        Deed::Create(slot, labelled) => create(&mut after, slot, labelled),
        Deed::Delete(slot) => after.claims[slot as usize].take().is_some(),
        Deed::DeleteNamespace => {
            after.namespace = Namespace::Terminating;
            matches!(world.namespace, Namespace::There(_))
        }
        Deed::MakeNamespaceAnew => {
            after.namespace = Namespace::There(world.now);
            after.truth.tenant += 1;
            world.namespace == Namespace::Gone && setup.assumed(world)
        }
        Deed::Attach => {
            after.attached = true;
            !world.attached && world.referred().is_some_and(|claim| claim.has == Has::TheVolume)
        }
        Deed::GetAnotherVolume(slot) => match &mut after.claims[slot as usize] {
            Some(claim) if claim.has == Has::Nothing => {
                claim.has = Has::AnotherOne;
                true
            }
            _ => false,
        },
        // Known gap: until Kubernetes has noted that a volume was taken back, an administrator who gives it to the same name
        // is taken for us, and overruled once.
        Deed::PreBind(slot) => {
            let noted = happen(world, Event::SyncVolume, setup).is_none();
            (noted || !setup.phases_are_prompt) && pre_bind(&mut after, slot)
        }
        Deed::SayNever => {
            after.class = Word::Never;
            world.class != Word::Never
        }
        Deed::DeleteVolume => {
            after.put(Volume { being_deleted: true, ..world.volume });
            !world.volume.being_deleted
        }
        Deed::SetPolicyDelete => {
            after.put(Volume { retained: false, ..world.volume });
            world.volume.retained
        }
    };
    possible.then_some(after)
}

fn create(world: &mut World, slot: Slot, labelled: bool) -> bool {
    let there = slot == Slot::Shop || matches!(world.namespace, Namespace::There(_));
    let tenant = if slot == Slot::Shop { u8::MAX } else { world.truth.tenant };
    let free = world.claim(slot).is_none();
    world.claims[slot as usize] = Some(Claim { uid: world.next_uid, labelled, has: Has::Nothing, tenant });
    world.next_uid += 1;
    there && free
}

/// An administrator takes a volume whose claim is gone, and gives it to somebody who is there.
fn pre_bind(world: &mut World, slot: Slot) -> bool {
    let there = slot == Slot::Shop || matches!(world.namespace, Namespace::There(_));
    let possible = there && world.volume.phase != Phase::Bound && world.referred().is_none();
    let claim = Some(Reference { slot, uid: None });
    let changed = world.volume.claim != claim;
    world.put(Volume { claim, ..world.volume });
    world.truth.given = Some((slot, world.truth.tenant));
    world.truth.promise = Promise::Everybody;
    possible && changed
}

pub(super) fn happen(world: &World, event: Event, setup: &Setup) -> Option<World> {
    let mut after = world.clone();
    let possible = match event {
        Event::Second => {
            // Only the order of times counts: a second in which nothing was noted need not pass.
            after.now += 1;
            setup.needs_namespaces()
                && (world.volume.since == world.now || world.namespace == Namespace::There(world.now))
        }
        Event::Detach => std::mem::take(&mut after.attached),
        Event::NamespaceLosesClaim(slot) => {
            world.namespace == Namespace::Terminating && after.claims[slot as usize].take().is_some()
        }
        Event::NamespaceEnds => {
            after.namespace = Namespace::Gone;
            let empty = world.claims[..2].iter().all(Option::is_none);
            empty && world.namespace == Namespace::Terminating
        }
        Event::SyncVolume => sync_volume(&mut after),
        Event::SyncClaim(slot) => sync_claim(&mut after, slot, setup),
    };
    possible.then_some(after)
}

fn sync_volume(world: &mut World) -> bool {
    let volume = world.volume;
    let phase = match (volume.claim, world.referred().map(|claim| claim.has)) {
        (None | Some(Reference { uid: None, .. }), _) => Phase::Available,
        (Some(_), None) => Phase::Released,
        (Some(_), Some(Has::TheVolume)) => Phase::Bound,
        (Some(_), Some(Has::Nothing)) => return false,
        (Some(reference), Some(Has::AnotherOne)) => {
            let claim = (!volume.by_controller).then_some(Reference { uid: None, ..reference });
            world.put(Volume { claim, by_controller: false, ..volume });
            return true;
        }
    };
    if volume.phase != phase {
        world.enter(phase);
    }
    volume.phase != phase
}

fn sync_claim(world: &mut World, slot: Slot, setup: &Setup) -> bool {
    let Some(claim) = world.claim(slot).copied().filter(|claim| claim.has != Has::AnotherOne) else { return false };
    let volume = world.volume;
    let bound = Some(Reference { slot, uid: Some(claim.uid) });
    match volume.claim {
        None if !volume.being_deleted => {
            world.put(Volume { claim: bound, by_controller: true, ..volume });
            refer(world, claim, setup);
        }
        Some(Reference { slot: meant, uid: None }) if meant == slot && !volume.being_deleted => {
            world.put(Volume { claim: bound, ..volume });
            refer(world, claim, setup);
        }
        _ if volume.claim == bound && claim.has == Has::Nothing => {
            if volume.phase == Phase::Bound {
                world.claims[slot as usize] = Some(Claim { has: Has::TheVolume, ..claim });
                take(world, slot, claim, setup);
            } else {
                world.enter(Phase::Bound);
            }
        }
        _ => return false,
    }
    true
}

/// What an administrator wanted is done, and it is this claim's label that counts, unless the administrator has left the
/// volume's own as it was.
fn refer(world: &mut World, claim: Claim, setup: &Setup) {
    let late = world.truth.promise == Promise::SameName { kept: true } && claim.tenant != world.truth.owner.2;
    if late && setup.late_take_back_is_excused {
        // What was to be kept is lost already, even if the claim goes before it is bound.
        world.truth.promise = Promise::Everybody;
    }
    let given = world.truth.given.take().is_some();
    world.truth.asked = claim.labelled || (given && world.volume.associated);
}

/// The claim has the volume, and its pods read what is on it.
fn take(world: &mut World, slot: Slot, claim: Claim, setup: &Setup) {
    let (owner, _, tenant) = world.truth.owner;
    let same_namespace = owner.namespace() == slot.namespace();
    world.truth.broken = match world.truth.promise {
        Promise::Everybody => None,
        Promise::Owner => ((slot, claim.uid, claim.tenant) != world.truth.owner).then_some(Broken::Stray),
        Promise::SameName { .. } | Promise::OneClaim if !same_namespace => Some(Broken::OtherNamespace),
        // Known gap: the volume is kept for a name, the namespace is made anew, and its new tenant is faster than the
        // releaser, which may be down.
        Promise::SameName { kept: true } if setup.late_take_back_is_excused => None,
        Promise::SameName { .. } | Promise::OneClaim => (claim.tenant != tenant).then_some(Broken::OtherTenant),
    };
    world.truth.owner = (slot, claim.uid, claim.tenant);
    world.truth.promise = Promise::Owner;
}

impl Setup {
    /// What the rules rely on and nothing enforces. A namespace takes seconds to go and to be made anew, because all that is
    /// in it has to go first.
    fn assumed(&self, world: &World) -> bool {
        let on_its_way = |stage: &Stage| match stage {
            Stage::Looking { look, .. } => look.namespace.is_some(),
            Stage::Writing { write, .. } => matches!(write, Write::Release(To::SameName)),
            Stage::Idle | Stage::Keeping { .. } => false,
        };
        let written = !world.replicas.iter().any(|replica| on_its_way(&replica.stage));
        let noted = happen(world, Event::SyncVolume, self).is_none();
        (written || !self.writes_are_prompt) && (noted || !self.phases_are_prompt)
    }
}
