//! What a feature would decide now about an object that is there, as a row.

use std::borrow::Cow;

use serde::Serialize;

/// One row of the audit: an object, and what would be decided about it today. Rows are ordered by where they are found.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// The feature that decides.
    pub feature: &'static str,
    /// Empty for what lives in no namespace.
    pub namespace: String,
    /// Such as `PersistentVolumeClaim`.
    pub kind: &'static str,
    /// The object's name.
    pub name: String,
    /// What would be done.
    pub decision: &'static str,
    /// Its stable code.
    pub reason: &'static str,
    /// Its sentence.
    pub message: Cow<'static, str>,
}
