//! What is known of the volumes: what their source told last, who leads where, and what was verified.
//!
//! It is the memory of one term. A replica that begins to lead knows nothing, and reads everything again.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use cluster::ObjectKey;
use platform::{queue, trouble::Trouble};
use tokio::time::Instant;

use crate::{
    endpoint,
    leads::Leads,
    objects::Owner,
    round::Round,
    source::{SharedVolume, VolumeId},
};

/// How many rounds may wait for one volume. More would only measure the same.
const MOST_ROUNDS: usize = 8;

/// The key of a volume in the queues.
#[derive(Debug, Clone)]
pub(crate) struct VolumeKey {
    /// Which volume.
    pub(crate) id: VolumeId,
    /// The namespace of its claim.
    tenant: Arc<str>,
}

impl PartialEq for VolumeKey {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for VolumeKey {}

impl std::hash::Hash for VolumeKey {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

impl queue::Key for VolumeKey {
    fn tenant(&self) -> &str {
        &self.tenant
    }
}

impl VolumeKey {
    /// The key of a volume that nobody has told of.
    fn unknown(id: VolumeId) -> Self {
        Self { id, tenant: "".into() }
    }
}

/// What is known of one volume.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) volume: Arc<SharedVolume>,
    /// Whether its source said that it is gone.
    pub(crate) gone: bool,
    /// When its source was asked for what it told last.
    heard: Instant,
    /// When it was first told to be where it is now.
    pub(crate) since: Instant,
    /// Whether its address led elsewhere when it was told so, and has not been changed since.
    pub(crate) moving: bool,
    pub(crate) verified: Option<Verified>,
    /// Whether everything of it was read and led nowhere, and it has not been served since.
    pub(crate) closed: bool,
    /// The Service that it was verified with last.
    pub(crate) service: Option<ObjectKey>,
    pub(crate) failures: u32,
    /// What was decided last, and told.
    pub(crate) told: Option<&'static str>,
    /// What was told of it, where it cannot be noted on its claim.
    pub(crate) noted: Option<String>,
    /// What is wrong, and was said.
    pub(crate) trouble: Trouble,
    /// When its address was first refused.
    pub(crate) refused_since: Option<Instant>,
    rounds: Vec<Arc<Round>>,
}

/// A volume that is worked on: by one at a time, whichever queue it came from.
#[derive(Debug, Default)]
struct Busy {
    /// Somebody else wanted to.
    again: bool,
}

/// A volume whose objects were read, found right, and published.
#[derive(Debug, Clone)]
pub(crate) struct Verified {
    pub(crate) volume: Arc<SharedVolume>,
    pub(crate) service: ObjectKey,
    pub(crate) owner: Owner,
    pub(crate) until: Instant,
}

/// One look at a volume.
#[derive(Debug, Clone)]
pub(crate) struct View {
    pub(crate) volume: Arc<SharedVolume>,
    pub(crate) gone: bool,
    pub(crate) rival: Option<VolumeId>,
    pub(crate) verified: Option<Verified>,
    /// The Service that it was verified with last.
    pub(crate) service: Option<ObjectKey>,
    /// How often the work on it has failed in a row.
    pub(crate) failures: u32,
}

impl View {
    /// A volume that nobody tells of, but of which there are objects.
    pub(crate) fn of_stranger(id: VolumeId) -> Self {
        let (volume, claim, endpoint, published) = (None, None, None, None);
        let volume = Arc::new(SharedVolume { id, home: "".into(), volume, claim, endpoint, published });
        Self { volume, gone: true, rival: None, verified: None, service: None, failures: 0 }
    }
}

/// The memory.
#[derive(Debug, Default)]
pub(crate) struct State {
    volumes: HashMap<VolumeId, Entry>,
    by_claim: HashMap<ObjectKey, BTreeSet<VolumeId>>,
    by_endpoint: HashMap<SocketAddr, BTreeSet<VolumeId>>,
    by_home: HashMap<Arc<str>, HashSet<VolumeId>>,
    pub(crate) leads: Leads,
    busy: HashMap<VolumeId, Busy>,
}

impl State {
    /// Whether the volume may be worked on. If not, whoever does it is asked to do it again.
    pub(crate) fn begin(&mut self, id: &VolumeId) -> bool {
        if let Some(busy) = self.busy.get_mut(id) {
            busy.again = true;
            return false;
        }
        self.busy.insert(Arc::clone(id), Busy::default());
        true
    }

    /// The work has ended. Whether it is to be done again.
    pub(crate) fn end(&mut self, id: &str) -> bool {
        self.busy.remove(id).is_some_and(|busy| busy.again)
    }

    /// The source told of a volume, when it was asked at that time. Returns the volumes about which something else may be decided
    /// now: none if it may be old news.
    pub(crate) fn told(&mut self, volume: SharedVolume, asked: Instant, now: Instant) -> Vec<VolumeKey> {
        let id = Arc::clone(&volume.id);
        if let Some(entry) = self.volumes.get_mut(&id) {
            // Lists and looks overtake each other. Which of two is the newer one is known only if it was asked for after the other
            // had been heard; the next list is.
            if asked < entry.heard {
                return Vec::new();
            }
            entry.heard = now;
            if *entry.volume == volume && !entry.gone {
                return Vec::new();
            }
        }
        let known = self.volumes.get(&id);
        let moved = known.is_none_or(|entry| entry.volume.endpoint != volume.endpoint || entry.gone);
        let mut affected = self.rivals(&id);
        self.forget_indexes(&id);
        self.remember_indexes(&volume);
        let volume = Arc::new(volume);
        let entry = self.volumes.entry(Arc::clone(&id)).or_insert_with(|| Entry::new(Arc::clone(&volume), now));
        if moved {
            (entry.since, entry.moving) = (now, entry.service.is_some());
        }
        (entry.volume, entry.gone, entry.failures) = (volume, false, 0);
        affected.extend(self.rivals(&id));
        affected.insert(id);
        self.keys(&affected)
    }

    /// The source said that a volume is gone, when it was asked at that time.
    pub(crate) fn gone(&mut self, id: &str, asked: Instant, now: Instant) -> Vec<VolumeKey> {
        let mut affected = self.rivals(id);
        let Some(entry) = self.volumes.get_mut(id).filter(|entry| entry.heard < asked) else { return Vec::new() };
        (entry.gone, entry.heard, entry.failures) = (true, now, 0);
        let volume = Arc::clone(&entry.volume);
        if let Some(endpoint) = volume.endpoint.as_deref().and_then(endpoint::parse) {
            remove(&mut self.by_endpoint, &endpoint, id);
        }
        affected.insert(Arc::clone(&volume.id));
        self.keys(&affected)
    }

    /// Nothing is left of a volume.
    pub(crate) fn forget(&mut self, id: &str) {
        self.forget_indexes(id);
        self.volumes.remove(id);
        self.leads.settle(id, None);
    }

    /// Those that were told of before and are missing where they were: somebody has to ask for each of them.
    pub(crate) fn missing(&self, home: &str, present: &HashSet<VolumeId>) -> Vec<Arc<SharedVolume>> {
        let known = self.by_home.get(home).into_iter().flatten();
        let missing = known.filter(|id| !present.contains(*id)).filter_map(|id| self.volumes.get(id));
        missing.filter(|entry| !entry.gone).map(|entry| Arc::clone(&entry.volume)).collect()
    }

    /// Where volumes were told to be.
    pub(crate) fn homes(&self) -> Vec<Arc<str>> {
        self.by_home.keys().cloned().collect()
    }

    pub(crate) fn view(&self, id: &str) -> Option<View> {
        let entry = self.volumes.get(id)?;
        Some(View {
            volume: Arc::clone(&entry.volume),
            gone: entry.gone,
            rival: self.rivals(id).into_iter().next(),
            verified: entry.verified.clone(),
            service: entry.service.clone(),
            failures: entry.failures,
        })
    }

    pub(crate) fn entry(&mut self, id: &str) -> Option<&mut Entry> {
        self.volumes.get_mut(id)
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.volumes.values()
    }

    /// Whether this is still what the source told last.
    pub(crate) fn is_current(&self, view: &View) -> bool {
        let known = self.volumes.get(&view.volume.id);
        known.is_some_and(|entry| entry.volume.endpoint == view.volume.endpoint && entry.gone == view.gone)
            && self.rivals(&view.volume.id).is_empty() == view.rival.is_none()
    }

    /// The volumes that were verified long enough ago.
    pub(crate) fn expired(&self, now: Instant) -> Vec<VolumeKey> {
        let expired = |entry: &&Entry| entry.verified.as_ref().is_some_and(|verified| verified.until <= now);
        self.volumes.values().filter(expired).map(|entry| key(&entry.volume)).collect()
    }

    /// What was verified of these volumes may be so no longer.
    pub(crate) fn doubt(&mut self, keys: &[VolumeKey]) {
        for key in keys {
            if let Some(entry) = self.volumes.get_mut(&key.id) {
                entry.verified = None;
            }
        }
    }

    /// The volumes that name this claim.
    pub(crate) fn of_claim(&self, claim: &ObjectKey) -> Vec<VolumeKey> {
        self.by_claim.get(claim).map(|ids| self.keys(ids)).unwrap_or_default()
    }

    /// The volume that this Service was verified for.
    pub(crate) fn of_service(&self, service: &ObjectKey) -> Option<VolumeKey> {
        let is_its = |entry: &&Entry| entry.service.as_ref() == Some(service);
        self.volumes.values().find(is_its).map(|entry| key(&entry.volume))
    }

    pub(crate) fn key_of(&self, id: &VolumeId) -> VolumeKey {
        self.volumes.get(id).map_or_else(|| VolumeKey::unknown(Arc::clone(id)), |entry| key(&entry.volume))
    }

    /// The volumes that were told to be at this endpoint.
    pub(crate) fn at(&self, endpoint: SocketAddr) -> Vec<VolumeKey> {
        self.by_endpoint.get(&endpoint).map(|ids| self.keys(ids)).unwrap_or_default()
    }

    /// Another volume that was told to be at this endpoint.
    pub(crate) fn claimant(&self, endpoint: SocketAddr, except: &str) -> Option<VolumeId> {
        self.by_endpoint.get(&endpoint)?.iter().find(|id| ***id != *except).cloned()
    }

    /// An address leads there, or nowhere. Returns those who waited for it to leave.
    pub(crate) fn now_leads(&mut self, id: &str, endpoint: Option<SocketAddr>) -> Vec<VolumeKey> {
        let left = self.leads.settle(id, endpoint);
        left.into_iter().flat_map(|endpoint| self.at(endpoint)).filter(|key| *key.id != *id).collect()
    }

    /// A round waits until the volume has settled.
    pub(crate) fn wait_for(&mut self, key: &VolumeKey, round: &Arc<Round>) {
        if let Some(entry) = self.volumes.get_mut(&key.id)
            && entry.rounds.len() < MOST_ROUNDS
        {
            entry.rounds.push(Arc::clone(round));
        }
    }

    /// The volume has settled, one way or the other.
    pub(crate) fn settled(&mut self, id: &str) {
        if let Some(entry) = self.volumes.get_mut(id) {
            entry.rounds.clear();
        }
    }

    fn rivals(&self, id: &str) -> BTreeSet<VolumeId> {
        let endpoint = self
            .volumes
            .get(id)
            .filter(|entry| !entry.gone)
            .and_then(|entry| entry.volume.endpoint.as_deref().and_then(endpoint::parse));
        let claimants = endpoint.and_then(|endpoint| self.by_endpoint.get(&endpoint));
        claimants.into_iter().flatten().filter(|other| ***other != *id).cloned().collect()
    }

    fn remember_indexes(&mut self, volume: &SharedVolume) {
        let id = &volume.id;
        if let Some(claim) = &volume.claim {
            self.by_claim.entry(claim.clone()).or_default().insert(Arc::clone(id));
        }
        if let Some(endpoint) = volume.endpoint.as_deref().and_then(endpoint::parse) {
            self.by_endpoint.entry(endpoint).or_default().insert(Arc::clone(id));
        }
        self.by_home.entry(Arc::clone(&volume.home)).or_default().insert(Arc::clone(id));
    }

    fn forget_indexes(&mut self, id: &str) {
        let Some(entry) = self.volumes.get(id) else { return };
        let volume = Arc::clone(&entry.volume);
        if let Some(claim) = &volume.claim {
            remove(&mut self.by_claim, claim, id);
        }
        if let Some(endpoint) = volume.endpoint.as_deref().and_then(endpoint::parse) {
            remove(&mut self.by_endpoint, &endpoint, id);
        }
        if let Some(ids) = self.by_home.get_mut(&volume.home) {
            ids.remove(id);
            if ids.is_empty() {
                self.by_home.remove(&volume.home);
            }
        }
    }

    fn keys(&self, ids: &BTreeSet<VolumeId>) -> Vec<VolumeKey> {
        ids.iter().map(|id| self.key_of(id)).collect()
    }
}

impl Entry {
    fn new(volume: Arc<SharedVolume>, now: Instant) -> Self {
        Self {
            volume,
            gone: false,
            heard: now,
            since: now,
            moving: false,
            verified: None,
            closed: false,
            service: None,
            failures: 0,
            told: None,
            noted: None,
            trouble: Trouble::default(),
            refused_since: None,
            rounds: Vec::new(),
        }
    }
}

fn key(volume: &SharedVolume) -> VolumeKey {
    let tenant = volume.claim.as_ref().map_or("", ObjectKey::namespace);
    VolumeKey { id: Arc::clone(&volume.id), tenant: tenant.into() }
}

fn remove<K: std::hash::Hash + Eq>(index: &mut HashMap<K, BTreeSet<VolumeId>>, key: &K, id: &str) {
    if let Some(ids) = index.get_mut(key) {
        ids.remove(id);
        if ids.is_empty() {
            index.remove(key);
        }
    }
}

/// How long a volume that failed so often is left alone: longer each time, and never the same as the others.
pub(crate) fn pause(failures: u32, jitter: f64) -> Duration {
    const LONGEST: Duration = Duration::from_secs(15);
    let longest = Duration::from_millis(50).saturating_mul(1 << failures.min(12)).min(LONGEST);
    longest.mul_f64(jitter.mul_add(0.5, 0.5))
}

#[cfg(test)]
mod tests;
