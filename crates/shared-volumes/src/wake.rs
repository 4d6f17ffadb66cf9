//! Who is looked at again when something changes in the cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use cluster::{
    Claim, Endpoints, Service, Slice,
    store::{Change, Subscription},
};
use parking_lot::Mutex;

use crate::{
    controller::{Lines, SharedVolumes},
    names,
    state::State,
};

/// As long as they live, changes wake the feature.
pub(crate) type Subscriptions =
    (Subscription<Claim>, Subscription<Service>, Subscription<Slice>, Subscription<Endpoints>);

impl SharedVolumes {
    pub(crate) fn subscribe(&self) -> Subscriptions {
        (self.follow_claims(), self.follow_services(), self.follow_slices(), self.follow_endpoints())
    }

    fn follow_claims(&self) -> Subscription<Claim> {
        let (lines, state) = (self.lines.clone(), Arc::clone(&self.state));
        self.caches.claims.subscribe(move |change| {
            let (claim, gone) = match change {
                Change::Applied { old, new } if old == Some(new) => return,
                Change::Applied { new, .. } => (new, false),
                Change::Deleted { old } => (old, true),
            };
            let volumes = state.lock().of_claim(&claim.key);
            if gone {
                // Another one may have its name before anybody looks, and nothing else would tell them apart.
                state.lock().doubt(&volumes);
            }
            for key in volumes {
                lines.add(key);
            }
        })
    }

    fn follow_services(&self) -> Subscription<Service> {
        let (lines, state) = (self.lines.clone(), Arc::clone(&self.state));
        self.caches.services.subscribe(move |change| wake_labelled(&lines, &state, &change, |service| &service.labels))
    }

    fn follow_endpoints(&self) -> Subscription<Endpoints> {
        let (lines, state) = (self.lines.clone(), Arc::clone(&self.state));
        self.caches.endpoints.subscribe(move |change| wake_labelled(&lines, &state, &change, |found| &found.labels))
    }

    fn follow_slices(&self) -> Subscription<Slice> {
        let (lines, state) = (self.lines.clone(), Arc::clone(&self.state));
        self.caches.slices.subscribe(move |change| {
            let (old, new) = match change {
                Change::Applied { old, new } if old == Some(new) => return,
                Change::Applied { old, new } => (old, Some(new)),
                Change::Deleted { old } => (Some(old), None),
            };
            let mut keys = Vec::new();
            {
                let state = state.lock();
                for slice in [old, new].into_iter().flatten() {
                    keys.extend(names::volume_of(&slice.labels).map(|id| state.key_of(&id)));
                    // Somebody may have added a slice to our Service, with or without our label.
                    keys.extend(slice.service().and_then(|service| state.of_service(&service)));
                }
                // Who waits for an endpoint may have it now.
                let left = old.map(Slice::leads_to).unwrap_or_default();
                keys.extend(left.into_iter().flat_map(|endpoint| state.at(endpoint)));
            }
            for key in keys {
                lines.add(key);
            }
        })
    }
}

/// Wakes the volume that an object is labelled with, and the one that it was: somebody may have given it to another, as it were.
fn wake_labelled<T: PartialEq>(
    lines: &Lines,
    state: &Mutex<State>,
    change: &Change<'_, T>,
    labels: impl Fn(&T) -> &BTreeMap<String, String>,
) {
    let (old, new) = match *change {
        Change::Applied { old, new } if old == Some(new) => return,
        Change::Applied { old, new } => (old, Some(new)),
        Change::Deleted { old } => (Some(old), None),
    };
    let ids: BTreeSet<_> =
        [old, new].into_iter().flatten().filter_map(|object| names::volume_of(labels(object))).collect();
    for id in ids {
        let key = state.lock().key_of(&id);
        lines.add(key);
    }
}
