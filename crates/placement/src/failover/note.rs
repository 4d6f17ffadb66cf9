//! What is written on a volume, and on its claim, about its moves.

use cluster::Volume;
pub use cluster::claim::BLANK_RECREATIONS;
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The note.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// How often the volume began empty on another node.
    pub count: u64,
    /// When it did so last, as far as we saw.
    #[serde(default)]
    pub last: String,
    /// The node that it left last.
    #[serde(default)]
    pub from: String,
    /// The node that it is on since.
    pub to: String,
    /// Whose data was lost, by the uid of the claim. Only on the volume, which may have other claims later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<String>,
}

impl Note {
    /// The note on a volume; one that nobody can read does not count.
    #[must_use]
    pub fn of(volume: &Volume) -> Option<Self> {
        volume.annotations.get(BLANK_RECREATIONS).and_then(|text| Self::read(text))
    }

    /// The note that this text is.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok().filter(|note: &Self| !note.to.is_empty())
    }

    /// What is remembered of a volume that has not moved, because nothing else says where it is.
    #[must_use]
    pub fn first(node: &str, now: Timestamp) -> Self {
        Self { count: 0, last: second(now), from: String::new(), to: node.to_owned(), claim: None }
    }

    /// The note after one more move.
    #[must_use]
    pub fn next(before: Option<&Self>, from: &str, to: &str, claim: Option<&str>, now: Timestamp) -> Self {
        Self {
            count: before.map_or(0, |note| note.count).saturating_add(1),
            last: second(now),
            from: from.to_owned(),
            to: to.to_owned(),
            claim: claim.map(str::to_owned),
        }
    }

    /// As it stands on the volume.
    #[must_use]
    pub fn on_volume(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// As it stands on the claim.
    #[must_use]
    pub fn on_claim(&self) -> String {
        Self { claim: None, ..self.clone() }.on_volume()
    }
}

/// Kubernetes tells times in whole seconds, too.
fn second(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_tells_the_number_of_moves_and_the_last_of_them() {
        let now: Timestamp = "2026-01-02T03:04:05.678Z".parse().unwrap();
        let first = Note::next(None, "a", "b", Some("c1"), now);
        assert_eq!(first.on_claim(), r#"{"count":1,"last":"2026-01-02T03:04:05Z","from":"a","to":"b"}"#);
        assert_eq!(Note::read(&first.on_volume()), Some(first.clone()));
        assert_eq!(Note::next(Some(&first), "b", "a", None, now).count, 2);
        assert_eq!(Note::next(Some(&Note::first("a", now)), "a", "b", None, now).count, 1);
    }

    #[test]
    fn a_note_that_nobody_can_read_does_not_count() {
        for text in ["", "3", "{}", r#"{"count":-1,"to":"b"}"#, r#"{"count":1,"to":""}"#] {
            assert_eq!(Note::read(text), None, "{text}");
        }
        assert_eq!(Note::read(r#"{"count":7,"to":"b","more":1}"#).map(|note| note.count), Some(7));
    }
}
