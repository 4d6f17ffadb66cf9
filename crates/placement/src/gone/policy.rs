//! What a class says about nodes that are gone.

use std::time::Duration;

use cluster::Class;

use crate::settings::{NodeGone, Patience, Settings};

/// What becomes of what is tied to a node that is gone: `off`, `report` or `delete`.
pub const NODE_GONE: &str = "claimkeeper.dev/node-gone";

/// How long the node must have been gone.
pub const NODE_GONE_AFTER: &str = "claimkeeper.dev/node-gone-after";

/// What holds for the volumes of a class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// What becomes of them.
    pub mode: NodeGone,
    /// After which time.
    pub after: Duration,
    /// What the class says that nobody understands.
    pub unclear: Option<String>,
}

impl Terms {
    /// The class's words, or else the configuration's. Who says something that nobody understands does not want anything deleted.
    #[must_use]
    pub fn of(class: Option<&Class>, settings: &Settings) -> Self {
        let word = |key: &str| class.and_then(|class| class.annotations.get(key)).map(String::as_str);
        let mut unclear = None;
        let mode = word(NODE_GONE).map_or(settings.node_gone, |word| {
            NodeGone::parse(word).unwrap_or_else(|| {
                unclear = Some(format!("annotation {NODE_GONE} is {word:?}, but must be off, report or delete"));
                settings.node_gone.min(NodeGone::Report)
            })
        });
        let mut after = settings.node_gone_after.0;
        let mut capped = mode;
        match word(NODE_GONE_AFTER).map(str::parse::<Patience>) {
            Some(Ok(Patience(time))) => after = time,
            Some(Err(error)) => {
                unclear.get_or_insert_with(|| format!("annotation {NODE_GONE_AFTER}: {error}"));
                capped = mode.min(NodeGone::Report);
            }
            None => {}
        }
        Self { mode: capped, after, unclear }
    }
}

#[cfg(test)]
mod tests {
    use cluster::store::Slim;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_class_decides_and_a_word_that_nobody_understands_deletes_nothing() {
        let minutes = Duration::from_mins;
        let delete = Settings { node_gone: NodeGone::Delete, ..Settings::default() };
        for (annotations, settings, mode, after, clear) in [
            (json!({}), Settings::default(), NodeGone::Report, minutes(5), true),
            (json!({}), delete.clone(), NodeGone::Delete, minutes(5), true),
            (json!({NODE_GONE: "delete"}), Settings::default(), NodeGone::Delete, minutes(5), true),
            (json!({NODE_GONE: "off"}), delete.clone(), NodeGone::Off, minutes(5), true),
            (json!({NODE_GONE: "Off"}), delete.clone(), NodeGone::Report, minutes(5), false),
            (json!({NODE_GONE: ""}), delete.clone(), NodeGone::Report, minutes(5), false),
            (
                json!({NODE_GONE: "delete", NODE_GONE_AFTER: "1m"}),
                Settings::default(),
                NodeGone::Delete,
                minutes(1),
                true,
            ),
            (json!({NODE_GONE_AFTER: "1h"}), delete, NodeGone::Delete, minutes(60), true),
            (
                json!({NODE_GONE: "delete", NODE_GONE_AFTER: "1"}),
                Settings::default(),
                NodeGone::Report,
                minutes(5),
                false,
            ),
        ] {
            let json = json!({"metadata": {"name": "local", "uid": "u1", "annotations": annotations}});
            let class = Class::from_wire(serde_json::from_value(json).unwrap()).unwrap();
            let terms = Terms::of(Some(&class), &settings);
            assert_eq!((terms.mode, terms.after, terms.unclear.is_none()), (mode, after, clear), "{annotations}");
        }
        assert_eq!(Terms::of(None, &Settings::default()).mode, NodeGone::Report);
    }
}
