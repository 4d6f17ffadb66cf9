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
    /// Whether its node is gone, and it with it, although nobody has deleted it yet.
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
        let stays = |user: &&User| !user.leaving;
        let known = self.known.as_deref();
        let holds = self.users.iter().filter(stays).any(|user| Some(&*user.node) == known && !user.lost);
        let runs = || self.users.iter().filter(stays).find(|user| user.running).map(|user| &*user.node);
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
