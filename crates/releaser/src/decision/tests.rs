use cluster::ObjectKey;
use serde_json::{Value, json};

use super::*;
use crate::{
    policy::{
        CONTROLLER_ID, MANAGED_BY, MANAGED_BY_IN_CODE, PREVIOUS_CLAIM, RELEASE, RELEASE_AFTER, RELEASE_MAX_AVAILABLE,
        RELEASE_SCRUB,
    },
    sample::{class, volume, volume_with},
    scrub::{QUARANTINED, SCRUB},
};

/// A volume that nothing keeps from being released to the pool.
fn seen() -> Observation {
    Observation {
        volume: Arc::new(volume()),
        class: class(&[(RELEASE, "pool")]),
        controller_id: "claimkeeper".into(),
        namespace: None,
        dry_run: false,
        available: 0,
        live: Some(live()),
        scrubbed: false,
        now: "2026-01-01T01:00:00Z".parse().unwrap(),
    }
}

fn live() -> Live {
    Live {
        claim: ClaimSeen::Gone,
        namespace: Some(NamespaceSeen::There("2025-01-01T00:00:00Z".parse().unwrap())),
        attached: Attached::No,
        candidate: Some(candidate()),
    }
}

fn candidate() -> Candidate {
    Candidate { key: ObjectKey::new("ci", "next"), uid: "c2".into() }
}

fn by(mode: &str) -> Observation {
    Observation { class: class(&[(RELEASE, mode)]), ..seen() }
}

fn with(change: &Value) -> Observation {
    Observation { volume: Arc::new(volume_with(change)), ..seen() }
}

fn decided(seen: &Observation) -> (Action, &'static str) {
    let Decision { action, reason, .. } = RELEASE_VOLUME.decide(seen);
    (action, reason)
}

#[test]
fn the_class_says_to_whom_a_volume_goes() {
    assert_eq!(decided(&by("pool")), (Action::Release(To::Pool), "Released"));
    assert_eq!(decided(&by("soft")), (Action::Release(To::SameName), "Released"));
    assert_eq!(decided(&by("namespace")), (Action::Release(To::Claim(candidate())), "Released"));
    assert_eq!(decided(&by("never")), (Action::Leave, "ClassSaysNever"));
    assert_eq!(decided(&by("Pool")), (Action::Refuse(None), "InvalidPolicy"));
    let message = RELEASE_VOLUME.decide(&by("all")).message;
    assert_eq!(
        message,
        "the annotation claimkeeper.dev/release of class cache is `all`, but must be soft, namespace, pool or never; until then \
         its volumes stay Released"
    );
}

#[test]
fn without_the_class_a_label_or_the_originals_annotation_means_pool() {
    let labelled = |key: &str, id: &str, annotations: &[(&str, &str)]| Observation {
        class: class(annotations),
        ..with(&json!({"metadata": {"labels": {key: id}}}))
    };
    for key in [MANAGED_BY, MANAGED_BY_IN_CODE] {
        assert_eq!(decided(&labelled(key, "claimkeeper", &[])), (Action::Release(To::Pool), "Released"));
        assert_eq!(decided(&labelled(key, "other", &[])), (Action::Leave, "ManagedByOther"));
        // A tenant's label does not override the administrator's word.
        assert_eq!(decided(&labelled(key, "claimkeeper", &[(RELEASE, "never")])).1, "ClassSaysNever");
        assert_eq!(
            decided(&labelled(key, "claimkeeper", &[(RELEASE, "soft")])),
            (Action::Release(To::SameName), "Released")
        );
        assert_eq!(decided(&labelled(key, "claimkeeper", &[(CONTROLLER_ID, "other")])).1, "ManagedByOther");
    }
    let annotated = |id: &str| Observation { class: class(&[(CONTROLLER_ID, id)]), ..seen() };
    assert_eq!(decided(&annotated("claimkeeper")), (Action::Release(To::Pool), "Released"));
    assert_eq!(decided(&annotated("other")), (Action::Leave, "ManagedByOther"));
    assert_eq!(decided(&Observation { class: class(&[]), ..seen() }), (Action::Leave, "NotManaged"));
    assert_eq!(decided(&Observation { class: None, ..seen() }), (Action::Leave, "NotManaged"));
}

#[test]
fn only_a_retained_volume_that_is_released_and_stays_is_touched() {
    for (change, reason) in [
        (json!({"status": {"phase": "Bound"}}), "NotReleased"),
        (json!({"status": {"phase": "Available"}}), "NotReleased"),
        (json!({"status": {"phase": "Failed"}}), "NotReleased"),
        (json!({"spec": {"claimRef": null}}), "NothingToRelease"),
        (json!({"spec": {"claimRef": {"uid": null}}}), "PreBound"),
        (json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), "VolumeBeingDeleted"),
        (json!({"spec": {"persistentVolumeReclaimPolicy": "Delete"}}), "NotRetained"),
        (json!({"spec": {"persistentVolumeReclaimPolicy": "Recycle"}}), "NotRetained"),
    ] {
        assert_eq!(decided(&with(&change)).1, reason, "{change}");
    }
}

#[test]
fn what_is_seen_live_stops_a_release() {
    let seen_live = |mode: &str, change: &dyn Fn(&mut Live)| {
        let mut live = live();
        change(&mut live);
        decided(&Observation { live: Some(live), ..by(mode) }).1
    };
    for mode in ["pool", "soft", "namespace"] {
        assert_eq!(seen_live(mode, &|live| live.claim = ClaimSeen::Same), "ClaimStillExists", "{mode}");
        assert_eq!(seen_live(mode, &|live| live.attached = Attached::Yes), "StillAttached", "{mode}");
        assert_eq!(seen_live(mode, &|live| live.attached = Attached::NotAsked), "Released", "{mode}");
        assert_eq!(seen_live(mode, &|live| live.claim = ClaimSeen::Waiting), "Released", "{mode}");
        let expected = if mode == "soft" { "ClaimRecreatedElsewhere" } else { "Released" };
        assert_eq!(seen_live(mode, &|live| live.claim = ClaimSeen::Served), expected, "{mode}");
        assert_eq!(decided(&Observation { live: None, ..by(mode) }), (Action::Look, "NotLookedYet"), "{mode}");
    }
    assert_eq!(seen_live("namespace", &|live| live.candidate = None), "NoClaimWaits");
}

#[test]
fn a_namespace_that_is_not_the_same_any_more_gets_nothing() {
    let at = |time: &str| Some(NamespaceSeen::There(time.parse().unwrap()));
    for (namespace, reason) in [
        (None, "NamespaceGone"),
        (Some(NamespaceSeen::Gone), "NamespaceGone"),
        (Some(NamespaceSeen::Terminating), "NamespaceTerminating"),
        (at("2026-01-01T00:00:01Z"), "NamespaceRecreated"),
        // Within the second nobody knows what came first.
        (at("2026-01-01T00:00:00Z"), "NamespaceRecreated"),
        (at("2025-12-31T23:59:59Z"), "Released"),
    ] {
        for mode in ["soft", "namespace"] {
            let seen = Observation { live: Some(Live { namespace, ..live() }), ..by(mode) };
            assert_eq!(decided(&seen).1, reason, "{mode}, {namespace:?}");
        }
        let pool = Observation { live: Some(Live { namespace, ..live() }), ..seen() };
        assert_eq!(decided(&pool).1, "Released", "the pool is for everybody");
    }
    let mut timeless = by("soft");
    timeless.volume = Arc::new(volume_with(&json!({"status": {"lastPhaseTransitionTime": null}})));
    assert_eq!(decided(&timeless).1, "NamespaceRecreated", "who cannot tell keeps it");
}

#[test]
fn the_options_of_a_class_hold() {
    let option =
        |key: &'static str, value: &str| Observation { class: class(&[(RELEASE, "pool"), (key, value)]), ..seen() };
    let (action, reason) = decided(&option(RELEASE_AFTER, "1h30m"));
    assert_eq!((action, reason), (Action::Wait(Duration::from_mins(30)), "TooYoung"));
    assert_eq!(decided(&option(RELEASE_AFTER, "1h")).1, "Released");
    for wrong in ["soon", "-1h", "", "10"] {
        assert_eq!(decided(&option(RELEASE_AFTER, wrong)).1, "InvalidPolicy", "{wrong}");
    }
    let full = |most: &str, available| Observation { available, ..option(RELEASE_MAX_AVAILABLE, most) };
    assert_eq!(decided(&full("3", 2)).1, "Released");
    assert_eq!(decided(&full("3", 3)).1, "PoolFull");
    assert_eq!(decided(&full("0", 0)).1, "PoolFull");
    assert_eq!(decided(&full("many", 0)).1, "InvalidPolicy");
    assert_eq!(decided(&full("-1", 0)).1, "InvalidPolicy");

    assert_eq!(decided(&option(RELEASE_SCRUB, "wipe")), (Action::Scrub("wipe".into()), "NotScrubbed"));
    assert_eq!(decided(&Observation { scrubbed: true, ..option(RELEASE_SCRUB, "wipe") }).1, "Released");
    let soft = class(&[(RELEASE, "soft"), (RELEASE_SCRUB, "wipe")]);
    assert_eq!(decided(&Observation { class: soft, ..seen() }).1, "InvalidPolicy", "nobody is served by scrubbing it");
}

/// A volume whose scrub claim (uid `k1`) is gone again.
fn scrubbed(annotations: &[(&str, &str)], namespace: &str) -> Observation {
    let previous = json!({"namespace": "ci", "name": "build", "uid": "c1"}).to_string();
    let note = json!({"template": "wipe", "claim": "k1", "done": true}).to_string();
    let change = json!({
        "metadata": {"annotations": {PREVIOUS_CLAIM: previous, SCRUB: note}},
        "spec": {"claimRef": {"namespace": "ops", "name": "scrub-v1", "uid": "k1"}},
    });
    Observation { class: class(annotations), namespace: Some(namespace.into()), scrubbed: true, ..with(&change) }
}

#[test]
fn a_clean_volume_goes_on_to_the_pool_without_waiting_twice() {
    let wanted = [(RELEASE, "pool"), (RELEASE_SCRUB, "wipe"), (RELEASE_AFTER, "2h")];
    assert_eq!(decided(&scrubbed(&wanted, "ci")), (Action::Release(To::Pool), "Released"));
    assert_eq!(decided(&scrubbed(&wanted, "ops")).1, "OtherNamespace", "the tenant's namespace counts");
    assert_eq!(decided(&scrubbed(&[(RELEASE, "never")], "ci")).1, "ClassSaysNever");
    for mode in ["soft", "namespace"] {
        assert_eq!(decided(&scrubbed(&[(RELEASE, mode)], "ci")).1, "ScrubbedForPool", "{mode}");
    }
}

#[test]
fn a_quarantined_volume_is_for_nobody() {
    for mode in ["pool", "soft", "namespace"] {
        let volume = volume_with(&json!({"metadata": {"annotations": {QUARANTINED: "ScrubFailed"}}}));
        let seen = Observation { volume: Arc::new(volume), scrubbed: true, ..by(mode) };
        assert_eq!(decided(&seen), (Action::Refuse(None), "Quarantined"), "{mode}");
    }
}

#[test]
fn a_class_that_provisions_at_once_leaves_no_claim_waiting() {
    let mut immediate = by("namespace");
    let made = |provisions, waits_for_consumer| {
        class(&[(RELEASE, "namespace")]).map(|class| {
            let class = Arc::into_inner(class).unwrap();
            Arc::new(Class { provisions, waits_for_consumer, ..class })
        })
    };
    for (provisions, waits, reason) in [
        (true, false, "ProvisionerWins"),
        (true, true, "Released"),
        (false, false, "Released"),
        (false, true, "Released"),
    ] {
        immediate.class = made(provisions, waits);
        assert_eq!(decided(&immediate).1, reason, "{provisions} {waits}");
    }
}

#[test]
fn a_dry_run_only_tells() {
    for mode in ["pool", "soft", "namespace"] {
        assert_eq!(decided(&Observation { dry_run: true, ..by(mode) }), (Action::Report, "WouldRelease"), "{mode}");
    }
}

#[test]
fn other_namespaces_are_left_alone() {
    assert_eq!(decided(&Observation { namespace: Some("ci".into()), ..seen() }).1, "Released");
    assert_eq!(decided(&Observation { namespace: Some("shop".into()), ..seen() }).1, "OtherNamespace");
}
