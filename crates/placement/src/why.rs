//! What a pod is told about where its volumes are, and what it waits for, told to a person who asks. Everything is read live, with their rights.

use std::sync::Arc;

use cluster::{Claim, Class, Node, ObjectKey, Store, Volume, decision::Account, live, store::Slim};
use kube::{Api, Client};

use crate::{
    Caches, INDEXES_OF_NODES, Settings, gate,
    pod::AskedPod,
    steer::{
        Reader,
        decision::{STEER_POD, Verdict},
        observation::Outcome,
    },
};

/// What would be decided about this pod if it were made now; none if it has no claims.
pub async fn explain(
    client: &Client,
    settings: &Settings,
    namespace: &str,
    pod: &str,
) -> kube::Result<Option<Account>> {
    let pod = AskedPod::read(pod).map_err(kube::Error::SerdeError)?;
    let has_claims =
        pod.volumes().iter().any(|volume| volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some());
    if !has_claims {
        return Ok(None);
    }
    let caches = Caches {
        pods: Store::new(vec![|_| true], vec![]),
        claims: Store::new(vec![|_| true], vec![]),
        classes: Store::new(vec![|_| true], vec![]),
        volumes: Store::new(vec![|_: &Volume| true], vec![]),
        nodes: Store::new(vec![|_: &Node| true], INDEXES_OF_NODES.into()),
    };
    let claims: Api<<Claim as Slim>::Wire> = Api::namespaced(client.clone(), namespace);
    let classes: Api<<Class as Slim>::Wire> = Api::all(client.clone());
    tokio::try_join!(fill(&caches.claims, &claims), fill(&caches.classes, &classes))?;
    let settings = Arc::new(settings.clone());
    let mut seen = caches.observe(&settings, namespace, &pod);
    if STEER_POD.decide(&seen).action == Verdict::Read {
        Reader::new(client, &caches).look(&mut seen).await;
    }
    // Only who has such a volume need be allowed to see nodes.
    if seen.volumes.iter().any(|volume| matches!(volume.outcome, Outcome::HomeGone { .. })) {
        let nodes: Api<<Node as Slim>::Wire> = Api::all(client.clone());
        live::list::<Node>(&nodes).await?.into_iter().for_each(|node| caches.nodes.apply(node));
        caches.look_for_homes(&mut seen);
    }
    let about = format!("pod {}", ObjectKey::new(namespace, pod.called()));
    Ok(Some(STEER_POD.explain(&seen).tell("placement", about, Verdict::name)))
}

/// What a pod that exists waits for; none if that is not its home node.
pub async fn explain_wait(client: &Client, settings: &Settings, pod: &ObjectKey) -> kube::Result<Option<Account>> {
    match gate::explain(client, settings, pod).await {
        // What cannot be read is told by the other account.
        Err(kube::Error::Api(status)) if status.is_forbidden() => Ok(None),
        told => told,
    }
}

/// Who asks why need not be allowed to see all of them; then those that the pod names have to do.
async fn fill<T: Slim>(store: &Store<T>, api: &Api<T::Wire>) -> kube::Result<()> {
    match live::list::<T>(api).await {
        Ok(objects) => objects.into_iter().for_each(|object| store.apply(object)),
        Err(kube::Error::Api(status)) if status.is_forbidden() => {}
        Err(error) => return Err(error),
    }
    Ok(())
}
