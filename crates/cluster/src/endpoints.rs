//! Endpoints objects: where Services lead to, for who does not read slices yet.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{EndpointSubset, Endpoints as KubernetesEndpoints},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::Resource;
use serde::Deserialize;

use crate::{ObjectKey, meta, store::Slim};

/// An Endpoints object.
#[derive(Debug, Clone, PartialEq)]
pub struct Endpoints {
    /// Where it is found: as its Service.
    pub key: ObjectKey,
    /// Which object it is.
    pub uid: Box<str>,
    /// Which version of it.
    pub version: Box<str>,
    /// All of its labels.
    pub labels: BTreeMap<String, String>,
    /// All of its owners.
    pub owners: Vec<OwnerReference>,
    /// The targets with their ports.
    pub subsets: Vec<EndpointSubset>,
}

impl Slim for Endpoints {
    type Wire = Wire;
    const KIND: &'static str = "endpoints";

    fn from_wire(Wire { metadata, subsets }: Wire) -> Option<Self> {
        Some(Self {
            key: ObjectKey::new(&metadata.namespace?, &metadata.name?),
            uid: metadata.uid?.into_boxed_str(),
            version: metadata.resource_version?.into_boxed_str(),
            labels: metadata.labels.unwrap_or_default(),
            owners: metadata.owner_references.unwrap_or_default(),
            subsets: subsets.unwrap_or_default(),
        })
    }

    fn key(&self) -> &ObjectKey {
        &self.key
    }
}

/// An Endpoints object on its way from the API server.
#[derive(Debug, Clone, Deserialize, Resource)]
#[resource(inherit = KubernetesEndpoints)]
pub struct Wire {
    #[serde(deserialize_with = "meta::slim_with_labels")]
    metadata: ObjectMeta,
    subsets: Option<Vec<EndpointSubset>>,
}
