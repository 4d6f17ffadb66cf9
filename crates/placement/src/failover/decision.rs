//! Whether a volume has been left behind.
//!
//! | what is seen                                                            | decision                         |
//! |-------------------------------------------------------------------------|----------------------------------|
//! | the volume is being deleted                                             | leave: `VolumeBeingDeleted`      |
//! | no pod runs with it, or its driver has noted nothing                    | leave: `NothingSeen`             |
//! | nothing says where it was before                                        | remember: `FirstHome`            |
//! | it is where it was                                                      | leave: `AtHome`                  |
//! | … but what we noted has been changed                                    | remember: `HomeNotedAgain`       |
//! | we note it ourselves, and nobody has looked live yet                    | look: `NotLookedYet`             |
//! | otherwise                                                               | count: `VolumeRecreatedBlank`    |

use cluster::{
    ObjectKey,
    decision::{Chain, Check, Decision},
};

/// All that the rules look at.
#[derive(Debug, Clone)]
pub struct Observation {
    /// Its name.
    pub volume: Box<str>,
    /// Whether somebody asked for its end.
    pub being_deleted: bool,
    /// Whether we note where it moves; otherwise its driver does.
    pub records: bool,
    /// The node where it was when we noted something last, or else its first home.
    pub known: Option<Box<str>>,
    /// The node that its driver has noted, or, where we note it, that anybody takes for its home.
    pub noted: Option<Box<str>>,
    /// Pods that use it and have a node.
    pub users: Vec<User>,
    /// Whether they were read live.
    pub live: bool,
}

/// A pod that uses a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Which one.
    pub pod: ObjectKey,
    /// Where it is.
    pub node: Box<str>,
    /// Whether it runs there, so that the volume is there, too.
    pub running: bool,
    /// Whether it is about to leave.
    pub leaving: bool,
    /// Whether its node is not there: it is gone, and the pod with it, although nobody has deleted that yet.
    pub lost: bool,
}

/// What is done about a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// There is nothing to do, and nothing to tell.
    Leave,
    /// Write down that it is on this node; it has not moved.
    Remember(Box<str>),
    /// Read live what the rules need, and decide again.
    Look,
    /// It has moved, and is empty there.
    Count(Move),
}

/// From where to where a volume went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    /// The node that has the data.
    pub from: Box<str>,
    /// The node that has the volume.
    pub to: Box<str>,
}

impl Action {
    /// What it is called in metrics.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Leave => "leave",
            Self::Remember(_) => "remember",
            Self::Look => "look",
            Self::Count(_) => "count",
        }
    }
}

/// The rules.
pub const FAILOVER: Chain<Observation, Action> = Chain {
    checks: &[
        Check { holds: "the volume is there to stay", run: is_being_deleted },
        Check { holds: "somebody has seen where it is", run: nothing_seen },
        Check { holds: "it was somewhere before", run: is_first_home },
        Check { holds: "it is not where it was", run: is_at_home },
        Check { holds: "everything was read live that could be old", run: not_live },
    ],
    otherwise: |seen| {
        let place = |place: Option<Box<str>>| place.unwrap_or_default();
        let moved = Move { from: place(seen.known.clone()), to: place(seen.place().map(Into::into)) };
        let message = format!(
            "volume {} was made anew on node {} and began empty there; its data was on node {}",
            seen.volume, moved.to, moved.from
        );
        Decision::new(Action::Count(moved), "VolumeRecreatedBlank", message)
    },
};

impl Observation {
    /// The node that has the volume now, as far as anybody has seen.
    fn place(&self) -> Option<&str> {
        if !self.records {
            return self.noted.as_deref();
        }
        let known = self.known.as_deref();
        let is_there = |user: &User| Some(&*user.node) == known;
        let mut staying = self.users.iter().filter(|user| !user.leaving);
        let holds = staying.clone().any(|user| is_there(user) && !user.lost);
        // A node that is not known yet may be a new one; whoever looks live knows.
        let shows = |user: &&User| user.running && !is_there(user) && !(user.lost && self.live);
        let mut runs = || staying.find(shows).map(|user| &*user.node);
        if holds { known } else { runs() }
    }

    /// The pod that shows that it moved.
    #[must_use]
    pub fn witness(&self, node: &str) -> Option<&User> {
        let mut there = self.users.iter().filter(|user| *user.node == *node && !user.leaving);
        there.find(|user| user.running || !self.records)
    }
}

fn is_being_deleted(seen: &Observation) -> Option<Decision<Action>> {
    let message = "the volume is being deleted";
    seen.being_deleted.then(|| Decision::new(Action::Leave, "VolumeBeingDeleted", message))
}

fn nothing_seen(seen: &Observation) -> Option<Decision<Action>> {
    let message =
        if seen.records { "no pod runs with the volume" } else { "the driver has not noted that the volume moved" };
    seen.place().is_none().then(|| Decision::new(Action::Leave, "NothingSeen", message))
}

fn is_first_home(seen: &Observation) -> Option<Decision<Action>> {
    let place = seen.place().filter(|_| seen.known.is_none())?;
    let message = format!("volume {} is on node {place}; nothing says that it was elsewhere before", seen.volume);
    Some(Decision::new(Action::Remember(place.into()), "FirstHome", message))
}

fn is_at_home(seen: &Observation) -> Option<Decision<Action>> {
    let place = seen.place().filter(|place| seen.known.as_deref() == Some(place))?;
    if seen.records && seen.noted.as_deref() != Some(place) {
        let message = format!("volume {} is still on node {place}, and that is noted again", seen.volume);
        return Some(Decision::new(Action::Remember(place.into()), "HomeNotedAgain", message));
    }
    Some(Decision::new(Action::Leave, "AtHome", "the volume is where it was"))
}

fn not_live(seen: &Observation) -> Option<Decision<Action>> {
    let old = seen.records && !seen.live;
    old.then(|| Decision::new(Action::Look, "NotLookedYet", "what was seen may be old"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(node: &str, state: &str) -> User {
        User {
            pod: ObjectKey::new("ci", &format!("on-{node}")),
            node: node.into(),
            running: state != "starting",
            leaving: state == "leaving",
            lost: state == "lost",
        }
    }

    fn seen(records: bool, known: Option<&str>, noted: Option<&str>, users: Vec<User>) -> Observation {
        let volume = "pv-1".into();
        let (known, noted) = (known.map(Into::into), noted.map(Into::into));
        Observation { volume, being_deleted: false, records, known, noted, users, live: true }
    }

    fn count(from: &str, to: &str) -> Action {
        Action::Count(Move { from: from.into(), to: to.into() })
    }

    #[test]
    fn what_a_driver_notes_counts_if_it_is_another_node_than_before() {
        for (known, noted, users, action, reason) in [
            (Some("a"), Some("b"), vec![], count("a", "b"), "VolumeRecreatedBlank"),
            (Some("a"), Some("b"), vec![user("b", "running")], count("a", "b"), "VolumeRecreatedBlank"),
            (Some("b"), Some("b"), vec![user("b", "running")], Action::Leave, "AtHome"),
            // A pod alone shows nothing: the driver is asked before it mounts, and says so.
            (Some("a"), None, vec![user("b", "running")], Action::Leave, "NothingSeen"),
            (Some("a"), Some("a"), vec![user("b", "running")], Action::Leave, "AtHome"),
            (None, Some("b"), vec![], Action::Remember("b".into()), "FirstHome"),
            (None, None, vec![user("b", "running")], Action::Leave, "NothingSeen"),
        ] {
            let decision = FAILOVER.decide(&seen(false, known, noted, users.clone()));
            assert_eq!((decision.action, decision.reason), (action, reason), "{known:?} {noted:?} {users:?}");
        }
    }

    #[test]
    fn where_we_note_it_a_pod_that_runs_elsewhere_counts_unless_one_is_left() {
        let at_a = Some("a");
        for (known, noted, users, action, reason) in [
            (at_a, at_a, vec![user("b", "running")], count("a", "b"), "VolumeRecreatedBlank"),
            (at_a, at_a, vec![user("b", "starting")], Action::Leave, "NothingSeen"),
            (at_a, at_a, vec![user("b", "leaving")], Action::Leave, "NothingSeen"),
            (at_a, at_a, vec![], Action::Leave, "NothingSeen"),
            (at_a, at_a, vec![user("a", "running")], Action::Leave, "AtHome"),
            // Of several the first counts, and only if nobody is left.
            (at_a, at_a, vec![user("b", "running"), user("a", "running")], Action::Leave, "AtHome"),
            (at_a, at_a, vec![user("b", "running"), user("a", "starting")], Action::Leave, "AtHome"),
            (at_a, at_a, vec![user("a", "leaving"), user("b", "running")], count("a", "b"), "VolumeRecreatedBlank"),
            (at_a, at_a, vec![user("a", "lost"), user("b", "running")], count("a", "b"), "VolumeRecreatedBlank"),
            (at_a, at_a, vec![user("a", "lost")], Action::Leave, "NothingSeen"),
            (at_a, at_a, vec![user("c", "lost")], Action::Leave, "NothingSeen"),
            (at_a, at_a, vec![user("c", "running"), user("b", "running")], count("a", "c"), "VolumeRecreatedBlank"),
            (None, None, vec![user("b", "running")], Action::Remember("b".into()), "FirstHome"),
            // Somebody changed what we had noted; the volume has not moved for that.
            (Some("b"), at_a, vec![user("b", "running")], Action::Remember("b".into()), "HomeNotedAgain"),
            (Some("b"), at_a, vec![user("a", "running")], count("b", "a"), "VolumeRecreatedBlank"),
        ] {
            let decision = FAILOVER.decide(&seen(true, known, noted, users.clone()));
            assert_eq!((decision.action, decision.reason), (action, reason), "{known:?} {noted:?} {users:?}");
        }
    }

    #[test]
    fn nothing_is_counted_on_the_word_of_a_cache_nor_for_a_volume_that_goes() {
        let moved = || seen(true, Some("a"), Some("a"), vec![user("b", "running")]);
        assert_eq!(FAILOVER.decide(&Observation { live: false, ..moved() }).action, Action::Look);
        let new_node = seen(true, Some("a"), Some("a"), vec![user("b", "lost")]);
        assert_eq!(FAILOVER.decide(&Observation { live: false, ..new_node }).action, Action::Look);
        let going = Observation { being_deleted: true, ..moved() };
        assert_eq!(FAILOVER.decide(&going).reason, "VolumeBeingDeleted");
        let noted = seen(false, Some("a"), Some("b"), vec![]);
        assert_eq!(
            FAILOVER.decide(&Observation { live: false, ..noted }).action,
            count("a", "b"),
            "the version guards it"
        );
    }

    #[test]
    fn the_same_move_is_never_counted_twice() {
        for records in [true, false] {
            let before = seen(records, Some("a"), Some(if records { "a" } else { "b" }), vec![user("b", "running")]);
            let Action::Count(moved) = FAILOVER.decide(&before).action else { panic!("{before:?}") };
            let after = Observation { known: Some(moved.to.clone()), noted: Some(moved.to), ..before };
            assert_eq!(FAILOVER.decide(&after).reason, "AtHome");
        }
    }
}
