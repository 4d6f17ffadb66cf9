//! From text to tree, within limits.

use serde_json::{Map, Value};
use serde_saphyr::{
    Options,
    options::{DuplicateKeyPolicy, MergeKeyPolicy},
};

use super::TemplateError;

/// A claim takes a few hundred bytes. The API server lets annotations have 256 KiB together.
const MOST_BYTES: usize = 16 * 1024;
const MOST_DEPTH: usize = 16;
const MOST_NODES: usize = 1_000;

/// The one object in the text.
pub(super) fn parse(text: &str) -> Result<Map<String, Value>, TemplateError> {
    if text.len() > MOST_BYTES {
        let size = text.len();
        return Err(TemplateError::new(format!("it has {size} bytes, but a template has {MOST_BYTES} at most")));
    }
    let mut documents =
        serde_saphyr::from_multiple_with_options::<Value>(text, options()).map_err(|error| sentence(&error))?;
    documents.retain(|document| !document.is_null());
    match (documents.pop(), documents.is_empty()) {
        (Some(Value::Object(document)), true) => Ok(document),
        (Some(_), true) => Err(TemplateError::new("it is not an object with apiVersion, kind and spec")),
        (Some(_), false) => Err(TemplateError::new("it has several documents, but each volume gets one claim")),
        (None, _) => Err(TemplateError::new("it is empty")),
    }
}

fn options() -> Options {
    serde_saphyr::options! {
        // Nobody needs them in a claim, and they are how a small text becomes a big one.
        budget: serde_saphyr::budget! {
            max_aliases: 0,
            max_anchors: 0,
            max_depth: MOST_DEPTH,
            max_nodes: MOST_NODES,
            max_documents: 2,
        },
        duplicate_keys: DuplicateKeyPolicy::Error,
        merge_keys: MergeKeyPolicy::Error,
        // Only true and false are booleans; `yes` is a name.
        strict_booleans: true,
    }
}

/// The parser's words in one line, without its drawing of the place.
fn sentence(error: &serde_saphyr::Error) -> TemplateError {
    let message = error.without_snippet().to_string();
    let message = message.lines().next().unwrap_or_default();
    let place = error.location().map(|place| format!("line {}, column {}: ", place.line(), place.column()));
    TemplateError::new(format!("it is not valid YAML or JSON: {}{message}", place.unwrap_or_default()))
}
