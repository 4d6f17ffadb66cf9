//! The stores, each with what the enabled features want of it.

use cluster::{
    Store,
    store::{Index, Interest},
};
use ephemeral::reclaim;

use crate::config::{Config, Feature};

/// What more than one feature may look at. A store that no enabled feature needs stays empty.
pub(crate) struct Stores {
    pub(crate) pods: Store<cluster::Pod>,
    pub(crate) claims: Store<cluster::Claim>,
    pub(crate) classes: Store<cluster::Class>,
    pub(crate) namespaces: Store<cluster::Namespace>,
    pub(crate) volumes: Store<cluster::Volume>,
    pub(crate) nodes: Store<cluster::Node>,
}

impl Stores {
    pub(crate) fn new(config: &Config, reclaims: bool) -> Self {
        Self {
            pods: store_of_pods(&config.features, reclaims),
            claims: Store::new(vec![|_| true], vec![]),
            classes: Store::new(vec![|_| true], vec![]),
            namespaces: Store::new(vec![|_| true], vec![]),
            volumes: store_of_volumes(config),
            nodes: store_of_nodes(&config.placement),
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
    if features.contains(&Feature::Placement) {
        interests.push(placement::interesting_pod);
        indexes.extend(placement::INDEXES_OF_PODS);
    }
    Store::new(interests, each_once(indexes))
}

/// Volumes that no enabled feature could act on are not kept either.
fn store_of_volumes(config: &Config) -> Store<cluster::Volume> {
    let runs = |feature| config.features.contains(&feature);
    let mut interests: Vec<Interest<cluster::Volume>> = Vec::new();
    let mut indexes: Vec<Index<cluster::Volume>> = Vec::new();
    if runs(Feature::Releaser) {
        interests.push(Box::new(|_| true));
        indexes.extend(releaser::INDEXES_OF_VOLUMES);
    }
    if runs(Feature::Enforcement) {
        interests.push(Box::new(enforcement::observe::interesting_volume));
        indexes.extend(enforcement::observe::INDEXES_OF_VOLUMES);
    }
    let indexes = |more: Vec<Index<_>>| each_once(indexes.into_iter().chain(more).collect());
    if !runs(Feature::Placement) {
        return Store::trimmed(interests, indexes(vec![]), |volume| volume.keep_only(|_| false));
    }
    let settings = config.placement.clone();
    interests.push(Box::new(move |volume| placement::interesting_volume(volume, &settings)));
    let settings = config.placement.clone();
    let trim = move |volume: &mut cluster::Volume| volume.keep_only(|key| settings.reads(key));
    // A pod whose volume is there, but none of ours, must not cost a read.
    Store::trimmed(interests, indexes(placement::INDEXES_OF_VOLUMES.into()), trim).remembering_dropped()
}

fn store_of_nodes(settings: &placement::Settings) -> Store<cluster::Node> {
    let settings = settings.clone();
    let trim = move |node: &mut cluster::Node| node.keep_only(|key| settings.is_node_key(key));
    Store::trimmed(vec![Box::new(|_| true)], placement::INDEXES_OF_NODES.into(), trim)
}

/// Two features may want the same index.
fn each_once<T>(mut indexes: Vec<Index<T>>) -> Vec<Index<T>> {
    indexes.sort_by_key(|index| index.name);
    indexes.dedup_by_key(|index| index.name);
    indexes
}
