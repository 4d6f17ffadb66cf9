//! Lets the address of a volume lead to its server: the Service, its one slice, the Endpoints object beside it, the publication.
//!
//! ```text
//! (slice, from the cache) ──> claim ──> Service ──> slices ──> Endpoints ──> Service's target port ──> publication ──> claim's note
//!  a server that has moved     all read live, each written only where it is not as it should be          read back first
//! ```
//!
//! When a node is lost many servers move at once. None of them waits until all is done for another: it is redirected, and the rest is
//! left to those who work on new volumes.

use std::{net::SocketAddr, sync::Arc};

use cluster::{ObjectKey, Service, decision::Decision};
use kube::core::Status;
use platform::{events::EventKind, queue::Outcome};
use tokio::time::Instant;

use crate::{
    address::{self, ADDRESS, PUBLISH, Publication, Ready},
    controller::SharedVolumes,
    decision::Action,
    live::LiveClaim,
    names, objects,
    probe::answers,
    settings::Probe,
    state::{Verified, View},
    trouble::Failure,
    way,
};

impl SharedVolumes {
    pub(crate) async fn serve(&self, view: &View, endpoint: SocketAddr) -> Result<Outcome, Failure> {
        let (seen, claim) = self.claim(&view.volume).await?;
        let decision = self.decide(view, seen);
        let (Action::Serve(_), Some(claim)) = (decision.action, &claim) else {
            return self.withdraw(view, &decision).await;
        };
        let served = self.serve_claim(view, claim, endpoint).await;
        if let Some(told) = served.as_ref().err().and_then(Failure::told) {
            self.conclude(view, claim, &told, EventKind::Warning).await?;
        }
        served
    }

    /// The same for a claim that is known to be the volume's.
    async fn serve_claim(&self, view: &View, claim: &LiveClaim, endpoint: SocketAddr) -> Result<Outcome, Failure> {
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
    /// out of date the write is refused. Whether there was anything to write.
    pub(crate) async fn redirect(&self, view: &View, endpoint: SocketAddr) -> Result<bool, Failure> {
        let Some(service) = view.service.as_ref().and_then(|key| self.caches.services.get(key)) else {
            return Ok(false);
        };
        // If we wrote that already, the cache has not heard of it yet, or somebody else has written since: both take a look.
        if self.state.lock().leads.of(&view.volume.id).contains(&endpoint) {
            return Ok(false);
        }
        let way::Action::Write(Some(slice)) = self.way(view, &service, Some(endpoint)).action else {
            return Ok(false);
        };
        self.write_slice(view, &service, Some(&slice), Some(endpoint)).await?;
        Ok(true)
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
        let key = ObjectKey::new(claim.owner.key.namespace(), name);
        let found = self.read_back(|| async {
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
        if decision.action == address::Action::Wait {
            self.conclude(view, claim, &told, EventKind::Normal).await?;
            return Ok(Outcome::After(self.settings.create_poll_interval));
        }
        self.conclude(view, claim, &told, EventKind::Warning).await?;
        Err(Failure::NotYet)
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
        // A claim that is being deleted may be followed by another of its name.
        entry.verified = (!claim.owner.leaving).then(|| Verified {
            volume: Arc::clone(&entry.volume),
            service: service.key.clone(),
            owner: claim.owner.clone(),
            until: Instant::now() + self.settings.cache_expiry,
        });
        if entry.trouble.ends() {
            tracing::info!(feature = "shared-volumes", volume = %view.volume.id, claim = %claim.owner.key, "all is well again");
        }
    }
}

/// Whether the API server refused the address that was asked for, and not something else.
fn is_about_address(status: &Status) -> bool {
    status.code == 422 && status.message.contains("clusterIP")
}
