//! Whether a pod waits for nothing: it insists on a node that is gone, and has no gate that could be lifted.
//!
//! | what is seen                                                         | decision                 |
//! |----------------------------------------------------------------------|--------------------------|
//! | the pod has a node, has ended, or is being deleted                   | leave: `NotWaiting`      |
//! | every home node is there that must not be left                       | leave: `HomeNodesThere`  |
//! | nobody has looked live yet                                           | look: `NotLookedYet`     |
//! | it has our gate now                                                  | leave: `WaitsBehindGate` |
//! | it could run on some other node                                      | leave: `NotTiedToNode`   |
//! | otherwise                                                            | report: `HomeNodeGone`   |

use cluster::{
    ObjectKey,
    decision::{Chain, Check, Decision},
};

use super::decision::told;
use crate::followed::Followed;

/// All that the rules look at.
#[derive(Debug, Clone)]
pub struct Observation {
    /// The pod.
    pub pod: ObjectKey,
    /// Whether it still looks for a node.
    pub is_waiting: bool,
    /// What it follows.
    pub volumes: Vec<Followed>,
    /// What was read live; none until somebody has looked.
    pub live: Option<Live>,
}

/// What was read live.
#[derive(Debug, Clone, Copy)]
pub struct Live {
    /// Whether the pod is behind our gate.
    pub is_gated: bool,
    /// Whether each of its required terms insists on a node that is not there.
    pub is_tied: bool,
    /// Whether somebody makes it anew when it is deleted.
    pub has_controller: bool,
}

/// What is done about a pod that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// There is nothing to do, and nothing to tell.
    Leave,
    /// Read live what the rules need, and decide again.
    Look,
    /// Tell how it is helped.
    Report,
}

impl Action {
    /// What it is called in metrics.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Leave => "leave",
            Self::Look => "look",
            Self::Report => "report",
        }
    }
}

/// The rules.
pub const STRANDED: Chain<Observation, Action> = Chain {
    checks: &[
        Check { holds: "the pod waits for a node", run: is_not_waiting },
        Check { holds: "a node is gone that must not be left", run: is_at_home },
        Check { holds: "everything was read live", run: not_live },
        Check { holds: "it is not behind our gate", run: is_gated },
        Check { holds: "it insists on that node", run: is_not_tied },
    ],
    otherwise: |seen| {
        let gone = told(seen.volumes.iter().filter(|volume| volume.is_missed()));
        let (namespace, name) = (seen.pod.namespace(), seen.pod.name());
        let command = if seen.live.is_some_and(|live| live.has_controller) {
            format!("kubectl delete pod {name} -n {namespace}")
        } else {
            format!("kubectl get pod {name} -n {namespace} -o yaml | kubectl replace --force -f -")
        };
        let message = format!(
            "{gone}, and the pod was made for it: it cannot run elsewhere, and its affinity cannot be changed. Once it is made \
             anew it waits for the node as its class says: {command}"
        );
        Decision::new(Action::Report, "HomeNodeGone", message)
    },
};

fn is_not_waiting(seen: &Observation) -> Option<Decision<Action>> {
    let message = "the pod has a node, has ended or is being deleted";
    (!seen.is_waiting).then(|| Decision::new(Action::Leave, "NotWaiting", message))
}

fn is_at_home(seen: &Observation) -> Option<Decision<Action>> {
    let missed = seen.volumes.iter().any(Followed::is_missed);
    let message = "all home nodes are there that the pod must not leave";
    (!missed).then(|| Decision::new(Action::Leave, "HomeNodesThere", message))
}

fn not_live(seen: &Observation) -> Option<Decision<Action>> {
    seen.live.is_none().then(|| Decision::new(Action::Look, "NotLookedYet", "what was seen may be old"))
}

fn is_gated(seen: &Observation) -> Option<Decision<Action>> {
    let gated = seen.live.is_some_and(|live| live.is_gated);
    gated.then(|| Decision::new(Action::Leave, "WaitsBehindGate", "the pod waits behind our gate"))
}

fn is_not_tied(seen: &Observation) -> Option<Decision<Action>> {
    let tied = seen.live.is_some_and(|live| live.is_tied);
    let message = "the pod does not insist on the node that is gone";
    (!tied).then(|| Decision::new(Action::Leave, "NotTiedToNode", message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::home::{FailoverMode, Home};

    fn missed() -> Followed {
        Followed {
            claim: ObjectKey::new("ci", "data"),
            volume: "pv-1".into(),
            home: Home::Name("a".into()),
            node: None,
            mode: FailoverMode::Durability,
            timeout: None,
        }
    }

    fn live(is_gated: bool, is_tied: bool) -> Live {
        Live { is_gated, is_tied, has_controller: false }
    }

    #[test]
    fn every_row_of_the_table() {
        let free = Followed { mode: FailoverMode::Availability, ..missed() };
        for (is_waiting, volumes, live, reason) in [
            (false, vec![missed()], Some(live(false, true)), "NotWaiting"),
            (true, vec![free], Some(live(false, true)), "HomeNodesThere"),
            (true, vec![], Some(live(false, true)), "HomeNodesThere"),
            (true, vec![missed()], None, "NotLookedYet"),
            (true, vec![missed()], Some(live(true, true)), "WaitsBehindGate"),
            (true, vec![missed()], Some(live(false, false)), "NotTiedToNode"),
            (true, vec![missed()], Some(live(false, true)), "HomeNodeGone"),
        ] {
            let seen = Observation { pod: ObjectKey::new("ci", "app"), is_waiting, volumes, live };
            let decision = STRANDED.decide(&seen);
            assert_eq!(decision.reason, reason);
            assert_eq!(decision.action == Action::Report, reason == "HomeNodeGone");
        }
    }
}
