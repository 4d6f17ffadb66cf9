//! What the caches do not have, read live: once for each request, and not for long.

use std::{sync::Arc, time::Duration};

use cluster::{Class, Namespace, ObjectKey, Pod, Volume, store::Slim};
use kube::{Api, Client, core::ClusterResourceScope};
use platform::trouble::causes;
use tokio::time::{Instant, timeout_at};

use crate::{
    decision::Wanted,
    observation::{Look, Observation, Offered},
    observe::Caches,
};

/// All reads of one request together; by default the API server waits 3 s for the answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Reads for one request.
pub(crate) struct Reader<'a> {
    client: &'a Client,
    caches: &'a Caches,
    deadline: Instant,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(client: &'a Client, caches: &'a Caches) -> Self {
        Self { client, caches, deadline: Instant::now() + PATIENCE }
    }

    /// Looks for what is wanted. Afterwards it is known, or known to be missing, or nobody can tell.
    pub(crate) async fn look(&self, seen: &mut Observation, wanted: Wanted) {
        let Some(claim) = seen.write().map(|write| &write.claim) else { return };
        match wanted {
            Wanted::Class => {
                let name = claim.class.clone().unwrap_or_default();
                seen.class = self.cluster_scoped(&name).await;
            }
            Wanted::Volume => {
                let name = claim.volume_name.clone();
                seen.named_volume = match self.cluster_scoped::<Volume>(&name).await {
                    Look::Known(volume) => self.offered(volume).await,
                    Look::Failed => Look::Failed,
                    _ => Look::Missing,
                };
            }
            Wanted::Owner => {
                let owner = claim.pod().map_or("", |pod| &pod.name);
                let pods: Api<<Pod as Slim>::Wire> = Api::namespaced(self.client.clone(), claim.key.namespace());
                seen.owner = self.get(pods, owner).await;
            }
            Wanted::Namespace => {
                let name = claim.key.namespace().to_owned();
                seen.namespace = self.cluster_scoped::<Namespace>(&name).await;
            }
        }
    }

    /// The volume with its class, which may be as new as the volume.
    async fn offered(&self, volume: Arc<Volume>) -> Look<Offered> {
        let class = match self.caches.classes.get(&ObjectKey::new("", &volume.class)) {
            None if !volume.class.is_empty() => match self.cluster_scoped::<Class>(&volume.class).await {
                Look::Failed => return Look::Failed,
                look => look.known().cloned(),
            },
            cached => cached,
        };
        Look::Known(Arc::new(Offered { volume, class }))
    }

    async fn cluster_scoped<T>(&self, name: &str) -> Look<T>
    where
        T: Slim,
        T::Wire: kube::Resource<Scope = ClusterResourceScope>,
    {
        self.get(Api::all(self.client.clone()), name).await
    }

    async fn get<T: Slim>(&self, api: Api<T::Wire>, name: &str) -> Look<T> {
        match timeout_at(self.deadline, api.get_opt(name)).await {
            Ok(Ok(found)) => found.and_then(T::from_wire).map_or(Look::Missing, |object| Look::Known(Arc::new(object))),
            Ok(Err(error)) => {
                tracing::warn!(kind = T::KIND, name, error = %causes(&error), "what the cache does not have cannot be read");
                Look::Failed
            }
            Err(_) => {
                tracing::warn!(kind = T::KIND, name, "what the cache does not have cannot be read in time");
                Look::Failed
            }
        }
    }
}
