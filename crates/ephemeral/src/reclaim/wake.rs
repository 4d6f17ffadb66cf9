//! When a decision about an ended pod's claims could change.

use std::sync::Arc;

use cluster::{
    Attachment, Claim, Class, Driver, ObjectKey, Pod, Store,
    pod::{BY_EPHEMERAL_CLAIM, EphemeralVolume},
    store::{Change, Subscription},
};
use k8s_openapi::api::core::v1::ObjectReference;
use platform::{
    events::{Event, EventKind, Recorder},
    queue::Queue,
};

use super::{
    controller::{Caches, Reclaim},
    facts,
    memory::Memory,
    mode::Mode,
    mode::RECLAIM_COMPLETED,
};

/// As long as it lives, pods enter the queue.
pub(super) struct Subscriptions {
    _pods: Subscription<Pod>,
    _claims: Subscription<Claim>,
    _classes: Subscription<Class>,
    _drivers: Subscription<Driver>,
    _attachments: Subscription<Attachment>,
}

/// Puts pods into the queue. Cheap to clone.
#[derive(Clone)]
struct Bell {
    pods: Store<Pod>,
    queue: Queue<ObjectKey>,
}

impl Bell {
    /// The ended pods that may own this claim.
    fn owners_of(&self, claim: &str) {
        for pod in self.pods.find(&BY_EPHEMERAL_CLAIM, claim).iter().filter(|pod| pod.has_ended()) {
            self.queue.add(pod.key.clone());
        }
    }

    /// The ended pods that may have claims of this class. Templates without a class get whichever is the default.
    fn pods_of_class(&self, class: &str) {
        let may_be_of =
            |volume: &EphemeralVolume| facts::class_of_template(volume).is_none_or(|named| *named == *class);
        for pod in self.pods.filter(|pod| pod.has_ended() && pod.ephemeral_volumes.iter().any(may_be_of)) {
            self.queue.add(pod.key.clone());
        }
    }
}

impl Reclaim {
    /// Puts a pod into the queue whenever a decision about its claims could change.
    pub(super) fn subscribe(&self) -> Subscriptions {
        let Caches { pods, claims, classes, drivers, attachments } = &self.caches;
        let bell = Bell { pods: pods.clone(), queue: self.queue.clone() };
        Subscriptions {
            _pods: subscribe_pods(pods, bell.clone(), Arc::clone(&self.memory)),
            _claims: subscribe_claims(claims, bell.clone()),
            _classes: subscribe_classes(classes, bell.clone(), self.events.clone()),
            _drivers: subscribe_drivers(drivers, bell.clone(), Arc::clone(&self.memory)),
            _attachments: subscribe_attachments(attachments, bell, Arc::clone(&self.memory)),
        }
    }
}

fn subscribe_pods(pods: &Store<Pod>, bell: Bell, memory: Arc<Memory>) -> Subscription<Pod> {
    let gone = {
        let bell = bell.clone();
        move |pod: &Pod| {
            memory.forget(pod);
            for claim in &pod.used_claims {
                bell.owners_of(ObjectKey::new(pod.key.namespace(), claim).as_str());
            }
        }
    };
    pods.subscribe(move |change| match change {
        Change::Applied { old, new } => {
            let before = old.filter(|old| old.uid == new.uid);
            if new.has_ended() && !new.ephemeral_volumes.is_empty() && before.is_none_or(|before| !before.has_ended()) {
                bell.queue.add(new.key.clone());
            }
            // Another pod of the same name: the end of the first one fell into a gap.
            if let Some(replaced) = old.filter(|old| old.uid != new.uid) {
                gone(replaced);
            }
        }
        Change::Deleted { old } => gone(old),
    })
}

fn subscribe_claims(claims: &Store<Claim>, bell: Bell) -> Subscription<Claim> {
    claims.subscribe(move |change| {
        // The end of a claim is what we wanted.
        if let Change::Applied { old, new } = change
            && new.owner.is_some()
            && old != Some(new)
        {
            bell.owners_of(new.key.as_str());
        }
    })
}

fn subscribe_classes(classes: &Store<Class>, bell: Bell, events: Recorder) -> Subscription<Class> {
    classes.subscribe(move |change| {
        let (old, new) = match change {
            Change::Applied { old, new } => (old, Some(new)),
            Change::Deleted { old } => (Some(old), None),
        };
        let annotation =
            |class: Option<&Class>| class.and_then(|class| class.annotations.get(RECLAIM_COMPLETED).cloned());
        let Some(class) = new.or(old).filter(|_| annotation(old) != annotation(new)) else { return };
        if new.is_some() {
            tell_unknown_mode(class, &events);
        }
        bell.pods_of_class(class.key.name());
    })
}

fn subscribe_drivers(drivers: &Store<Driver>, bell: Bell, memory: Arc<Memory>) -> Subscription<Driver> {
    drivers.subscribe(move |change| {
        let driver = match change {
            Change::Applied { old, new } if old == Some(new) => return,
            Change::Applied { new, .. } => new,
            Change::Deleted { old } => old,
        };
        for claim in memory.claims_of_driver(driver.key.name()) {
            bell.owners_of(claim.as_str());
        }
    })
}

fn subscribe_attachments(attachments: &Store<Attachment>, bell: Bell, memory: Arc<Memory>) -> Subscription<Attachment> {
    attachments.subscribe(move |change| {
        if let Change::Deleted { old } = change
            && let Some(pod) = old.volume.as_deref().and_then(|volume| memory.take_waiting(volume))
        {
            bell.queue.add(pod);
        }
    })
}

fn tell_unknown_mode(class: &Class, events: &Recorder) {
    let Err(unknown) = Mode::of(class) else { return };
    tracing::warn!(feature = "ephemeral", class = %class.key, reason = "UnknownReclaimMode", "{unknown}");
    let regarding = ObjectReference {
        api_version: Some("storage.k8s.io/v1".into()),
        kind: Some("StorageClass".into()),
        name: Some(class.key.name().to_owned()),
        uid: Some(class.uid.to_string()),
        ..ObjectReference::default()
    };
    events.publish(Event {
        regarding,
        kind: EventKind::Warning,
        reason: "UnknownReclaimMode",
        action: "ReclaimClaim",
        note: unknown.to_string(),
    });
}
