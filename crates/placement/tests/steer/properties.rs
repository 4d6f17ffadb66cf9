//! Whatever pods and volumes there are: the patched pod is a pod, what is required only ever gets narrower, and asking twice changes
//! nothing.

use std::{collections::BTreeMap, sync::Arc};

use cluster::{Node, pod::HOME_NODE_GATE};
use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod};
use placement::{
    Caches, Settings,
    patch::{Additions, Place, lift, patch},
    pod::AskedPod,
    steer::{
        decision::{STEER_POD, Verdict},
        observation::Outcome,
    },
};
use proptest::{collection::vec, option, prelude::*, sample::select};
use serde_json::{Value, json};

use crate::{
    decided::{patched, slim, stores},
    stage::local,
};

const NAMES: [&str; 4] = ["node-a", "node-b", "node-c", "node-d"];
const KEYS: [&str; 3] = ["kubernetes.io/hostname", "zone", "topology.localdisk.csi.acstor.io/node"];
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";

fn requirement(keys: &'static [&'static str]) -> impl Strategy<Value = Value> {
    let operators = select(vec!["In", "NotIn", "Exists", "DoesNotExist"]);
    (select(keys), operators, vec(select(&NAMES[..]), 1..3)).prop_map(|(key, operator, values)| {
        if key == "metadata.name" {
            // The API server takes no other.
            let operator = if operator.len() % 2 == 0 { "In" } else { "NotIn" };
            json!({"key": key, "operator": operator, "values": [values[0]]})
        } else if operator.ends_with("In") {
            json!({"key": key, "operator": operator, "values": values})
        } else {
            json!({"key": key, "operator": operator})
        }
    })
}

fn term() -> impl Strategy<Value = Value> {
    let list = |keys| option::of(option::of(vec(requirement(keys), 0..3)));
    (list(&KEYS), list(&["metadata.name"])).prop_map(|(expressions, fields)| {
        let mut term = json!({});
        for (list, content) in [("matchExpressions", expressions), ("matchFields", fields)] {
            if let Some(content) = content {
                term[list] = json!(content);
            }
        }
        term
    })
}

fn affinity() -> impl Strategy<Value = Value> {
    let required = option::of(vec(term(), 1..4));
    let wish =
        (1..=100_u8, term()).prop_map(|(weight, preference)| json!({"weight": weight, "preference": preference}));
    let preferred = option::of(vec(wish, 0..3));
    (required, preferred).prop_map(|(required, preferred)| {
        let mut affinity = json!({"podAntiAffinity": {}});
        if let Some(terms) = required {
            affinity["nodeAffinity"][REQUIRED] = json!({"nodeSelectorTerms": terms});
        }
        if let Some(wishes) = preferred {
            affinity["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] = json!(wishes);
        }
        affinity
    })
}

fn gates() -> impl Strategy<Value = Value> {
    let name = select(vec![HOME_NODE_GATE, "example.dev/quota"]);
    option::of(option::of(name)).prop_map(|gates| {
        json!(gates.map(|name| name.map(|name| json!({"name": name})).into_iter().collect::<Vec<_>>()))
    })
}

/// A pod that uses any of the claims below, and some that are not there.
pub(crate) fn pods() -> impl Strategy<Value = Value> {
    let affinity = prop_oneof![Just(None), Just(Some(Value::Null)), affinity().prop_map(Some)];
    let volumes = vec((0..10_usize, any::<bool>()), 0..6);
    (volumes, affinity, gates()).prop_map(|(volumes, affinity, gates)| {
        let volume = |(place, (claim, ephemeral)): (usize, (usize, bool))| {
            let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
            let name = format!("v{place}");
            if ephemeral && claim > 7 {
                json!({"name": name, "ephemeral": {"volumeClaimTemplate": {"spec": spec}}})
            } else {
                json!({"name": name, "persistentVolumeClaim": {"claimName": format!("claim-{claim}")}})
            }
        };
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
            "spec": {
                "containers": [{"name": "main", "image": "none"}],
                "volumes": volumes.into_iter().enumerate().map(volume).collect::<Value>(),
            },
        });
        if let Some(affinity) = affinity {
            pod["spec"]["affinity"] = affinity;
        }
        if !gates.is_null() {
            pod["spec"]["schedulingGates"] = gates;
        }
        pod
    })
}

fn node(name: &str, hostname: Option<&str>, zone: Option<&str>) -> Value {
    let mut labels = json!({});
    for (key, value) in [("kubernetes.io/hostname", hostname), ("zone", zone)] {
        if let Some(value) = value {
            labels[key] = value.into();
        }
    }
    json!({"metadata": {"name": name, "labels": labels}})
}

fn nodes() -> impl Strategy<Value = Vec<Value>> {
    let label = || option::of(select(&NAMES[..]));
    vec((label(), label()), NAMES.len()).prop_map(|labels| {
        let nodes = NAMES.iter().zip(labels);
        nodes.map(|(name, (hostname, zone))| node(name, hostname, zone)).collect()
    })
}

/// Where the volumes of claim-0 and up are; a node that is not there is `node-x`.
fn homes() -> impl Strategy<Value = Vec<(&'static str, &'static str)>> {
    let home = select(vec!["node-a", "node-b", "node-c", "node-x"]);
    vec((home, select(vec!["availability", "durability"])), 8)
}

fn caches(nodes: &[Value], homes: &[(&str, &str)]) -> Caches {
    let caches = stores();
    for node in nodes {
        caches.nodes.apply(slim::<Node>(node.clone()));
    }
    for (place, (home, mode)) in homes.iter().enumerate() {
        let (claim, volume) = local("ci", &format!("claim-{place}"), home, mode);
        caches.claims.apply(slim(claim));
        caches.volumes.apply(slim(volume.unwrap()));
    }
    caches
}

/// What is added to the pod, and the pod with it. Claims that are not there are not looked for.
fn steer(caches: &Caches, pod: &Value) -> (Option<Additions>, Value) {
    let json = pod.to_string();
    let asked = AskedPod::read(&json).unwrap();
    let mut seen = caches.observe(&Arc::new(Settings::default()), "ci", &asked);
    seen.volumes.retain(|volume| !matches!(volume.outcome, Outcome::ClaimNotCached));
    let decision = STEER_POD.decide(&seen);
    assert_ne!(decision.action, Verdict::Read);
    let additions = decision.action.additions().cloned();
    let bytes = additions.as_ref().and_then(|additions| patch(&asked, additions));
    (additions, bytes.map_or_else(|| pod.clone(), |bytes| patched(pod, &bytes)))
}

/// Whether the scheduler would take a node for a pod, by what the pod requires.
fn matches(pod: &Pod, node: &Value) -> bool {
    let affinity = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref()?.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    required.is_none_or(|NodeSelector { node_selector_terms }| {
        node_selector_terms.iter().any(|term| term_matches(term, node))
    })
}

fn term_matches(term: &NodeSelectorTerm, node: &Value) -> bool {
    let labels: BTreeMap<String, String> = serde_json::from_value(node["metadata"]["labels"].clone()).unwrap();
    let name = BTreeMap::from([("metadata.name".to_owned(), node["metadata"]["name"].as_str().unwrap().to_owned())]);
    let lists = [(&term.match_expressions, &labels), (&term.match_fields, &name)];
    let requirements: Vec<_> =
        lists.into_iter().flat_map(|(list, values)| list.iter().flatten().map(move |one| (one, values))).collect();
    !requirements.is_empty() && requirements.into_iter().all(|(requirement, values)| meets(requirement, values))
}

fn meets(
    NodeSelectorRequirement { key, operator, values }: &NodeSelectorRequirement,
    has: &BTreeMap<String, String>,
) -> bool {
    let (value, wanted) = (has.get(key), values.as_deref().unwrap_or_default());
    match operator.as_str() {
        "In" => value.is_some_and(|value| wanted.contains(value)),
        "NotIn" => value.is_none_or(|value| !wanted.contains(value)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        operator => panic!("{operator}"),
    }
}

/// Whether a node is what is asked for.
fn is(place: &Place, node: &Value) -> bool {
    match place {
        Place::Hostname(value) => node["metadata"]["labels"]["kubernetes.io/hostname"] == **value,
        Place::Name(name) => node["metadata"]["name"] == **name,
        Place::Labelled(key) => !node["metadata"]["labels"][&**key].is_null(),
    }
}

proptest! {
    #[test]
    fn a_patched_pod_is_a_pod_that_runs_only_where_it_could_before_and_must_now(
        pod in pods(), there in nodes(), homes in homes(),
    ) {
        let caches = caches(&there, &homes);
        let (additions, after) = steer(&caches, &pod);
        let (before, patched): (Pod, Pod) =
            (serde_json::from_value(pod.clone()).unwrap(), serde_json::from_value(after.clone()).unwrap());
        let required = additions.as_ref().map(|additions| additions.required.clone()).unwrap_or_default();
        for node in &there {
            let expected = matches(&before, node) && required.iter().all(|place| is(place, node));
            prop_assert_eq!(matches(&patched, node), expected, "{} becomes {}, for {}", pod, after, node);
        }
        let (again, twice) = steer(&caches, &after);
        prop_assert_eq!(&twice, &after);
        prop_assert_eq!(again, additions);
    }

    #[test]
    fn the_order_of_volumes_does_not_matter(pod in pods(), there in nodes(), homes in homes()) {
        let caches = caches(&there, &homes);
        let mut reversed = pod.clone();
        reversed["spec"]["volumes"].as_array_mut().unwrap().reverse();
        prop_assert_eq!(steer(&caches, &pod).0, steer(&caches, &reversed).0);
    }

    #[test]
    fn a_pod_is_let_go_with_the_same_terms_as_if_it_were_made_now(
        mut pod in pods(), others in vec(select(vec!["example.dev/x", "example.dev/y"]), 0..3),
        place in 0..3_usize, there in nodes(), homes in homes(),
    ) {
        let caches = caches(&there, &homes);
        let gates = |names: &[&str]| names.iter().map(|name| json!({"name": name})).collect::<Vec<_>>();
        pod["spec"]["schedulingGates"] = json!(gates(&others));
        let (additions, mut expected) = steer(&caches, &pod);
        let additions = Additions { gate: None, ..additions.unwrap_or_default() };
        let mut all = others.clone();
        all.insert(place.min(others.len()), HOME_NODE_GATE);
        for pod in [&mut pod, &mut expected] {
            pod["metadata"] = json!({"name": "web", "uid": "u1", "resourceVersion": "7"});
        }
        pod["spec"]["schedulingGates"] = json!(gates(&all));
        expected["spec"]["schedulingGates"] = json!(gates(&others));
        let json = pod.to_string();
        let asked = AskedPod::read(&json).unwrap();
        let bytes = lift(&asked, &additions, HOME_NODE_GATE).unwrap();
        prop_assert_eq!(patched(&pod, &bytes), expected);
        prop_assert_eq!(lift(&asked, &additions, "example.dev/z"), None);
    }

    #[test]
    fn nothing_is_taken_away_from_a_pod(pod in pods(), there in nodes(), homes in homes()) {
        let (_, after) = steer(&caches(&there, &homes), &pod);
        prop_assert!(contains(&after, &pod), "{pod} becomes {after}");
    }
}

/// Whether everything of the one is in the other, in its order.
fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (_, Value::Null) => true,
        (Value::Object(whole), Value::Object(part)) => {
            part.iter().all(|(key, value)| contains(whole.get(key).unwrap_or(&Value::Null), value))
        }
        (Value::Array(whole), Value::Array(part)) => {
            whole.len() >= part.len() && part.iter().zip(whole).all(|(part, whole)| contains(whole, part))
        }
        (whole, part) => whole == part,
    }
}
