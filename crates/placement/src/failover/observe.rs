//! What is seen of a volume and of the pods that use it.

use std::sync::Arc;

use cluster::{
    Claim, Node, ObjectKey, Pod, Volume,
    pod::{BY_EPHEMERAL_CLAIM, BY_USED_CLAIM},
    store::Slim,
};
use kube::{Api, Client, api::ListParams};

use super::{
    decision::{Observation, User},
    note::Note,
};
use crate::{
    Caches,
    followed::{claims_of, get, have_each_other},
    home::Home,
    settings::{Driver, Settings},
};

/// The driver of a volume that we look after.
pub(super) fn driver_of<'a>(volume: &Volume, settings: &'a Settings) -> Option<&'a Driver> {
    settings.driver(&volume.driver).filter(|_| settings.looks_after(volume))
}

/// Who looks.
pub(super) struct Eyes<'a> {
    pub(super) caches: &'a Caches,
    pub(super) settings: &'a Settings,
}

impl Eyes<'_> {
    /// What the caches know.
    pub(super) fn observe(&self, volume: &Volume, driver: &Driver) -> Observation {
        let settings = self.settings;
        let noted = volume.annotations.get(&driver.selected_node_annotation).filter(|node| !node.is_empty());
        let made = || volume.attributes.get(driver.initial_node_attribute.as_ref()?).filter(|node| !node.is_empty());
        let home = || Home::of(volume, driver, settings).map(|home| self.name_of(&home));
        let before = || match made() {
            Some(node) if !driver.record_failover => Some(node.as_str().into()),
            _ if driver.record_failover => home(),
            _ => Home::tied(volume, settings).map(|home| self.name_of(&home)),
        };
        let known = Note::of(volume).map(|note| note.to.into_boxed_str()).or_else(before);
        Observation {
            volume: volume.key.name().into(),
            being_deleted: volume.being_deleted,
            records: driver.record_failover,
            known,
            noted: if driver.record_failover { home() } else { noted.map(|node| node.as_str().into()) },
            users: self.users(volume),
            live: false,
        }
    }

    /// The name of the node that is meant, or what comes closest to it.
    fn name_of(&self, home: &Home) -> Box<str> {
        home.find(&self.caches.nodes).map_or_else(|| home.name().into(), |node| node.key.name().into())
    }

    /// The pods that use the volume, the oldest first.
    fn users(&self, volume: &Volume) -> Vec<User> {
        let caches = self.caches;
        let claim = volume.claim.as_ref().and_then(|reference| caches.claims.get(&reference.key));
        let Some(claim) = claim.filter(|claim| have_each_other(claim, volume)) else { return Vec::new() };
        let pods = [&BY_USED_CLAIM, &BY_EPHEMERAL_CLAIM].map(|index| caches.pods.find(index, claim.key.as_str()));
        self.among(&claim, pods.into_iter().flatten())
    }

    /// Those that decide, read live: what a cache shows may have run, and gone, long ago.
    pub(super) async fn live_users(
        &self,
        client: &Client,
        volume: &Volume,
        seen: &Observation,
    ) -> kube::Result<Vec<User>> {
        let Some(key) = volume.claim.as_ref().map(|reference| &reference.key) else { return Ok(Vec::new()) };
        let claims: Api<<Claim as Slim>::Wire> = Api::namespaced(client.clone(), key.namespace());
        let claim = claims.get_opt(key.name()).await?.and_then(Claim::from_wire);
        let Some(claim) = claim.filter(|claim| have_each_other(claim, volume)) else { return Ok(Vec::new()) };
        let api: Api<<Pod as Slim>::Wire> = Api::namespaced(client.clone(), key.namespace());
        let mut pods = Vec::new();
        for user in seen.users.iter().filter(|user| Some(&user.node) != seen.known.as_ref()) {
            pods.extend(api.get_opt(user.pod.name()).await?.and_then(Pod::from_wire));
        }
        // Where the node is gone nobody can be left there.
        if let Some(known) = seen.known.as_ref().filter(|known| self.has_node(known)) {
            let there = ListParams::default().fields(&format!("spec.nodeName={known}"));
            pods.extend(api.list(&there).await?.items.into_iter().filter_map(Pod::from_wire));
        }
        let mut users = self.among(&claim, pods.into_iter().map(Arc::new));
        for user in users.iter_mut().filter(|user| user.lost) {
            user.lost = get::<Node>(client, &user.node).await?.is_none();
        }
        Ok(users)
    }

    fn has_node(&self, name: &str) -> bool {
        self.caches.nodes.get(&ObjectKey::new("", name)).is_some()
    }

    fn among(&self, claim: &Claim, pods: impl Iterator<Item = Arc<Pod>>) -> Vec<User> {
        let is_one = |pod: &Pod| {
            let owner = claims_of(pod).find(|(key, _)| *key == claim.key);
            owner.is_some_and(|(_, owner)| owner.is_none() || claim.owner.as_deref() == owner)
        };
        let mut pods: Vec<Arc<Pod>> = pods.filter(|pod| !pod.has_ended() && is_one(pod)).collect();
        pods.sort_by(|one, other| (one.created, &one.key).cmp(&(other.created, &other.key)));
        let user = |pod: &Arc<Pod>| {
            let node = pod.node.clone()?;
            let lost = !self.has_node(&node);
            Some(User { pod: pod.key.clone(), node, running: pod.running, leaving: pod.being_deleted, lost })
        };
        pods.iter().filter_map(user).collect()
    }
}
