//! Who is looked at again when something changes.

use cluster::{
    Claim, Class, Node, ObjectKey, Pod, Store, Volume,
    pod::{BY_EPHEMERAL_CLAIM, BY_USED_CLAIM},
    store::{Change, Subscription},
};
use platform::queue::Queue;

use super::controller::{Gate, is_unscheduled};

/// As long as they live, changes wake the part.
pub(super) type Subscriptions =
    (Subscription<Node>, Subscription<Class>, Subscription<Volume>, Subscription<Claim>, Subscription<Pod>);

impl Gate {
    /// Pods come last: each of them is looked at then, and needs no other reason.
    pub(super) fn subscribe(&self) -> Subscriptions {
        self.unscheduled.lock().clear();
        (self.follow_nodes(), self.follow_classes(), self.follow_volumes(), self.follow_claims(), self.follow_pods())
    }

    fn follow_pods(&self) -> Subscription<Pod> {
        let (queue, unscheduled, told) = (self.queue.clone(), self.unscheduled.clone(), self.told.clone());
        self.context.caches.pods.subscribe(move |change| {
            let (pod, waits) = match change {
                Change::Applied { new, .. } => (new, is_unscheduled(new)),
                Change::Deleted { old } => (old, false),
            };
            if waits {
                unscheduled.lock().insert(pod.key.clone());
                queue.add(pod.key.clone());
            } else if unscheduled.lock().remove(&pod.key) {
                told.forget(&pod.key);
            }
        })
    }

    /// A node that comes may be waited for, one that goes may be insisted on: whichever it is, there are few of these pods.
    fn follow_nodes(&self) -> Subscription<Node> {
        let wake = self.everyone();
        self.context.caches.nodes.subscribe(move |change| match change {
            Change::Applied { old, new } if old.is_some_and(|old| old.labels == new.labels) => {}
            _ => wake(),
        })
    }

    fn follow_classes(&self) -> Subscription<Class> {
        let wake = self.everyone();
        self.context.caches.classes.subscribe(move |change| match change {
            Change::Applied { old, new } if old == Some(new) => {}
            _ => wake(),
        })
    }

    fn follow_volumes(&self) -> Subscription<Volume> {
        let (queue, pods) = (self.queue.clone(), self.context.caches.pods.clone());
        self.context.caches.volumes.subscribe(move |change| {
            let (old, new) = match change {
                Change::Applied { old, new } if old == Some(new) => return,
                Change::Applied { old, new } => (old, Some(new)),
                Change::Deleted { old } => (Some(old), None),
            };
            let claims = [old, new].into_iter().flatten().filter_map(|volume| volume.claim.as_ref());
            claims.for_each(|claim| wake_users(&claim.key, &pods, &queue));
        })
    }

    fn follow_claims(&self) -> Subscription<Claim> {
        let (queue, pods) = (self.queue.clone(), self.context.caches.pods.clone());
        self.context.caches.claims.subscribe(move |change| match change {
            Change::Applied { old, new } if old == Some(new) => {}
            Change::Applied { new: claim, .. } | Change::Deleted { old: claim } => {
                wake_users(&claim.key, &pods, &queue);
            }
        })
    }

    fn everyone(&self) -> impl Fn() + Send + Sync + 'static {
        let (queue, unscheduled) = (self.queue.clone(), self.unscheduled.clone());
        move || unscheduled.lock().iter().for_each(|pod| queue.add(pod.clone()))
    }
}

fn wake_users(claim: &ObjectKey, pods: &Store<Pod>, queue: &Queue<ObjectKey>) {
    for index in [&BY_USED_CLAIM, &BY_EPHEMERAL_CLAIM] {
        let users = pods.find(index, claim.as_str());
        users.iter().filter(|pod| is_unscheduled(pod)).for_each(|pod| queue.add(pod.key.clone()));
    }
}
