//! Lets a Service lead to one endpoint, or nowhere: its slices, and the Endpoints object beside them.

use std::{net::SocketAddr, sync::Arc};

use cluster::{ObjectKey, Service, Slice};
use platform::events::EventKind;
use tokio::time::Instant;

use crate::{
    address::family,
    controller::SharedVolumes,
    live::{LiveClaim, is_mirrored},
    names, objects,
    state::View,
    trouble::Failure,
    way::{self, WAY},
};

/// How many steps it may take until a Service leads where it should. It takes four to take over what the original left.
const MOST_STEPS: usize = 10;

impl SharedVolumes {
    /// Lets a Service lead to an endpoint alone, or nowhere. Returns both as they were read last.
    pub(crate) async fn lead(
        &self,
        view: &View,
        mut service: Arc<Service>,
        endpoint: Option<SocketAddr>,
        claim: Option<&LiveClaim>,
    ) -> Result<(Arc<Service>, Vec<Slice>), Failure> {
        let repair = |service: &Service| {
            claim.and_then(|claim| objects::repair_service(service, &view.volume, &claim.owner, endpoint))
        };
        if let Some(repair) = repair(&service).filter(|repair| repair.urgent) {
            service = self.repaired(&service, &repair).await?;
        }
        let slices = self.settle_slices(view, &service, endpoint).await?;
        self.settle_endpoints(view, &service, endpoint).await?;
        if let Some(repair) = repair(&service) {
            service = self.repaired(&service, &repair).await?;
        }
        Ok((service, slices))
    }

    async fn repaired(&self, service: &Service, repair: &objects::Repair) -> Result<Arc<Service>, Failure> {
        let repaired = self.patch_service(&service.key, &repair.patch).await?;
        tracing::debug!(feature = "shared-volumes", service = %service.key, "the Service was not as it should be");
        repaired.map(Arc::new).ok_or(Failure::Overtaken)
    }

    /// Takes one step after the other until the slices are as they should be.
    async fn settle_slices(
        &self,
        view: &View,
        service: &Arc<Service>,
        endpoint: Option<SocketAddr>,
    ) -> Result<Vec<Slice>, Failure> {
        let mut mirrored = None;
        for _ in 0..MOST_STEPS {
            let slices = self.slices(&service.key).await?;
            let seen = way::Observation {
                volume: Arc::clone(&view.volume),
                service: Arc::clone(service),
                // Asked only where there is something that may have been mirrored.
                mirrored: match mirrored {
                    Some(mirrored) => mirrored,
                    None if slices.iter().all(way::is_ours) => false,
                    None => *mirrored.insert(is_mirrored(self.endpoints(&service.key).await?.as_ref())),
                },
                slices,
                endpoint,
            };
            let decision = WAY.decide(&seen);
            self.count(&decision, way::Action::name);
            match &decision.action {
                way::Action::Settled => {
                    self.leads(&view.volume.id, endpoint);
                    return Ok(seen.slices);
                }
                way::Action::Write(slice) => self.write_slice(view, service, slice.as_deref(), endpoint).await?,
                way::Action::StopMirroring => {
                    self.settle_endpoints(view, service, endpoint).await?;
                    mirrored = None;
                }
                way::Action::Remove(others) => {
                    for slice in others {
                        tracing::info!(feature = "shared-volumes", slice = %slice.key, reason = decision.reason, "{}", decision.message);
                        self.delete_slice(slice).await?;
                    }
                }
            }
        }
        Err(Failure::Overtaken)
    }

    /// Writes our slice, if the source has not told something else in between.
    pub(crate) async fn write_slice(
        &self,
        view: &View,
        service: &Service,
        slice: Option<&Slice>,
        endpoint: Option<SocketAddr>,
    ) -> Result<(), Failure> {
        let id = &view.volume.id;
        let mut is_news = false;
        if let Some(endpoint) = endpoint {
            let mut state = self.state.lock();
            // Nothing is waited for between this look and its being noted, so that no two lead to one endpoint.
            let taken = state.leads.other(endpoint, id, Instant::now()).is_some()
                || self.caches.leader_to(endpoint, id).is_some();
            if taken || !state.is_current(view) {
                return Err(Failure::Overtaken);
            }
            is_news = state.leads.will(id, endpoint);
        }
        let written = match (slice, endpoint) {
            (Some(slice), endpoint) => {
                let Some(change) = objects::repair_slice(slice, &view.volume, service, endpoint) else { return Ok(()) };
                self.patch_slice(&slice.key, &change).await.map_err(Failure::from)
            }
            (None, Some(endpoint)) => self.create_or_recover_slice(view, service, endpoint).await,
            (None, None) => return Ok(()),
        };
        match (&written, endpoint) {
            (Ok(()), _) => self.state.lock().leads.answered(id),
            // It may lead there for another reason, such as an earlier write that the cache has not heard of.
            (Err(failure), Some(endpoint)) if failure.is_refusal() => {
                if is_news {
                    self.state.lock().leads.does_not(id, endpoint);
                }
            }
            (Err(_), Some(endpoint)) => self.state.lock().leads.unanswered(id, endpoint, Instant::now()),
            (Err(_), None) => {}
        }
        written?;
        self.leads(id, endpoint);
        let led = slice.map(Slice::leads_to).unwrap_or_default();
        if let Some(endpoint) = endpoint {
            self.redirected(view, service, slice.is_some() && led != [endpoint]);
        }
        Ok(())
    }

    /// Makes our slice. If there is one of its name, somebody may have taken away the label by which it belongs to our Service.
    async fn create_or_recover_slice(
        &self,
        view: &View,
        service: &Service,
        endpoint: SocketAddr,
    ) -> Result<(), Failure> {
        let body = objects::slice(&view.volume, service, endpoint);
        match self.create_slice(service.key.namespace(), &body).await {
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            created => return Ok(created?),
        }
        let key = ObjectKey::new(service.key.namespace(), &names::slice(service.key.name(), family(endpoint.ip())));
        let found = self.slice_named(&key).await?.ok_or(Failure::Overtaken)?;
        let labelled = names::volume_of(&found.labels).is_some_and(|id| *id == *view.volume.id);
        if !labelled && !found.owners.iter().any(|owner| *owner.uid == *service.uid) {
            return Err(Failure::SliceTaken(key));
        }
        let change = objects::repair_slice(&found, &view.volume, service, Some(endpoint)).ok_or(Failure::Overtaken)?;
        Ok(self.patch_slice(&key, &change).await?)
    }

    fn redirected(&self, view: &View, service: &Service, changed: bool) {
        let mut state = self.state.lock();
        let Some(entry) = state.entry(&view.volume.id) else { return };
        if std::mem::take(&mut entry.moving) {
            self.metrics.failovers.observe(entry.since.elapsed().as_secs_f64());
        }
        drop(state);
        if changed {
            // The original's words, and its kind.
            let note = format!("Shared volume service target changed {}", service.key);
            self.tell_service(service, EventKind::Warning, "Updated", note);
        }
    }

    /// Lets the Endpoints object say the same as the slice, or removes it where there is to be none.
    async fn settle_endpoints(
        &self,
        view: &View,
        service: &Service,
        endpoint: Option<SocketAddr>,
    ) -> Result<(), Failure> {
        let found = self.endpoints(&service.key).await?;
        let volume = &view.volume;
        match (found, endpoint) {
            (Some(found), _) if !self.settings.endpoints => {
                self.delete_endpoints(&service.key, &found.uid, &found.version).await?;
            }
            (Some(found), endpoint) => {
                if let Some(change) = objects::repair_endpoints(&found, volume, service, endpoint) {
                    self.patch_endpoints(&service.key, &change).await?;
                }
            }
            (None, Some(endpoint)) if self.settings.endpoints => {
                let body = objects::endpoints(volume, service, endpoint);
                self.create_endpoints(service.key.namespace(), &body).await?;
                let found = self.read_back(|| self.endpoints(&service.key)).await?;
                found.ok_or(Failure::Overtaken)?;
            }
            (None, _) => {}
        }
        Ok(())
    }
}
