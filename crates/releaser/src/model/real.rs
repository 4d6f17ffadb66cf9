//! What the rules see of the modelled world, and what their writes do to it: real objects, real rules, real patches.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    hash::Hash,
    sync::Arc,
};

use cluster::{Class, ObjectKey, store::Slim, volume::VolumePhase};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{
    Defect, Setup,
    world::{Claim, Claims, Has, Look, Namespace, Phase, Previous, Reference, Slot, To, Volume, Word, Write},
};
use crate::{
    association::{self, ASSOCIATE},
    decision::{self, Action, Observation, RELEASE_VOLUME},
    policy::{self, MANAGED_BY, Mode, PREVIOUS_CLAIM, PROVISIONED_BY, RELEASE},
    previous::{GivenTo, PreviousClaim},
    reservation::{self, KEEP, reserved_for},
    seen::{Attached, Candidate, ClaimSeen, Live, NamespaceSeen},
    write,
};

const CONTROLLER_ID: &str = "claimkeeper";
/// The version of every volume that somebody decides about. If it is not the newest, the server has another.
const VERSION: &str = "7";

/// What is decided about a Released volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    Nothing,
    Look,
    Release(To),
}

type Memory<K, V> = RefCell<HashMap<K, V>>;

thread_local! {
    // The same few objects are looked at in each of many worlds.
    static VOLUMES: Memory<Volume, Arc<cluster::Volume>> = RefCell::default();
    static WRITTEN: Memory<(Setup, Volume, Volume, Write), (bool, Volume)> = RefCell::default();
    static ANSWERS: Memory<(Setup, Volume, Word, Option<Look>), Answer> = RefCell::default();
    static ASSOCIATED: Memory<(Setup, Volume, Word, Option<Claim>), bool> = RefCell::default();
    static RESTORED: Memory<(Volume, Namespace, Option<bool>), reservation::Action> = RefCell::default();
}

fn remembered<K: Copy + Eq + Hash, V: Clone>(
    memory: &'static std::thread::LocalKey<Memory<K, V>>,
    key: K,
    make: impl FnOnce() -> V,
) -> V {
    if let Some(known) = memory.with_borrow(|memory| memory.get(&key).cloned()) {
        return known;
    }
    let new = make();
    memory.with_borrow_mut(|memory| memory.insert(key, new.clone()));
    new
}

fn time(second: u8) -> Timestamp {
    "2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap() + SignedDuration::from_secs(second.into())
}

fn second(time_of: Timestamp) -> u8 {
    u8::try_from(time_of.duration_since(time(0)).as_secs()).unwrap()
}

fn uid(number: u8) -> String {
    format!("c{number}")
}

fn number(uid: &str) -> u8 {
    uid[1..].parse().unwrap()
}

fn json_of(volume: &Volume) -> Value {
    let reference = |reference: Reference| {
        let Reference { slot, uid: known } = reference;
        json!({"namespace": slot.namespace(), "name": slot.name(), "uid": known.map(uid)})
    };
    let mut json = json!({
        "metadata": {"name": "pv-1", "uid": "v1", "resourceVersion": VERSION, "labels": {}, "annotations": {}},
        "spec": {
            "persistentVolumeReclaimPolicy": if volume.retained { "Retain" } else { "Delete" },
            "storageClassName": "cache",
            "claimRef": volume.claim.map(reference),
        },
        "status": {"phase": format!("{:?}", volume.phase), "lastPhaseTransitionTime": time(volume.since).to_string()},
    });
    if volume.associated {
        json["metadata"]["labels"][MANAGED_BY] = CONTROLLER_ID.into();
    }
    if volume.by_controller {
        json["metadata"]["annotations"][cluster::volume::BOUND_BY_CONTROLLER] = "yes".into();
    }
    if let Some(Previous { slot, uid: number, until, next, taken_back }) = volume.previous {
        let previous = PreviousClaim {
            namespace: slot.namespace().to_owned(),
            name: slot.name().to_owned(),
            uid: uid(number),
            gone_since: Some(time(until)),
            given_to: next.map(|(next, number)| GivenTo { name: next.name().to_owned(), uid: uid(number) }),
            taken_back,
        };
        json["metadata"]["annotations"][PREVIOUS_CLAIM] = json!(previous).to_string().into();
    }
    if volume.being_deleted {
        json["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    }
    json
}

fn from_json(json: Value) -> cluster::Volume {
    cluster::Volume::from_wire(serde_json::from_value(json).unwrap()).unwrap()
}

fn volume_of(volume: &Volume) -> Arc<cluster::Volume> {
    remembered(&VOLUMES, *volume, || Arc::new(from_json(json_of(volume))))
}

/// The way back: nothing that the model does not know may have come into it.
fn model_of(volume: &cluster::Volume) -> Volume {
    let slot = |key: &ObjectKey| {
        let same = |slot: &Slot| (slot.namespace(), slot.name()) == (key.namespace(), key.name());
        Slot::ALL.into_iter().find(same).unwrap()
    };
    Volume {
        phase: match volume.phase {
            VolumePhase::Available => Phase::Available,
            VolumePhase::Bound => Phase::Bound,
            VolumePhase::Released => Phase::Released,
            other => panic!("no step leads to {other:?}"),
        },
        since: second(volume.phase_since.unwrap()),
        claim: volume
            .claim
            .as_ref()
            .map(|claim| Reference { slot: slot(&claim.key), uid: claim.uid.as_deref().map(number) }),
        associated: volume.labels.get(MANAGED_BY).is_some_and(|id| id == CONTROLLER_ID),
        by_controller: volume.annotations.contains_key(cluster::volume::BOUND_BY_CONTROLLER),
        previous: PreviousClaim::of(volume).map(|previous| Previous {
            slot: slot(&previous.key()),
            uid: number(&previous.uid),
            until: second(previous.gone_since.unwrap()),
            next: previous
                .given_to
                .as_ref()
                .map(|next| (slot(&ObjectKey::new(&previous.namespace, &next.name)), number(&next.uid))),
            taken_back: previous.taken_back,
        }),
        retained: volume.retained,
        being_deleted: volume.being_deleted,
    }
}

fn class_of(setup: &Setup, word: Word) -> Arc<Class> {
    let mode = match word {
        Word::Nothing => None,
        Word::Soft => Some("soft"),
        Word::Namespace => Some("namespace"),
        Word::Pool => Some("pool"),
        Word::Never => Some("never"),
    };
    let mode = mode.map(|mode| (RELEASE, mode));
    let annotations = mode.into_iter().chain(setup.option).map(|(key, value)| (key.to_owned(), value.to_owned()));
    Arc::new(Class {
        key: ObjectKey::new("", "cache"),
        uid: "s1".into(),
        annotations: annotations.collect(),
        created: Timestamp::UNIX_EPOCH,
        is_default: false,
        provisioner: "disks.example.dev".into(),
        parameters: BTreeMap::new(),
        provisions: setup.provisions_at_once,
        waits_for_consumer: !setup.provisions_at_once,
    })
}

fn namespace_of(namespace: Namespace) -> NamespaceSeen {
    match namespace {
        Namespace::Gone => NamespaceSeen::Gone,
        Namespace::Terminating => NamespaceSeen::Terminating,
        Namespace::There(created) => NamespaceSeen::There(time(created)),
    }
}

fn live_of(look: Look) -> Live {
    let candidate = look.candidate.flatten().map(|(slot, number)| Candidate {
        key: ObjectKey::new(slot.namespace(), slot.name()),
        uid: uid(number).into(),
    });
    Live {
        claim: look.claim.map_or(ClaimSeen::Gone, ClaimSeen::from),
        namespace: look.namespace.map(namespace_of),
        attached: if look.attached == Some(true) { Attached::Yes } else { Attached::No },
        candidate,
    }
}

/// By which mode a volume is released, as the reader of live objects is told.
pub(super) fn mode(setup: &Setup, volume: &Volume, word: Word) -> Mode {
    policy::mode(&volume_of(volume), Some(&*class_of(setup, word)), CONTROLLER_ID)
}

pub(super) fn release(setup: &Setup, volume: &Volume, word: Word, look: Option<Look>) -> Answer {
    remembered(&ANSWERS, (*setup, *volume, word, look), || {
        let seen = Observation {
            volume: volume_of(volume),
            class: Some(class_of(setup, word)),
            controller_id: CONTROLLER_ID.into(),
            namespace: setup.only_namespace.map(Arc::from),
            dry_run: setup.dry_run,
            available: 0,
            live: look.map(live_of),
            scrubbed: false,
            now: time(u8::MAX),
        };
        let missing = |holds| setup.defect == Some(Defect::WithoutCheck(holds));
        let mut checks = RELEASE_VOLUME.checks.iter().filter(|check| !missing(check.holds));
        let decision = checks.find_map(|check| (check.run)(&seen));
        match decision.unwrap_or_else(|| (RELEASE_VOLUME.otherwise)(&seen)).action {
            Action::Look => Answer::Look,
            Action::Release(to) => Answer::Release(match to {
                decision::To::Pool => To::Pool,
                decision::To::SameName => To::SameName,
                decision::To::Claim(Candidate { key, uid }) => {
                    let slot = if key.name() == Slot::Next.name() { Slot::Next } else { Slot::Build };
                    To::Claim(if key.namespace() == Slot::Shop.namespace() { Slot::Shop } else { slot }, number(&uid))
                }
            }),
            _ => Answer::Nothing,
        }
    })
}

/// Whether the volume gets the label of the association.
pub(super) fn associate(setup: &Setup, volume: &Volume, word: Word, claims: &Claims) -> bool {
    let claim = volume.claim.and_then(|claim| claims[claim.slot as usize]);
    remembered(&ASSOCIATED, (*setup, *volume, word, claim), || {
        let by_name = setup.defect == Some(Defect::AssociationByName);
        let claim = volume.claim.zip(claim).map(|(reference, claim)| {
            let known = if by_name { reference.uid.unwrap_or(claim.uid) } else { claim.uid };
            let labels = if claim.labelled { json!({PROVISIONED_BY: CONTROLLER_ID}) } else { Value::Null };
            let (namespace, name) = (reference.slot.namespace(), reference.slot.name());
            let metadata = json!({"namespace": namespace, "name": name, "uid": uid(known), "labels": labels});
            let volume = match claim.has {
                _ if setup.defect == Some(Defect::AssociationBeforeBinding) => "pv-1".into(),
                Has::Nothing => Value::Null,
                Has::TheVolume => "pv-1".into(),
                Has::AnotherOne => "pv-2".into(),
            };
            let wire = serde_json::from_value(json!({"metadata": metadata, "spec": {"volumeName": volume}})).unwrap();
            Arc::new(cluster::Claim::from_wire(wire).unwrap())
        });
        let seen = association::Observation {
            volume: volume_of(volume),
            class: Some(class_of(setup, word)),
            claim,
            controller_id: CONTROLLER_ID.into(),
            automatic: true,
        };
        ASSOCIATE.decide(&seen).action == association::Action::Associate
    })
}

/// The slot of the claim whose name the volume is kept for.
pub(super) fn kept_for(volume: &Volume) -> Option<Slot> {
    reserved_for(&volume_of(volume))?;
    volume.claim.map(|claim| claim.slot)
}

/// What becomes of a volume that is kept for a name.
pub(super) fn keep(volume: &Volume, namespace: Namespace, served_elsewhere: Option<bool>) -> reservation::Action {
    remembered(&RESTORED, (*volume, namespace, served_elsewhere), || {
        let (volume, namespace) = (volume_of(volume), namespace_of(namespace));
        let seen = reservation::Observation { volume, namespace, served_elsewhere, looked_after: None };
        KEEP.decide(&seen).action
    })
}

/// What becomes of the volume by a write that was decided for `seen`; none if the server refuses it.
pub(super) fn written(setup: &Setup, now: &Volume, seen: &Volume, newest: bool, change: Write) -> Option<Volume> {
    let (any_version, after) = remembered(&WRITTEN, (*setup, *now, *seen, change), || {
        let patch = patch(setup, seen, change);
        let any_version = patch["metadata"]["resourceVersion"] != VERSION || patch["metadata"]["uid"] != "v1";
        let mut json = json_of(now);
        json_patch::merge(&mut json, &patch);
        json["metadata"]["resourceVersion"] = VERSION.into();
        (any_version, model_of(&from_json(json)))
    });
    (newest || any_version).then_some(after)
}

fn patch(setup: &Setup, seen: &Volume, change: Write) -> Value {
    let volume = volume_of(seen);
    let mut patch = match change {
        Write::Associate => write::associate(&volume, MANAGED_BY, CONTROLLER_ID),
        Write::Restore => reserved_for(&volume).map(|previous| write::restore(&volume, &previous)).unwrap(),
        Write::Release(To::Pool) => write::release(&volume, &decision::To::Pool),
        Write::Release(To::SameName) => write::release(&volume, &decision::To::SameName),
        Write::Release(To::Claim(slot, number)) => {
            let key = ObjectKey::new(slot.namespace(), slot.name());
            write::release(&volume, &decision::To::Claim(Candidate { key, uid: uid(number).into() }))
        }
    };
    match setup.defect {
        Some(Defect::AnyVersion) => patch["metadata"]["resourceVersion"] = Value::Null,
        Some(Defect::LabelStays) if change != Write::Associate => patch["metadata"]["labels"] = json!({}),
        _ => {}
    }
    patch
}
