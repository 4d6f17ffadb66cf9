//! What the caches do not have, read live: once for each request, and not for long.

use std::{sync::Arc, time::Duration};

use cluster::{ObjectKey, Volume, class::CLASS_ANNOTATION, store::Slim};
use futures::{StreamExt, stream};
use k8s_openapi::{api::core::v1::PersistentVolumeClaim, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{Api, Client, Resource};
use platform::trouble::causes;
use serde::{Deserialize, de::DeserializeOwned};
use tokio::time::{Instant, timeout_at};

use crate::{
    Caches, Settings,
    home::FAILOVER_MODE,
    steer::{
        observation::{Observation, Outcome, SeenVolume},
        observe::steered,
    },
};

/// All reads of one request together; by default the API server waits 3 s for the answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// How many reads of one request go on at once: a pod may have many volumes, and must not be the only one that is served.
const AT_ONCE: usize = 8;

/// Reads for one request.
pub(crate) struct Reader<'a> {
    client: &'a Client,
    caches: &'a Caches,
    deadline: Instant,
}

/// What is read of a claim; its class tells something of its volume if that cannot be read.
#[derive(Debug, Clone, Deserialize, Resource)]
#[resource(inherit = PersistentVolumeClaim)]
struct LiveClaim {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: LiveSpec,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct LiveSpec {
    volume_name: Option<String>,
    storage_class_name: Option<String>,
}

/// What the API server said.
enum Look<T> {
    Known(T),
    Missing,
    Failed,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(client: &'a Client, caches: &'a Caches) -> Self {
        Self { client, caches, deadline: Instant::now() + PATIENCE }
    }

    /// Looks for all that the caches did not have. Afterwards it is known, or known to be missing, or nobody can tell.
    pub(crate) async fn look(&self, seen: &mut Observation) {
        let settings = Arc::clone(&seen.settings);
        let volumes = std::mem::take(&mut seen.volumes);
        let looks = volumes.into_iter().map(|volume| self.volume(&settings, volume));
        seen.volumes = stream::iter(looks).buffered(AT_ONCE).collect().await;
        self.caches.look_for_drivers(seen);
    }

    async fn volume(&self, settings: &Settings, seen: SeenVolume) -> SeenVolume {
        let Some(claim) = &seen.claim else { return seen };
        let outcome = match &seen.outcome {
            Outcome::ClaimNotCached => self.claim(settings, claim).await,
            Outcome::VolumeNotCached(volume) => self.volume_of(settings, claim, volume, None).await,
            _ => return seen,
        };
        SeenVolume { outcome, ..seen }
    }

    async fn claim(&self, settings: &Settings, key: &ObjectKey) -> Outcome {
        let claims = Api::<LiveClaim>::namespaced(self.client.clone(), key.namespace());
        let LiveClaim { metadata, spec } = match self.get(claims, key).await {
            Look::Known(claim) => claim,
            Look::Missing => return Outcome::ClaimMissing,
            Look::Failed => return Outcome::Failed { may_be_durable: true },
        };
        let volume = spec.volume_name.filter(|name| !name.is_empty());
        match self.caches.outcome_of_claim(settings, key, volume.as_deref()) {
            Outcome::VolumeNotCached(volume) => {
                let class = metadata.annotations.and_then(|mut annotations| annotations.remove(CLASS_ANNOTATION));
                let class = class.or(spec.storage_class_name);
                self.volume_of(settings, key, &volume, class.as_deref()).await
            }
            outcome => outcome,
        }
    }

    async fn volume_of(
        &self,
        settings: &Settings,
        claim: &ObjectKey,
        volume: &ObjectKey,
        class: Option<&str>,
    ) -> Outcome {
        let volumes = Api::<<Volume as Slim>::Wire>::all(self.client.clone());
        match self.get(volumes, volume).await {
            Look::Known(found) => match Volume::from_wire(found) {
                Some(found) => self.caches.outcome_of_volume(settings, claim, Arc::new(found)),
                None => Outcome::VolumeMissing(volume.clone()),
            },
            Look::Missing => Outcome::VolumeMissing(volume.clone()),
            Look::Failed => Outcome::Failed { may_be_durable: self.may_be_durable(settings, class) },
        }
    }

    /// By what is known of the class; volumes that somebody made by hand may be anybody's.
    fn may_be_durable(&self, settings: &Settings, class: Option<&str>) -> bool {
        let class = class.and_then(|name| self.caches.classes.get(&ObjectKey::new("", name)));
        let Some(class) = class.filter(|class| class.provisions) else { return true };
        let Some(driver) = steered(settings, &class.provisioner) else { return false };
        let parameter = driver.failover_mode_attribute.as_ref().and_then(|key| class.parameters.get(key));
        let word = parameter.or_else(|| class.annotations.get(FAILOVER_MODE));
        word.is_some_and(|word| word == "durability")
    }

    async fn get<K>(&self, api: Api<K>, key: &ObjectKey) -> Look<K>
    where
        K: Clone + std::fmt::Debug + DeserializeOwned + Resource,
    {
        match timeout_at(self.deadline, api.get_opt(key.name())).await {
            Ok(Ok(found)) => found.map_or(Look::Missing, Look::Known),
            Ok(Err(error)) => {
                tracing::warn!(name = %key, error = %causes(&error), "what the cache does not have cannot be read");
                Look::Failed
            }
            Err(_) => {
                tracing::warn!(name = %key, "what the cache does not have cannot be read in time");
                Look::Failed
            }
        }
    }
}
