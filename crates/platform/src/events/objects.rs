//! Events as the API server wants them, in both of its dialects.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        core::v1::{Event as CoreEvent, EventSource, ObjectReference},
        events::v1::Event as EventV1,
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, Time},
};
use serde_json::{Value, json};

use super::Event;

/// Limits of the API server's validation.
const MAX_NOTE: usize = 1_024;
const MAX_NAME: usize = 253;
const MAX_INSTANCE: usize = 128;

/// Where cluster-scoped objects, which have no namespace of their own, are talked about.
const CLUSTER_SCOPED_NAMESPACE: &str = "default";

/// Knows who speaks and gives every event a name of its own.
pub(super) struct Composer {
    controller: String,
    instance: String,
    last_suffix: AtomicI64,
}

impl Composer {
    pub(super) fn new(controller: String, instance: &str) -> Self {
        debug_assert!(controller.contains('/'), "{controller} must be a qualified name such as example.com/name");
        Self { controller, instance: cut(instance, MAX_INSTANCE).to_owned(), last_suffix: AtomicI64::new(0) }
    }

    /// `<object>.<hex>`, as client-go names them: recognisable, and different even within one nanosecond.
    pub(super) fn name(&self, regarding: &ObjectReference) -> String {
        let now = i64::try_from(Timestamp::now().as_nanosecond()).unwrap_or_default();
        let next = |last: i64| now.max(last.saturating_add(1));
        let last = self.last_suffix.update(Relaxed, Relaxed, next);
        let suffix = format!("{:x}", next(last));
        let object = regarding.name.as_deref().unwrap_or_default().to_ascii_lowercase();
        // Some kinds allow names that are not names of events, such as system:node.
        let valid = |character: char| character.is_ascii_alphanumeric() || "-.".contains(character);
        let object = object.replace(|character| !valid(character), "-");
        let object = cut(&object, MAX_NAME - 1 - suffix.len());
        let object = object.trim_matches(|character: char| !character.is_ascii_alphanumeric());
        format!("{}.{suffix}", if object.is_empty() { "event" } else { object })
    }

    pub(super) fn event(&self, event: &Event, name: &str) -> EventV1 {
        EventV1 {
            metadata: metadata(event, name),
            event_time: Some(now()),
            regarding: Some(event.regarding.clone()),
            type_: Some(event.kind.as_str().to_owned()),
            reason: Some(event.reason.to_owned()),
            action: Some(event.action.to_owned()),
            note: Some(event.note.clone()),
            reporting_controller: Some(self.controller.clone()),
            reporting_instance: Some(self.instance.clone()),
            ..EventV1::default()
        }
    }

    /// Without `eventTime`, which would ask for the other dialect's series.
    pub(super) fn core_event(&self, event: &Event, name: &str) -> CoreEvent {
        let time = Some(Time(now().0));
        CoreEvent {
            metadata: metadata(event, name),
            first_timestamp: time.clone(),
            last_timestamp: time,
            count: Some(1),
            involved_object: event.regarding.clone(),
            type_: Some(event.kind.as_str().to_owned()),
            reason: Some(event.reason.to_owned()),
            action: Some(event.action.to_owned()),
            message: Some(event.note.clone()),
            source: Some(EventSource { component: Some(self.controller.clone()), host: None }),
            reporting_component: Some(self.controller.clone()),
            reporting_instance: Some(self.instance.clone()),
            ..CoreEvent::default()
        }
    }
}

pub(super) fn namespace(event: &Event) -> &str {
    let namespace = event.regarding.namespace.as_deref().filter(|namespace| !namespace.is_empty());
    namespace.unwrap_or(CLUSTER_SCOPED_NAMESPACE)
}

pub(super) fn series_patch(count: i32) -> Value {
    json!({"series": {"count": count, "lastObservedTime": now()}})
}

pub(super) fn core_series_patch(count: i32) -> Value {
    json!({"count": count, "lastTimestamp": Time(now().0)})
}

/// The event with a note that the API server accepts.
pub(super) fn trimmed(mut event: Event) -> Event {
    if event.note.len() > MAX_NOTE {
        let kept = cut(&event.note, MAX_NOTE - '…'.len_utf8()).len();
        event.note.truncate(kept);
        event.note.push('…');
        // It may wait, and would take its full length with it.
        event.note.shrink_to_fit();
    }
    event
}

fn metadata(event: &Event, name: &str) -> ObjectMeta {
    ObjectMeta { name: Some(name.to_owned()), namespace: Some(namespace(event).to_owned()), ..ObjectMeta::default() }
}

fn now() -> MicroTime {
    MicroTime(Timestamp::now())
}

/// At most `limit` bytes, without cutting a character in two.
fn cut(text: &str, limit: usize) -> &str {
    &text[..text.floor_char_boundary(limit)]
}

#[cfg(test)]
mod tests {
    use super::{super::EventKind, *};

    fn event(note: &str) -> Event {
        let regarding = ObjectReference { name: Some("pod".into()), ..ObjectReference::default() };
        Event { regarding, kind: EventKind::Normal, reason: "Reason", action: "Act", note: note.into() }
    }

    #[test]
    fn a_note_is_cut_between_characters_and_shows_it_and_takes_no_more_room() {
        assert_eq!(trimmed(event("short")).note, "short");
        assert_eq!(trimmed(event(&"x".repeat(1_024))).note.len(), 1_024);
        let long = trimmed(event(&"ü".repeat(1_000))).note;
        assert!(long.len() <= 1_024 && long.ends_with("ü…"), "{} bytes", long.len());
        assert!(long.capacity() <= 1_024, "room for {} bytes", long.capacity());
    }

    #[test]
    fn names_are_unique_valid_and_never_too_long() {
        let composer = Composer::new("claimkeeper.dev/test".into(), "instance");
        let mut names = std::collections::HashSet::new();
        let endless = "x".repeat(300);
        let dashes = format!("{}{}", "x".repeat(200), "-".repeat(53));
        for object in ["pod", "pod", "system:node:Ü", "-", "", &endless, &dashes] {
            let regarding = ObjectReference { name: Some(object.into()), ..ObjectReference::default() };
            let name = composer.name(&regarding);
            let (stem, suffix) = name.rsplit_once('.').unwrap();
            assert!(name.len() <= 253, "{name}");
            assert!(stem.ends_with(|last: char| last.is_ascii_alphanumeric()), "{name}");
            assert!(
                name.chars().all(|character| character.is_ascii_alphanumeric() || "-.".contains(character)),
                "{name}"
            );
            assert!(suffix.chars().all(|digit| digit.is_ascii_hexdigit()), "{name}");
            assert!(names.insert(name));
        }
    }

    #[test]
    fn an_instance_is_cut_to_what_the_api_server_accepts() {
        let composer = Composer::new("claimkeeper.dev/test".into(), &"i".repeat(200));
        assert_eq!(composer.event(&event(""), "name").reporting_instance.map(|instance| instance.len()), Some(128));
    }

    #[test]
    fn objects_without_a_namespace_are_talked_about_in_default() {
        assert_eq!(namespace(&event("")), "default");
    }
}
