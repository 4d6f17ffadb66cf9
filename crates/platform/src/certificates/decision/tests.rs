use super::*;

const MINUTE: Duration = Duration::from_mins(1);
const DAY: Duration = Duration::from_hours(24);
const PATIENCE: Patience = Patience { settle: Duration::from_secs(10), grace: Duration::from_mins(5) };

fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

fn id(number: u8) -> Id {
    // The last byte spreads the renewals, which tests of exact moments do without.
    Id::of(&[number, 0])
}

fn at(days: i64) -> Timestamp {
    let seconds = now().as_second() + days * 86_400;
    Timestamp::from_second(seconds).unwrap()
}

fn authority(number: u8, from: i64, until: i64) -> Trusted {
    Trusted { id: id(number), validity: Validity { from: at(from), until: at(until) } }
}

fn young(number: u8) -> Trusted {
    authority(number, -10, 355)
}

fn leaf(issuer: u8) -> Leaf {
    let validity = Validity { from: at(-1), until: at(29) };
    Leaf { id: id(100 + issuer), validity, issuer: Some(id(issuer)), fits_names: true }
}

fn seen(authorities: Vec<Trusted>, leaf: Option<Leaf>) -> Observation {
    Observation {
        now: now(),
        stored: Some(Stored { authorities, can_sign: true, leaf }),
        published_for: Some(DAY),
        leaf_for: DAY,
        served: None,
        patience: PATIENCE,
    }
}

fn outcome(observation: &Observation) -> (Step, &'static str) {
    let Decision { step, reason } = decide(observation);
    (step, reason)
}

#[test]
fn an_authority_is_made_when_none_can_sign_and_long_before_it_expires() {
    let due = authority(1, -250, 120);
    for (name, observation, reason) in [
        ("nothing is there", Observation { stored: None, ..seen(vec![], None) }, "SecretMissing"),
        ("it cannot be read", seen(vec![], Some(leaf(1))), "AuthorityUnreadable"),
        (
            "its key cannot be read",
            Observation {
                stored: Some(Stored { authorities: vec![young(1)], can_sign: false, leaf: Some(leaf(1)) }),
                ..seen(vec![], None)
            },
            "AuthorityKeyUnusable",
        ),
        ("it has expired", seen(vec![authority(1, -365, -1)], Some(leaf(1))), "AuthorityExpired"),
        ("it is not valid yet", seen(vec![authority(1, 1, 365)], Some(leaf(1))), "AuthorityExpired"),
        (
            "it expires in the middle of a rotation",
            seen(vec![authority(2, -365, 0), young(1)], None),
            "AuthorityExpired",
        ),
        ("less than a third of its life is left", seen(vec![due.clone()], Some(leaf(1))), "AuthorityDue"),
    ] {
        assert_eq!(outcome(&observation), (Step::CreateAuthority, reason), "{name}");
    }
    let (step, reason) = outcome(&seen(vec![due, young(2)], Some(leaf(1))));
    assert_eq!((step, reason), (Step::Retire, "NoLongerServed"), "one rotation after the other");
}

#[test]
fn a_bundle_that_differs_is_published_before_anything_is_signed_or_withdrawn() {
    for stored in
        [seen(vec![young(1)], Some(leaf(1))), seen(vec![young(2), young(1)], None), seen(vec![young(1)], None)]
    {
        let observation = Observation { published_for: None, ..stored };
        assert_eq!(outcome(&observation), (Step::Publish, "BundleDiffers"));
    }
}

#[test]
fn a_leaf_is_signed_by_a_new_authority_only_after_it_was_published_for_a_while() {
    let rotation = |seconds| Observation {
        published_for: Some(Duration::from_secs(seconds)),
        ..seen(vec![young(2), young(1)], Some(leaf(1)))
    };
    assert_eq!(outcome(&rotation(0)), (Step::Wait(PATIENCE.settle), "Settling"));
    assert_eq!(outcome(&rotation(9)), (Step::Wait(Duration::from_secs(1)), "Settling"));
    assert_eq!(outcome(&rotation(10)), (Step::IssueLeaf, "AuthorityChanged"));
    // Also if the Secret was deleted and its leaf with it: somebody serves it still.
    let lost = Observation { published_for: Some(MINUTE / 10), ..seen(vec![young(2), young(1)], None) };
    assert_eq!(outcome(&lost), (Step::Wait(Duration::from_secs(4)), "Settling"));
}

#[test]
fn a_leaf_is_replaced_at_once_by_the_only_authority_when_something_is_wrong_with_it() {
    let with = |change: fn(&mut Leaf)| {
        let mut leaf = leaf(1);
        change(&mut leaf);
        Observation { published_for: Some(Duration::ZERO), ..seen(vec![young(1)], Some(leaf)) }
    };
    let first = Observation { published_for: Some(Duration::ZERO), ..seen(vec![young(1)], None) };
    for (observation, reason) in [
        (first, "LeafUnreadable"),
        (with(|leaf| leaf.issuer = None), "AuthorityChanged"),
        (with(|leaf| leaf.fits_names = false), "NamesChanged"),
        (with(|leaf| leaf.validity.until = now()), "LeafExpired"),
        (with(|leaf| leaf.validity.from = at(1)), "LeafExpired"),
        (with(|leaf| leaf.validity = Validity { from: at(-21), until: at(9) }), "LeafDue"),
    ] {
        assert_eq!(outcome(&observation), (Step::IssueLeaf, reason));
    }
}

#[test]
fn an_old_authority_is_trusted_until_nothing_that_it_signed_can_be_served() {
    let rotated = |leaf_for, served| Observation { leaf_for, served, ..seen(vec![young(2), young(1)], Some(leaf(2))) };
    assert_eq!(outcome(&rotated(MINUTE, Some(young(2)))), (Step::Wait(4 * MINUTE), "StillServed"));
    assert_eq!(outcome(&rotated(DAY, Some(young(1)))), (Step::Wait(CHANGE_OVER), "StillServed"));
    assert_eq!(outcome(&rotated(DAY, Some(young(2)))), (Step::Retire, "NoLongerServed"));
    assert_eq!(outcome(&rotated(DAY, None)), (Step::Retire, "NoLongerServed"));
}

#[test]
fn what_is_served_is_trusted_also_if_somebody_replaces_the_secret() {
    let served = |served| Observation { served: Some(served), ..seen(vec![young(7)], Some(leaf(7))) };
    assert_eq!(outcome(&served(young(1))), (Step::Adopt(id(1)), "ServedAuthorityMissing"));
    assert_eq!(outcome(&served(young(7))).1, "NothingDue");
    assert_eq!(outcome(&served(authority(1, -365, -1))).1, "NothingDue", "nobody accepts it anyway");
}

#[test]
fn nothing_is_done_until_the_first_of_both_is_due_and_everything_is_looked_at_in_between() {
    assert_eq!(outcome(&seen(vec![young(1)], Some(leaf(1)))), (Step::Wait(LONGEST_WAIT), "NothingDue"));
    let mut soon = leaf(1);
    soon.validity = Validity { from: at(-20), until: at(10) };
    let observation = Observation { now: now().saturating_sub(MINUTE).unwrap(), ..seen(vec![young(1)], Some(soon)) };
    assert_eq!(outcome(&observation), (Step::Wait(MINUTE), "NothingDue"));
}

#[test]
fn renewals_are_spread_over_a_tenth_of_the_lifetime_and_come_early_rather_than_late() {
    let validity = Validity { from: at(0), until: at(30) };
    assert_eq!(validity.due(&Id::of(&[0])), at(20));
    assert_eq!(validity.due(&Id::of(&[255])), at(17));
    assert!((0..=255).all(|byte| (at(17)..=at(20)).contains(&validity.due(&Id::of(&[byte])))));
}

#[test]
fn a_replica_gives_up_what_works_only_for_what_every_api_server_knows() {
    let choose = |good, verified: Option<u64>| {
        change_over(Choice { good, verified_for: verified.map(Duration::from_secs), settle: PATIENCE.settle })
    };
    assert_eq!(choose(true, None), None);
    assert_eq!(choose(true, Some(3)), Some(Duration::from_secs(7)));
    assert_eq!(choose(true, Some(11)), Some(Duration::ZERO));
    assert_eq!(choose(false, None), Some(Duration::ZERO), "nothing that works is lost");
}
