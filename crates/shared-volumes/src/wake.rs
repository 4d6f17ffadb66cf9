//! Who is looked at again when something changes in the cluster.

use std::sync::Arc;

use cluster::{
    Claim, Service, Slice,
    store::{Change, Subscription},
};

use crate::{controller::SharedVolumes, names};

/// As long as they live, changes wake the feature.
pub(crate) type Subscriptions = (Subscription<Claim>, Subscription<Service>, Subscription<Slice>);

impl SharedVolumes {
    pub(crate) fn subscribe(&self) -> Subscriptions {
        (self.follow_claims(), self.follow_services(), self.follow_slices())
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
        self.caches.services.subscribe(move |change| {
            let service = match change {
                Change::Applied { old, new } if old == Some(new) => return,
                Change::Applied { new, .. } => new,
                Change::Deleted { old } => old,
            };
            if let Some(id) = names::volume_of(&service.labels) {
                let key = state.lock().key_of(&id);
                lines.add(key);
            }
        })
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
