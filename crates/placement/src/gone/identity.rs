//! Which machine a volume's data is on, noted on the volume while that machine is there.
//!
//! | what is there by the noted name, or by the label that the volume is tied to | |
//! |---|---|
//! | nothing, and a machine was noted | [`Presence::Absent`] |
//! | nothing, and none was noted | [`Presence::Unclear`]: it may never have been there |
//! | the very Node object that was noted | [`Presence::There`] |
//! | another object, the same machine | [`Presence::There`]: it came back |
//! | only other machines | [`Presence::Replaced`] |
//! | a machine that says too little, or half of what was noted | [`Presence::Unclear`] |
//! | one, and none was noted | [`Presence::There`]: it is noted now, if it was there already when the volume was bound |
//!
//! A node that came later may be another machine that took the name before anybody looked; whoever took it for the one with the
//! data would take the one with the data for another when it comes back.

use cluster::{Node, Volume, node::Machine, volume::NODE_NAME_FIELD};
use serde::{Deserialize, Serialize};

use crate::home::Home;

/// Where the machine of a volume is noted, on the volume.
pub const HOME_NODE: &str = "claimkeeper.dev/home-node";

/// The machine that has a volume's data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// What its node is called.
    pub name: String,
    /// Which Node object that is.
    pub uid: String,
    /// What the firmware calls the machine.
    #[serde(rename = "systemUUID", default)]
    pub system_uuid: String,
    /// What its operating system calls itself.
    #[serde(rename = "machineID", default)]
    pub machine_id: String,
    /// What its cloud calls it.
    #[serde(rename = "providerID", default)]
    pub provider_id: String,
    /// To which label and value, or name, the volume was tied: one that is tied elsewhere since then has its data elsewhere.
    pub tie: String,
    /// Which volume it was noted for: backups restore annotations with the volume, and the machine is another one then.
    pub volume: String,
}

impl Note {
    /// What is noted on a volume about the node that it is tied to; none if it is about another volume or another node.
    #[must_use]
    pub fn of(volume: &Volume, home: &Home) -> Option<Self> {
        let note: Self = serde_json::from_str(volume.annotations.get(HOME_NODE)?).ok()?;
        (note.volume == *volume.uid && note.tie == tie(home)).then_some(note)
    }

    /// What is to be noted about a node.
    #[must_use]
    pub fn about(node: &Node, volume: &Volume, home: &Home) -> Self {
        Self {
            name: node.key.name().to_owned(),
            uid: node.uid.to_string(),
            system_uuid: node.machine.system_uuid.to_string(),
            machine_id: node.machine.machine_id.to_string(),
            provider_id: node.machine.provider_id.to_string(),
            tie: tie(home),
            volume: volume.uid.to_string(),
        }
    }

    fn machine(&self) -> Machine {
        Machine {
            system_uuid: self.system_uuid.as_str().into(),
            machine_id: self.machine_id.as_str().into(),
            provider_id: self.provider_id.as_str().into(),
        }
    }

    fn is(&self, node: &Node) -> Verdict {
        if *self.uid == *node.uid {
            // As long as the Node object stands, nobody has said that the machine is another one.
            return Verdict::Same;
        }
        compare(&self.machine(), &node.machine)
    }

    /// The note after its node was seen: a new Node object of the same machine, or what the kubelet had not said yet. What was
    /// said before is never replaced by something else.
    fn refreshed(&self, node: &Node) -> Self {
        let kept = |old: &str, new: &str| if old.is_empty() { new.to_owned() } else { old.to_owned() };
        Self {
            name: node.key.name().to_owned(),
            uid: node.uid.to_string(),
            system_uuid: kept(&self.system_uuid, &node.machine.system_uuid),
            machine_id: kept(&self.machine_id, &node.machine.machine_id),
            provider_id: kept(&self.provider_id, &node.machine.provider_id),
            ..self.clone()
        }
    }
}

/// What a volume is tied to, in one word.
#[must_use]
pub fn tie(home: &Home) -> String {
    match home {
        Home::Name(name) => format!("{NODE_NAME_FIELD}={name}"),
        Home::Label(key, value) => format!("{key}={value}"),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Same,
    Other,
    Unknown,
}

/// Firmware and operating system together, or else the cloud. Where one of the two is the same and the other is not, the disks
/// may be the same (an operating system that was installed anew) or not (an image that was cloned): nobody can tell.
fn compare(noted: &Machine, found: &Machine) -> Verdict {
    let says = |machine: &Machine| !machine.system_uuid.is_empty() && !machine.machine_id.is_empty();
    if says(noted) && says(found) {
        let same = [noted.system_uuid == found.system_uuid, noted.machine_id == found.machine_id];
        return match same {
            [true, true] => Verdict::Same,
            [false, false] => Verdict::Other,
            _ => Verdict::Unknown,
        };
    }
    match (&*noted.provider_id, &*found.provider_id) {
        ("", _) | (_, "") => Verdict::Unknown,
        (noted, found) if noted == found => Verdict::Same,
        _ => Verdict::Other,
    }
}

/// Whether the machine of a volume is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Presence {
    /// It is. `note` is what is to be noted, if that is not what is noted already.
    There {
        /// The node's name.
        node: Box<str>,
        /// What is to be noted.
        note: Option<Box<Note>>,
    },
    /// No Node object is.
    Absent,
    /// Another machine has its name.
    Replaced {
        /// That node's name.
        by: Box<str>,
    },
    /// Nobody can tell; a sentence says why.
    Unclear(&'static str),
}

impl Presence {
    /// `found` are the nodes that have the noted name, or what the volume is tied to.
    #[must_use]
    pub fn of(volume: &Volume, home: &Home, found: &[&Node]) -> Self {
        let Some(note) = Note::of(volume, home) else {
            let Some(first) = found.first() else {
                return Self::Unclear("nobody noted which machine it was while it was there");
            };
            let sure = found.len() == 1 && volume.phase_since.is_some_and(|bound| first.created <= bound);
            let note = sure.then(|| Box::new(Note::about(first, volume, home)));
            return Self::There { node: first.key.name().into(), note };
        };
        let verdict = |wanted: Verdict| found.iter().find(|node| note.is(node) == wanted);
        if let Some(node) = verdict(Verdict::Same) {
            let fresh = note.refreshed(node);
            return Self::There { node: node.key.name().into(), note: (fresh != note).then(|| Box::new(fresh)) };
        }
        if verdict(Verdict::Unknown).is_some() {
            return Self::Unclear("a node of its name is there, and nobody can tell whether it is the same machine");
        }
        match found.first() {
            Some(other) => Self::Replaced { by: other.key.name().into() },
            None => Self::Absent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gone::sample::{home, node, node_since, noted, volume};

    fn same(presence: &Presence) -> bool {
        matches!(presence, Presence::There { .. })
    }

    #[test]
    fn a_machine_is_known_by_firmware_and_system_together_or_else_by_its_cloud() {
        let machine = |system: &str, id: &str, cloud: &str| Machine {
            system_uuid: system.into(),
            machine_id: id.into(),
            provider_id: cloud.into(),
        };
        for (noted, found, verdict) in [
            (machine("s", "m", "c"), machine("s", "m", "other"), Verdict::Same),
            (machine("s", "m", "c"), machine("t", "n", "c"), Verdict::Other),
            (machine("s", "m", "c"), machine("s", "n", "c"), Verdict::Unknown),
            (machine("s", "m", "c"), machine("t", "m", "c"), Verdict::Unknown),
            (machine("s", "m", "c"), machine("", "", "c"), Verdict::Same),
            (machine("s", "", "c"), machine("t", "", "d"), Verdict::Other),
            (machine("s", "m", ""), machine("", "", "c"), Verdict::Unknown),
            (machine("", "", ""), machine("", "", ""), Verdict::Unknown),
            (machine("", "", "c"), machine("s", "m", ""), Verdict::Unknown),
        ] {
            assert_eq!(compare(&noted, &found), verdict, "{noted:?} and {found:?}");
        }
    }

    #[test]
    fn a_node_object_that_stands_is_the_machine_whatever_it_says_of_itself() {
        let volume = noted("a", "n1");
        let other_facts = node("node-1", "n1", "b");
        let presence = Presence::of(&volume, &home(), &[&other_facts]);
        assert_eq!(presence, Presence::There { node: "node-1".into(), note: None }, "and the first note stays");
    }

    #[test]
    fn a_machine_that_comes_back_as_a_new_node_is_noted_as_that() {
        let volume = noted("a", "n1");
        let Presence::There { note: Some(note), .. } = Presence::of(&volume, &home(), &[&node("node-1", "n2", "a")])
        else {
            panic!("it is there");
        };
        assert_eq!((&*note.uid, &*note.system_uuid), ("n2", "s-a"));
    }

    #[test]
    fn only_a_node_that_was_there_when_the_volume_was_bound_is_noted() {
        let noted = |volume: &Volume, found: &[&Node]| match Presence::of(volume, &home(), found) {
            Presence::There { note, .. } => note.is_some(),
            other => panic!("{other:?}"),
        };
        let (early, late) = (node("node-1", "n1", "a"), node_since("node-1", "n1", "a", "2026-01-01T00:00:01Z"));
        assert!(noted(&volume(), &[&early]));
        assert!(!noted(&volume(), &[&late]), "it may have replaced the one with the data");
        assert!(!noted(&volume(), &[&early, &node("x", "n2", "b")]), "it may be either");
        let unknown = Volume { phase_since: None, ..volume() };
        assert!(!noted(&unknown, &[&early]));
    }

    #[test]
    fn what_the_kubelet_had_not_said_yet_is_noted_later() {
        let volume = noted("", "n1");
        let Presence::There { note: Some(note), .. } = Presence::of(&volume, &home(), &[&node("node-1", "n1", "a")])
        else {
            panic!("it is there");
        };
        assert_eq!((&*note.system_uuid, &*note.machine_id), ("s-a", "m-a"));
    }

    #[test]
    fn of_several_nodes_one_that_is_the_machine_is_enough_and_one_that_may_be_it_keeps_it() {
        let volume = noted("a", "n1");
        let (machine, other, silent) = (node("x", "n2", "a"), node("node-1", "n3", "b"), node("y", "n4", ""));
        assert!(same(&Presence::of(&volume, &home(), &[&other, &silent, &machine])));
        assert!(matches!(Presence::of(&volume, &home(), &[&other, &silent]), Presence::Unclear(_)));
        assert_eq!(Presence::of(&volume, &home(), &[&other]), Presence::Replaced { by: "node-1".into() });
        assert_eq!(Presence::of(&volume, &home(), &[]), Presence::Absent);
    }

    #[test]
    fn a_note_about_another_volume_or_another_tie_counts_for_nothing() {
        for (key, value) in [("volume", "v0"), ("tie", "kubernetes.io/hostname=node-0")] {
            let mut volume = noted("a", "n1");
            let note = volume.annotations.get_mut(HOME_NODE).unwrap();
            let mut json: serde_json::Value = serde_json::from_str(note).unwrap();
            json[key] = value.into();
            *note = json.to_string();
            assert_eq!(Note::of(&volume, &home()), None);
            assert!(matches!(Presence::of(&volume, &home(), &[]), Presence::Unclear(_)));
            // The machine that is there now has the data: it was restored, or moved, to it.
            assert!(same(&Presence::of(&volume, &home(), &[&node("node-1", "n9", "b")])));
        }
        let mut garbled = volume();
        garbled.annotations.insert(HOME_NODE.to_owned(), "{".to_owned());
        assert_eq!(Note::of(&garbled, &home()), None);
    }
}
