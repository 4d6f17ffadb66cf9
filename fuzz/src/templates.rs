//! Templates, which anybody writes who may create pods. The rules are said here once more, and differently: a slip in the
//! parser that is also in its own tests should not be in these.

#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};
use serde_json::{Map, Value, json};

use self::template::{RestrictedField, Rules, Template, TemplateError};

// The parser's own files, and the one that it needs of another crate: all that stands around them, an API client above all,
// would only have to be instrumented too.
extern crate self as platform;
#[path = "../../crates/platform/src/spelling.rs"]
pub mod spelling;
#[allow(dead_code)] // the parts that read the configuration
#[path = "../../crates/provisioner/src/template/mod.rs"]
mod template;

const NAMESPACE: &str = "ci";

/// Beyond this a template is too long, which its JSON may be although its YAML was not.
const MOST_BYTES: usize = 16 * 1024;

const RESTRICTED: [&str; 4] = ["volumeName", "selector", "dataSource", "dataSourceRef"];
const FREE: [&str; 5] = ["accessModes", "resources", "storageClassName", "volumeMode", "volumeAttributesClassName"];

fuzz_target!(|bytes: &[u8]| -> Corpus {
    // Annotations are UTF-8.
    let Ok(text) = std::str::from_utf8(bytes) else { return Corpus::Reject };
    strict(text, &[]);
    strict(text, &RestrictedField::ALL);
    match Template::parse(text, NAMESPACE, &Rules::Seed) {
        Ok(template) => assert!(!template.metadata.contains_key("ownerReferences"), "an owner of its own"),
        Err(error) => is_a_sentence(&error),
    }
    Corpus::Keep
});

fn strict(text: &str, allowed: &[RestrictedField]) {
    let rules = Rules::Strict { allowed: allowed.to_vec() };
    let template = match Template::parse(text, NAMESPACE, &rules) {
        Ok(template) => template,
        Err(error) => return is_a_sentence(&error),
    };
    for field in template.spec.keys() {
        let restricted = RESTRICTED.contains(&field.as_str()) && !allowed.is_empty();
        assert!(restricted || FREE.contains(&field.as_str()), "spec.{field} came through");
    }
    asks_for_storage(&template.spec);
    for (field, keys) in &template.metadata {
        assert!(["labels", "annotations"].contains(&field.as_str()), "metadata.{field} came through");
        for (key, value) in keys.as_object().expect("a map") {
            assert!(value.is_string(), "metadata.{field}.{key} is {value}");
            assert!(!is_reserved(key), "the reserved key {key} came through");
        }
    }
    comes_out_the_same(&template, &rules);
}

fn asks_for_storage(spec: &Map<String, Value>) {
    let storage = &spec["resources"]["requests"]["storage"];
    assert!(storage.is_string() || storage.is_number(), "the request for storage is {storage}");
    assert!(spec["accessModes"][0].is_string(), "the access modes are {}", spec["accessModes"]);
    for field in ["storageClassName", "volumeMode", "volumeAttributesClassName", "volumeName"] {
        assert!(spec.get(field).is_none_or(|value| value.is_string() || value.is_null()), "{field} is no string");
    }
}

fn is_reserved(key: &str) -> bool {
    let key = key.to_lowercase();
    let labels: Vec<&str> = key.split('/').next().filter(|_| key.contains('/')).unwrap_or("").split('.').collect();
    matches!(labels[..], [.., "kubernetes" | "k8s", "io"] | [.., "claimkeeper", "dev"])
}

/// What was taken means the same to whoever reads it next.
fn comes_out_the_same(template: &Template, rules: &Rules) {
    let Template { metadata, spec } = template;
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec});
    let text = claim.to_string();
    if text.len() <= MOST_BYTES {
        assert_eq!(Template::parse(&text, NAMESPACE, rules).as_ref(), Ok(template), "after {text}");
    }
}

/// It becomes the note of an event.
fn is_a_sentence(error: &TemplateError) {
    let sentence = error.to_string();
    assert!(!sentence.is_empty() && sentence.len() < 1024, "{} bytes: {sentence}", sentence.len());
    assert!(!sentence.chars().any(char::is_control), "{sentence:?}");
}
