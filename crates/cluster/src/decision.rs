//! The one idea: an observation goes in, a decision comes out, and everybody is told the same.
//!
//! A feature's rules are a constant [`Chain`] of small named checks. The first check that has an opinion ends the chain;
//! the decision's reason and message then feed the API write, the event, the metric, the log and the explanation alike.

use std::borrow::Cow;

use serde::Serialize;

/// What to do, and what everybody is told about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision<A> {
    /// What to do.
    pub action: A,
    /// Stable `CamelCase` code: event reason, metric label, key of the documentation. Never contains data.
    pub reason: &'static str,
    /// One sentence: what was seen and, if something is refused, what to do about it.
    pub message: Cow<'static, str>,
}

impl<A> Decision<A> {
    /// A decision.
    pub fn new(action: A, reason: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self { action, reason, message: message.into() }
    }
}

/// One rule: it ends the chain with a decision, or lets the next rule look.
pub struct Check<O, A> {
    /// The fact that holds when the chain goes on, as a person would say it.
    pub holds: &'static str,
    /// The rule itself.
    pub run: fn(&O) -> Option<Decision<A>>,
}

/// A feature's rules in the order in which they count.
pub struct Chain<O: 'static, A: 'static> {
    /// The rules.
    pub checks: &'static [Check<O, A>],
    /// What is decided when every rule let the observation pass.
    pub otherwise: fn(&O) -> Decision<A>,
}

/// The walk that led to a decision.
#[derive(Debug)]
pub struct Explanation<A> {
    /// The facts that held, in order.
    pub held: Vec<&'static str>,
    /// The fact that did not hold and so decided; none if all held.
    pub failed: Option<&'static str>,
    /// The facts that nobody looked at any more.
    pub not_reached: Vec<&'static str>,
    /// What was decided.
    pub decision: Decision<A>,
}

/// A decision and the way there, told to a person.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Account {
    /// The feature that decides.
    pub feature: &'static str,
    /// What is decided about.
    pub about: String,
    /// What is done.
    pub decision: &'static str,
    /// Its stable code.
    pub reason: &'static str,
    /// Its sentence.
    pub message: Cow<'static, str>,
    /// The facts that held, in order.
    pub held: Vec<&'static str>,
    /// The fact that did not hold and so decided; none if all held.
    pub failed: Option<&'static str>,
    /// The facts that nobody looked at any more.
    pub not_reached: Vec<&'static str>,
}

impl<A> Explanation<A> {
    /// Tells it; `name` is what the action is called.
    pub fn tell(self, feature: &'static str, about: String, name: fn(&A) -> &'static str) -> Account {
        let Self { held, failed, not_reached, decision: Decision { action, reason, message } } = self;
        Account { feature, about, decision: name(&action), reason, message, held, failed, not_reached }
    }
}

impl<O, A> Chain<O, A> {
    /// Decides.
    pub fn decide(&self, seen: &O) -> Decision<A> {
        self.checks.iter().find_map(|check| (check.run)(seen)).unwrap_or_else(|| (self.otherwise)(seen))
    }

    /// Decides and tells the way there.
    pub fn explain(&self, seen: &O) -> Explanation<A> {
        let stop = self.checks.iter().position(|check| (check.run)(seen).is_some());
        let (held, rest) = self.checks.split_at(stop.unwrap_or(self.checks.len()));
        let mut rest = rest.iter().map(|check| check.holds);
        Explanation {
            held: held.iter().map(|check| check.holds).collect(),
            failed: rest.next(),
            not_reached: rest.collect(),
            decision: self.decide(seen),
        }
    }
}
