//! Whether a volume is tied to its home node.
//!
//! | what is seen                                              | decision                     |
//! |-----------------------------------------------------------|------------------------------|
//! | the volume is being deleted                               | leave: `VolumeBeingDeleted`  |
//! | nothing says where it is                                  | leave: `HomeUnknown`         |
//! | its home node is gone                                     | leave: `HomeNodeGone`        |
//! | it is tied to its home                                    | leave: `AlreadyTied`         |
//! | it is tied, but not in exactly our form                   | leave: `TiedByOther`         |
//! | the server said that it cannot be changed                 | leave: `AffinityImmutable`   |
//! | nobody has looked live yet                                | look: `NotLookedYet`         |
//! | it is not tied to anything                                | tie: `TiedToHome`            |
//! | otherwise                                                 | retie: `TiedToNewHome`       |

use cluster::{
    decision::{Chain, Check, Decision},
    volume::Reach,
};

use crate::home::Home;

/// All that the rules look at.
#[derive(Debug, Clone)]
pub struct Observation {
    /// Its name.
    pub volume: Box<str>,
    /// Whether somebody asked for its end.
    pub being_deleted: bool,
    /// Where its data is.
    pub home: Option<Home>,
    /// What ties a volume to that node; none if it is gone.
    pub tie: Option<Tie>,
    /// What the volume says itself.
    pub reach: Reach,
    /// Whether that has exactly the form that we give it; none until somebody has looked live.
    pub has_our_form: Option<bool>,
    /// Whether the server has refused to change it.
    pub is_immutable: bool,
}

/// A label of a node and its value there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tie {
    /// The label.
    pub key: Box<str>,
    /// Its value.
    pub value: Box<str>,
}

/// What is done about a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// There is nothing to do.
    Leave,
    /// Read live what the rules need, and decide again.
    Look,
    /// Tie it, which the server takes once.
    Tie(Tie),
    /// Tie it to something else, which the server may refuse.
    Retie(Tie),
}

impl Action {
    /// What it is called in metrics.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Leave => "leave",
            Self::Look => "look",
            Self::Tie(_) => "tie",
            Self::Retie(_) => "retie",
        }
    }
}

/// The reason for which a volume stays tied to a node that it has left.
pub const AFFINITY_IMMUTABLE: &str = "AffinityImmutable";

/// The rules.
pub const AFFINITY: Chain<Observation, Action> = Chain {
    checks: &[
        Check { holds: "the volume is there to stay", run: is_being_deleted },
        Check { holds: "its home is known", run: is_unknown },
        Check { holds: "its home node is there", run: is_gone },
        Check { holds: "it is not tied to its home", run: is_tied },
        Check { holds: "nobody else has tied it", run: is_tied_by_other },
        Check { holds: "the server may let that be changed", run: is_immutable },
        Check { holds: "everything was read live", run: not_live },
        Check { holds: "it is tied to something", run: is_free },
    ],
    otherwise: |seen| match &seen.tie {
        Some(tie) => {
            let message = format!("volume {} moved to {} and is tied to that node now", seen.volume, tie.value);
            Decision::new(Action::Retie(tie.clone()), "TiedToNewHome", message)
        }
        None => gone(seen),
    },
};

fn gone(seen: &Observation) -> Decision<Action> {
    let home = seen.home.as_ref().map_or("", Home::name);
    let message = format!(
        "home node {home} of volume {} is gone: tied to it the volume could never be used again, so it is left as it is",
        seen.volume
    );
    Decision::new(Action::Leave, "HomeNodeGone", message)
}

fn is_being_deleted(seen: &Observation) -> Option<Decision<Action>> {
    let message = "the volume is being deleted";
    seen.being_deleted.then(|| Decision::new(Action::Leave, "VolumeBeingDeleted", message))
}

fn is_unknown(seen: &Observation) -> Option<Decision<Action>> {
    let message = "neither an annotation nor an attribute of the volume, nor its node affinity, says where it is";
    seen.home.is_none().then(|| Decision::new(Action::Leave, "HomeUnknown", message))
}

fn is_gone(seen: &Observation) -> Option<Decision<Action>> {
    seen.tie.is_none().then(|| gone(seen))
}

fn not_live(seen: &Observation) -> Option<Decision<Action>> {
    seen.has_our_form.is_none().then(|| Decision::new(Action::Look, "NotLookedYet", "what was seen may be old"))
}

fn is_free(seen: &Observation) -> Option<Decision<Action>> {
    let tie = seen.tie.as_ref().filter(|_| !seen.reach.is_limited)?;
    let message = format!(
        "volume {} is tied to its home node: only nodes with {}={} may use it",
        seen.volume, tie.key, tie.value
    );
    Some(Decision::new(Action::Tie(tie.clone()), "TiedToHome", message))
}

fn is_tied(seen: &Observation) -> Option<Decision<Action>> {
    let tie = seen.tie.as_ref()?;
    let tied = seen.reach.pins.iter().any(|(key, value)| (key, value) == (&tie.key, &tie.value));
    tied.then(|| Decision::new(Action::Leave, "AlreadyTied", "the volume is tied to its home node"))
}

fn is_tied_by_other(seen: &Observation) -> Option<Decision<Action>> {
    let tie = seen.tie.as_ref()?;
    let ours = seen.reach.pins.iter().any(|(key, _)| *key == tie.key) && seen.has_our_form != Some(false);
    let message = "somebody has tied the volume in another way";
    (seen.reach.is_limited && !ours).then(|| Decision::new(Action::Leave, "TiedByOther", message))
}

fn is_immutable(seen: &Observation) -> Option<Decision<Action>> {
    let home = seen.home.as_ref().map_or("", Home::name);
    seen.is_immutable.then(|| {
        let message = format!(
            "volume {} moved to node {home}, but the API server does not let its node affinity be changed: turn on the feature \
             gate MutablePVNodeAffinity, or make claim and volume anew",
            seen.volume
        );
        Decision::new(Action::Leave, AFFINITY_IMMUTABLE, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "topology.example.dev/node";

    fn tie(value: &str) -> Tie {
        Tie { key: KEY.into(), value: value.into() }
    }

    fn reach(pins: &[(&str, &str)]) -> Reach {
        Reach { is_limited: true, pins: pins.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect() }
    }

    fn seen() -> Observation {
        Observation {
            volume: "pv-1".into(),
            being_deleted: false,
            home: Some(Home::Name("a".into())),
            tie: Some(tie("a")),
            reach: Reach::default(),
            has_our_form: Some(true),
            is_immutable: false,
        }
    }

    #[test]
    fn every_row_of_the_table() {
        let (at_home, elsewhere) = (reach(&[(KEY, "a")]), reach(&[(KEY, "b")]));
        for (seen, action, reason) in [
            (Observation { being_deleted: true, ..seen() }, Action::Leave, "VolumeBeingDeleted"),
            (Observation { home: None, tie: None, ..seen() }, Action::Leave, "HomeUnknown"),
            (Observation { tie: None, ..seen() }, Action::Leave, "HomeNodeGone"),
            (Observation { tie: None, reach: elsewhere.clone(), ..seen() }, Action::Leave, "HomeNodeGone"),
            (seen(), Action::Tie(tie("a")), "TiedToHome"),
            (Observation { has_our_form: None, ..seen() }, Action::Look, "NotLookedYet"),
            (Observation { reach: at_home, has_our_form: None, ..seen() }, Action::Leave, "AlreadyTied"),
            (Observation { reach: reach(&[]), has_our_form: None, ..seen() }, Action::Leave, "TiedByOther"),
            (Observation { reach: reach(&[("zone", "a")]), ..seen() }, Action::Leave, "TiedByOther"),
            (
                Observation { reach: elsewhere.clone(), has_our_form: Some(false), ..seen() },
                Action::Leave,
                "TiedByOther",
            ),
            (Observation { reach: elsewhere.clone(), has_our_form: None, ..seen() }, Action::Look, "NotLookedYet"),
            (Observation { reach: elsewhere.clone(), ..seen() }, Action::Retie(tie("a")), "TiedToNewHome"),
            (
                Observation { reach: elsewhere, has_our_form: None, is_immutable: true, ..seen() },
                Action::Leave,
                "AffinityImmutable",
            ),
        ] {
            let decision = AFFINITY.decide(&seen);
            assert_eq!((decision.action, decision.reason), (action, reason), "{seen:?}");
        }
    }
}
