//! What is written into a pod's affinity, and read from it: the terms by which the scheduler finds the home node.
//!
//! All functions take `spec.affinity` of a pod as it came, also if it is missing, and keep whatever they do not know.

use cluster::{Node, node::HOSTNAME, volume::NODE_NAME_FIELD};
use serde_json::{Value, json};

const NODE_AFFINITY: &str = "nodeAffinity";
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
const TERMS: &str = "nodeSelectorTerms";
const EXPRESSIONS: &str = "matchExpressions";
const FIELDS: &str = "matchFields";

/// The greatest weight that Kubernetes knows.
const GREATEST_WEIGHT: usize = 100;

/// What tells one node from all others, in the words of a node selector.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Requirement {
    /// The value of its hostname label.
    Hostname(Box<str>),
    /// Its name, for nodes without such a label.
    Name(Box<str>),
}

impl Requirement {
    /// The one that this node fulfils.
    #[must_use]
    pub fn of(node: &Node) -> Self {
        node.hostname().map_or_else(|| Self::Name(node.key.name().into()), |hostname| Self::Hostname(hostname.into()))
    }

    /// Whether it is this node that is meant.
    #[must_use]
    pub fn is_met_by(&self, node: &Node) -> bool {
        match self {
            Self::Hostname(hostname) => node.hostname() == Some(hostname),
            Self::Name(name) => node.key.name() == &**name,
        }
    }

    /// The list of a term that it belongs in.
    fn list(&self) -> &'static str {
        match self {
            Self::Hostname(_) => EXPRESSIONS,
            Self::Name(_) => FIELDS,
        }
    }

    fn json(&self) -> Value {
        let (key, value) = match self {
            Self::Hostname(hostname) => (HOSTNAME, hostname),
            Self::Name(name) => (NODE_NAME_FIELD, name),
        };
        json!({"key": key, "operator": "In", "values": [value]})
    }

    /// A requirement that leaves no choice.
    fn read(requirement: &Value) -> Option<Self> {
        let values = requirement["values"].as_array().filter(|values| values.len() == 1)?;
        let value = values.first()?.as_str().filter(|_| requirement["operator"] == "In")?;
        match requirement["key"].as_str()? {
            HOSTNAME => Some(Self::Hostname(value.into())),
            NODE_NAME_FIELD => Some(Self::Name(value.into())),
            _ => None,
        }
    }
}

/// Lets the pod run on no other node. Only one of the terms need match, so each gets the requirement; one that is empty matches
/// no node, and would match this one if it got it.
pub fn require(affinity: &mut Value, requirement: &Requirement) {
    change(&mut object(&mut object(affinity)[NODE_AFFINITY])[REQUIRED][TERMS], |terms| {
        if terms.is_empty() {
            terms.push(json!({requirement.list(): [requirement.json()]}));
            return;
        }
        for term in terms.iter_mut().filter(|term| !is_empty(term)) {
            change(&mut term[requirement.list()], |requirements| {
                if !requirements.contains(&requirement.json()) {
                    requirements.push(requirement.json());
                }
            });
        }
    });
}

/// Lets the scheduler choose the node if it can. A term of ours with another weight is replaced.
pub fn prefer(affinity: &mut Value, requirement: &Requirement, weight: usize) {
    let preference = json!({requirement.list(): [requirement.json()]});
    change(&mut object(&mut object(affinity)[NODE_AFFINITY])[PREFERRED], |terms| {
        match terms.iter_mut().find(|term| term["preference"] == preference) {
            Some(term) => term["weight"] = weight.into(),
            None => terms.push(json!({"weight": weight, "preference": preference})),
        }
    });
}

/// How much each of several home nodes is preferred: as its share of volumes is to the greatest one.
#[must_use]
pub fn weight(volumes: usize, most: usize) -> usize {
    (GREATEST_WEIGHT * volumes).checked_div(most).unwrap_or(GREATEST_WEIGHT).clamp(1, GREATEST_WEIGHT)
}

/// For each term that could let the pod run, the nodes that it insists on.
#[must_use]
pub fn required(affinity: &Value) -> Vec<Vec<Requirement>> {
    let terms = affinity[NODE_AFFINITY][REQUIRED][TERMS].as_array().into_iter().flatten();
    let read = |term: &Value| requirements(term).filter_map(Requirement::read).collect();
    terms.filter(|term| !is_empty(term)).map(read).collect()
}

fn requirements(term: &Value) -> impl Iterator<Item = &Value> {
    [EXPRESSIONS, FIELDS].into_iter().filter_map(|list| term[list].as_array()).flatten()
}

fn is_empty(term: &Value) -> bool {
    requirements(term).next().is_none()
}

/// The value, as an object.
fn object(value: &mut Value) -> &mut Value {
    if !value.is_object() {
        *value = json!({});
    }
    value
}

/// Changes a list that may be missing.
fn change(value: &mut Value, change: impl FnOnce(&mut Vec<Value>)) {
    let mut list = if let Value::Array(list) = value.take() { list } else { Vec::new() };
    change(&mut list);
    *value = Value::Array(list);
}

#[cfg(test)]
mod tests {
    use cluster::store::Slim;

    use super::*;

    fn hostname(value: &str) -> Value {
        json!({"key": HOSTNAME, "operator": "In", "values": [value]})
    }

    fn with_terms(terms: &Value) -> Value {
        json!({NODE_AFFINITY: {REQUIRED: {TERMS: terms}}})
    }

    fn node(name: &str, labels: &Value) -> Node {
        let node = json!({"metadata": {"name": name, "uid": "u1", "labels": labels}});
        Node::from_wire(serde_json::from_value(node).unwrap()).unwrap()
    }

    #[test]
    fn every_term_that_can_match_is_narrowed_and_an_empty_one_still_matches_nothing() {
        let zone = json!({"key": "zone", "operator": "In", "values": ["a", "b"]});
        let name = json!({"key": NODE_NAME_FIELD, "operator": "NotIn", "values": ["x"]});
        let home = || Requirement::Hostname("host-1".into());
        for (before, after) in [
            (Value::Null, with_terms(&json!([{EXPRESSIONS: [hostname("host-1")]}]))),
            (json!({NODE_AFFINITY: null}), with_terms(&json!([{EXPRESSIONS: [hostname("host-1")]}]))),
            (with_terms(&json!([])), with_terms(&json!([{EXPRESSIONS: [hostname("host-1")]}]))),
            (
                with_terms(&json!([{EXPRESSIONS: [zone]}, {}, {FIELDS: [name], EXPRESSIONS: null}, {EXPRESSIONS: []}])),
                with_terms(&json!([
                    {EXPRESSIONS: [zone, hostname("host-1")]},
                    {},
                    {FIELDS: [name], EXPRESSIONS: [hostname("host-1")]},
                    {EXPRESSIONS: []},
                ])),
            ),
        ] {
            let mut affinity = before.clone();
            require(&mut affinity, &home());
            assert_eq!(affinity, after, "{before}");
            require(&mut affinity, &home());
            assert_eq!(affinity, after, "twice is once: {before}");
        }
    }

    #[test]
    fn what_is_not_ours_survives() {
        let mut affinity =
            json!({"podAntiAffinity": {"future": 1}, NODE_AFFINITY: {"future": 2, PREFERRED: [{"weight": 7}]}});
        require(&mut affinity, &Requirement::Name("node-1".into()));
        prefer(&mut affinity, &Requirement::Hostname("host-2".into()), 50);
        prefer(&mut affinity, &Requirement::Hostname("host-2".into()), 100);
        let field = json!({"key": NODE_NAME_FIELD, "operator": "In", "values": ["node-1"]});
        let ours = json!({"weight": 100, "preference": {EXPRESSIONS: [hostname("host-2")]}});
        assert_eq!(
            affinity,
            json!({"podAntiAffinity": {"future": 1}, NODE_AFFINITY: {
                "future": 2, PREFERRED: [{"weight": 7}, ours], REQUIRED: {TERMS: [{FIELDS: [field]}]}}})
        );
    }

    #[test]
    fn nodes_are_called_by_their_own_label_and_by_name_without() {
        let (labelled, plain) = (node("node-1", &json!({HOSTNAME: "host-1"})), node("node-1", &json!({})));
        assert_eq!(Requirement::of(&labelled), Requirement::Hostname("host-1".into()));
        assert_eq!(Requirement::of(&plain), Requirement::Name("node-1".into()));
        assert!(Requirement::of(&labelled).is_met_by(&labelled) && !Requirement::of(&labelled).is_met_by(&plain));
        assert!(Requirement::Name("node-1".into()).is_met_by(&labelled));
    }

    #[test]
    fn the_node_with_most_volumes_weighs_most_and_none_nothing() {
        for (volumes, most, expected) in [(1, 1, 100), (3, 3, 100), (1, 3, 33), (1, 1000, 1), (0, 0, 100)] {
            assert_eq!(weight(volumes, most), expected);
        }
    }

    #[test]
    fn what_a_pod_insists_on_is_read_term_by_term() {
        let choice = json!({"key": HOSTNAME, "operator": "In", "values": ["a", "b"]});
        let not = json!({"key": HOSTNAME, "operator": "NotIn", "values": ["a"]});
        let affinity = with_terms(&json!([
            {EXPRESSIONS: [hostname("a"), choice], FIELDS: [{"key": NODE_NAME_FIELD, "operator": "In", "values": ["n"]}]},
            {},
            {EXPRESSIONS: [choice, not]},
        ]));
        let first = vec![Requirement::Hostname("a".into()), Requirement::Name("n".into())];
        assert_eq!(required(&affinity), [first, vec![]]);
        assert!(required(&Value::Null).is_empty());
    }
}
