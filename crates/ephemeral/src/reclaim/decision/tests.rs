use cluster::{pod::Phase, store::Slim};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use proptest::prelude::*;
use serde_json::json;

use super::*;

const DISK: &str = "kubernetes.io/csi/disks.example.dev^vol-1";

fn pod(phase: Phase, node: Option<&str>) -> Arc<Pod> {
    let phase = match phase {
        Phase::Active => "Running",
        Phase::Succeeded => "Succeeded",
        Phase::Failed => "Failed",
    };
    let pod = json!({
        "metadata": {"namespace": "ci", "name": "build", "uid": "p1"},
        "spec": {"nodeName": node},
        "status": {"phase": phase},
    });
    Arc::new(Pod::from_wire(serde_json::from_value(pod).unwrap()).unwrap())
}

fn key() -> ObjectKey {
    ObjectKey::new("ci", "build-scratch")
}

fn cached(owner: &str) -> ClaimSeen {
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "build", "uid": owner, "controller": true});
    let claim = json!({"metadata": {"namespace": "ci", "name": "build-scratch", "ownerReferences": [owner]}});
    ClaimSeen::Cached(Arc::new(Claim::from_wire(serde_json::from_value(claim).unwrap()).unwrap()))
}

fn live(change: impl FnOnce(&mut LiveClaim)) -> ClaimSeen {
    let mut claim = LiveClaim {
        key: key(),
        uid: "c1".into(),
        version: "7".into(),
        owner: Some((0, "p1".into())),
        deleted_at: None,
        volume: Some("pv-1".into()),
        class: None,
    };
    change(&mut claim);
    ClaimSeen::Live(Arc::new(claim))
}

fn there(volumes_in_use: &[&str]) -> Node {
    Node::There { volumes_in_use: volumes_in_use.iter().map(|name| (*name).into()).collect() }
}

fn without_attach(vouched_for: bool) -> Volume {
    Volume::WithoutAttach { plugin: "kubernetes.io/nfs".into(), vouched_for }
}

/// All was read live, and nothing is in the way.
fn free_disk() -> Observation {
    Observation {
        pod: pod(Phase::Succeeded, Some("node-1")),
        claim: live(|_| {}),
        mode: Some(Mode::Delete),
        freed: None,
        users: Users { pods: vec![], live: true },
        attached: false,
        volume: Some(Volume::Attachable { listed_as: DISK.into() }),
        node: Some(there(&["kubernetes.io/csi/disks.example.dev^vol-2"])),
    }
}

fn free_mount() -> Observation {
    Observation { volume: Some(without_attach(true)), node: None, ..free_disk() }
}

fn used(live: bool) -> Users {
    Users { pods: vec![ObjectKey::new("ci", "debug")], live }
}

#[test]
fn every_row_of_the_table_is_decided_as_written() {
    let being_deleted = || live(|claim| claim.deleted_at = Some(Time(Timestamp::UNIX_EPOCH)));
    let unbound = || live(|claim| claim.volume = None);
    for (seen, action, reason) in [
        (free_disk(), Action::Delete, CLAIM_RECLAIMED),
        (free_mount(), Action::Delete, CLAIM_RECLAIMED),
        (Observation { claim: being_deleted(), ..free_disk() }, Action::Disown, CLAIM_RECLAIMED),
        (Observation { pod: pod(Phase::Failed, Some("node-1")), ..free_disk() }, Action::Delete, CLAIM_RECLAIMED),
        (Observation { pod: pod(Phase::Active, None), ..free_disk() }, Action::Leave, "PodLives"),
        (Observation { claim: ClaimSeen::Nothing, ..free_disk() }, Action::Leave, "ClaimGone"),
        (Observation { claim: cached("p0"), ..free_disk() }, Action::Leave, "ClaimNotOwned"),
        (Observation { claim: live(|claim| claim.owner = None), ..free_disk() }, Action::Leave, "ClaimNotOwned"),
        (Observation { mode: Some(Mode::Off), ..free_disk() }, Action::Leave, "ReclaimOff"),
        (Observation { users: used(false), ..free_disk() }, Action::Wait, "ClaimInUse"),
        (Observation { users: used(true), ..free_disk() }, Action::Poll, "ClaimInUse"),
        (Observation { freed: Some("c0".into()), ..free_disk() }, Action::Report, "ClaimCameBack"),
        (Observation { freed: Some("c1".into()), ..free_disk() }, Action::Delete, CLAIM_RECLAIMED),
        (
            Observation { freed: Some("c0".into()), claim: being_deleted(), ..free_disk() },
            Action::Disown,
            CLAIM_RECLAIMED,
        ),
        (Observation { attached: true, ..free_disk() }, Action::Wait, "StillAttached"),
        (Observation { attached: true, ..free_mount() }, Action::Wait, "StillAttached"),
        (Observation { node: Some(there(&[DISK])), ..free_disk() }, Action::Poll, "StillInUse"),
        (Observation { node: Some(Node::Gone), ..free_disk() }, Action::Delete, CLAIM_RECLAIMED),
        (Observation { volume: Some(without_attach(false)), ..free_disk() }, Action::Report, UNMOUNT_NOT_PROVABLE),
        (Observation { volume: Some(Volume::Missing), ..free_disk() }, Action::Report, UNMOUNT_NOT_PROVABLE),
        (
            Observation { volume: Some(without_attach(false)), node: Some(Node::Gone), ..free_disk() },
            Action::Delete,
            CLAIM_RECLAIMED,
        ),
        (Observation { mode: Some(Mode::Report), ..free_disk() }, Action::Report, RECLAIMABLE),
        // Nothing was ever mounted, so nobody has to be asked.
        (Observation { claim: unbound(), volume: None, node: None, ..free_disk() }, Action::Delete, CLAIM_RECLAIMED),
        (
            Observation { pod: pod(Phase::Failed, None), volume: None, node: None, ..free_disk() },
            Action::Delete,
            CLAIM_RECLAIMED,
        ),
    ] {
        let decision = RECLAIM.decide(&seen);
        assert_eq!((decision.action, decision.reason), (action, reason), "{seen:?}");
    }
}

#[test]
fn facts_are_asked_for_one_after_the_other_and_only_while_they_matter() {
    let nothing_read = || Observation {
        claim: cached("p1"),
        mode: None,
        users: Users::default(),
        volume: None,
        node: None,
        ..free_disk()
    };
    let look = |seen: Observation| RECLAIM.decide(&seen).action;
    assert_eq!(look(nothing_read()), Action::Look(Fact::Claim));
    let claim_read = || Observation { claim: live(|_| {}), mode: Some(Mode::Delete), ..nothing_read() };
    assert_eq!(look(claim_read()), Action::Look(Fact::Volume));
    let volume_read = || Observation { volume: free_disk().volume, ..claim_read() };
    assert_eq!(look(volume_read()), Action::Look(Fact::Node));
    let node_read = || Observation { node: free_disk().node, ..volume_read() };
    assert_eq!(look(node_read()), Action::Look(Fact::Users));
    // What is only reported needs no list of all pods, what is vouched for no node, and what is off nothing at all.
    assert_eq!(look(Observation { mode: Some(Mode::Report), ..node_read() }), Action::Report);
    assert_eq!(look(Observation { volume: Some(without_attach(true)), ..claim_read() }), Action::Look(Fact::Users));
    assert_eq!(look(Observation { mode: Some(Mode::Off), ..nothing_read() }), Action::Leave);
    assert_eq!(look(Observation { users: used(false), ..nothing_read() }), Action::Wait);
}

#[test]
fn a_claim_that_stays_because_nobody_tells_of_its_unmount_is_told_with_what_to_do() {
    assert_eq!(
        RECLAIM.decide(&Observation { volume: Some(without_attach(false)), ..free_disk() }).message,
        "the claim is kept as long as the pod: volume pv-1 is one of kubernetes.io/nfs, which is mounted without being \
         attached, so nobody tells when node node-1 has unmounted it. If you know that it always has, list the plugin in \
         ephemeral.reclaimWithoutAttach"
    );
}

// Most facts are favourable most of the time; otherwise hardly a chain would come to its end.
fn any_claim() -> impl Strategy<Value = ClaimSeen> {
    let owner = prop_oneof![1 => Just(None), 1 => Just(Some("p0")), 8 => Just(Some("p1"))];
    let fields = (owner, proptest::bool::weighted(0.8), any::<bool>(), 0..2_u8);
    let live = fields.prop_map(|(owner, bound, deleted, uid)| {
        live(|claim| {
            claim.owner = owner.map(|owner| (0, owner.into()));
            claim.volume = bound.then(|| "pv-1".into());
            claim.deleted_at = deleted.then_some(Time(Timestamp::UNIX_EPOCH));
            claim.uid = format!("c{uid}").into();
        })
    });
    prop_oneof![1 => Just(ClaimSeen::Nothing), 1 => Just(cached("p0")), 1 => Just(cached("p1")), 12 => live]
}

fn any_volume() -> impl Strategy<Value = Option<Volume>> {
    let attachable = Volume::Attachable { listed_as: DISK.into() };
    let volume =
        prop_oneof![1 => Just(Volume::Missing), 3 => Just(attachable), 2 => any::<bool>().prop_map(without_attach)];
    proptest::option::weighted(0.9, volume)
}

fn any_node() -> impl Strategy<Value = Option<Node>> {
    let node = prop_oneof![1 => Just(Node::Gone), 2 => Just(there(&[])), 2 => Just(there(&[DISK]))];
    proptest::option::weighted(0.9, node)
}

prop_compose! {
    fn any_observation()(
        phase in prop_oneof![1 => Just(Phase::Active), 4 => Just(Phase::Succeeded), 4 => Just(Phase::Failed)],
        node_name in proptest::option::weighted(0.9, Just("node-1")),
        claim in any_claim(),
        mode in prop_oneof![1 => Just(None), 1 => Just(Some(Mode::Off)), 1 => Just(Some(Mode::Report)), 9 => Just(Some(Mode::Delete))],
        freed in proptest::option::weighted(0.1, (0..2_u8).prop_map(|uid| format!("c{uid}").into())),
        used in proptest::bool::weighted(0.1),
        live in proptest::bool::weighted(0.9),
        attached in proptest::bool::weighted(0.1),
        volume in any_volume(),
        node in any_node(),
    ) -> Observation {
        let pods = if used { vec![ObjectKey::new("ci", "debug")] } else { vec![] };
        let users = Users { pods, live };
        Observation { pod: pod(phase, node_name), claim, mode, freed, users, attached, volume, node }
    }
}

/// What must be true before a claim may go, said once more and differently from the rules.
fn is_safe(seen: &Observation) -> bool {
    let ClaimSeen::Live(claim) = &seen.claim else { return false };
    let unmounted = match (&seen.volume, &seen.node) {
        _ if claim.volume.is_none() || seen.pod.node.is_none() => true,
        (_, Some(Node::Gone)) => seen.volume.is_some(),
        (Some(Volume::Attachable { listed_as }), Some(Node::There { volumes_in_use })) => {
            !volumes_in_use.contains(listed_as)
        }
        (Some(Volume::WithoutAttach { vouched_for, .. }), _) => *vouched_for,
        _ => false,
    };
    let ours = claim.owner.as_ref().is_some_and(|(_, uid)| *uid == seen.pod.uid);
    let attached = claim.volume.is_some() && seen.attached;
    let unused = seen.users.live && seen.users.pods.is_empty() && !attached;
    seen.pod.phase != Phase::Active && ours && seen.mode == Some(Mode::Delete) && unused && unmounted
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn a_claim_goes_only_if_every_safety_fact_holds_and_was_read_live(seen in any_observation()) {
        if matches!(RECLAIM.decide(&seen).action, Action::Delete | Action::Disown) {
            prop_assert!(is_safe(&seen), "{seen:?}");
        }
    }

    #[test]
    fn only_a_claim_that_is_being_deleted_is_disowned_and_no_other_is_deleted_twice(seen in any_observation()) {
        let being_deleted = seen.live_claim().is_some_and(|claim| claim.deleted_at.is_some());
        match RECLAIM.decide(&seen).action {
            Action::Delete => prop_assert!(!being_deleted),
            Action::Disown => prop_assert!(being_deleted),
            _ => {}
        }
    }

    #[test]
    fn no_fact_is_asked_for_twice(seen in any_observation()) {
        match RECLAIM.decide(&seen).action {
            Action::Look(Fact::Claim) => prop_assert!(seen.live_claim().is_none()),
            Action::Look(Fact::Volume) => prop_assert!(seen.volume.is_none()),
            Action::Look(Fact::Node) => prop_assert!(seen.node.is_none()),
            Action::Look(Fact::Users) => prop_assert!(!seen.users.live),
            _ => {}
        }
    }
}
