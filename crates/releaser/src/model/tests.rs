use super::*;
use crate::{
    decision::RELEASE_VOLUME,
    policy::{RELEASE_AFTER, RELEASE_MAX_AVAILABLE, RELEASE_SCRUB},
};

/// What one replica may do to much that people do, and two to little.
fn holds(setups: &[Setup]) {
    for setup in setups {
        let Setup { word, replicas, people, .. } = setup;
        match check(*setup) {
            Ok(worlds) => {
                println!("{word:?}, {replicas} replicas, {people} deeds: {worlds} worlds");
                assert!(worlds > 50_000, "only {worlds} worlds: the model lost its steps");
            }
            Err((broken, way)) => panic!("{broken:?} by {way:?} in {setup:?}"),
        }
    }
}

fn breaks(setup: Setup, expected: &[Broken]) {
    match check(setup) {
        Ok(worlds) => panic!("nothing was found in {worlds} worlds of {setup:?}"),
        Err((broken, way)) => assert!(expected.contains(&broken), "{broken:?} by {way:?} in {setup:?}"),
    }
}

const fn tenants(word: Word, people: u8) -> Setup {
    Setup { only_tenants: true, ..Setup::new(word, 1, people) }
}

#[test]
fn a_volume_kept_for_a_name_goes_to_no_other_tenant() {
    holds(&[Setup::new(Word::Soft, 2, 2), Setup::new(Word::Soft, 1, 3), tenants(Word::Soft, 4)]);
}

#[test]
fn a_volume_for_a_namespace_goes_to_no_other_tenant_however_long_the_write_takes() {
    let setups = [Setup::new(Word::Namespace, 2, 2), Setup::new(Word::Namespace, 1, 3), tenants(Word::Namespace, 4)];
    holds(&setups.map(|setup| Setup { writes_are_prompt: false, ..setup }));
}

#[test]
fn a_volume_for_the_pool_is_released_when_nobody_uses_it() {
    holds(&[Setup::new(Word::Pool, 2, 3), Setup::new(Word::Pool, 1, 5)]);
}

#[test]
fn only_the_volumes_of_claims_that_asked_are_released() {
    holds(&[Setup::new(Word::Nothing, 2, 2), Setup::new(Word::Nothing, 1, 4), tenants(Word::Nothing, 5)]);
}

/// Checks about the scrub, which has a test of its own that crashes after each write.
const NOT_MODELLED: [&str; 2] = ["it is not quarantined", "it was not cleaned for others than it would go to"];

#[test]
fn the_checker_finds_each_check_that_is_missing() {
    let pool = Setup::new(Word::Pool, 1, 2);
    let never = Setup { forbidden: true, ..pool };
    let soft = Setup::new(Word::Soft, 1, 3);
    let namespace = Setup::new(Word::Namespace, 1, 2);
    let table = [
        (
            "its claim was in a namespace that is looked after",
            Setup { only_namespace: Some("other"), ..never },
            Broken::Forbidden,
        ),
        ("its class or a label says that this releaser releases it", pool, Broken::SaidNever),
        ("the volume is Released", pool, Broken::BoundVolume),
        ("it refers to a claim that it had", pool, Broken::PreBinding),
        ("it is not being deleted", pool, Broken::GoingAway),
        ("its reclaim policy is Retain", pool, Broken::GoingAway),
        (
            "no provisioner is faster",
            Setup { provisions_at_once: true, forbidden: true, ..namespace },
            Broken::Forbidden,
        ),
        (
            "it has been Released for long enough",
            Setup { option: Some((RELEASE_AFTER, "1000h")), ..never },
            Broken::Forbidden,
        ),
        ("the pool has room", Setup { option: Some((RELEASE_MAX_AVAILABLE, "0")), ..never }, Broken::Forbidden),
        ("what can have changed was read live", pool, Broken::Attached),
        ("the claim that it had is gone", soft, Broken::ClaimThere),
        ("the namespace of that claim is still the one that it was", soft, Broken::Forgotten),
        ("no new claim of that name has another volume", soft, Broken::ServedElsewhere),
        ("it is attached to no node", pool, Broken::Attached),
        ("a claim that it fits waits for a volume", namespace, Broken::NobodyWaited),
        ("it is not a dry run", Setup { dry_run: true, ..never }, Broken::Forbidden),
        (
            "it needs no scrub, or has had it",
            Setup { option: Some((RELEASE_SCRUB, "wipe")), ..never },
            Broken::Forbidden,
        ),
    ];
    for check in RELEASE_VOLUME.checks {
        let known = table.iter().any(|(holds, ..)| *holds == check.holds) || NOT_MODELLED.contains(&check.holds);
        assert!(known, "which setup needs the check that {}?", check.holds);
    }
    for (holds, setup, expected) in table {
        if setup.forbidden {
            assert!(check(setup).is_ok(), "{holds}");
        }
        breaks(Setup { defect: Some(Defect::WithoutCheck(holds)), ..setup }, &[expected]);
    }
}

#[test]
fn the_checker_finds_what_else_could_go_wrong() {
    let (pool, labels) = (Setup::new(Word::Pool, 1, 2), Setup::new(Word::Nothing, 1, 3));
    let slow = Setup { writes_are_prompt: false, ..tenants(Word::Namespace, 4) };
    let with = |defect, setup| Setup { defect: Some(defect), ..setup };
    breaks(with(Defect::AnyVersion, pool), &[Broken::PreBinding, Broken::GoingAway]);
    breaks(with(Defect::CachesForLive, pool), &[Broken::Attached]);
    breaks(with(Defect::ClaimByName, pool), &[Broken::Forgotten]);
    breaks(with(Defect::AssociationByName, labels), &[Broken::NotAsked]);
    breaks(with(Defect::LabelStays, labels), &[Broken::NotAsked]);
    breaks(with(Defect::AssociationBeforeBinding, tenants(Word::Nothing, 5)), &[Broken::NotAsked]);
    breaks(with(Defect::NamespaceBeforeCandidates, slow), &[Broken::OtherTenant]);
    breaks(with(Defect::TakeBackUnread, Setup::new(Word::Namespace, 1, 4)), &[Broken::PreBinding]);
}

#[test]
fn what_the_rules_rely_on_is_needed() {
    let soft = tenants(Word::Soft, 4);
    // The new tenant's namespace is older than what Kubernetes notes too late, so that nothing tells it from the first.
    breaks(Setup { phases_are_prompt: false, ..soft }, &[Broken::Forgotten, Broken::OtherTenant]);
    // A name is all that is written, so whoever has it at that moment is meant.
    breaks(Setup { writes_are_prompt: false, ..soft }, &[Broken::Forgotten, Broken::OtherTenant]);
    breaks(Setup { late_take_back_is_excused: false, ..soft }, &[Broken::OtherTenant]);
}
