//! What is decided about where a volume is, told to a person who asks. Everything is read live, with their rights.

use cluster::{Claim, Node, Pod, Store, Volume, decision::Account, live, store::Slim};
use kube::{Api, Client};

use crate::{Caches, INDEXES_OF_NODES, INDEXES_OF_PODS, affinity, failover, followed::get, settings::Settings};

/// What is decided about the volume of this name; nothing if it is none of ours, or not there.
pub async fn volume(client: &Client, settings: &Settings, name: &str) -> kube::Result<Vec<Account>> {
    let Some(mut volume) = get::<Volume>(client, name).await? else { return Ok(Vec::new()) };
    volume.keep_only(|key| settings.reads(key));
    if settings.driver(&volume.driver).is_none() {
        return Ok(Vec::new());
    }
    let caches = Caches {
        pods: Store::new(vec![|_| true], INDEXES_OF_PODS.into()),
        claims: Store::new(vec![|_| true], vec![]),
        classes: Store::new(vec![|_| true], vec![]),
        volumes: Store::new(vec![|_| true], vec![]),
        nodes: Store::new(vec![|_| true], INDEXES_OF_NODES.into()),
    };
    fill(&caches.nodes, live::list::<Node>(&Api::all(client.clone())).await?);
    if let Some(claim) = &volume.claim {
        let namespace = claim.key.namespace();
        let claims: Api<<Claim as Slim>::Wire> = Api::namespaced(client.clone(), namespace);
        fill(&caches.claims, claims.get_opt(claim.key.name()).await?.and_then(Claim::from_wire));
        fill(&caches.pods, live::list::<Pod>(&Api::namespaced(client.clone(), namespace)).await?);
    }
    let moved = failover::explain(&caches, settings, &volume);
    Ok(moved.into_iter().chain(affinity::explain(&caches, settings, &volume)).collect())
}

fn fill<T: Slim>(store: &Store<T>, objects: impl IntoIterator<Item = T>) {
    objects.into_iter().for_each(|object| store.apply(object));
}
