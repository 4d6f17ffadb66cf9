//! The claim that a pod describes in an annotation: who writes it may create pods, but perhaps nothing else, so it is read with
//! suspicion.
//!
//! The text becomes a tree within tight limits (`tree`), and the tree becomes a claim only if every field in it is one that a
//! pod's author may decide (`fields`). Whatever else is there is an error that names it: a field that is dropped silently
//! is a class that is not the one asked for.

mod fields;
mod tree;

use serde_json::{Map, Value};

pub use fields::RestrictedField;

/// What may stand in a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rules {
    /// The fields that are harmless, and these.
    Strict {
        /// Fields that can reach other people's data, allowed by the administrator.
        allowed: Vec<RestrictedField>,
    },
    /// Everything that the original takes: all of it, misspelt fields included.
    Seed,
}

/// A template that may be used: what becomes of it is the claim, with the name, the label and the owner that are ours to set.
#[derive(Debug, Clone, PartialEq)]
pub struct Template {
    /// Labels and annotations; in a template under the rules of the seed also everything else.
    pub metadata: Map<String, Value>,
    /// The claim's spec.
    pub spec: Map<String, Value>,
}

/// Why a template is refused: one sentence, with the place and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TemplateError(String);

impl TemplateError {
    fn new(sentence: impl Into<String>) -> Self {
        Self(sentence.into())
    }
}

impl Template {
    /// Reads a template of a pod in this namespace.
    pub fn parse(text: &str, namespace: &str, rules: &Rules) -> Result<Self, TemplateError> {
        let document = tree::parse(text)?;
        match rules {
            Rules::Strict { allowed } => fields::check(document, namespace, allowed),
            Rules::Seed => fields::take_all(document),
        }
    }
}

#[cfg(test)]
mod tests;
