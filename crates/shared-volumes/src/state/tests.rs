use super::*;
use crate::{metrics::Metrics, sample};

fn at(id: &str, endpoint: Option<&str>) -> SharedVolume {
    SharedVolume { endpoint: endpoint.map(Into::into), ..sample::volume(id) }
}

fn ids(keys: &[VolumeKey]) -> Vec<&str> {
    keys.iter().map(|key| &*key.id).collect()
}

const HERE: &str = "10.1.0.4:1";
const THERE: &str = "10.1.0.5:1";

/// Moments, one after the other.
fn moments() -> [Instant; 4] {
    let now = Instant::now();
    [0, 1, 2, 3].map(|seconds| now + Duration::from_secs(seconds))
}

#[test]
fn what_is_told_again_is_no_news() {
    let (mut state, [one, two, ..]) = (State::default(), moments());
    assert_eq!(ids(&state.told(at("v1", Some(HERE)), one, one)), ["v1"]);
    assert!(state.told(at("v1", Some(HERE)), two, two).is_empty());
    assert_eq!(ids(&state.told(at("v1", Some(THERE)), two, two)), ["v1"]);
}

#[test]
fn an_answer_that_was_asked_for_earlier_is_old_news_whenever_it_comes() {
    let (mut state, [one, two, three, four]) = (State::default(), moments());
    state.told(at("v1", Some(HERE)), one, one);
    state.told(at("v1", Some(THERE)), three, three);
    assert!(state.told(at("v1", Some(HERE)), two, two).is_empty());
    assert_eq!(state.view("v1").unwrap().volume.endpoint.as_deref(), Some(THERE));
    assert!(state.gone("v1", two, two).is_empty() && !state.view("v1").unwrap().gone);
    assert_eq!(ids(&state.gone("v1", four, four)), ["v1"]);
    assert!(state.told(at("v1", Some(HERE)), three, three).is_empty() && state.view("v1").unwrap().gone);
    assert_eq!(ids(&state.told(at("v1", Some(THERE)), four, four)), ["v1"]);
    assert!(!state.view("v1").unwrap().gone);
}

#[test]
fn of_two_answers_that_overlap_the_one_that_is_heard_first_counts_until_somebody_asks_again() {
    let (mut state, [one, two, three, four]) = (State::default(), moments());
    state.told(at("v1", Some(THERE)), one, three);
    assert!(state.told(at("v1", Some(HERE)), two, four).is_empty(), "it may be what was before");
    assert_eq!(ids(&state.told(at("v1", Some(HERE)), three, four)), ["v1"]);
}

#[test]
fn volumes_of_one_endpoint_are_rivals_until_one_leaves_or_is_gone() {
    let (mut state, [one, two, three, _]) = (State::default(), moments());
    state.told(at("v1", Some(HERE)), one, one);
    assert_eq!(ids(&state.told(at("v2", Some(HERE)), one, one)), ["v1", "v2"]);
    let rival = |state: &State, id: &str| state.view(id).unwrap().rival.map(|rival| rival.to_string());
    assert_eq!((rival(&state, "v1").as_deref(), rival(&state, "v2").as_deref()), (Some("v2"), Some("v1")));
    assert_eq!(ids(&state.told(at("v2", Some(THERE)), two, two)), ["v1", "v2"], "who was a rival may be served now");
    assert_eq!((rival(&state, "v1"), rival(&state, "v2")), (None, None));
    state.told(at("v2", Some(HERE)), two, two);
    assert_eq!(ids(&state.gone("v2", three, three)), ["v1", "v2"]);
    assert_eq!((rival(&state, "v1"), rival(&state, "v2")), (None, None));
}

#[test]
fn what_was_seen_is_current_until_endpoint_or_rivals_change() {
    let (mut state, [one, two, three, four]) = (State::default(), moments());
    state.told(at("v1", Some(HERE)), one, one);
    let view = state.view("v1").unwrap();
    assert!(state.is_current(&view));
    state.told(at("v2", Some(HERE)), two, two);
    assert!(!state.is_current(&view), "somebody else is there now");
    state.told(at("v2", None), three, three);
    assert!(state.is_current(&view));
    state.told(at("v1", Some(THERE)), three, three);
    assert!(!state.is_current(&view));
    let view = state.view("v1").unwrap();
    state.gone("v1", four, four);
    assert!(!state.is_current(&view));
    state.forget("v1");
    assert!(!state.is_current(&view));
}

#[test]
fn only_what_is_missing_where_it_was_and_is_not_known_to_be_gone_is_asked_for() {
    let (mut state, [one, two, ..]) = (State::default(), moments());
    state.told(at("v1", None), one, one);
    state.told(at("v2", None), one, one);
    state.told(SharedVolume { home: "n2".into(), ..at("v3", None) }, one, one);
    let missing = |state: &State, home: &str, present: &[&str]| {
        let present = present.iter().map(|id| VolumeId::from(*id)).collect();
        let mut ids: Vec<String> = state.missing(home, &present).iter().map(|volume| volume.id.to_string()).collect();
        ids.sort();
        ids
    };
    assert_eq!(missing(&state, "n1", &["v1"]), ["v2"]);
    assert_eq!(missing(&state, "n2", &[]), ["v3"]);
    state.gone("v2", two, two);
    assert_eq!(missing(&state, "n1", &[]), ["v1"]);
    let mut homes = state.homes();
    homes.sort();
    assert_eq!(homes, ["n1".into(), "n2".into()]);
}

#[test]
fn nothing_is_left_of_a_volume_that_is_forgotten() {
    let (mut state, [one, ..]) = (State::default(), moments());
    let key = state.told(at("v1", Some(HERE)), one, one).remove(0);
    state.leads.will(&key.id, HERE.parse().unwrap());
    state.forget("v1");
    assert!(state.view("v1").is_none() && state.entries().next().is_none());
    assert!(state.of_claim(&ObjectKey::new("ci", "files")).is_empty() && state.at(HERE.parse().unwrap()).is_empty());
    assert!(state.homes().is_empty() && state.leads.of("v1").is_empty());
}

#[test]
fn who_waits_for_an_endpoint_is_told_when_it_is_left() {
    let (mut state, [one, ..]) = (State::default(), moments());
    state.told(at("v1", Some(THERE)), one, one);
    state.told(at("v2", Some(HERE)), one, one);
    state.leads.will(&"v1".into(), HERE.parse().unwrap());
    assert_eq!(ids(&state.now_leads("v1", THERE.parse().ok())), ["v2"]);
    assert!(state.now_leads("v1", None).is_empty(), "nobody waits for where it is itself");
}

#[test]
fn a_verified_volume_expires_by_itself_and_is_doubted_on_demand() {
    let (mut state, [one, two, three, _]) = (State::default(), moments());
    let key = state.told(at("v1", Some(HERE)), one, one).remove(0);
    let verify = |state: &mut State| {
        let entry = state.entry("v1").unwrap();
        let service = ObjectKey::new("ci", "files");
        let owner = Owner { key: service.clone(), uid: "c1".into(), leaving: false };
        (entry.service, entry.verified) =
            (Some(service.clone()), Some(Verified { volume: Arc::clone(&entry.volume), service, owner, until: two }));
    };
    verify(&mut state);
    assert!(state.expired(one).is_empty());
    assert_eq!((ids(&state.expired(two)), ids(&state.expired(three))), (vec!["v1"], vec!["v1"]));
    assert_eq!(state.of_service(&ObjectKey::new("ci", "files")).map(|key| key.id.to_string()).as_deref(), Some("v1"));
    assert!(state.of_service(&ObjectKey::new("shop", "files")).is_none());
    state.doubt(&[key]);
    assert!(state.expired(three).is_empty());
}

#[test]
fn only_a_server_that_leaves_a_service_behind_is_a_failover() {
    let (mut state, [one, two, three, _]) = (State::default(), moments());
    state.told(at("v1", Some(HERE)), one, one);
    assert!(!state.entry("v1").unwrap().moving, "it is new");
    state.entry("v1").unwrap().service = Some(ObjectKey::new("ci", "files"));
    state.told(SharedVolume { published: None, ..at("v1", Some(HERE)) }, two, two);
    assert!(!state.entry("v1").unwrap().moving, "it is where it was");
    state.told(at("v1", Some(THERE)), three, three);
    assert!(state.entry("v1").unwrap().moving);
}

#[test]
fn a_volume_is_worked_on_by_one_at_a_time_and_nothing_is_missed() {
    let (mut state, id) = (State::default(), VolumeId::from("v1"));
    assert!(state.begin(&id));
    assert!(!state.end(&id), "nobody else wanted to");
    assert!(state.begin(&id) && !state.begin(&id) && !state.begin(&id));
    assert!(state.end(&id), "somebody else wanted to");
    assert!(state.begin(&id));
}

#[test]
fn a_round_ends_with_the_last_volume_that_it_waits_for_and_waits_do_not_pile_up() {
    let registry = platform::metrics::Registry::default();
    let shared = Arc::<parking_lot::Mutex<State>>::default();
    let durations = Metrics::register(&registry, &shared).reconciles;
    let ended = || {
        let text = registry.encode();
        let line = "storageos_shared_volume_reconcile_duration_seconds_count ";
        text.lines().find_map(|found| found.strip_prefix(line)).map_or(0, |count| count.parse::<usize>().unwrap())
    };
    let (mut state, [one, ..]) = (State::default(), moments());
    let keys = [state.told(at("v1", None), one, one).remove(0), state.told(at("v2", None), one, one).remove(0)];
    let round = Arc::new(Round::begin(&durations));
    for key in &keys {
        state.wait_for(key, &round);
    }
    drop(round);
    state.settled("v1");
    assert_eq!(ended(), 0);
    state.settled("v2");
    assert_eq!(ended(), 1);
    for _ in 0..100 {
        state.wait_for(&keys[0], &Arc::new(Round::begin(&durations)));
    }
    assert_eq!(ended(), 1 + 100 - MOST_ROUNDS);
}

#[test]
fn pauses_double_up_to_a_limit_and_differ() {
    assert_eq!((pause(0, 1.0), pause(1, 1.0)), (Duration::from_millis(50), Duration::from_millis(100)));
    assert_eq!((pause(u32::MAX, 1.0), pause(20, 1.0)), (Duration::from_secs(15), Duration::from_secs(15)));
    assert_eq!(pause(0, 0.0), Duration::from_millis(25));
}
