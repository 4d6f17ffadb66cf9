//! What nodes are to a pod, in the terms of its affinity: those that it is told to run on, and those that it insists on.

use std::collections::BTreeMap;

use cluster::{Node, node::HOSTNAME, volume::NODE_NAME_FIELD};

use crate::{
    home::{FailoverMode, Home},
    patch::{Additions, Place},
    pod::{AskedPod, Requirement, Term, Text},
};

/// The greatest weight that Kubernetes knows.
const GREATEST_WEIGHT: u8 = 100;

impl Place {
    /// The one that only this node is. The label need not be its name, and some nodes have none.
    #[must_use]
    pub fn of(node: &Node) -> Self {
        node.hostname().map_or_else(|| Self::Name(node.key.name().into()), |hostname| Self::Hostname(hostname.into()))
    }
}

impl Additions {
    /// What brings a pod to its volumes, each of which is on one of these nodes: it must run where those are that must not be left,
    /// and else rather where most of them are.
    #[must_use]
    pub fn towards<'a>(homes: impl IntoIterator<Item = (&'a Node, FailoverMode)>) -> Self {
        let mut required = Vec::new();
        let mut volumes = BTreeMap::<Place, usize>::new();
        for (node, mode) in homes {
            match mode {
                FailoverMode::Durability => required.push(Place::of(node)),
                FailoverMode::Availability => *volumes.entry(Place::of(node)).or_default() += 1,
            }
        }
        required.sort();
        required.dedup();
        volumes.retain(|place, _| !required.contains(place));
        Self { required, preferred: weighed(volumes), gate: None }
    }
}

/// Where most volumes are counts most, and the others in proportion.
fn weighed(volumes: BTreeMap<Place, usize>) -> Vec<(u8, Place)> {
    let most = volumes.values().copied().max().unwrap_or(1);
    let mut weighed: Vec<_> = volumes.into_iter().map(|(place, volumes)| (weight(volumes, most), place)).collect();
    weighed.sort_by_key(|(weight, _)| std::cmp::Reverse(*weight));
    weighed
}

fn weight(volumes: usize, most: usize) -> u8 {
    let share = volumes.saturating_mul(GREATEST_WEIGHT.into()) / most.max(1);
    u8::try_from(share).map_or(GREATEST_WEIGHT, |share| share.clamp(1, GREATEST_WEIGHT))
}

/// For each term that could let the pod run, the nodes that it insists on.
#[must_use]
pub fn required(pod: &AskedPod<'_>) -> Vec<Vec<Home>> {
    let affinity = pod.spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let selector = affinity.and_then(|affinity| affinity.required.as_ref());
    let terms = selector.and_then(|selector| selector.node_selector_terms.as_deref()).unwrap_or_default();
    terms.iter().filter(|term| !term.is_empty()).map(insisted_on).collect()
}

fn insisted_on(term: &Term<'_>) -> Vec<Home> {
    let requirements = [&term.match_expressions, &term.match_fields].into_iter().flatten().flatten();
    requirements.filter_map(only_node).collect()
}

/// The node of a requirement that leaves no choice.
fn only_node(Requirement { key, operator, values }: &Requirement<'_>) -> Option<Home> {
    let [Text(value)] = values.as_deref().filter(|_| operator.0 == "In")? else { return None };
    match &*key.0 {
        HOSTNAME => Some(Home::Label(HOSTNAME.into(), (&**value).into())),
        NODE_NAME_FIELD => Some(Home::Name((&**value).into())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use cluster::store::Slim;
    use serde_json::{Value, json};

    use super::*;

    fn node(name: &str, labels: &Value) -> Node {
        let node = json!({"metadata": {"name": name, "uid": "u1", "labels": labels}});
        Node::from_wire(serde_json::from_value(node).unwrap()).unwrap()
    }

    #[test]
    fn nodes_are_called_by_their_own_label_and_by_name_without() {
        let (labelled, plain) = (node("node-1", &json!({HOSTNAME: "host-1"})), node("node-1", &json!({})));
        assert_eq!(Place::of(&labelled), Place::Hostname("host-1".into()));
        assert_eq!(Place::of(&plain), Place::Name("node-1".into()));
    }

    #[test]
    fn the_node_with_most_volumes_weighs_most_and_none_nothing() {
        for (volumes, most, expected) in [(1, 1, 100), (3, 3, 100), (1, 3, 33), (1, 1000, 1), (usize::MAX, 1, 100)] {
            assert_eq!(weight(volumes, most), expected);
        }
    }

    #[test]
    fn a_node_that_is_required_is_not_preferred_besides() {
        let [a, b, c] = ["a", "b", "c"].map(|name| node(name, &json!({})));
        let (must, should) = (FailoverMode::Durability, FailoverMode::Availability);
        let homes = [(&b, should), (&a, should), (&c, should), (&a, must), (&c, should), (&a, must)];
        let name = |name: &str| Place::Name(name.into());
        let expected =
            Additions { required: vec![name("a")], preferred: vec![(100, name("c")), (50, name("b"))], gate: None };
        assert_eq!(Additions::towards(homes), expected);
        assert_eq!(Additions::towards([]), Additions::default());
    }

    #[test]
    fn what_a_pod_insists_on_is_read_term_by_term() {
        let hostname = |values: &[&str]| json!({"key": HOSTNAME, "operator": "In", "values": values});
        let named = json!({"key": NODE_NAME_FIELD, "operator": "In", "values": ["n"]});
        let not = json!({"key": HOSTNAME, "operator": "NotIn", "values": ["a"]});
        let terms = json!([
            {"matchExpressions": [hostname(&["a"]), hostname(&["a", "b"])], "matchFields": [named]},
            {},
            {"matchExpressions": [hostname(&["a", "b"]), not]},
        ]);
        let required_terms = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
        let pod = json!({"spec": {"affinity": {"nodeAffinity": required_terms}}}).to_string();
        let first = vec![Home::Label(HOSTNAME.into(), "a".into()), Home::Name("n".into())];
        assert_eq!(required(&AskedPod::read(&pod).unwrap()), [first, vec![]]);
        assert!(required(&AskedPod::read("{}").unwrap()).is_empty());
    }
}
