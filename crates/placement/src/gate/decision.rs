//! Whether a pod behind the gate has waited long enough.
//!
//! | what is seen                                                       | decision                          |
//! |--------------------------------------------------------------------|-----------------------------------|
//! | the pod has ended, or is being deleted                             | leave: `PodEnding`                |
//! | a node is gone that must not be left, and its time is not over     | wait: `WaitingForHomeNode`        |
//! | nobody has looked live yet                                         | look: `NotLookedYet`              |
//! | such a node is gone, and the time of all of them is over           | lift, preferring: `HomeNodeGivenUp` |
//! | volumes that must not be left are on different nodes               | lift, requiring: `HomesContradict` |
//! | no volume is there any more that must not be left                  | lift: `NothingToWaitFor`          |
//! | otherwise                                                          | lift, requiring: `HomeNodeBack`   |
//!
//! A home that is there is required as long as its own volume must not be left, also if another one was given up: its data is
//! not lost, and must not be lost for company.

use cluster::decision::{Chain, Check, Decision};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use crate::{followed::Followed, home::FailoverMode, patch::Additions};

/// All that the rules look at.
#[derive(Debug, Clone)]
pub struct Observation {
    /// Whether the pod will never run.
    pub is_ending: bool,
    /// When the pod was made: since then it waits.
    pub since: Timestamp,
    /// What it follows.
    pub volumes: Vec<Followed>,
    /// Whether that was read live.
    pub live: bool,
    /// When we look.
    pub now: Timestamp,
}

/// What is done about a pod behind the gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// There is nothing to do, and nothing to tell.
    Leave,
    /// Not yet. Look again at this time, if there is one.
    Wait(Option<Timestamp>),
    /// Read live what the rules need, and decide again.
    Look,
    /// Let it go, with what brings it to its home nodes.
    Lift(Additions),
}

impl Action {
    /// What it is called in metrics.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Leave => "leave",
            Self::Wait(_) => "wait",
            Self::Look => "look",
            Self::Lift(_) => "lift",
        }
    }
}

/// The rules.
pub const GATE: Chain<Observation, Action> = Chain {
    checks: &[
        Check { holds: "the pod is meant to run", run: is_ending },
        Check { holds: "no home node is waited for", run: waits },
        Check { holds: "everything was read live", run: not_live },
        Check { holds: "no home node was given up", run: given_up },
        Check { holds: "the volumes that must not be left are on one node", run: contradict },
        Check { holds: "a volume must not be left", run: nothing_to_wait_for },
    ],
    otherwise: |seen| {
        let homes = told(seen.kept().filter(|volume| !volume.is_missed()));
        let message = format!("{homes}: the pod may run there, and only there");
        Decision::new(Action::Lift(seen.additions()), "HomeNodeBack", message)
    },
};

impl Observation {
    /// Those that must not be left.
    fn kept(&self) -> impl Iterator<Item = &Followed> {
        self.volumes.iter().filter(|volume| volume.mode == FailoverMode::Durability)
    }

    /// When a volume whose node is gone is given up.
    fn end(&self, volume: &Followed) -> Option<Timestamp> {
        self.since.checked_add(SignedDuration::try_from(volume.timeout?).ok()?).ok()
    }

    fn is_given_up(&self, volume: &Followed) -> bool {
        self.end(volume).is_some_and(|end| end <= self.now)
    }

    fn additions(&self) -> Additions {
        Additions::towards(self.volumes.iter().filter_map(|volume| Some((volume.node.as_deref()?, volume.mode))))
    }
}

fn is_ending(seen: &Observation) -> Option<Decision<Action>> {
    seen.is_ending.then(|| Decision::new(Action::Leave, "PodEnding", "the pod has ended or is being deleted"))
}

fn waits(seen: &Observation) -> Option<Decision<Action>> {
    let missed: Vec<&Followed> = seen.kept().filter(|volume| volume.is_missed()).collect();
    let waited_for: Vec<&Followed> = missed.iter().copied().filter(|volume| !seen.is_given_up(volume)).collect();
    if waited_for.is_empty() {
        return None;
    }
    let ends = waited_for.iter().map(|volume| seen.end(volume));
    // One without an end means for ever; otherwise the last one counts.
    let until = ends.collect::<Option<Vec<_>>>().and_then(|ends| ends.into_iter().max());
    let end = match until {
        Some(until) => format!("until {until}"),
        None => {
            "without end; delete the pod and its claim to start anew, or give the class claimkeeper.dev/node-recovery-timeout"
                .to_owned()
        }
    };
    let message = format!("{}: the pod waits for it since {}, {end}", told(missed.into_iter()), seen.since);
    Some(Decision::new(Action::Wait(until), "WaitingForHomeNode", message))
}

fn not_live(seen: &Observation) -> Option<Decision<Action>> {
    (!seen.live).then(|| Decision::new(Action::Look, "NotLookedYet", "what was seen may be old"))
}

fn given_up(seen: &Observation) -> Option<Decision<Action>> {
    let mut missed = seen.kept().filter(|volume| volume.is_missed()).peekable();
    missed.peek()?;
    let message = format!(
        "{}, and did not come back within claimkeeper.dev/node-recovery-timeout of the class: the pod may run elsewhere, where \
         the volume will be empty",
        told(missed)
    );
    Some(Decision::new(Action::Lift(seen.additions()), "HomeNodeGivenUp", message))
}

fn contradict(seen: &Observation) -> Option<Decision<Action>> {
    let additions = seen.additions();
    (additions.required.len() > 1).then(|| {
        let message = format!(
            "{}: no node has all of them, so the pod cannot run; let it use volumes of one node, or give up those that may be \
             empty by claimkeeper.dev/failover-mode: availability",
            told(seen.kept())
        );
        Decision::new(Action::Lift(additions), "HomesContradict", message)
    })
}

fn nothing_to_wait_for(seen: &Observation) -> Option<Decision<Action>> {
    seen.kept().next().is_none().then(|| {
        let message = "the pod has no volume any more that must not be left behind: it need not wait";
        Decision::new(Action::Lift(seen.additions()), "NothingToWaitFor", message)
    })
}

/// Which volumes are where, and whether those nodes are there. Only the first few: an event is short.
pub(super) fn told<'a>(volumes: impl Iterator<Item = &'a Followed>) -> String {
    const FEW: usize = 3;
    let mut sentences: Vec<String> = volumes
        .map(|Followed { claim, volume, home, node, .. }| {
            let state = if node.is_some() { "there" } else { "gone" };
            format!("home node {} of volume {volume} (claim {}) is {state}", home.name(), claim.name())
        })
        .collect();
    let more = sentences.len().saturating_sub(FEW);
    sentences.truncate(FEW);
    if more > 0 {
        sentences.push(format!("{more} more"));
    }
    sentences.join(", ")
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use cluster::{Node, ObjectKey, store::Slim};
    use serde_json::json;

    use super::*;
    use crate::{home::Home, patch::Place};

    fn node(name: &str) -> Arc<Node> {
        let labels = json!({"kubernetes.io/hostname": format!("host-{name}")});
        let node = json!({"metadata": {"name": name, "uid": name, "labels": labels}});
        Arc::new(Node::from_wire(serde_json::from_value(node).unwrap()).unwrap())
    }

    fn volume(home: &str, mode: FailoverMode, there: bool, timeout: Option<u64>) -> Followed {
        Followed {
            claim: ObjectKey::new("ci", "data"),
            volume: "pv-1".into(),
            home: Home::Name(home.into()),
            node: there.then(|| node(home)),
            mode,
            timeout: timeout.map(Duration::from_secs),
        }
    }

    fn kept(home: &str, there: bool, timeout: Option<u64>) -> Followed {
        volume(home, FailoverMode::Durability, there, timeout)
    }

    fn free(home: &str, there: bool) -> Followed {
        volume(home, FailoverMode::Availability, there, None)
    }

    /// A minute after the pod was made.
    fn seen(volumes: Vec<Followed>) -> Observation {
        Observation { is_ending: false, since: Timestamp::UNIX_EPOCH, volumes, live: true, now: at(60) }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn lift(required: &[&str], preferred: &[(&str, u8)]) -> Action {
        let hostname = |name: &str| Place::Hostname(format!("host-{name}").into());
        Action::Lift(Additions {
            required: required.iter().map(|name| hostname(name)).collect(),
            preferred: preferred.iter().map(|(name, weight)| (*weight, hostname(name))).collect(),
            gate: None,
        })
    }

    #[test]
    fn every_row_of_the_table() {
        let wait = |until: Option<i64>| Action::Wait(until.map(at));
        for (volumes, action, reason) in [
            (vec![kept("a", false, None)], wait(None), "WaitingForHomeNode"),
            (vec![kept("a", false, Some(61))], wait(Some(61)), "WaitingForHomeNode"),
            (vec![kept("a", false, Some(60))], lift(&[], &[]), "HomeNodeGivenUp"),
            (vec![kept("a", true, Some(1))], lift(&["a"], &[]), "HomeNodeBack"),
            (vec![kept("a", true, None), kept("a", true, None)], lift(&["a"], &[]), "HomeNodeBack"),
            (vec![kept("a", true, None), kept("b", true, None)], lift(&["a", "b"], &[]), "HomesContradict"),
            // The one that waits longest counts, and for ever is longest.
            (vec![kept("a", false, Some(70)), kept("b", false, Some(90))], wait(Some(90)), "WaitingForHomeNode"),
            (vec![kept("a", false, Some(70)), kept("b", false, None)], wait(None), "WaitingForHomeNode"),
            (vec![kept("a", false, Some(1)), kept("b", false, Some(90))], wait(Some(90)), "WaitingForHomeNode"),
            (vec![kept("a", false, Some(1)), kept("b", false, Some(2))], lift(&[], &[]), "HomeNodeGivenUp"),
            // What was given up takes nothing with it.
            (vec![kept("a", false, Some(1)), kept("b", true, None)], lift(&["b"], &[]), "HomeNodeGivenUp"),
            (vec![kept("a", false, Some(1)), free("b", true)], lift(&[], &[("b", 100)]), "HomeNodeGivenUp"),
            // Nobody waits for a node that may be left.
            (vec![free("a", false)], lift(&[], &[]), "NothingToWaitFor"),
            (vec![], lift(&[], &[]), "NothingToWaitFor"),
            (
                vec![kept("a", true, None), free("b", true), free("c", true), free("c", true)],
                lift(&["a"], &[("c", 100), ("b", 50)]),
                "HomeNodeBack",
            ),
        ] {
            let decision = GATE.decide(&seen(volumes.clone()));
            assert_eq!((decision.action, decision.reason), (action, reason), "{volumes:?}");
        }
    }

    #[test]
    fn nothing_is_lifted_on_the_word_of_a_cache() {
        for volumes in [vec![], vec![kept("a", true, None)], vec![kept("a", false, Some(1))], vec![free("a", true)]] {
            let decision = GATE.decide(&Observation { live: false, ..seen(volumes) });
            assert_eq!((decision.action, decision.reason), (Action::Look, "NotLookedYet"));
        }
    }

    #[test]
    fn a_pod_that_ends_is_left() {
        let decision = GATE.decide(&Observation { is_ending: true, ..seen(vec![kept("a", true, None)]) });
        assert_eq!((decision.action, decision.reason), (Action::Leave, "PodEnding"));
    }

    #[test]
    fn who_waits_is_told_for_what_since_when_and_until_when() {
        let message = GATE.decide(&seen(vec![kept("a", false, Some(90)), free("b", true)])).message;
        assert_eq!(
            message,
            "home node a of volume pv-1 (claim data) is gone: the pod waits for it since 1970-01-01T00:00:00Z, until \
             1970-01-01T00:01:30Z"
        );
        let many = (0..9).map(|_| kept("a", false, None)).collect();
        assert!(GATE.decide(&seen(many)).message.contains("is gone, 6 more:"));
    }
}
