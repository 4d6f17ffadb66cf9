//! What is read live: caches lie.

use std::time::Duration;

use cluster::{Endpoints, ObjectKey, Service, Slice, live, slice::SERVICE_NAME, store::Slim};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{
    Api, Client,
    api::{ListParams, PropagationPolicy},
};
use tokio::time::{Instant, sleep};

use crate::{
    controller::SharedVolumes,
    decision::ClaimSeen,
    names::{self, DECISION, SKIP_MIRROR, VOLUME_ID},
    objects::Owner,
    source::SharedVolume,
};

/// A claim, as it is now.
#[derive(Debug, Clone)]
pub(crate) struct LiveClaim {
    pub(crate) owner: Owner,
    pub(crate) version: Box<str>,
    /// What was decided about its volume last.
    pub(crate) decision: Option<String>,
}

impl SharedVolumes {
    /// The claim of a volume, and whether it is that.
    pub(crate) async fn claim(&self, volume: &SharedVolume) -> kube::Result<(ClaimSeen, Option<LiveClaim>)> {
        let Some(key) = &volume.claim else { return Ok((ClaimSeen::Missing, None)) };
        look_at_claim(&self.client, key, volume.volume.as_deref()).await
    }

    /// The Service of a volume; none if it has none.
    pub(crate) async fn service(&self, volume: &SharedVolume, owner: &Owner) -> kube::Result<Option<Service>> {
        let style = self.settings.service_name;
        let known: Vec<Service> =
            self.caches.services_of(&volume.id).iter().map(|known| Service::clone(known)).collect();
        let here = known.into_iter().filter(|known| known.key.namespace() == owner.key.namespace()).collect::<Vec<_>>();
        if let Some(known) = names::choose(&here, volume, &owner.uid, style)
            && let Some(service) = self.service_named(&known.key).await?
            && names::choose(std::slice::from_ref(&service), volume, &owner.uid, style).is_some()
        {
            return Ok(Some(service));
        }
        let services: Api<<Service as Slim>::Wire> =
            Api::namespaced(Client::clone(&self.client), owner.key.namespace());
        if names::is_label_value(&volume.id) {
            let labelled = ListParams::default().labels(&format!("{VOLUME_ID}={}", volume.id));
            let found = services.list(&labelled).await?.items.into_iter().filter_map(Service::from_wire);
            let found: Vec<Service> = found.collect();
            if let Some(service) = names::choose(&found, volume, &owner.uid, style) {
                return Ok(Some(service.clone()));
            }
        }
        if crate::address::remembered(volume).is_none() {
            return Ok(None);
        }
        // One that has lost its label is known by its address.
        let all = live::list::<Service>(&services).await?;
        Ok(names::choose(&all, volume, &owner.uid, style).cloned())
    }

    pub(crate) async fn service_named(&self, key: &ObjectKey) -> kube::Result<Option<Service>> {
        let services: Api<<Service as Slim>::Wire> = Api::namespaced(Client::clone(&self.client), key.namespace());
        Ok(services.get_opt(key.name()).await?.and_then(Service::from_wire))
    }

    /// The first name that no Service has.
    pub(crate) async fn free_name(&self, volume: &SharedVolume, namespace: &str) -> kube::Result<Option<String>> {
        let style = self.settings.service_name;
        for name in [names::wanted(volume, style), names::derived(volume, style)] {
            if self.service_named(&ObjectKey::new(namespace, &name)).await?.is_none() {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    /// All slices of a Service, whoever made them.
    pub(crate) async fn slices(&self, service: &ObjectKey) -> kube::Result<Vec<Slice>> {
        let slices: Api<<Slice as Slim>::Wire> = Api::namespaced(Client::clone(&self.client), service.namespace());
        let of_service = ListParams::default().labels(&format!("{SERVICE_NAME}={}", service.name()));
        Ok(slices.list(&of_service).await?.items.into_iter().filter_map(Slice::from_wire).collect())
    }

    /// All slices that are labelled with a volume, where we look.
    pub(crate) async fn all_slices(&self) -> kube::Result<Vec<Slice>> {
        let client = Client::clone(&self.client);
        let slices: Api<<Slice as Slim>::Wire> = match &self.settings.namespace {
            Some(namespace) => Api::namespaced(client, namespace),
            None => Api::all(client),
        };
        let labelled = ListParams::default().labels(VOLUME_ID);
        Ok(slices.list(&labelled).await?.items.into_iter().filter_map(Slice::from_wire).collect())
    }

    pub(crate) async fn slice_named(&self, key: &ObjectKey) -> kube::Result<Option<Slice>> {
        let slices: Api<<Slice as Slim>::Wire> = Api::namespaced(Client::clone(&self.client), key.namespace());
        Ok(slices.get_opt(key.name()).await?.and_then(Slice::from_wire))
    }

    /// The Endpoints object of a Service.
    pub(crate) async fn endpoints(&self, service: &ObjectKey) -> kube::Result<Option<Endpoints>> {
        let endpoints: Api<<Endpoints as Slim>::Wire> =
            Api::namespaced(Client::clone(&self.client), service.namespace());
        Ok(endpoints.get_opt(service.name()).await?.and_then(Endpoints::from_wire))
    }

    /// Looks at once, and then again and again, until there is something to see or it has taken long enough.
    pub(crate) async fn read_back<T, F>(&self, look: impl Fn() -> F) -> kube::Result<Option<T>>
    where
        F: Future<Output = kube::Result<Option<T>>>,
    {
        let until = Instant::now() + self.settings.create_wait_duration;
        loop {
            let found = look().await?;
            let pause = self.settings.create_poll_interval.max(Duration::from_millis(1));
            if found.is_some() || Instant::now() + pause > until {
                return Ok(found);
            }
            sleep(pause).await;
        }
    }
}

/// Whether Kubernetes makes slices of it.
pub(crate) fn is_mirrored(endpoints: Option<&Endpoints>) -> bool {
    let skips = |endpoints: &Endpoints| endpoints.labels.get(SKIP_MIRROR).is_some_and(|skip| skip == "true");
    endpoints.is_some_and(|endpoints| !skips(endpoints))
}

/// Reads a claim, and whether it has this volume.
pub(crate) async fn look_at_claim(
    client: &Client,
    key: &ObjectKey,
    volume: Option<&str>,
) -> kube::Result<(ClaimSeen, Option<LiveClaim>)> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), key.namespace());
    let Some(claim) = claims.get_opt(key.name()).await? else { return Ok((ClaimSeen::Missing, None)) };
    let bound = claim.spec.and_then(|spec| spec.volume_name).filter(|name| !name.is_empty());
    // One that is not bound yet may be this volume's: its labels say so.
    let other = bound.filter(|bound| Some(bound.as_str()) != volume);
    let seen = other.map_or(ClaimSeen::There, |other| ClaimSeen::HasOtherVolume(other.into()));
    let meta = claim.metadata;
    let decision = meta.annotations.and_then(|mut annotations| annotations.remove(DECISION));
    let live = meta.uid.zip(meta.resource_version).map(|(uid, version)| LiveClaim {
        owner: Owner { key: key.clone(), uid: uid.into(), leaving: meta.deletion_timestamp.is_some() },
        version: version.into(),
        decision,
    });
    Ok((seen, live))
}

/// Deletes whatever depends on it, too, but does not wait for that.
pub(crate) const IN_THE_BACKGROUND: PropagationPolicy = PropagationPolicy::Background;
