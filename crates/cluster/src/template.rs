//! What a claim is made from, exactly as the API server sent it: fields newer than our types reach the claim, too.

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// A `PersistentVolumeClaimTemplate`, in the format in which its pod was read. A claim is made in the same one, because only that
/// loses nothing.
#[derive(Debug, Clone)]
pub enum Template {
    /// As text.
    Json(Box<RawValue>),
    /// As a message of the binary format.
    Binary(Box<[u8]>),
}

impl<'de> Deserialize<'de> for Template {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(Self::Json)
    }
}
