//! The stores, each with what the enabled features want of it.

use cluster::{Store, store::Index};
use ephemeral::reclaim;

use crate::config::Feature;

/// What more than one feature may look at. A store that no enabled feature needs stays empty.
pub(crate) struct Stores {
    pub(crate) pods: Store<cluster::Pod>,
    pub(crate) claims: Store<cluster::Claim>,
    pub(crate) classes: Store<cluster::Class>,
    pub(crate) namespaces: Store<cluster::Namespace>,
    pub(crate) volumes: Store<cluster::Volume>,
}

impl Stores {
    pub(crate) fn new(features: &[Feature], reclaims: bool) -> Self {
        Self {
            pods: store_of_pods(features, reclaims),
            claims: Store::new(vec![|_| true], vec![]),
            classes: Store::new(vec![|_| true], vec![]),
            namespaces: Store::new(vec![|_| true], vec![]),
            volumes: store_of_volumes(features),
        }
    }
}

/// Pods that no enabled feature could act on are not kept.
fn store_of_pods(features: &[Feature], reclaims: bool) -> Store<cluster::Pod> {
    let mut interests: Vec<fn(&cluster::Pod) -> bool> = Vec::new();
    let mut indexes: Vec<Index<cluster::Pod>> = Vec::new();
    if features.contains(&Feature::Ephemeral) {
        interests.push(ephemeral::interesting);
        indexes.extend(ephemeral::INDEXES_OF_PODS);
    }
    if reclaims {
        interests.push(reclaim::uses_claims);
        indexes.extend(reclaim::INDEXES_OF_PODS);
    }
    if features.contains(&Feature::Provisioner) {
        interests.push(provisioner::interesting);
        indexes.extend(provisioner::INDEXES_OF_PODS);
    }
    if features.contains(&Feature::Enforcement) {
        interests.push(enforcement::observe::interesting_pod);
    }
    Store::new(interests, each_once(indexes))
}

/// Volumes that no enabled feature could act on are not kept either.
fn store_of_volumes(features: &[Feature]) -> Store<cluster::Volume> {
    let mut interests: Vec<fn(&cluster::Volume) -> bool> = Vec::new();
    let mut indexes: Vec<Index<cluster::Volume>> = Vec::new();
    if features.contains(&Feature::Releaser) {
        interests.push(|_| true);
        indexes.extend(releaser::INDEXES_OF_VOLUMES);
    }
    if features.contains(&Feature::Enforcement) {
        interests.push(enforcement::observe::interesting_volume);
        indexes.extend(enforcement::observe::INDEXES_OF_VOLUMES);
    }
    Store::new(interests, each_once(indexes))
}

/// Two features may want the same index.
fn each_once<T>(mut indexes: Vec<Index<T>>) -> Vec<Index<T>> {
    indexes.sort_by_key(|index| index.name);
    indexes.dedup_by_key(|index| index.name);
    indexes
}
