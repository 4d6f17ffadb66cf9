//! What is added to a pod, when it is made or when its gate is lifted: the smallest JSON patch, so that whatever we do not know of
//! the pod stays as it is. What is there already is not added again: API servers may ask twice, and have asked before a gate is
//! lifted.

use serde::Serialize;

use super::pod::{AskedPod, NodeAffinity, Preferred, Requirement, Term, Text};

const AFFINITY: &str = "/spec/affinity";
const NODE_AFFINITY: &str = "/spec/affinity/nodeAffinity";
const REQUIRED: &str = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "/spec/affinity/nodeAffinity/preferredDuringSchedulingIgnoredDuringExecution";
const GATES: &str = "/spec/schedulingGates";

/// What a node is to be like.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The one with this value of the label `kubernetes.io/hostname`.
    Hostname(Box<str>),
    /// The one of this name: not every node has that label.
    Name(Box<str>),
    /// Any that has this label.
    Labelled(Box<str>),
}

/// What is to be added to a pod, unless it is there already.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Additions {
    /// All of these must hold for its node.
    pub required: Vec<Place>,
    /// Each of these should, with this weight.
    pub preferred: Vec<(u8, Place)>,
    /// It waits behind this gate before anybody looks for a node.
    pub gate: Option<&'static str>,
}

impl Place {
    /// Whether it is about a field of the node and not about a label.
    fn is_field(&self) -> bool {
        matches!(self, Self::Name(_))
    }

    fn written(&self) -> WrittenRequirement<'_> {
        let (key, operator, value) = match self {
            Self::Hostname(value) => ("kubernetes.io/hostname", "In", Some(&**value)),
            Self::Name(name) => ("metadata.name", "In", Some(&**name)),
            Self::Labelled(key) => (&**key, "Exists", None),
        };
        WrittenRequirement { key, operator, values: value.map(|value| [value]) }
    }

    /// Whether a requirement says just this.
    fn is(&self, requirement: &Requirement<'_>) -> bool {
        let WrittenRequirement { key, operator, values } = self.written();
        let found = requirement.values.as_deref().unwrap_or_default().iter().map(|Text(value)| &**value);
        requirement.key.0 == key && requirement.operator.0 == operator && found.eq(values.into_iter().flatten())
    }

    /// Whether a term says it, maybe among other things.
    fn is_in(&self, term: &Term<'_>) -> bool {
        let requirements = if self.is_field() { &term.match_fields } else { &term.match_expressions };
        requirements.iter().flatten().any(|requirement| self.is(requirement))
    }

    /// Whether a term says it and nothing else.
    fn is_all_of(&self, term: &Term<'_>) -> bool {
        let all = [&term.match_expressions, &term.match_fields];
        all.into_iter().flatten().map(Vec::len).sum::<usize>() == 1 && self.is_in(term)
    }
}

#[derive(Serialize)]
struct WrittenRequirement<'a> {
    key: &'a str,
    operator: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    values: Option<[&'a str; 1]>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WrittenTerm<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    match_expressions: Vec<WrittenRequirement<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    match_fields: Vec<WrittenRequirement<'a>>,
}

impl<'a> WrittenTerm<'a> {
    fn of(places: &'a [Place]) -> Self {
        Self { match_expressions: written(places, false), match_fields: written(places, true) }
    }
}

fn written<'a>(places: impl IntoIterator<Item = &'a Place>, fields: bool) -> Vec<WrittenRequirement<'a>> {
    places.into_iter().filter(|place| place.is_field() == fields).map(Place::written).collect()
}

#[derive(Serialize)]
struct WrittenPreferred<'a> {
    weight: u8,
    preference: WrittenTerm<'a>,
}

impl<'a> WrittenPreferred<'a> {
    fn of(weight: u8, place: &'a Place) -> Self {
        Self { weight, preference: WrittenTerm::of(std::slice::from_ref(place)) }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WrittenSelector<'a> {
    node_selector_terms: [WrittenTerm<'a>; 1],
}

impl<'a> WrittenSelector<'a> {
    fn of(places: &'a [Place]) -> Self {
        Self { node_selector_terms: [WrittenTerm::of(places)] }
    }
}

#[derive(Serialize)]
struct WrittenNodeAffinity<'a> {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution", skip_serializing_if = "Option::is_none")]
    required: Option<WrittenSelector<'a>>,
    #[serde(rename = "preferredDuringSchedulingIgnoredDuringExecution", skip_serializing_if = "Vec::is_empty")]
    preferred: Vec<WrittenPreferred<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WrittenAffinity<'a> {
    node_affinity: WrittenNodeAffinity<'a>,
}

#[derive(Serialize)]
struct WrittenGate {
    name: &'static str,
}

/// The patch that adds what is not there yet; none if everything is.
#[must_use]
pub fn patch(pod: &AskedPod<'_>, additions: &Additions) -> Option<Vec<u8>> {
    let mut patch = Patch::new();
    patch.complete(pod, additions);
    patch.done()
}

/// The patch that lets a pod go from behind a gate, with what is added to it by then; none if it is not there. The API server takes
/// it for this very version of this very pod only.
#[must_use]
pub fn lift(pod: &AskedPod<'_>, additions: &Additions, gate: &str) -> Option<Vec<u8>> {
    let place = pod.spec.scheduling_gates.iter().flatten().position(|found| found.name.0 == gate)?;
    let mut patch = Patch::new();
    patch.say("replace", "/metadata/uid", Some(pod.uid()?));
    patch.say("replace", "/metadata/resourceVersion", Some(pod.version()?));
    patch.complete(pod, additions);
    let ours = format!("{GATES}/{place}");
    patch.say("test", &format!("{ours}/name"), Some(gate));
    patch.say("remove", &ours, None::<()>);
    patch.done()
}

/// Operations that follow each other.
struct Patch(Vec<u8>);

#[derive(Serialize)]
struct Operation<'a, V> {
    op: &'static str,
    path: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<V>,
}

impl Patch {
    fn new() -> Self {
        Self(Vec::with_capacity(512))
    }

    fn say(&mut self, op: &'static str, path: &str, value: Option<impl Serialize>) {
        self.0.push(if self.0.is_empty() { b'[' } else { b',' });
        // Nothing here can fail: all keys are strings, and memory takes what is written to it.
        let _ = serde_json::to_writer(&mut self.0, &Operation { op, path, value });
    }

    /// What is `null` is replaced as if it were not there.
    fn add(&mut self, path: &str, value: &impl Serialize) {
        self.say("add", path, Some(value));
    }

    fn done(mut self) -> Option<Vec<u8>> {
        self.0.push(b']');
        (self.0.len() > 1).then_some(self.0)
    }

    /// Adds what is not there yet.
    fn complete(&mut self, pod: &AskedPod<'_>, Additions { required, preferred, gate }: &Additions) {
        if !required.is_empty() || !preferred.is_empty() {
            let written = || WrittenNodeAffinity {
                required: (!required.is_empty()).then(|| WrittenSelector::of(required)),
                preferred: preferred.iter().map(|(weight, place)| WrittenPreferred::of(*weight, place)).collect(),
            };
            match pod.spec.affinity.as_ref().map(|affinity| &affinity.node_affinity) {
                None => self.add(AFFINITY, &WrittenAffinity { node_affinity: written() }),
                Some(None) => self.add(NODE_AFFINITY, &written()),
                Some(Some(there)) => {
                    self.require(there, required);
                    self.prefer(there, preferred);
                }
            }
        }
        if let Some(name) = *gate {
            match &pod.spec.scheduling_gates {
                None => self.add(GATES, &[WrittenGate { name }]),
                Some(gates) if gates.iter().any(|gate| gate.name.0 == name) => {}
                Some(_) => self.add(&format!("{GATES}/-"), &WrittenGate { name }),
            }
        }
    }

    /// A node need match one of the terms only, so each has to say it. One that is empty matches no node, and must not begin to.
    fn require(&mut self, there: &NodeAffinity<'_>, required: &[Place]) {
        if required.is_empty() {
            return;
        }
        let Some(selector) = &there.required else {
            return self.add(REQUIRED, &WrittenSelector::of(required));
        };
        let terms = selector.node_selector_terms.iter().flatten().enumerate();
        for (place, term) in terms.filter(|(_, term)| !term.is_empty()) {
            let missing: Vec<&Place> = required.iter().filter(|place| !place.is_in(term)).collect();
            for (list, is_there, fields) in [
                ("matchExpressions", term.match_expressions.is_some(), false),
                ("matchFields", term.match_fields.is_some(), true),
            ] {
                let requirements = written(missing.iter().copied(), fields);
                let path = format!("{REQUIRED}/nodeSelectorTerms/{place}/{list}");
                if is_there {
                    let end = format!("{path}/-");
                    for requirement in &requirements {
                        self.add(&end, requirement);
                    }
                } else if !requirements.is_empty() {
                    self.add(&path, &requirements);
                }
            }
        }
    }

    /// The scheduler adds up what terms that say the same weigh, so only what is missing is added: it may be its author's, or ours
    /// from before.
    fn prefer(&mut self, there: &NodeAffinity<'_>, preferred: &[(u8, Place)]) {
        let missing: Vec<_> = preferred
            .iter()
            .map(|(weight, place)| (weight.saturating_sub(weight_of(place, there.preferred.as_deref())), place))
            .filter(|(weight, _)| *weight > 0)
            .map(|(weight, place)| WrittenPreferred::of(weight, place))
            .collect();
        if there.preferred.is_some() {
            for term in &missing {
                self.add(&format!("{PREFERRED}/-"), term);
            }
        } else if !missing.is_empty() {
            self.add(PREFERRED, &missing);
        }
    }
}

/// How much a place is preferred already.
fn weight_of(place: &Place, preferred: Option<&[Preferred<'_>]>) -> u8 {
    let terms = preferred.unwrap_or_default().iter().filter(|term| place.is_all_of(&term.preference));
    terms.fold(0, |sum, term| sum.saturating_add(u8::try_from(term.weight).unwrap_or_default()))
}
