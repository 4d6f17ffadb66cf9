//! Classes, as far as a decision reads them.

use k8s_openapi::{api::storage::v1::StorageClass, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::Resource;
use serde::Deserialize;

use crate::{ObjectKey, store::Slim};

/// The annotation by which an administrator says what becomes of the claims of ended pods.
pub const RECLAIM_COMPLETED: &str = "claimkeeper.dev/reclaim-completed";

/// A class.
#[derive(Debug, PartialEq, Eq)]
pub struct Class {
    /// Its name.
    pub key: ObjectKey,
    /// Which class it is.
    pub uid: Box<str>,
    /// What its annotation [`RECLAIM_COMPLETED`] says, word for word.
    pub reclaim_completed: Option<Box<str>>,
}

impl Slim for Class {
    type Wire = Wire;
    const KIND: &'static str = "storageclasses";

    fn from_wire(Wire { metadata }: Wire) -> Option<Self> {
        let annotation = metadata.annotations.and_then(|mut annotations| annotations.remove(RECLAIM_COMPLETED));
        Some(Self {
            key: ObjectKey::new("", &metadata.name?),
            uid: metadata.uid?.into_boxed_str(),
            reclaim_completed: annotation.map(String::into_boxed_str),
        })
    }

    fn key(&self) -> &ObjectKey {
        &self.key
    }
}

/// A class on its way from the API server. There are few: its metadata is decoded whole and dropped at once.
#[derive(Debug, Clone, Deserialize, Resource)]
#[resource(inherit = StorageClass)]
pub struct Wire {
    metadata: ObjectMeta,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_annotation_is_kept_word_for_word() {
        for (annotations, kept) in [
            (r#"{"claimkeeper.dev/reclaim-completed":"delete","other":"x"}"#, Some("delete")),
            (r#"{"claimkeeper.dev/reclaim-completed":"Delete "}"#, Some("Delete ")),
            (r#"{"other":"delete"}"#, None),
            ("null", None),
        ] {
            let json = format!(r#"{{"metadata":{{"name":"fast","uid":"u1","annotations":{annotations}}}}}"#);
            let class = Class::from_wire(serde_json::from_str(&json).unwrap()).unwrap();
            assert_eq!(class.reclaim_completed.as_deref(), kept, "{annotations}");
        }
    }
}
