//! What is decided about a claim, told to a person who asks. Everything is read live, with their rights.

use std::sync::Arc;

use cluster::{ObjectKey, Store, Volume, decision::Account, store::Slim};
use kube::{Api, Client, api::ListParams};

use crate::{
    Caches, Settings,
    claim::AskedClaim,
    decision::{ADMIT_CLAIM, Verdict},
    live::Reader,
    observation::{Asked, Write},
    observe::INDEXES_OF_VOLUMES,
};

/// What would be decided about this claim if somebody without special trust made it now.
pub async fn explain(client: &Client, settings: &Settings, namespace: &str, claim: &str) -> kube::Result<Account> {
    let claim = AskedClaim::read(claim, namespace).map_err(kube::Error::SerdeError)?;
    let about = format!("claim {}", ObjectKey::new(namespace, claim.key.name()));
    let caches = Caches {
        pods: Store::new(vec![|_| true], vec![]),
        classes: Store::new(vec![|_| true], vec![]),
        namespaces: Store::new(vec![|_| true], vec![]),
        volumes: Store::new(vec![|volume| crate::observe::interesting_volume(volume)], INDEXES_OF_VOLUMES.into()),
    };
    tokio::try_join!(fill(&caches.classes, client), fill::<Volume>(&caches.volumes, client))?;
    let asked = Asked::Claim(Box::new(Write { claim, old: None, user: String::new() }));
    let mut seen = caches.observe(&Arc::new(settings.clone()), asked);
    let reader = Reader::new(client, &caches);
    while let Verdict::Read(wanted) = ADMIT_CLAIM.decide(&seen).action {
        reader.look(&mut seen, wanted).await;
    }
    Ok(ADMIT_CLAIM.explain(&seen).tell("enforcement", about, |verdict| verdict.name()))
}

/// Who asks why need not be allowed to see all classes and volumes; then those that the claim names have to do.
async fn fill<T>(store: &Store<T>, client: &Client) -> kube::Result<()>
where
    T: Slim,
    T::Wire: kube::Resource<Scope = kube::core::ClusterResourceScope>,
{
    let objects: Api<T::Wire> = Api::all(client.clone());
    match objects.list(&ListParams::default()).await {
        Ok(list) => list.items.into_iter().filter_map(T::from_wire).for_each(|object| store.apply(object)),
        Err(kube::Error::Api(status)) if status.is_forbidden() => {}
        Err(error) => return Err(error),
    }
    Ok(())
}
