//! Objects in the binary format of Kubernetes, as far as all kinds are alike: their metadata.
//!
//! A message here names the fields that we read; others are passed over by their length, without a look.

use std::collections::BTreeMap;

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time},
    jiff::Timestamp,
};
use prost::Message;

use crate::meta;

/// Any object.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AnyObject {
    #[prost(message, tag = "1")]
    pub(crate) metadata: Option<Meta>,
}

/// `k8s.io/apimachinery/pkg/apis/meta/v1.ObjectMeta`, as far as some decision reads it and as far as we write it.
#[derive(Clone, PartialEq, Message)]
pub struct Meta {
    /// How the object is called.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Where it lives; empty if in no namespace.
    #[prost(string, tag = "3")]
    pub namespace: String,
    /// Which object it is.
    #[prost(string, tag = "5")]
    pub uid: String,
    /// Which of its versions it is.
    #[prost(string, tag = "6")]
    pub resource_version: String,
    /// When it was made.
    #[prost(message, tag = "8")]
    pub creation_timestamp: Option<Moment>,
    /// When somebody asked for its end.
    #[prost(message, tag = "9")]
    pub deletion_timestamp: Option<Moment>,
    /// What others select it by.
    #[prost(btree_map = "string, string", tag = "11")]
    pub labels: BTreeMap<String, String>,
    /// What others note on it.
    #[prost(btree_map = "string, string", tag = "12")]
    pub annotations: BTreeMap<String, String>,
    /// Whose it is.
    #[prost(message, repeated, tag = "13")]
    pub owner_references: Vec<Owner>,
}

/// `k8s.io/apimachinery/pkg/apis/meta/v1.Time`.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Moment {
    /// Since 1970; Kubernetes keeps no fractions.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
}

/// `k8s.io/apimachinery/pkg/apis/meta/v1.OwnerReference`.
#[derive(Clone, PartialEq, Message)]
pub struct Owner {
    /// Its kind.
    #[prost(string, tag = "1")]
    pub kind: String,
    /// How it is called.
    #[prost(string, tag = "3")]
    pub name: String,
    /// Which object it is.
    #[prost(string, tag = "4")]
    pub uid: String,
    /// In which version of the API it is called so.
    #[prost(string, tag = "5")]
    pub api_version: String,
    /// Whether it is the one that counts.
    #[prost(bool, optional, tag = "6")]
    pub controller: Option<bool>,
    /// Whether its deletion may wait for this object's.
    #[prost(bool, optional, tag = "7")]
    pub block_owner_deletion: Option<bool>,
}

impl Meta {
    /// The same as [`meta::slim`] makes of JSON.
    pub(crate) fn slim(self) -> ObjectMeta {
        let ours = |mut entries: BTreeMap<String, String>| {
            entries.retain(|key, _| meta::is_ours(key));
            Some(entries).filter(|entries| !entries.is_empty())
        };
        let owners: Vec<OwnerReference> = self.owner_references.into_iter().map(OwnerReference::from).collect();
        ObjectMeta {
            name: not_empty(self.name),
            namespace: not_empty(self.namespace),
            uid: not_empty(self.uid),
            resource_version: not_empty(self.resource_version),
            creation_timestamp: self.creation_timestamp.and_then(Moment::time),
            deletion_timestamp: self.deletion_timestamp.and_then(Moment::time),
            labels: ours(self.labels),
            annotations: ours(self.annotations),
            owner_references: Some(owners).filter(|owners| !owners.is_empty()),
            ..ObjectMeta::default()
        }
    }
}

impl Moment {
    /// What is not known is written as nothing.
    fn time(self) -> Option<Time> {
        (self.seconds != 0).then(|| Timestamp::from_second(self.seconds).ok().map(Time)).flatten()
    }
}

impl From<Owner> for OwnerReference {
    fn from(Owner { kind, name, uid, api_version, controller, block_owner_deletion }: Owner) -> Self {
        Self { kind, name, uid, api_version, controller, block_owner_deletion }
    }
}

/// In JSON, what is empty is left out.
pub(crate) fn not_empty(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}
