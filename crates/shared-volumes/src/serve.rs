//! Lets the address of a volume lead to its server: the Service, its one slice, the Endpoints object beside it, the publication.
//!
//! ```text
//! (slice, from the cache) ──> claim ──> Service ──> slices ──> Endpoints ──> Service's target port ──> publication ──> claim's note
//!  a server that has moved     all read live, each written only where it is not as it should be          read back first
//! ```

use std::{net::SocketAddr, sync::Arc};

use cluster::{Service, Slice, decision::Decision};
use kube::core::Status;
use platform::{events::EventKind, queue::Outcome};
use tokio::time::Instant;

use crate::{
    address::{self, ADDRESS, PUBLISH, Publication, Ready},
    controller::SharedVolumes,
    decision::Action,
    endpoint::parse,
    live::{LiveClaim, is_mirrored},
    names, objects,
    probe::answers,
    settings::Probe,
    state::{Verified, View},
    trouble::Failure,
    way::{self, WAY},
};

/// How many steps it may take until a Service leads where it should. It takes four to take over what the original left.
const MOST_STEPS: usize = 10;

impl SharedVolumes {
    pub(crate) async fn serve(&self, view: &View, endpoint: SocketAddr) -> Result<Outcome, Failure> {
        self.redirect(view, endpoint).await?;
        let (seen, claim) = self.claim(&view.volume).await?;
        let decision = self.decide(view, seen);
        let (Action::Serve(_), Some(claim)) = (decision.action, &claim) else {
            return self.withdraw(view, &decision).await;
        };
        let (service, slices) = match self.address(view, claim, endpoint).await? {
            Ok(service) => {
                self.close_others(view, &service.key).await?;
                self.lead(view, service, Some(endpoint), Some(claim)).await?
            }
            Err(decision) => return self.without_service(view, claim, &decision).await,
        };
        let ready = Ready {
            endpoint: Some(endpoint),
            service: Some(Service::clone(&service)),
            slices: Some(slices),
            published: view.volume.published.clone(),
            answers: None,
        };
        let Some(published) = self.publish(view, claim, ready).await? else { return Err(Failure::NotYet) };
        let told = Decision::new((), "Served", format!("{published} leads to the volume's server at {endpoint}"));
        self.conclude(view, claim, &told, EventKind::Normal).await?;
        self.verified(view, &service, claim, published);
        Ok(Outcome::Done)
    }

    /// Redirects a volume whose server has moved before anything is read: all that is needed for that is in the cache, and if it is
    /// out of date the write is refused.
    async fn redirect(&self, view: &View, endpoint: SocketAddr) -> Result<(), Failure> {
        let Some(service) = view.service.as_ref().and_then(|key| self.caches.services.get(key)) else { return Ok(()) };
        let way::Action::Write(Some(slice)) = self.way(view, &service, Some(endpoint)).action else { return Ok(()) };
        self.write_slice(view, &service, Some(&slice), Some(endpoint)).await
    }

    /// The Service of a volume, made if it is missing; or why there is none.
    async fn address(
        &self,
        view: &View,
        claim: &LiveClaim,
        endpoint: SocketAddr,
    ) -> Result<Result<Arc<Service>, Decision<address::Action>>, Failure> {
        let volume = &view.volume;
        let service = self.service(volume, &claim.owner).await?;
        let namespace = claim.owner.key.namespace();
        let free_name = match service {
            None => self.free_name(volume, namespace).await?,
            Some(_) => None,
        };
        let wait = self.settings.create_wait_duration;
        let refused = self.state.lock().entry(&volume.id).and_then(|entry| entry.refused_since);
        let seen = address::Observation {
            id: Box::from(&*volume.id),
            endpoint,
            service,
            free_name,
            remembered: address::remembered(volume),
            refused: refused.is_some_and(|since| since.elapsed() >= wait),
        };
        let decision = ADDRESS.decide(&seen);
        self.count(&decision, address::Action::name);
        match (&decision.action, seen.service) {
            (address::Action::Use, Some(service)) => Ok(Ok(Arc::new(service))),
            (address::Action::Create { name, address }, _) => {
                let body = objects::service(volume, &claim.owner, name, endpoint, address.map(|ip| ip.to_string()));
                match self.create_service(namespace, &body).await {
                    Ok(()) => {}
                    Err(kube::Error::Api(status)) if address.is_some() && is_about_address(&status) => {
                        return Ok(Err(self.refused(view, &status)));
                    }
                    Err(error) => return Err(error.into()),
                }
                self.created(view, claim, &decision, name).await.map(Ok)
            }
            _ => Ok(Err(decision)),
        }
    }

    /// Reads a new Service back until it has an address.
    async fn created(
        &self,
        view: &View,
        claim: &LiveClaim,
        decision: &Decision<address::Action>,
        name: &str,
    ) -> Result<Arc<Service>, Failure> {
        let key = cluster::ObjectKey::new(claim.owner.key.namespace(), name);
        let found = self.read_back(async || {
            let service = self.service_named(&key).await?;
            Ok(service.filter(|service| service.socket(names::NFS_PORT).is_some()))
        });
        let service = found.await?.ok_or(Failure::Overtaken)?;
        if let Some(entry) = self.state.lock().entry(&view.volume.id) {
            entry.refused_since = None;
        }
        // The original's words.
        let note = format!("Created service for shared volume {key}");
        self.tell_service(&service, EventKind::Normal, "Created", note);
        let lost = address::remembered(&view.volume)
            .is_some_and(|ip| !names::is_published(&service, &view.volume) && !ip.is_unspecified());
        if lost {
            self.metrics.changed_addresses.increment();
            self.tell_claim(claim, EventKind::Warning, decision.reason, decision.message.clone().into_owned());
            tracing::warn!(feature = "shared-volumes", volume = %view.volume.id, service = %key, reason = decision.reason, "{}", decision.message);
        }
        Ok(Arc::new(service))
    }

    /// The address that a volume had was refused: for a while that may be because it is not given back yet.
    fn refused(&self, view: &View, status: &Status) -> Decision<address::Action> {
        if let Some(entry) = self.state.lock().entry(&view.volume.id) {
            entry.refused_since.get_or_insert_with(Instant::now);
        }
        let message = format!("the volume's address is not given to it again yet: {}", status.message);
        Decision::new(address::Action::Wait, "AddressRefused", message)
    }

    /// There is no Service that could lead anywhere.
    async fn without_service(
        &self,
        view: &View,
        claim: &LiveClaim,
        decision: &Decision<address::Action>,
    ) -> Result<Outcome, Failure> {
        self.close(view).await?;
        let told = Decision::new((), decision.reason, decision.message.clone());
        match decision.action {
            address::Action::Wait => {
                self.conclude(view, claim, &told, EventKind::Normal).await?;
                Ok(Outcome::After(self.settings.create_poll_interval))
            }
            _ => {
                self.conclude(view, claim, &told, EventKind::Warning).await?;
                Err(Failure::NotYet)
            }
        }
    }

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
    async fn write_slice(
        &self,
        view: &View,
        service: &Service,
        slice: Option<&Slice>,
        endpoint: Option<SocketAddr>,
    ) -> Result<(), Failure> {
        let id = &view.volume.id;
        {
            let mut state = self.state.lock();
            if let Some(endpoint) = endpoint {
                // Nothing is waited for between this look and its being noted, so that no two lead to one endpoint.
                let taken = state.leader_to(endpoint, id).is_some() || self.caches.leader_to(endpoint, id).is_some();
                if taken || !state.is_current(view) {
                    return Err(Failure::Overtaken);
                }
                state.will_lead(id, endpoint);
            }
        }
        let written = match (slice, endpoint) {
            (Some(slice), endpoint) => {
                let Some(change) = objects::repair_slice(slice, &view.volume, service, endpoint) else { return Ok(()) };
                self.patch_slice(&slice.key, &change).await
            }
            (None, Some(endpoint)) => {
                let body = objects::slice(&view.volume, service, endpoint);
                self.create_slice(service.key.namespace(), &body).await
            }
            (None, None) => return Ok(()),
        };
        // Without an answer it may have been carried out, so that it counts as if it had.
        if let (Err(kube::Error::Api(status)), Some(endpoint)) = (&written, endpoint)
            && status.code < 500
        {
            self.state.lock().does_not_lead(id, endpoint);
        }
        written?;
        self.leads(id, endpoint);
        let led = slice.map(Slice::leads_to).unwrap_or_default();
        if let Some(endpoint) = endpoint {
            self.redirected(view, service, slice.is_some() && led != [endpoint]);
        }
        Ok(())
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
                let (uid, version) = (found.metadata.uid, found.metadata.resource_version);
                self.delete_endpoints(&service.key, &uid.unwrap_or_default(), &version.unwrap_or_default()).await?;
            }
            (Some(found), endpoint) => {
                if let Some(change) = objects::repair_endpoints(&found, volume, service, endpoint) {
                    self.patch_endpoints(&service.key, &change).await?;
                }
            }
            (None, Some(endpoint)) if self.settings.endpoints => {
                let body = objects::endpoints(volume, service, endpoint);
                self.create_endpoints(service.key.namespace(), &body).await?;
                let found = self.read_back(async || self.endpoints(&service.key).await).await?;
                found.ok_or(Failure::Overtaken)?;
            }
            (None, _) => {}
        }
        Ok(())
    }

    /// Publishes the address, if that is due. Returns what is published; none if it is not time yet.
    async fn publish(&self, view: &View, claim: &LiveClaim, mut ready: Ready) -> Result<Option<String>, Failure> {
        let mut decision = PUBLISH.decide(&ready);
        if let (Publication::Publish(_), Some(endpoint)) = (&decision.action, ready.endpoint)
            && self.settings.probe != Probe::None
        {
            ready.answers = Some(answers(endpoint, self.settings.probe).await);
            decision = PUBLISH.decide(&ready);
        }
        self.count(&decision, Publication::name);
        match decision.action {
            Publication::Leave => Ok(view.volume.published.as_deref().map(str::to_owned)),
            Publication::Wait => {
                let told = Decision::new((), decision.reason, decision.message);
                self.conclude(view, claim, &told, EventKind::Normal).await?;
                Ok(None)
            }
            Publication::Publish(address) => {
                if !self.client.may_write() {
                    return Err(Failure::NotLeader);
                }
                let address = address.to_string();
                self.source.publish(&view.volume, &address).await?;
                tracing::info!(
                    feature = "shared-volumes",
                    volume = %view.volume.id,
                    claim = %claim.owner.key,
                    address,
                    reason = decision.reason,
                    "{}", decision.message
                );
                Ok(Some(address))
            }
        }
    }

    /// Notes that all is well.
    fn verified(&self, view: &View, service: &Service, claim: &LiveClaim, published: String) {
        let mut state = self.state.lock();
        let Some(entry) = state.entry(&view.volume.id) else { return };
        // The source tells so in its next list.
        let published = Some(published.into_boxed_str());
        if entry.volume == view.volume && entry.volume.published != published {
            Arc::make_mut(&mut entry.volume).published = published;
        } else if entry.volume != view.volume {
            return;
        }
        entry.service = Some(service.key.clone());
        entry.verified = Some(Verified {
            volume: Arc::clone(&entry.volume),
            service: service.key.clone(),
            owner: claim.owner.clone(),
            until: Instant::now() + self.settings.cache_expiry,
        });
        if entry.trouble.ends() {
            tracing::info!(feature = "shared-volumes", volume = %view.volume.id, claim = %claim.owner.key, "all is well again");
        }
    }

    /// Lets every address of a volume lead nowhere. Whether any of them led somewhere.
    pub(crate) async fn close(&self, view: &View) -> Result<bool, Failure> {
        let id = &view.volume.id;
        let wrote = self.state.lock().may_lead(id);
        let led = self.close_slices(id).await? || wrote;
        let mut services = self.caches.services_of(id);
        if wrote && let Some(claim) = &view.volume.claim {
            // What we wrote a moment ago may not be in the cache yet.
            let owner = objects::Owner { key: claim.clone(), uid: "".into() };
            let live = self.service(&view.volume, &owner).await?;
            services.extend(live.filter(|live| services.iter().all(|known| known.key != live.key)).map(Arc::new));
        }
        for service in &services {
            if led || self.way(view, service, None).action != way::Action::Settled {
                self.lead(view, Arc::clone(service), None, None).await?;
            }
        }
        self.leads(id, None);
        Ok(led)
    }

    /// Closes what is called after this volume, but is not what its clients use.
    async fn close_others(&self, view: &View, chosen: &cluster::ObjectKey) -> Result<(), Failure> {
        for service in self.caches.services_of(&view.volume.id) {
            if service.key != *chosen && self.way(view, &service, None).action != way::Action::Settled {
                self.lead(view, service, None, None).await?;
            }
        }
        for slice in self.caches.slices_of(&view.volume.id) {
            let elsewhere = way::is_ours(&slice) && slice.service().as_ref() != Some(chosen);
            if let Some(change) = objects::close_slice(&slice).filter(|_| elsewhere) {
                self.patch_slice(&slice.key, &change).await?;
            }
        }
        Ok(())
    }

    /// Closes all slices that are ours and of this volume, wherever they are.
    pub(crate) async fn close_slices(&self, id: &str) -> Result<bool, Failure> {
        let mut led = false;
        for slice in self.caches.slices_of(id) {
            led |= !slice.leads_to().is_empty();
            if way::is_ours(&slice)
                && let Some(change) = objects::close_slice(&slice)
            {
                self.patch_slice(&slice.key, &change).await?;
            }
        }
        Ok(led)
    }

    pub(crate) async fn withdraw(&self, view: &View, decision: &Decision<Action>) -> Result<Outcome, Failure> {
        let id = &view.volume.id;
        let led = self.close(view).await?;
        self.note(view, decision);
        let waits = decision.action == Action::Wait;
        if led && !waits && !is_worth_a_note(decision.reason) {
            tracing::warn!(feature = "shared-volumes", volume = %id, reason = decision.reason, "{}", decision.message);
        }
        if waits {
            self.make_room(view).await?;
            return Err(Failure::NotYet);
        }
        if is_worth_a_note(decision.reason)
            && let (_, Some(claim)) = self.claim(&view.volume).await?
        {
            let told = Decision::new((), decision.reason, decision.message.clone());
            let kind = if led { EventKind::Warning } else { EventKind::Normal };
            self.conclude_quietly(view, &claim, &told, led.then_some(kind)).await?;
        }
        let mut state = self.state.lock();
        if view.gone && self.caches.slices_of(id).is_empty() && self.caches.services_of(id).is_empty() {
            state.forget(id);
        } else if let Some(entry) = state.entry(id) {
            entry.verified = None;
        }
        Ok(Outcome::Done)
    }

    /// Another volume's address leads to where this one's server is: it goes first.
    async fn make_room(&self, view: &View) -> Result<(), Failure> {
        let Some(endpoint) = view.volume.endpoint.as_deref().and_then(parse) else { return Ok(()) };
        let holder = self.state.lock().leader_to(endpoint, &view.volume.id);
        let Some(holder) = holder.or_else(|| self.caches.leader_to(endpoint, &view.volume.id)) else { return Ok(()) };
        let known = self.state.lock().view(&holder).is_some();
        if known && view.failures == 0 {
            let key = self.state.lock().key_of(&holder);
            self.lines.add(key);
        } else if !known {
            // Nobody tells of that volume any more, so nobody else will.
            self.close_slices(&holder).await?;
            self.leads(&holder, None);
        }
        Ok(())
    }
}

/// Whether the API server refused the address that was asked for, and not something else.
fn is_about_address(status: &Status) -> bool {
    status.code == 422 && status.message.contains("clusterIP")
}

/// Most volumes are not shared: that is not worth a word on their claims.
fn is_worth_a_note(reason: &str) -> bool {
    !matches!(reason, "NotShared" | "NotOfKubernetes" | "OtherNamespace" | "ClaimMissing" | "ClaimHasOtherVolume")
}
