//! What becomes of the claims of ended pods: the configuration's word, and the class's.

use cluster::{Class, Store};
use serde::Deserialize;

/// The annotation by which an administrator says what becomes of the claims of ended pods.
pub(super) const RECLAIM_COMPLETED: &str = "claimkeeper.dev/reclaim-completed";

/// What is done about a claim that nobody needs any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// It stays as long as its pod, as Kubernetes has it.
    Off,
    /// It stays, and the pod is told that it could go.
    Report,
    /// It goes.
    Delete,
}

/// The configuration's `ephemeral.reclaimCompleted`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ReclaimCompleted {
    /// Nothing is watched, read or done.
    #[default]
    Off,
    /// Only classes with the annotation take part.
    ByClass,
    /// Claims of all classes are reported, unless their class says otherwise.
    Report,
    /// Claims of all classes are deleted, unless their class says otherwise.
    Delete,
}

/// An annotation that means nothing to us. It counts as `off`.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the class's annotation {RECLAIM_COMPLETED} is `{0}`, but must be off, report or delete; until then it counts as off"
)]
pub(super) struct UnknownMode(Box<str>);

impl Mode {
    /// The mode of a class; none if it leaves it to the configuration.
    pub(super) fn of(class: &Class) -> Result<Option<Self>, UnknownMode> {
        match class.annotations.get(RECLAIM_COMPLETED).map(String::as_str) {
            None => Ok(None),
            Some("off") => Ok(Some(Self::Off)),
            Some("report") => Ok(Some(Self::Report)),
            Some("delete") => Ok(Some(Self::Delete)),
            Some(unknown) => Err(UnknownMode(unknown.into())),
        }
    }
}

impl ReclaimCompleted {
    /// What holds for the claims of this class.
    pub(super) fn mode(self, class: Option<&Class>) -> Mode {
        match class.map(Mode::of) {
            Some(Ok(Some(mode))) => mode,
            // Whoever wrote something wanted something else than the default, and off does no harm.
            Some(Err(_)) => Mode::Off,
            Some(Ok(None)) | None => match self {
                Self::Off | Self::ByClass => Mode::Off,
                Self::Report => Mode::Report,
                Self::Delete => Mode::Delete,
            },
        }
    }

    /// What holds for the claims of the class of this name. A class that does not exist has no say.
    pub(super) fn mode_of(self, name: Option<&str>, classes: &Store<Class>) -> Mode {
        let class = name.and_then(|name| classes.get(&cluster::ObjectKey::new("", name)));
        self.mode(class.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use cluster::ObjectKey;
    use k8s_openapi::jiff::Timestamp;

    use super::*;

    fn class(annotation: Option<&str>) -> Class {
        Class {
            key: ObjectKey::new("", "fast"),
            uid: "u1".into(),
            annotations: annotation.map(|value| (RECLAIM_COMPLETED.into(), value.into())).into_iter().collect(),
            created: Timestamp::UNIX_EPOCH,
            is_default: false,
            provisioner: "disks.example.dev".into(),
            parameters: BTreeMap::new(),
            provisions: true,
            waits_for_consumer: true,
        }
    }

    #[test]
    fn the_class_has_the_last_word_and_what_it_says_wrongly_is_off() {
        use Mode::{Delete, Off, Report};
        for (annotation, by_class, report, delete) in [
            (None, Off, Report, Delete),
            (Some("off"), Off, Off, Off),
            (Some("report"), Report, Report, Report),
            (Some("delete"), Delete, Delete, Delete),
            (Some("Delete"), Off, Off, Off),
            (Some(""), Off, Off, Off),
        ] {
            let class = class(annotation);
            assert_eq!(ReclaimCompleted::ByClass.mode(Some(&class)), by_class, "{annotation:?}");
            assert_eq!(ReclaimCompleted::Report.mode(Some(&class)), report, "{annotation:?}");
            assert_eq!(ReclaimCompleted::Delete.mode(Some(&class)), delete, "{annotation:?}");
        }
        assert_eq!(ReclaimCompleted::ByClass.mode(None), Off);
        assert_eq!(ReclaimCompleted::Delete.mode(None), Delete);
    }

    #[test]
    fn a_word_that_means_nothing_is_told_with_those_that_do() {
        assert_eq!(
            Mode::of(&class(Some("yes"))).unwrap_err().to_string(),
            "the class's annotation claimkeeper.dev/reclaim-completed is `yes`, but must be off, report or delete; \
             until then it counts as off"
        );
    }
}
