//! Who is looked at again when something changes.

use cluster::{
    Claim, Class, Job, Namespace, ObjectKey, Store, Volume,
    store::{Change, Subscription},
    volume::{BY_CLAIM, RELEASED_BY_CLASS, UNUSED_BY_NAMESPACE, VolumePhase},
};
use platform::queue::Queue;

use crate::{
    controller::Releaser,
    pending::is_freed,
    policy::{RELEASE, RELEASE_MAX_AVAILABLE, is_associated},
    reservation::reserved_for,
    scrub,
};

/// As long as they live, changes wake the feature.
pub(crate) type Subscriptions = (
    Subscription<Volume>,
    Subscription<Claim>,
    Subscription<Class>,
    Subscription<Namespace>,
    Option<Subscription<Job>>,
);

impl Releaser {
    /// At first every volume is looked at that could need it: that is how a backlog is found at every start.
    pub(crate) fn subscribe(&self) -> Subscriptions {
        (
            self.follow_volumes(),
            self.follow_claims(),
            self.follow_classes(),
            self.follow_namespaces(),
            self.follow_jobs(),
        )
    }

    fn follow_volumes(&self) -> Subscription<Volume> {
        let (queue, pending, told) = (self.queue.clone(), self.pending.clone(), self.told.clone());
        let (volumes, claims, classes) =
            (self.caches.volumes.clone(), self.caches.claims.clone(), self.caches.classes.clone());
        let sweep = self.scrub.as_ref().map(scrub::Scrub::sweep);
        self.caches.volumes.subscribe(move |change| {
            let (old, new) = match change {
                Change::Applied { old, new } => (old, Some(new)),
                Change::Deleted { old } => (Some(old), None),
            };
            if let Some(volume) = new.or(old) {
                pending.seen(volume, new.is_none());
            }
            match new {
                Some(new) if old.is_none_or(|old| old.version != new.version) && concerns(new, &claims) => {
                    queue.add(new.key.clone());
                }
                None => {
                    let gone = old.map(|old| &old.key);
                    gone.and_then(|key| told.lock().remove(key));
                    // What was made for it may still be there.
                    if let Some(sweep) = &sweep {
                        queue.add(sweep.clone());
                    }
                }
                Some(_) => {}
            }
            // Somebody took a volume out of the pool, or from its way there, so there may be room for another.
            if let Some(taken) = old.filter(|old| fills_pool(old) && !new.is_some_and(fills_pool)) {
                wake_next(&taken.class, &volumes, &classes, &queue);
            }
        })
    }

    fn follow_claims(&self) -> Subscription<Claim> {
        let (queue, volumes, classes) = (self.queue.clone(), self.caches.volumes.clone(), self.caches.classes.clone());
        self.caches.claims.subscribe(move |change| {
            let (old, new) = match change {
                Change::Applied { old, new } if old == Some(new) => return,
                Change::Applied { old, new } => (old, Some(new)),
                Change::Deleted { old } => (Some(old), None),
            };
            let asks = |claim: Option<&Claim>| {
                let claim = claim.filter(|claim| claim.release_labels.is_some())?;
                Some((claim.release_labels.clone(), claim.volume.clone()))
            };
            let Some(claim) = new.or(old) else { return };
            // Its volume may be associated now, or released, because this claim was in its way.
            if new.is_none() || asks(old) != asks(new) {
                volumes.find(&BY_CLAIM, claim.key.as_str()).iter().for_each(|volume| queue.add(volume.key.clone()));
            }
            if new.is_some_and(|new| new.volume.is_none()) {
                let unused = volumes.find(&UNUSED_BY_NAMESPACE, claim.key.namespace()).into_iter();
                let waiting =
                    unused.filter(|volume| volume.phase == VolumePhase::Released && by_namespace(volume, &classes));
                waiting.for_each(|volume| queue.add(volume.key.clone()));
            }
        })
    }

    fn follow_classes(&self) -> Subscription<Class> {
        let (queue, volumes) = (self.queue.clone(), self.caches.volumes.clone());
        self.caches.classes.subscribe(move |change| {
            let class = match change {
                Change::Applied { old, new } if old == Some(new) => None,
                Change::Applied { new, .. } => Some(new),
                Change::Deleted { old } => Some(old),
            };
            let released = class.map(|class| volumes.find(&RELEASED_BY_CLASS, class.key.name()));
            released.into_iter().flatten().for_each(|volume| queue.add(volume.key.clone()));
        })
    }

    fn follow_jobs(&self) -> Option<Subscription<Job>> {
        let scrub = self.scrub.as_ref()?;
        let (queue, volumes, sweep) = (self.queue.clone(), self.caches.volumes.clone(), scrub.sweep());
        Some(scrub.jobs().subscribe(move |change| {
            let job = match change {
                Change::Applied { old, new } if old == Some(new) => return,
                Change::Applied { new, .. } => new,
                Change::Deleted { old } => old,
            };
            // A Job has the name of its scrub claim.
            let cleaned = volumes.find(&BY_CLAIM, job.key.as_str());
            if cleaned.is_empty() {
                queue.add(sweep.clone());
            }
            for volume in &cleaned {
                queue.add(volume.key.clone());
            }
        }))
    }

    fn follow_namespaces(&self) -> Subscription<Namespace> {
        let (queue, volumes) = (self.queue.clone(), self.caches.volumes.clone());
        self.caches.namespaces.subscribe(move |change| {
            let lost = match change {
                // A list after a gap in the watch shows only the new one of the name.
                Change::Applied { old, new } => {
                    let made_anew = old.is_some_and(|old| old.created != new.created);
                    Some(new).filter(|new| new.being_deleted || made_anew)
                }
                Change::Deleted { old } => Some(old),
            };
            let unused = lost.map(|namespace| volumes.find(&UNUSED_BY_NAMESPACE, namespace.key.name()));
            unused.into_iter().flatten().for_each(|volume| queue.add(volume.key.clone()));
        })
    }
}

/// Whether a volume is free, or will be.
fn fills_pool(volume: &Volume) -> bool {
    volume.is_free() || is_freed(volume) || scrub::is_underway(volume)
}

/// Whether something could be decided about a volume.
fn concerns(volume: &Volume, claims: &Store<Claim>) -> bool {
    let asks = |claim: &ObjectKey| claims.get(claim).is_some_and(|claim| claim.release_labels.is_some());
    volume.phase == VolumePhase::Released
        || reserved_for(volume).is_some()
        || scrub::has_scrub_name(volume)
        || (!is_associated(volume) && volume.claim.as_ref().is_some_and(|claim| asks(&claim.key)))
}

fn by_namespace(volume: &Volume, classes: &Store<Class>) -> bool {
    let class = classes.get(&ObjectKey::new("", &volume.class));
    class.is_some_and(|class| class.annotations.get(RELEASE).is_some_and(|mode| mode == "namespace"))
}

/// The volume of the class that is Released longest, if the class has a limit.
fn wake_next(class: &str, volumes: &Store<Volume>, classes: &Store<Class>, queue: &Queue<ObjectKey>) {
    let limited = classes.get(&ObjectKey::new("", class));
    if limited.is_some_and(|class| class.annotations.contains_key(RELEASE_MAX_AVAILABLE)) {
        let released = volumes.find(&RELEASED_BY_CLASS, class);
        let waiting = released.iter().filter(|volume| !is_freed(volume));
        let next = waiting.min_by_key(|volume| (volume.phase_since, &volume.key));
        if let Some(volume) = next {
            queue.add(volume.key.clone());
        }
    }
}
