//! What is decided about a pod's ephemeral volumes, told to a person who asks. Everything is read live, with their rights.

use std::sync::Arc;

use cluster::{Claim, Namespace, Pod, Store, decision::Account, store::Slim};
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client, api::ListParams};
use platform::{client::FencedClient, events::Recorder, metrics::Registry};

use crate::{
    decision::{Action, MAKE_CLAIM, Observation},
    reclaim::{Caches, INDEXES_OF_PODS, Reclaim, Settings},
};

/// One account for each ephemeral volume of the pod.
pub async fn explain(client: &Client, pod: &Arc<Pod>) -> kube::Result<Vec<Account>> {
    if pod.ephemeral_volumes.is_empty() {
        return Ok(Vec::new());
    }
    let namespaces: Api<<Namespace as Slim>::Wire> = Api::all(client.clone());
    let namespace = namespaces.get_opt(pod.key.namespace()).await?.and_then(Namespace::from_wire).map(Arc::new);
    let claims: Api<<Claim as Slim>::Wire> = Api::namespaced(client.clone(), pod.key.namespace());
    let mut accounts = Vec::new();
    for volume in &pod.ephemeral_volumes {
        let key = pod.claim_key(volume);
        let claim = claims.get_opt(key.name()).await?.and_then(Claim::from_wire).map(Arc::new);
        let owner_lives = match &claim {
            Some(claim) => claim.owner_lives(client).await?,
            None => false,
        };
        let seen = Observation {
            pod: Arc::clone(pod),
            volume: volume.name.clone(),
            claim,
            owner_lives,
            namespace: namespace.clone(),
            now: Timestamp::now(),
        };
        let about = format!("claim {key} of volume {} in pod {}", volume.name, pod.key);
        accounts.push(MAKE_CLAIM.explain(&seen).tell("ephemeral", about, |action: &Action| action.name()));
    }
    Ok(accounts)
}

/// One account for each claim of an ended pod that may be freed. The client need not be able to write.
pub async fn explain_reclaim(client: FencedClient, settings: Settings, pod: &Arc<Pod>) -> kube::Result<Vec<Account>> {
    if !pod.has_ended() {
        return Ok(Vec::new());
    }
    let (all, namespace) = (Client::clone(&client), pod.key.namespace());
    let pods = Store::new(vec![|_| true], INDEXES_OF_PODS.into());
    let caches = Caches::beside(&pods, &Store::new(vec![|_| true], vec![]), &Store::new(vec![|_| true], vec![]));
    tokio::try_join!(
        fill(&caches.pods, Api::namespaced(all.clone(), namespace)),
        fill(&caches.claims, Api::namespaced(all.clone(), namespace)),
        fill(&caches.classes, Api::all(all.clone())),
        fill(&caches.drivers, Api::all(all.clone())),
        fill(&caches.attachments, Api::all(all.clone())),
    )?;
    let registry = Registry::default();
    let (recorder, _) = Recorder::new(all, "claimkeeper.dev/why", "why", &registry);
    Reclaim::new(caches, client, recorder, &registry, settings).explain(pod).await
}

async fn fill<T: Slim>(store: &Store<T>, api: Api<T::Wire>) -> kube::Result<()> {
    let list = api.list(&ListParams::default()).await?;
    for object in list.items.into_iter().filter_map(T::from_wire) {
        store.apply(object);
    }
    Ok(())
}
