//! What an event is about and what it says, as numbers: enough to tell whether it was said before.

use std::{
    fmt::{self, Display, Write},
    hash::{BuildHasher, Hash, Hasher, RandomState},
};

use super::{Draft, Event, EventKind, Regarding};

/// Two events whose numbers collide, one pair in 10¹⁹, would be taken for one: that is bearable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    /// What it is about.
    pub(super) object: u64,
    /// What is said about it.
    pub(super) series: u64,
}

impl Identity {
    pub(super) fn of_event(event: &Event, numbers: &RandomState) -> Self {
        let regarding = &event.regarding;
        let regarding = Regarding {
            api_version: "",
            kind: regarding.kind.as_deref().unwrap_or_default(),
            namespace: regarding.namespace.as_deref().unwrap_or_default(),
            name: regarding.name.as_deref().unwrap_or_default(),
            uid: regarding.uid.as_deref(),
        };
        Self::new(&regarding, (event.kind, event.reason, event.action), &event.note, numbers)
    }

    pub(super) fn of_draft(draft: &Draft<'_>, numbers: &RandomState) -> Self {
        Self::new(&draft.regarding, (draft.kind, draft.reason, draft.action), &draft.note, numbers)
    }

    fn new(
        Regarding { kind, namespace, name, uid, .. }: &Regarding<'_>,
        said: (EventKind, &str, &str),
        note: &dyn Display,
        numbers: &RandomState,
    ) -> Self {
        let object = numbers.hash_one((uid, kind, namespace, name));
        let mut series = Hashed(numbers.build_hasher());
        (object, said).hash(&mut series.0);
        // Nothing here can fail but a note that says so, and then so much of it counts.
        let _ = write!(series, "{note}");
        Self { object, series: series.0.finish() }
    }
}

/// Takes text as it is written, so that nobody has to put it together.
struct Hashed<H>(H);

impl<H: Hasher> Write for Hashed<H> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}
