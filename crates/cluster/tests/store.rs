//! The store against a model that is rebuilt from scratch after every step.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use cluster::{
    Claim, ObjectKey, Store,
    store::{Change, Index},
};
use parking_lot::Mutex;
use proptest::prelude::*;

const BY_OWNER: Index<Claim> = Index { name: "owner", values: |claim| claim.owner.iter().cloned().collect() };

#[derive(Debug, Clone)]
enum Step {
    Apply(Claim),
    Delete(ObjectKey),
    /// A gap in the watch: the server's state is now exactly this.
    Relist(Vec<Claim>),
    /// A list that breaks off after these objects and is begun again.
    BrokenList(Vec<Claim>, Vec<Claim>),
}

fn key() -> impl Strategy<Value = ObjectKey> {
    (0..2_u8, 0..4_u8).prop_map(|(namespace, name)| ObjectKey::new(&format!("ns{namespace}"), &format!("claim{name}")))
}

fn claim() -> impl Strategy<Value = Claim> {
    (key(), proptest::option::of(0..3_u8), any::<bool>()).prop_map(|(key, owner, being_deleted)| Claim {
        key,
        owner: owner.map(|owner| format!("uid{owner}").into()),
        owned_by_pod: owner.is_some(),
        being_deleted,
        volume: None,
        blank_recreations: None,
        release_labels: None,
    })
}

fn step() -> impl Strategy<Value = Step> {
    let claims = || proptest::collection::vec(claim(), 0..6);
    prop_oneof![
        4 => claim().prop_map(Step::Apply),
        2 => key().prop_map(Step::Delete),
        1 => claims().prop_map(Step::Relist),
        1 => (claims(), claims()).prop_map(|(broken, whole)| Step::BrokenList(broken, whole)),
    ]
}

type Model = BTreeMap<ObjectKey, Claim>;

fn list(store: &Store<Claim>, claims: &[Claim]) {
    store.begin_list();
    for claim in claims {
        store.apply(claim.clone());
    }
}

fn follow(model: &mut Model, step: &Step) {
    match step {
        Step::Apply(claim) => drop(model.insert(claim.key.clone(), claim.clone())),
        Step::Delete(key) => drop(model.remove(key)),
        Step::Relist(claims) | Step::BrokenList(_, claims) => {
            *model = claims.iter().map(|claim| (claim.key.clone(), claim.clone())).collect();
        }
    }
    // Nobody is interested in claims of this owner.
    model.retain(|_, claim| claim.owner.as_deref() != Some("uid2"));
}

fn interesting(claim: &Claim) -> bool {
    claim.owner.as_deref() != Some("uid2")
}

/// What somebody who only hears of changes believes to exist.
fn listen(store: &Store<Claim>) -> (Arc<Mutex<Model>>, cluster::store::Subscription<Claim>) {
    let believed = Arc::new(Mutex::new(Model::new()));
    let heard = Arc::clone(&believed);
    let subscription = store.subscribe(move |change| match change {
        Change::Applied { old, new } => {
            let before = heard.lock().insert(new.key.clone(), new.clone());
            assert_eq!(before.as_ref(), old, "what a change calls old is what was told before");
        }
        Change::Deleted { old } => {
            assert_eq!(heard.lock().remove(&old.key).as_ref(), Some(old), "only what was told can go");
        }
    });
    (believed, subscription)
}

proptest! {
    #[test]
    fn store_indexes_and_subscribers_always_agree_with_the_server(
        steps in proptest::collection::vec(step(), 1..40),
        late in 0..40_usize,
    ) {
        let store = Store::new(vec![interesting], vec![BY_OWNER]);
        let (early_believes, _early) = listen(&store);
        let mut late_listener = None;
        let mut model = Model::new();
        for (number, step) in steps.iter().enumerate() {
            if number == late {
                late_listener = Some(listen(&store));
            }
            match step {
                Step::Apply(claim) => store.apply(claim.clone()),
                Step::Delete(key) => store.delete(key),
                Step::Relist(claims) => { list(&store, claims); store.end_list(); }
                Step::BrokenList(broken, whole) => { list(&store, broken); list(&store, whole); store.end_list(); }
            }
            follow(&mut model, step);

            prop_assert_eq!(store.len(), model.len());
            for (key, claim) in &model {
                let stored = store.get(key);
                prop_assert_eq!(stored.as_deref(), Some(claim));
            }
            for owner in ["uid0", "uid1", "uid2"] {
                let found: BTreeSet<_> = store.find(&BY_OWNER, owner).iter().map(|claim| claim.key.clone()).collect();
                let expected = model.values().filter(|claim| claim.owner.as_deref() == Some(owner));
                prop_assert_eq!(found, expected.map(|claim| claim.key.clone()).collect());
            }
            prop_assert_eq!(&early_believes.lock().clone(), &model);
            if let Some((late_believes, _)) = &late_listener {
                prop_assert_eq!(&late_believes.lock().clone(), &model);
            }
        }
    }
}

#[test]
fn a_dropped_subscription_hears_nothing_more() {
    let store = Store::new(vec![interesting], vec![]);
    let (believed, subscription) = listen(&store);
    drop(subscription);
    let late = Claim {
        key: ObjectKey::new("ci", "late"),
        owner: None,
        owned_by_pod: false,
        being_deleted: false,
        volume: None,
        blank_recreations: None,
        release_labels: None,
    };
    store.apply(late);
    assert!(believed.lock().is_empty());
}

#[test]
fn a_store_that_is_asked_to_knows_what_it_has_dropped_and_only_as_long_as_it_is_there() {
    let claim = |name: &str, being_deleted: bool| Claim {
        key: ObjectKey::new("ci", name),
        owner: None,
        owned_by_pod: false,
        being_deleted,
        volume: None,
        blank_recreations: None,
        release_labels: None,
    };
    let store = Store::new(vec![|claim: &Claim| claim.being_deleted], vec![]).remembering_dropped();
    let dropped = |name: &str| store.has_dropped(&ObjectKey::new("ci", name));
    store.begin_list();
    for name in ["a", "b", "c"] {
        store.apply(claim(name, false));
    }
    store.end_list();
    assert!(dropped("a") && dropped("b") && dropped("c") && !dropped("d") && store.is_empty());
    store.apply(claim("a", true));
    store.delete(&ObjectKey::new("ci", "b"));
    assert!(!dropped("a") && !dropped("b") && store.len() == 1);
    store.apply(claim("a", false));
    assert!(dropped("a") && store.is_empty());
    store.begin_list();
    store.apply(claim("a", false));
    store.end_list();
    assert!(dropped("a") && !dropped("c"));

    let forgetful = Store::new(vec![|claim: &Claim| claim.being_deleted], vec![]);
    forgetful.apply(claim("a", false));
    assert!(!forgetful.has_dropped(&ObjectKey::new("ci", "a")));
}
