//! What there is in the modelled cluster. Everything is small and can be counted; what the rules see of it is made in
//! `real.rs`.

use crate::seen::ClaimSeen;

/// The names that claims may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Slot {
    /// The first tenant's claim, which has the volume at first.
    Build,
    /// Another one of the same namespace.
    Next,
    /// The second tenant's, in a namespace of its own.
    Shop,
}

impl Slot {
    pub(super) const ALL: [Self; 3] = [Self::Build, Self::Next, Self::Shop];

    pub(super) fn namespace(self) -> &'static str {
        if self == Self::Shop { "shop" } else { "ci" }
    }

    pub(super) fn name(self) -> &'static str {
        if self == Self::Next { "next" } else { "build" }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Reference {
    pub(super) slot: Slot,
    pub(super) uid: Option<u8>,
}

/// What the volume remembers of the claim that it had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Previous {
    pub(super) slot: Slot,
    pub(super) uid: u8,
    pub(super) until: u8,
    pub(super) next: Option<(Slot, u8)>,
    pub(super) taken_back: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Phase {
    Available,
    Bound,
    Released,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(clippy::struct_excessive_bools, reason = "each is a field of the real object")]
pub(super) struct Volume {
    pub(super) phase: Phase,
    pub(super) since: u8,
    pub(super) claim: Option<Reference>,
    /// Whether it has the label of the association.
    pub(super) associated: bool,
    pub(super) by_controller: bool,
    pub(super) previous: Option<Previous>,
    pub(super) retained: bool,
    pub(super) being_deleted: bool,
}

/// Which volume a claim has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Has {
    Nothing,
    TheVolume,
    AnotherOne,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Claim {
    pub(super) uid: u8,
    pub(super) labelled: bool,
    pub(super) has: Has,
    /// Whose it is. Nobody in the cluster can see that.
    pub(super) tenant: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Namespace {
    Gone,
    Terminating,
    There(u8),
}

/// The class's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Word {
    Nothing,
    Soft,
    Namespace,
    Pool,
    Never,
}

pub(super) type Claims = [Option<Claim>; 3];

/// A volume as somebody saw it, and whether it still is the newest version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Sight {
    pub(super) volume: Volume,
    pub(super) newest: bool,
}

/// What the rules are told of a claim's name; the order is only for the canonical form of a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Stands {
    Gone,
    Same,
    Waiting,
    Served,
}

impl From<Stands> for ClaimSeen {
    fn from(stands: Stands) -> Self {
        match stands {
            Stands::Gone => Self::Gone,
            Stands::Same => Self::Same,
            Stands::Waiting => Self::Waiting,
            Stands::Served => Self::Served,
        }
    }
}

/// What is read live, as far as it has been.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Look {
    pub(super) class: Option<Word>,
    pub(super) claim: Option<Stands>,
    pub(super) attached: Option<bool>,
    #[expect(clippy::option_option, reason = "nobody has looked, or nobody waits")]
    pub(super) candidate: Option<Option<(Slot, u8)>>,
    pub(super) namespace: Option<Namespace>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum To {
    Pool,
    SameName,
    Claim(Slot, u8),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Write {
    Associate,
    Release(To),
    Restore,
}

/// What was so when the work began: the rules must not overlook it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct AtFirst {
    pub(super) never: bool,
    /// The claim of the name that had another volume.
    pub(super) served: Option<u8>,
}

/// How far the work on the volume got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Stage {
    Idle,
    Looking {
        seen: Sight,
        look: Look,
        first: AtFirst,
    },
    /// `elsewhere`: whether the claim that the volume was given to has another one, once that is read.
    Keeping {
        seen: Sight,
        elsewhere: Option<bool>,
    },
    Writing {
        seen: Sight,
        write: Write,
        first: AtFirst,
    },
}

/// One process of the releaser: its caches, each as old as it likes, and what it is about to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Replica {
    pub(super) volume: Sight,
    pub(super) class: Word,
    pub(super) namespace: Namespace,
    pub(super) claims: Claims,
    pub(super) stage: Stage,
}

/// Who may have the volume next, as was promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Promise {
    /// Only the claim that has it.
    Owner,
    /// Its tenant, by the claim's name. `kept`: when it was given, the namespace had not been made anew.
    SameName { kept: bool },
    /// Its tenant, by a claim's uid.
    OneClaim,
    /// Everybody: that is the pool, or an administrator's word.
    Everybody,
}

/// What nobody in the cluster knows, and everybody relies on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Truth {
    /// The claim whose data is on the volume, and its tenant.
    pub(super) owner: (Slot, u8, u8),
    /// Whether that claim asked for the release of its volume.
    pub(super) asked: bool,
    pub(super) promise: Promise,
    /// The tenant whom an administrator gave the volume to, until it is bound.
    pub(super) given: Option<(Slot, u8)>,
    /// The tenant who has the first namespace.
    pub(super) tenant: u8,
    pub(super) broken: Option<Broken>,
}

/// What must never happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Broken {
    /// A Bound volume was written to.
    BoundVolume,
    /// The claim was there.
    ClaimThere,
    Attached,
    /// An administrator had given the volume to somebody.
    PreBinding,
    /// The volume was on its way out.
    GoingAway,
    /// The class said `never` before anybody looked.
    SaidNever,
    /// Nobody had asked for it.
    NotAsked,
    /// The new claim of the name had another volume before anybody looked.
    ServedElsewhere,
    /// A volume that is for a waiting claim went to a name.
    NobodyWaited,
    /// The configuration or the options of the class forbid it.
    Forbidden,
    /// Another namespace has the data.
    OtherNamespace,
    /// Another tenant has the data, by a namespace that was made anew.
    OtherTenant,
    /// A claim has the data that nobody gave it to.
    Stray,
    /// It was eligible, nothing happens any more, and it is as it was.
    Forgotten,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct World {
    pub(super) volume: Volume,
    pub(super) claims: Claims,
    pub(super) namespace: Namespace,
    pub(super) class: Word,
    pub(super) attached: bool,
    pub(super) now: u8,
    pub(super) next_uid: u8,
    /// How much people still do.
    pub(super) left: u8,
    pub(super) replicas: [Replica; 2],
    pub(super) truth: Truth,
}

impl World {
    /// The first tenant's claim has the volume, a pod uses it, and all caches are right.
    pub(super) fn new(class: Word, labelled: bool, people: u8) -> Self {
        let (uid, tenant) = (1, 0);
        let claim = Reference { slot: Slot::Build, uid: Some(uid) };
        let volume = Volume {
            phase: Phase::Bound,
            since: 1,
            claim: Some(claim),
            associated: false,
            by_controller: true,
            previous: None,
            retained: true,
            being_deleted: false,
        };
        let claims = [Some(Claim { uid, labelled, has: Has::TheVolume, tenant }), None, None];
        let namespace = Namespace::There(0);
        let replica = Replica { volume: Sight { volume, newest: true }, class, namespace, claims, stage: Stage::Idle };
        let truth = Truth {
            owner: (Slot::Build, uid, tenant),
            asked: labelled,
            promise: Promise::Owner,
            given: None,
            tenant,
            broken: None,
        };
        Self {
            volume,
            claims,
            namespace,
            class,
            attached: true,
            now: 1,
            next_uid: 2,
            left: people,
            replicas: [replica; 2],
            truth,
        }
    }

    pub(super) fn claim(&self, slot: Slot) -> Option<&Claim> {
        self.claims[slot as usize].as_ref()
    }

    /// The claim that the volume refers to, if it is there.
    pub(super) fn referred(&self) -> Option<&Claim> {
        let reference = self.volume.claim?;
        self.claim(reference.slot).filter(|claim| Some(claim.uid) == reference.uid)
    }

    /// The API server takes a write: whoever decided by the version before is refused from now on.
    pub(super) fn put(&mut self, volume: Volume) {
        self.volume = volume;
        for replica in &mut self.replicas {
            replica.volume.newest = false;
            match &mut replica.stage {
                Stage::Looking { seen, .. } | Stage::Keeping { seen, .. } | Stage::Writing { seen, .. } => {
                    seen.newest = false;
                }
                Stage::Idle => {}
            }
        }
    }

    pub(super) fn enter(&mut self, phase: Phase) {
        self.put(Volume { phase, since: self.now, ..self.volume });
    }
}
