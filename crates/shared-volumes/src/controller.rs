//! Gathers what the rules look at and carries out what they decide.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use cluster::{
    Claim, Endpoints, ObjectKey, Service, Slice, Store,
    decision::Decision,
    slice::{BY_SERVICE, MANAGED_BY},
    store::Index,
};
use futures::future::OptionFuture;
use parking_lot::{Mutex, RwLock};
use platform::{
    client::FencedClient,
    events::Recorder,
    metrics::Registry,
    queue::{self, Outcome, Queue},
    trouble::{Trouble, causes},
};
use rand::RngExt;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::{
    decision::{Action, ClaimSeen, Observation, TARGET, target},
    endpoint::Range,
    metrics::Metrics,
    names::{self, MANAGER, MIRRORING},
    objects,
    settings::Settings,
    source::{Source, VolumeId},
    state::{State, View, VolumeKey, pause},
    trouble::Failure,
    way::{self, WAY},
};

/// Services by the volume that they are labelled with.
const SERVICES_BY_VOLUME: Index<Service> = Index { name: "volume", values: |service| ids(&service.labels) };

/// Slices by the volume that they are labelled with.
pub(crate) const SLICES_BY_VOLUME: Index<Slice> = Index { name: "volume", values: |slice| ids(&slice.labels) };

/// Slices by where they lead.
const SLICES_BY_TARGET: Index<Slice> = Index {
    name: "target",
    values: |slice| slice.leads_to().iter().map(|target| target.to_string().into_boxed_str()).collect(),
};

fn ids(labels: &std::collections::BTreeMap<String, String>) -> Vec<Box<str>> {
    names::volume_of(labels).map(|id| Box::from(&*id)).into_iter().collect()
}

/// Whether a slice is ours, or made of an Endpoints object that is. Anybody may make others, and label them as they like.
fn is_known(slice: &Slice) -> bool {
    slice.labels.get(MANAGED_BY).is_some_and(|manager| [MANAGER, MIRRORING].contains(&manager.as_str()))
}

/// The pause between two tries to read where addresses lead.
const RETRY: Duration = Duration::from_secs(1);

/// What the feature knows of the cluster; somebody else feeds it.
#[derive(Clone)]
pub struct Caches {
    /// All claims.
    pub claims: Store<Claim>,
    /// The Services that are labelled with a volume.
    pub services: Store<Service>,
    /// The slices of Services that do not find their targets themselves.
    pub slices: Store<Slice>,
    /// The Endpoints objects that are labelled with a volume; nobody needs to feed it where there are to be none.
    pub endpoints: Store<Endpoints>,
}

impl Caches {
    /// Caches of the feature's own, beside the claims that others may look at too.
    #[must_use]
    pub fn beside(claims: &Store<Claim>) -> Self {
        Self {
            claims: claims.clone(),
            services: Store::new(vec![|_| true], vec![SERVICES_BY_VOLUME]),
            slices: Store::new(vec![|_| true], vec![BY_SERVICE, SLICES_BY_VOLUME, SLICES_BY_TARGET]),
            endpoints: Store::new(vec![|_| true], vec![]),
        }
    }

    pub(crate) fn services_of(&self, id: &str) -> Vec<Arc<Service>> {
        self.services.find(&SERVICES_BY_VOLUME, id)
    }

    pub(crate) fn slices_of(&self, id: &str) -> Vec<Arc<Slice>> {
        self.slices.find(&SLICES_BY_VOLUME, id)
    }

    pub(crate) fn slices_of_service(&self, service: &ObjectKey) -> Vec<Slice> {
        self.slices.find(&BY_SERVICE, service.as_str()).iter().map(|slice| Slice::clone(slice)).collect()
    }

    /// Another volume whose address leads there.
    pub(crate) fn leader_to(&self, endpoint: SocketAddr, except: &str) -> Option<VolumeId> {
        let slices = self.slices.find(&SLICES_BY_TARGET, &endpoint.to_string());
        slices
            .iter()
            .filter(|slice| is_known(slice))
            .find_map(|slice| names::volume_of(&slice.labels).filter(|id| **id != *except))
    }
}

/// The feature.
pub struct SharedVolumes {
    pub(crate) caches: Caches,
    pub(crate) source: Arc<dyn Source>,
    pub(crate) client: FencedClient,
    pub(crate) events: Recorder,
    pub(crate) settings: Settings,
    pub(crate) metrics: Metrics,
    pub(crate) state: Arc<Mutex<State>>,
    pub(crate) lines: Lines,
    /// Where Services are, as far as the API server tells.
    pub(crate) service_ranges: RwLock<Arc<[Range]>>,
}

/// The two queues. A server that has moved does not wait behind those that are new: it has workers of its own.
#[derive(Clone)]
pub(crate) struct Lines {
    moved: Queue<VolumeKey>,
    others: Queue<VolumeKey>,
    caches: Caches,
    state: Arc<Mutex<State>>,
}

impl Lines {
    /// The volume needs work.
    pub(crate) fn add(&self, key: VolumeKey) {
        if self.is_urgent(&key.id) { self.moved.add(key) } else { self.others.add(key) }
    }

    /// Whether somebody may be led wrong: there is an address, and it does not lead to where the server is.
    fn is_urgent(&self, id: &str) -> bool {
        let Some(view) = self.state.lock().view(id) else { return true };
        let endpoint = view.volume.endpoint.as_deref().and_then(crate::endpoint::parse);
        let wanted: Vec<SocketAddr> = endpoint.into_iter().filter(|_| !view.gone && view.rival.is_none()).collect();
        let slices = self.caches.slices_of(id);
        let lost = view.service.as_ref().is_some_and(|service| self.caches.services.get(service).is_none());
        lost || slices.iter().any(|slice| slice.leads_to() != wanted)
    }
}

impl SharedVolumes {
    /// The feature on top of caches that somebody else feeds.
    #[must_use]
    pub fn new(
        caches: Caches,
        source: Arc<dyn Source>,
        client: FencedClient,
        events: Recorder,
        registry: &Registry,
        settings: Settings,
    ) -> Self {
        let state = Arc::<Mutex<State>>::default();
        let lines = Lines {
            moved: Queue::new("shared-volumes", registry),
            others: Queue::new("shared-volumes-others", registry),
            caches: caches.clone(),
            state: Arc::clone(&state),
        };
        let metrics = Metrics::register(registry, &state);
        let service_ranges = RwLock::new(Arc::from([]));
        Self { caches, source, client, events, settings, metrics, state, lines, service_ranges }
    }

    /// What it looks at.
    #[must_use]
    pub fn caches(&self) -> &Caches {
        &self.caches
    }

    /// Whether there are to be Endpoints objects, which are watched then.
    #[must_use]
    pub fn keeps_endpoints(&self) -> bool {
        self.settings.endpoints
    }

    /// Acts until `stop` is cancelled (then it finishes what it has begun) or the future is dropped (then it ends at once).
    pub async fn run(&self, stop: CancellationToken) {
        let Caches { claims, services, slices, endpoints } = &self.caches;
        let endpoints = OptionFuture::from(self.settings.endpoints.then(|| endpoints.synced()));
        let synced = async { tokio::join!(claims.synced(), services.synced(), slices.synced(), endpoints) };
        if stop.run_until_cancelled(synced).await.is_none() {
            return;
        }
        let _term = Term(&self.state);
        if stop.run_until_cancelled(self.read_leads()).await.is_none() {
            return;
        }
        let _subscriptions = self.subscribe();
        let concurrency = self.settings.concurrency;
        tokio::join!(
            self.keep_polling(stop.clone()),
            queue::run(&self.lines.moved, concurrency, stop.clone(), |key| self.handle(key)),
            queue::run(&self.lines.others, concurrency, stop.clone(), |key| self.handle(key)),
        );
    }

    /// Reads where addresses lead. The cache may not have heard yet of what another replica wrote while it led.
    async fn read_leads(&self) {
        let mut trouble = Trouble::default();
        loop {
            match self.all_slices().await {
                Ok(slices) => {
                    let mut state = self.state.lock();
                    for slice in slices.iter().filter(|slice| is_known(slice)) {
                        let Some(id) = names::volume_of(&slice.labels) else { continue };
                        for endpoint in slice.leads_to() {
                            state.leads.will(&id, endpoint);
                        }
                    }
                    return;
                }
                Err(error) => {
                    let error = causes(&error);
                    if trouble.begins(&error) {
                        tracing::warn!(
                            feature = "shared-volumes",
                            "where addresses lead cannot be read, and nothing is done: {error}"
                        );
                    }
                }
            }
            sleep(RETRY).await;
        }
    }

    async fn handle(&self, key: VolumeKey) -> Outcome {
        if !self.state.lock().begin(&key.id) {
            return Outcome::Done;
        }
        let busy = Busy { feature: self, id: &key.id };
        let result = self.work(&key.id).await.transpose();
        drop(busy);
        let Some(result) = result else {
            // The next one that has moved does not wait for the rest of this one.
            self.lines.others.add(key);
            return Outcome::Done;
        };
        let mut state = self.state.lock();
        state.settled(&key.id);
        let Some(entry) = state.entry(&key.id) else { return Outcome::Done };
        match result {
            Ok(outcome) => {
                entry.failures = 0;
                outcome
            }
            Err(Failure::NotLeader) => Outcome::Done,
            Err(_) => {
                let outcome = Outcome::After(pause(entry.failures, rand::rng().random()));
                entry.failures = entry.failures.saturating_add(1);
                outcome
            }
        }
    }

    /// Does what is to be done for a volume; none if its address was only redirected, and the rest is still to be done.
    async fn work(&self, id: &VolumeId) -> Result<Option<Outcome>, Failure> {
        let Some(view) = self.view(id) else { return Ok(Some(Outcome::Done)) };
        if self.is_settled(&view) {
            self.leads(id, view.volume.endpoint.as_deref().and_then(crate::endpoint::parse));
            return Ok(Some(Outcome::Done));
        }
        let claim = view.volume.claim.as_ref().is_some_and(|claim| self.caches.claims.get(claim).is_some());
        let decision = self.decide(&view, if claim { ClaimSeen::There } else { ClaimSeen::Missing });
        let done = match decision.action {
            Action::Leave => self.leave(&view, &decision).await.map(Some),
            Action::Withdraw | Action::Wait => self.withdraw(&view, &decision).await.map(Some),
            Action::Serve(endpoint) => {
                if let Some(entry) = self.state.lock().entry(id) {
                    entry.closed = false;
                }
                match self.redirect(&view, endpoint).await {
                    Ok(true) => Ok(None),
                    Ok(false) => self.serve(&view, endpoint).await.map(Some),
                    Err(failure) => Err(failure),
                }
            }
        };
        done.inspect_err(|failure| self.tell_failure(&view, failure))
    }

    /// Notes where the address of a volume leads, and lets those look again who waited for it to leave.
    pub(crate) fn leads(&self, id: &str, endpoint: Option<SocketAddr>) {
        let waiting = self.state.lock().now_leads(id, endpoint);
        for key in waiting {
            self.lines.add(key);
        }
    }

    pub(crate) fn view(&self, id: &str) -> Option<View> {
        self.state.lock().view(id)
    }

    /// Decides where the address leads, by what is known in this moment.
    pub(crate) fn decide(&self, view: &View, claim: ClaimSeen) -> Decision<Action> {
        let decision = TARGET.decide(&self.observe(view, claim));
        self.count(&decision, Action::name)
    }

    pub(crate) fn count<A: Clone>(&self, decision: &Decision<A>, name: impl Fn(&A) -> &'static str) -> Decision<A> {
        self.metrics.decisions.with(&[name(&decision.action), decision.reason]).increment();
        decision.clone()
    }

    fn observe(&self, view: &View, claim: ClaimSeen) -> Observation {
        let Settings { namespace, allowed_endpoints, endpoint_gone, .. } = &self.settings;
        let id = &*view.volume.id;
        let mut seen = Observation {
            volume: Arc::clone(&view.volume),
            gone: view.gone,
            looked_after: namespace.clone(),
            allowed: Arc::clone(allowed_endpoints),
            services: Arc::clone(&self.service_ranges.read()),
            endpoint_gone: *endpoint_gone,
            rival: view.rival.clone(),
            taken_by: None,
            holder: None,
            claim,
        };
        let state = self.state.lock();
        let holder = |endpoint| state.leads.other(endpoint, id, Instant::now());
        seen.holder =
            target(&seen).and_then(|endpoint| holder(endpoint).or_else(|| self.caches.leader_to(endpoint, id)));
        let led = self.caches.slices_of(id).into_iter().flat_map(|slice| slice.leads_to());
        let led = led.chain(state.leads.of(id)).collect::<Vec<_>>();
        seen.taken_by = led.into_iter().find_map(|endpoint| state.claimant(endpoint, id));
        seen
    }

    /// Whether nothing has changed since the volume was verified, as far as is known without asking.
    fn is_settled(&self, view: &View) -> bool {
        let Some(verified) = view.verified.as_ref().filter(|verified| Instant::now() < verified.until) else {
            return false;
        };
        let endpoint = view.volume.endpoint.as_deref().and_then(crate::endpoint::parse);
        let same = verified.volume == view.volume && !view.gone && view.rival.is_none();
        let Some(service) = self.caches.services.get(&verified.service).filter(|_| same) else { return false };
        let claim = self.caches.claims.get(&verified.owner.key);
        let is_its = |claim: &Claim| claim.volume.is_none() || claim.volume == view.volume.volume;
        claim.is_some_and(|claim| is_its(&claim))
            && objects::repair_service(&service, &view.volume, &verified.owner, endpoint).is_none()
            && self.way(view, &service, endpoint).action == way::Action::Settled
            && self.endpoints_are_right(view, &service, endpoint)
    }

    /// Whether the Endpoints object beside a Service says the same as its slice, as far as is known without asking.
    fn endpoints_are_right(&self, view: &View, service: &Service, endpoint: Option<SocketAddr>) -> bool {
        let found = self.caches.endpoints.get(&service.key);
        let right = |found: &Endpoints| objects::repair_endpoints(found, &view.volume, service, endpoint).is_none();
        !self.settings.endpoints || found.is_some_and(|found| right(&found))
    }

    /// Where a Service leads, as far as is known without asking.
    pub(crate) fn way(
        &self,
        view: &View,
        service: &Arc<Service>,
        endpoint: Option<SocketAddr>,
    ) -> Decision<way::Action> {
        WAY.decide(&way::Observation {
            volume: Arc::clone(&view.volume),
            service: Arc::clone(service),
            slices: self.caches.slices_of_service(&service.key),
            mirrored: false,
            endpoint,
        })
    }
}

/// The time in which this replica leads. What it knows is worth nothing afterwards, nor is it to be counted.
struct Term<'a>(&'a Mutex<State>);

impl Drop for Term<'_> {
    fn drop(&mut self) {
        *self.0.lock() = State::default();
    }
}

/// A volume that is worked on, until this is dropped.
struct Busy<'a> {
    feature: &'a SharedVolumes,
    id: &'a VolumeId,
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        let key = {
            let mut state = self.feature.state.lock();
            state.end(self.id).then(|| state.key_of(self.id))
        };
        if let Some(key) = key {
            self.feature.lines.add(key);
        }
    }
}
