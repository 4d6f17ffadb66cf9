//! Who wakes whom: a volume is looked at when it, its node, its class or its claim changes.

use std::sync::Arc;

use cluster::{
    Claim, Class, Node, Store, Volume,
    store::{Change, Index, Subscription},
    volume::{BY_CLAIM, NODE_NAME_FIELD},
};
use k8s_openapi::{api::core::v1::ObjectReference, jiff::Timestamp};
use parking_lot::Mutex;
use platform::events::EventKind;

use super::{
    brake::Losses,
    controller::Gone,
    decision::since,
    identity::{HOME_NODE, Note},
    policy::Terms,
    recreate::has_pending,
};
use crate::{home::Home, settings::Settings};

/// Under what a volume is found whose node has this name noted; no label is called so.
const NOTED: &str = "noted";

/// Volumes by `label=value` of what they are tied to, and by the noted name of their node.
pub const BY_TIE: Index<Volume> = Index { name: "tie", values: ties };

fn ties(volume: &Volume) -> Vec<Box<str>> {
    let pins = volume.reach.pins.iter().map(|(key, value)| format!("{key}={value}").into());
    let note: Option<Note> = volume.annotations.get(HOME_NODE).and_then(|note| serde_json::from_str(note).ok());
    pins.chain(note.map(|note| format!("{NOTED}={}", note.name).into())).collect()
}

/// The volumes that a node may be the home of.
pub(super) fn tied_to(node: &Node, volumes: &Store<Volume>) -> Vec<Arc<Volume>> {
    let name = node.key.name();
    let labels = node.labels.iter().map(|(key, value)| format!("{key}={value}"));
    let ties = labels.chain([format!("{NODE_NAME_FIELD}={name}"), format!("{NOTED}={name}")]);
    ties.flat_map(|tie| volumes.find(&BY_TIE, &tie)).collect()
}

/// As long as they live, changes wake volumes.
pub(super) type Subscriptions = (Subscription<Volume>, Subscription<Node>, Subscription<Class>, Subscription<Claim>);

impl Gone {
    pub(super) fn subscribe(&self) -> Subscriptions {
        let caches = &self.context.caches;
        (
            caches.volumes.subscribe(self.wake_of_volumes()),
            caches.nodes.subscribe(self.wake_of_nodes()),
            caches.classes.subscribe(self.wake_of_classes()),
            caches.claims.subscribe(self.wake_of_claims()),
        )
    }

    fn wake_of_volumes(&self) -> impl Fn(Change<'_, Volume>) + Send + Sync + use<> {
        let (queue, losses, settings) =
            (self.queue.clone(), Arc::clone(&self.losses), Arc::clone(&self.context.settings));
        move |change| match change {
            Change::Applied { old: Some(old), new } if old == new => {}
            Change::Applied { new, .. } => {
                remember(&losses, new, &settings);
                if Home::tied(new, &settings).is_some() || has_pending(new) {
                    queue.add(new.key.clone());
                }
            }
            Change::Deleted { old } => {
                losses.lock().note(&old.key, None);
                queue.add(old.key.clone());
            }
        }
    }

    fn wake_of_nodes(&self) -> impl Fn(Change<'_, Node>) + Send + Sync + use<> {
        let (queue, losses, volumes) =
            (self.queue.clone(), Arc::clone(&self.losses), self.context.caches.volumes.clone());
        move |change| {
            let nodes = match change {
                Change::Applied { old: Some(old), new } if old == new => return,
                Change::Applied { old, new } => {
                    losses.lock().appear(new.key.name());
                    // What it was tied by may have been taken off.
                    [Some(new), old]
                }
                Change::Deleted { old } => {
                    losses.lock().vanish(old.key.name(), Timestamp::now());
                    [Some(old), None]
                }
            };
            for node in nodes.into_iter().flatten() {
                for volume in tied_to(node, &volumes) {
                    queue.add(volume.key.clone());
                }
            }
        }
    }

    fn wake_of_classes(&self) -> impl Fn(Change<'_, Class>) + Send + Sync + use<> {
        let (queue, volumes) = (self.queue.clone(), self.context.caches.volumes.clone());
        let (settings, recorder) = (Arc::clone(&self.context.settings), self.context.recorder.clone());
        move |change| {
            let (old, class) = match change {
                Change::Applied { old, new } => (old.map(|old| Terms::of(Some(old), &settings)), new),
                Change::Deleted { old } => (None, old),
            };
            let terms = Terms::of(Some(class), &settings);
            if old.as_ref() == Some(&terms) {
                return;
            }
            if let (Some(unclear), Change::Applied { .. }) = (&terms.unclear, &change) {
                let reason = "NodeGoneUnclear";
                let note = format!("{unclear}; until then nothing of the class is deleted when its node is gone");
                tracing::warn!(feature = "placement", class = %class.key, reason, "{note}");
                let regarding = reference(class);
                let (kind, action) = (EventKind::Warning, "CleanUpAfterNode");
                recorder.publish(platform::events::Event { regarding, kind, reason, action, note });
            }
            let name = class.key.name();
            volumes.filter(|volume| &*volume.class == name).iter().for_each(|volume| queue.add(volume.key.clone()));
        }
    }

    /// A claim that is to be made again waits for the end of the old one.
    fn wake_of_claims(&self) -> impl Fn(Change<'_, Claim>) + Send + Sync + use<> {
        let (queue, volumes) = (self.queue.clone(), self.context.caches.volumes.clone());
        move |change| {
            if let Change::Deleted { old } = change {
                let volumes = volumes.find(&BY_CLAIM, old.key.as_str());
                volumes.iter().filter(|volume| has_pending(volume)).for_each(|volume| queue.add(volume.key.clone()));
            }
        }
    }
}

/// Keeps in mind what a volume says about its node.
pub(super) fn remember(losses: &Mutex<Losses>, volume: &Volume, settings: &Settings) {
    let note = Home::tied(volume, settings).and_then(|home| Note::of(volume, &home));
    losses.lock().note(&volume.key, note.as_ref().map(|note| (note.name.as_str(), since(volume))));
}

fn reference(class: &Class) -> ObjectReference {
    ObjectReference {
        api_version: Some("storage.k8s.io/v1".into()),
        kind: Some("StorageClass".into()),
        name: Some(class.key.name().to_owned()),
        uid: Some(class.uid.to_string()),
        ..ObjectReference::default()
    }
}
