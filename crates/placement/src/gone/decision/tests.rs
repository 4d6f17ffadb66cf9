use k8s_openapi::jiff::SignedDuration;
use serde_json::{Value, json};

use super::*;
use crate::gone::sample::{home, node, note, volume_with};

const MINUTE: Duration = Duration::from_mins(1);

fn start() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

/// The node of a Bound volume of a `StatefulSet` is gone for an hour, its class says `delete`, and everything was read live.
fn seen() -> Observation {
    seen_of(&json!({}))
}

fn seen_of(change: &Value) -> Observation {
    let mut volume = volume_with(&json!({"metadata": {"annotations": {NODE_GONE_SINCE: start().to_string()}}}));
    if !change.is_null() {
        let annotations = volume.annotations.clone();
        volume = volume_with(change);
        volume.annotations.extend(annotations);
    }
    note(&mut volume, "a", "n1");
    let live =
        Live { claim: ClaimSeen::There(claim()), users: vec![], stuck: vec![], attached: None, finalizers: vec![] };
    Observation {
        volume: Arc::new(volume),
        home: Some((home(), Presence::Absent)),
        looked: true,
        looked_after: true,
        terms: Terms { mode: NodeGone::Delete, after: 5 * MINUTE, unclear: None },
        fleet: Fleet { lost: 1, all: 3 },
        brake: Percent(20),
        turn: None,
        live: Some(live),
        now: start() + SignedDuration::from_hours(1),
    }
}

fn claim() -> LiveClaim {
    let maker = Some(Maker::StatefulSet("web".into()));
    LiveClaim { being_deleted: false, has_volume: true, of_pod: false, maker }
}

/// The same, Released: nobody has asked for its end.
fn released() -> Observation {
    let mut seen = seen_of(&json!({"status": {"phase": "Released"}}));
    change_live(&mut seen, |live| {
        live.claim = ClaimSeen::Gone;
        live.finalizers = vec![PROVISIONER_FINALIZER.to_owned(), PROTECTION.to_owned()];
    });
    seen
}

fn change_live(seen: &mut Observation, change: impl FnOnce(&mut Live)) {
    change(seen.live.as_mut().unwrap());
}

fn change_claim(seen: &mut Observation, change: impl FnOnce(&mut LiveClaim)) {
    change_live(seen, |live| {
        let mut now = claim();
        change(&mut now);
        live.claim = ClaimSeen::There(now);
    });
}

fn with(mut seen: Observation, change: impl FnOnce(&mut Observation)) -> Observation {
    change(&mut seen);
    seen
}

fn since(seen: &mut Observation, time: Option<&str>) {
    let volume = Arc::make_mut(&mut seen.volume);
    volume.annotations.remove(NODE_GONE_SINCE);
    volume.annotations.extend(time.map(|time| (NODE_GONE_SINCE.to_owned(), time.to_owned())));
}

fn there(seen: &mut Observation) {
    seen.home = Some((home(), Presence::There { node: "node-1".into(), note: None }));
}

#[allow(clippy::unnecessary_wraps)] // as actions have it
fn unnoted() -> Option<Box<Note>> {
    Some(Box::new(Note::about(&node("node-1", "n1", "a"), &volume_with(&json!({})), &home())))
}

fn to_note(seen: &mut Observation) {
    seen.home = Some((home(), Presence::There { node: "node-1".into(), note: unnoted() }));
}

#[expect(clippy::too_many_lines, reason = "a table")]
fn rows() -> Vec<(&'static str, Observation, Action, &'static str)> {
    vec![
        ("not tied", with(seen(), |seen| seen.home = None), Action::Leave, "NotTied"),
        ("elsewhere", with(seen(), |seen| seen.looked_after = false), Action::Leave, "OtherNamespace"),
        ("off", with(seen(), |seen| seen.terms.mode = NodeGone::Off), Action::Leave, "Off"),
        ("free", seen_of(&json!({"status": {"phase": "Available"}})), Action::Leave, "Unclaimed"),
        ("unknown phase", seen_of(&json!({"status": {"phase": "Pending"}})), Action::Leave, "Unclaimed"),
        (
            "there",
            with(seen(), |seen| {
                there(seen);
                since(seen, None);
            }),
            Action::Leave,
            "NodeThere",
        ),
        ("back", with(seen(), there), Action::Note(None), "NodeBack"),
        (
            "back, as the cache has it",
            with(seen(), |seen| {
                there(seen);
                seen.looked = false;
            }),
            Action::LookAtNode,
            "NodeThere",
        ),
        (
            "first seen",
            with(seen(), |seen| {
                to_note(seen);
                since(seen, None);
            }),
            Action::Note(unnoted()),
            "HomeNoted",
        ),
        (
            "first seen, as the cache has it",
            with(seen(), |seen| {
                to_note(seen);
                since(seen, None);
                seen.looked = false;
            }),
            Action::LookAtNode,
            "NodeThere",
        ),
        (
            "first seen, but nobody uses it",
            with(released(), |seen| {
                to_note(seen);
                since(seen, None);
            }),
            Action::Leave,
            "NodeThere",
        ),
        ("gone, as the cache has it", with(seen(), |seen| seen.looked = false), Action::LookAtNode, "NodeMissing"),
        ("gone just now", with(seen(), |seen| since(seen, None)), Action::Mark, "NodeMissing"),
        ("gone since nobody knows when", with(seen(), |seen| since(seen, Some("x"))), Action::Mark, "NodeMissing"),
        (
            "gone for a minute",
            with(seen(), |seen| seen.now = start() + SignedDuration::from_mins(1)),
            Action::Wait(4 * MINUTE),
            "NodeMissing",
        ),
        (
            "gone since tomorrow",
            with(seen(), |seen| seen.now = start() - SignedDuration::from_hours(1)),
            Action::Wait(5 * MINUTE),
            "NodeMissing",
        ),
        (
            "no machine was noted",
            with(seen(), |seen| seen.home = Some((home(), Presence::Unclear("why")))),
            Action::Report(None),
            "IdentityUnknown",
        ),
        ("report", with(seen(), |seen| seen.terms.mode = NodeGone::Report), Action::Report(None), "NodeGone"),
        (
            "retained",
            seen_of(&json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}})),
            Action::Report(None),
            "Retained",
        ),
        (
            "too many",
            with(seen(), |seen| seen.fleet = Fleet { lost: 2, all: 3 }),
            Action::Report(Some(RECHECK)),
            "TooManyNodesGone",
        ),
        ("not its turn", with(seen(), |seen| seen.turn = Some(MINUTE)), Action::Wait(MINUTE), "TakesTurns"),
        ("not looked", with(seen(), |seen| seen.live = None), Action::LookAtAll, "NodeGone"),
        (
            "the claim is another one",
            with(seen(), |seen| change_live(seen, |live| live.claim = ClaimSeen::Gone)),
            Action::Wait(RECHECK_SOON),
            "ClaimEnding",
        ),
        (
            "the claim goes",
            with(seen(), |seen| change_claim(seen, |claim| claim.being_deleted = true)),
            Action::Wait(RECHECK_SOON),
            "ClaimEnding",
        ),
        (
            "the claim goes, and a pod keeps it",
            with(seen(), |seen| {
                change_claim(seen, |claim| claim.being_deleted = true);
                change_live(seen, |live| live.stuck = vec![StuckPod { name: "web-0".into(), uid: "p1".into() }]);
            }),
            Action::EndPods,
            "PodsKeepClaim",
        ),
        (
            "the claim has another volume",
            with(seen(), |seen| change_claim(seen, |claim| claim.has_volume = false)),
            Action::Wait(RECHECK_SOON),
            "ClaimEnding",
        ),
        (
            "used",
            with(seen(), |seen| change_live(seen, |live| live.users = vec!["pod web-0 on node node-2".to_owned()])),
            Action::Report(Some(RECHECK_SOON)),
            "InUse",
        ),
        (
            "of a pod",
            with(seen(), |seen| change_claim(seen, |claim| claim.of_pod = true)),
            Action::Leave,
            "GoesWithPod",
        ),
        (
            "nobody's",
            with(seen(), |seen| change_claim(seen, |claim| claim.maker = None)),
            Action::Report(Some(RECHECK)),
            "NobodyRecreates",
        ),
        ("a StatefulSet's", seen(), Action::DeleteClaim(Maker::StatefulSet("web".into())), "ClaimDeleted"),
        (
            "a StatefulSet's, and another machine has the name",
            with(seen(), |seen| seen.home = Some((home(), Presence::Replaced { by: "node-1".into() }))),
            Action::DeleteClaim(Maker::StatefulSet("web".into())),
            "ClaimDeleted",
        ),
        (
            "ours",
            with(seen(), |seen| change_claim(seen, |claim| claim.maker = Some(Maker::Us))),
            Action::DeleteClaim(Maker::Us),
            "ClaimDeleted",
        ),
        (
            "Released, but its claim is there",
            with(released(), |seen| change_claim(seen, |_| {})),
            Action::Wait(RECHECK_SOON),
            "ClaimEnding",
        ),
        (
            "Released, attached",
            with(released(), |seen| change_live(seen, |live| live.attached = Some("node-2".into()))),
            Action::Report(Some(RECHECK_SOON)),
            "StillAttached",
        ),
        ("Released", released(), Action::DeleteVolume, "VolumeDeleted"),
        (
            "Released, and nobody keeps it",
            with(released(), |seen| change_live(seen, |live| live.finalizers.clear())),
            Action::DeleteVolume,
            "VolumeDeleted",
        ),
        ("Failed", failed(), Action::DeleteVolume, "VolumeDeleted"),
        ("going", going(&[PROVISIONER_FINALIZER, "x"]), Action::DeleteVolume, "VolumeDeleted"),
        ("going, kept by others", going(&["x", PROTECTION]), Action::Report(Some(RECHECK)), "HeldByOthers"),
        ("going by itself", going(&[PROTECTION]), Action::Leave, "VolumeEnding"),
        (
            "Released, retained",
            with(released(), |seen| Arc::make_mut(&mut seen.volume).retained = true),
            Action::Report(None),
            "Retained",
        ),
        ("Released, and back", with(released(), there), Action::Note(None), "NodeBack"),
    ]
}

#[test]
fn every_row_of_the_table() {
    for (name, seen, action, reason) in rows() {
        let decision = CLEAN_UP.decide(&seen);
        assert_eq!((&decision.action, decision.reason), (&action, reason), "{name}: {}", decision.message);
    }
}

#[test]
fn every_rule_decides_some_row() {
    for check in CLEAN_UP.checks {
        let decides = |row: &(_, Observation, _, _)| CLEAN_UP.explain(&row.1).failed == Some(check.holds);
        assert!(rows().iter().any(decides), "{}", check.holds);
    }
}

fn failed() -> Observation {
    let mut seen = released();
    Arc::make_mut(&mut seen.volume).phase = VolumePhase::Failed;
    seen
}

fn going(finalizers: &[&str]) -> Observation {
    let mut seen = released();
    Arc::make_mut(&mut seen.volume).being_deleted = true;
    change_live(&mut seen, |live| live.finalizers = finalizers.iter().map(|name| (*name).to_owned()).collect());
    seen
}

/// Whatever else is so, nothing is deleted while one of these holds.
#[test]
fn each_reason_to_keep_something_is_enough() {
    type Keep = fn(&mut Observation);
    let reasons: [(&str, Keep); 10] = [
        ("elsewhere", |seen| seen.looked_after = false),
        ("there", there),
        ("unclear", |seen| seen.home = Some((home(), Presence::Unclear("why")))),
        ("untied", |seen| seen.home = None),
        ("report", |seen| seen.terms.mode = NodeGone::Report),
        ("off", |seen| seen.terms.mode = NodeGone::Off),
        ("recent", |seen| seen.now = start() + SignedDuration::from_secs(299)),
        ("retained", |seen| Arc::make_mut(&mut seen.volume).retained = true),
        ("brake", |seen| seen.fleet = Fleet { lost: 9, all: 10 }),
        ("blind", |seen| seen.live = None),
    ];
    let deletes = |seen: &Observation| {
        matches!(CLEAN_UP.decide(seen).action, Action::DeleteClaim(_) | Action::DeleteVolume | Action::EndPods)
    };
    let mut ending = seen();
    change_claim(&mut ending, |claim| claim.being_deleted = true);
    change_live(&mut ending, |live| live.stuck = vec![StuckPod { name: "web-0".into(), uid: "p1".into() }]);
    for base in [seen(), released(), going(&[PROVISIONER_FINALIZER]), ending] {
        assert!(deletes(&base));
        for (name, keep) in reasons {
            assert!(!deletes(&with(base.clone(), keep)), "{name}");
        }
    }
}

#[test]
fn what_is_told_says_which_node_since_when_and_what_to_do() {
    let message = |seen: &Observation| CLEAN_UP.decide(seen).message.into_owned();
    let report = with(seen(), |seen| seen.terms.mode = NodeGone::Report);
    assert_eq!(
        message(&report),
        "node node-1 is gone since 2026-01-01T00:00:00Z, and the data with it; bring the machine back, or delete claim \
         ci/data-web-0, and whoever uses it finds a new and empty volume"
    );
    let nobody = with(seen(), |seen| change_claim(seen, |claim| claim.maker = None));
    assert!(message(&nobody).contains(r#"annotate it with claimkeeper.dev/recreate: "true""#));
    let many = with(seen(), |seen| seen.fleet = Fleet { lost: 2, all: 3 });
    assert!(message(&many).contains("with it 2 of 3 nodes, which is more than 20 %"), "{}", message(&many));
}
