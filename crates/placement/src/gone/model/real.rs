//! What the rules see of the modelled world, and what their writes do to it: real objects, real rules, real patches.

use std::{cell::RefCell, collections::HashMap, hash::Hash, sync::Arc, time::Duration};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{Claim, Defect, Makes, Node, Setup, Volume};
use crate::{
    gone::{
        act,
        brake::Fleet,
        decision::{
            Action, CLEAN_UP, ClaimSeen, Live, LiveClaim, Maker, NODE_GONE_SINCE, Observation, PROVISIONER_FINALIZER,
            since,
        },
        identity::{HOME_NODE, Note, Presence},
        policy::Terms,
        recreate::{self, MAKE_AGAIN, PENDING, Pending, Stands},
        sample,
    },
    settings::{NodeGone, Percent},
};

/// What is decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    Nothing,
    LookAtNode,
    LookAtAll,
    Note,
    Mark,
    DeleteClaim,
    DeleteVolume,
}

type Memory<K, V> = RefCell<HashMap<K, V>>;
type Asked = (Setup, Volume, Option<Node>, bool, Look, u8);

/// The claim that was read: none if nobody has looked, or if there is none.
type Look = Option<Option<Claim>>;

thread_local! {
    // The same few objects are looked at in each of many worlds.
    static ANSWERS: Memory<Asked, Answer> = RefCell::default();
    static WRITTEN: Memory<(Setup, Volume, Volume, Option<Node>, Change), Volume> = RefCell::default();
}

fn remembered<K: Clone + Eq + Hash, V: Clone>(
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

fn node_of(setup: &Setup, node: Node) -> cluster::Node {
    let machine = if node.is_home { "a" } else { "b" };
    // The first two were there before the volume was bound.
    let late = node.uid > 2 && setup.defect != Some(Defect::NotedLate);
    let created = if late { "2026-06-01T00:00:00Z" } else { "2025-01-01T00:00:00Z" };
    sample::node_since("node-1", &format!("n{}", node.uid), if setup.identified { machine } else { "" }, created)
}

fn claim_json(uid: u8) -> Value {
    json!({"metadata": {"namespace": "ci", "name": "data-web-0", "uid": format!("c{uid}")}, "spec": {}})
}

fn json_of(setup: &Setup, volume: &Volume) -> Value {
    let phase = if volume.bound { "Bound" } else { "Released" };
    let mut finalizers = Vec::new();
    finalizers.extend(volume.kept.0.then_some(PENDING));
    finalizers.extend(volume.kept.1.then_some(PROVISIONER_FINALIZER));
    let mut json = sample::volume_json(&json!({"metadata": {"finalizers": finalizers}, "status": {"phase": phase}}));
    let plain = sample::volume();
    let annotations = &mut json["metadata"]["annotations"];
    if let Some((uid, is_home)) = volume.note {
        let note = Note::about(&node_of(setup, Node { uid, is_home }), &plain, &sample::home());
        annotations[HOME_NODE] = json!(note).to_string().into();
    }
    if let Some(since) = volume.since {
        annotations[NODE_GONE_SINCE] = time(since).to_string().into();
    }
    if let Some(uid) = volume.pending {
        annotations[PENDING] = json!(Pending::after(&claim_json(uid), &plain)).to_string().into();
    }
    if volume.being_deleted {
        json["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    }
    json
}

fn from_json(json: &Value) -> cluster::Volume {
    use cluster::store::Slim;
    cluster::Volume::from_wire(serde_json::from_value(json.clone()).unwrap()).unwrap()
}

/// The way back. Whose machine is noted is known by its name, or else by `nodes`.
fn model_of(setup: &Setup, before: &Volume, json: &Value, node: Option<Node>) -> Volume {
    let volume = from_json(json);
    let number = |uid: &str| uid[1..].parse::<u8>().unwrap();
    let noted = Note::of(&volume, &sample::home()).map(|note| {
        let uid = number(&note.uid);
        let known = [before.note, node.map(|node| (node.uid, node.is_home))].into_iter().flatten();
        let named = note.system_uuid == "s-a";
        (uid, if setup.identified { named } else { known.into_iter().any(|(known, home)| known == uid && home) })
    });
    let has = |name: &str| json["metadata"]["finalizers"].as_array().unwrap().iter().any(|found| found == name);
    Volume {
        bound: volume.phase == cluster::volume::VolumePhase::Bound,
        being_deleted: volume.being_deleted,
        note: noted,
        since: since(&volume).map(|since| u8::try_from(since.duration_since(time(0)).as_secs()).unwrap()),
        pending: Pending::of(&volume).map(|pending| number(&pending.claim)),
        kept: (has(PENDING), has(PROVISIONER_FINALIZER)),
    }
}

fn presence(setup: &Setup, volume: &cluster::Volume, node: Option<Node>) -> Presence {
    let node = node.map(|node| node_of(setup, node));
    let found: Vec<&cluster::Node> = node.iter().collect();
    let noted = Note::of(volume, &sample::home());
    match (setup.defect, &node, noted) {
        (Some(Defect::KnownByUid), Some(node), Some(noted)) if *noted.uid != *node.uid => {
            Presence::Replaced { by: "node-1".into() }
        }
        (Some(Defect::KnownByName), Some(_), Some(_)) => Presence::There { node: "node-1".into(), note: None },
        _ => Presence::of(volume, &sample::home(), &found),
    }
}

fn observation(setup: &Setup, volume: &Volume, node: Option<Node>, looked: bool, claim: Look, now: u8) -> Observation {
    let json = json_of(setup, volume);
    let real = from_json(&json);
    let maker = match setup.makes {
        Makes::StatefulSet => Some(Maker::StatefulSet("web".into())),
        Makes::Us => Some(Maker::Us),
        Makes::Nobody => None,
    };
    let live = claim.map(|claim| Live {
        claim: claim.filter(|claim| claim.has_volume).map_or(ClaimSeen::Gone, |claim| {
            let being_deleted = claim.being_deleted;
            ClaimSeen::There(LiveClaim { being_deleted, has_volume: true, of_pod: false, maker })
        }),
        users: vec![],
        stuck: vec![],
        attached: None,
        finalizers: serde_json::from_value(json["metadata"]["finalizers"].clone()).unwrap(),
    });
    Observation {
        home: Some((sample::home(), presence(setup, &real, node))),
        volume: Arc::new(real),
        looked,
        looked_after: true,
        terms: Terms { mode: NodeGone::Delete, after: Duration::from_secs(1), unclear: None },
        fleet: Fleet { lost: 1, all: 3 },
        brake: Percent(20),
        turn: None,
        live,
        now: time(now),
    }
}

fn decide(setup: &Setup, seen: &Observation) -> Action {
    let missing = |holds| setup.defect == Some(Defect::WithoutCheck(holds));
    let mut checks = CLEAN_UP.checks.iter().filter(|check| !missing(check.holds));
    let decision = checks.find_map(|check| (check.run)(seen));
    decision.unwrap_or_else(|| (CLEAN_UP.otherwise)(seen)).action
}

/// What becomes of the volume; `claim` is none if only the caches were asked.
pub(super) fn answer(setup: &Setup, volume: &Volume, node: Option<Node>, looked: bool, claim: Look, now: u8) -> Answer {
    remembered(&ANSWERS, (*setup, *volume, node, looked, claim, now), || {
        match decide(setup, &observation(setup, volume, node, looked, claim, now)) {
            Action::LookAtNode => Answer::LookAtNode,
            Action::LookAtAll => Answer::LookAtAll,
            Action::Note(_) => Answer::Note,
            Action::Mark => Answer::Mark,
            Action::DeleteClaim(_) => Answer::DeleteClaim,
            Action::DeleteVolume => Answer::DeleteVolume,
            Action::Leave | Action::Wait(_) | Action::Report(_) | Action::EndPods => Answer::Nothing,
        }
    })
}

/// What is decided where a claim is to be made again; `now` is the volume as it is.
pub(super) fn pending(setup: &Setup, volume: &Volume, now: Option<Volume>, claim: Option<Claim>) -> recreate::Action {
    let real = from_json(&json_of(setup, volume));
    let stands = match claim {
        None => Stands::Nothing,
        Some(claim) if Some(claim.uid) == volume.pending => Stands::Old { being_deleted: claim.being_deleted },
        Some(_) => Stands::Another,
    };
    let unread = setup.defect == Some(Defect::StillUnread);
    let still = unread || now.is_some_and(|now| now.pending == volume.pending);
    let seen = recreate::Observation { pending: Pending::of(&real), volume: Arc::new(real), still, stands };
    MAKE_AGAIN.decide(&seen).action
}

/// A change of the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Change {
    Note,
    Mark(u8),
    WriteDown(u8),
    Withdraw,
}

/// What becomes of the volume by a change that was decided for `seen` when `node` was there.
pub(super) fn written(setup: &Setup, now: &Volume, seen: &Volume, node: Option<Node>, change: Change) -> Volume {
    remembered(&WRITTEN, (*setup, *now, *seen, node, change), || {
        let real = from_json(&json_of(setup, seen));
        let finalizers = serde_json::from_value(json_of(setup, seen)["metadata"]["finalizers"].clone()).unwrap();
        let mut patch = match change {
            Change::Note => {
                let Action::Note(fresh) = decide(setup, &observation(setup, seen, node, true, None, 0)) else {
                    return *now;
                };
                act::noted(fresh.as_deref())
            }
            Change::Mark(second) => act::marked(time(second)),
            Change::WriteDown(uid) => act::written_down(&Pending::after(&claim_json(uid), &real), finalizers),
            Change::Withdraw => act::withdrawn(finalizers),
        };
        if setup.defect == Some(Defect::NotKept) && matches!(change, Change::WriteDown(_)) {
            patch["metadata"].as_object_mut().map(|metadata| metadata.remove("finalizers"));
        }
        let mut json = json_of(setup, now);
        json_patch::merge(&mut json, &patch);
        model_of(setup, now, &json, node)
    })
}
