//! One store per kind: the objects, their secondary indexes, and who wants to know when something changes.
//!
//! ```text
//! watch ── begin_list / apply / delete / end_list ──> Store ── Change ──> subscribers (each feeds a queue)
//!                                                       └── get / find <── observations
//! ```
//!
//! A list (the first one, or the one after a gap) does not build a second copy: every object is stamped with the list's
//! number, and what an ended list did not stamp is gone. Deletions that happened while nobody watched are thus found and
//! reported like any other.

use std::{
    collections::{BTreeSet, HashMap},
    fmt::Debug,
    sync::{Arc, Weak},
};

use bytes::Bytes;
use kube::Resource;
use parking_lot::{Mutex, RwLock};
use prost::DecodeError;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::ObjectKey;

/// An object of which we keep only what decisions read.
pub trait Slim: Send + Sync + 'static {
    /// What the API server's JSON is decoded into.
    type Wire: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + 'static;

    /// The plural name of the kind, for metrics and logs.
    const KIND: &'static str;

    /// Decodes the binary format, for a kind that is watched in it: one of which there are many.
    const FROM_BINARY: Option<FromBinary<Self::Wire>> = None;

    /// Takes from the decoded object what is kept; none if it lacks what every object has.
    fn from_wire(wire: Self::Wire) -> Option<Self>
    where
        Self: Sized;

    /// Where the object is found.
    fn key(&self) -> &ObjectKey;
}

/// Decodes an object that was taken out of its envelope.
pub type FromBinary<W> = fn(Bytes) -> Result<W, DecodeError>;

/// A secondary index: objects by values computed from them.
pub struct Index<T> {
    /// Tells indexes of one store apart.
    pub name: &'static str,
    /// Under which values an object is found.
    pub values: fn(&T) -> Vec<Box<str>>,
}

/// What happened to an object.
pub enum Change<'a, T> {
    /// It is new, or it is different, or a new list merely showed it again.
    Applied {
        /// What was known before.
        old: Option<&'a T>,
        /// What is known now.
        new: &'a T,
    },
    /// It is gone, or no feature could ever act on it any more.
    Deleted {
        /// What was known last.
        old: &'a T,
    },
}

/// Whether an object is kept.
pub type Interest<T> = Box<dyn Fn(&T) -> bool + Send + Sync>;

type Trim<T> = Box<dyn Fn(&mut T) + Send + Sync>;

type Listener<T> = Box<dyn Fn(Change<'_, T>) + Send + Sync>;

/// The objects of one kind. Cheap to clone.
pub struct Store<T> {
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    /// Only objects in which somebody is interested are kept at all.
    interests: Vec<Interest<T>>,
    /// What is forgotten of them.
    trim: Trim<T>,
    state: RwLock<State<T>>,
    // Locked for the whole of every change and of every subscription, so that a new subscriber sees each object exactly once:
    // either in its first round or as a change.
    listeners: Mutex<Listeners<T>>,
    synced: watch::Sender<bool>,
}

struct State<T> {
    objects: HashMap<ObjectKey, Entry<T>>,
    indexes: Vec<(Index<T>, IndexEntries)>,
    /// The keys of objects that nobody is interested in, each with the list that showed it last; none if nobody asks.
    dropped: Option<HashMap<ObjectKey, u64>>,
    /// The number of the newest list.
    list: u64,
}

/// Index value and key of every object, ordered: all objects of one value stand together.
type IndexEntries = BTreeSet<(Box<str>, ObjectKey)>;

struct Entry<T> {
    object: Arc<T>,
    list: u64,
}

struct Listeners<T> {
    next_id: u64,
    known: Vec<(u64, Listener<T>)>,
}

impl<T> Clone for Store<T> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<T: Slim> Store<T> {
    /// An empty store that keeps an object if any of `interests` says so.
    #[must_use]
    pub fn new(interests: Vec<fn(&T) -> bool>, indexes: Vec<Index<T>>) -> Self {
        let interests = interests.into_iter().map(|interest| Box::new(interest) as Interest<T>).collect();
        Self::trimmed(interests, indexes, |_| ())
    }

    /// The same for interests that depend on the configuration; `trim` takes from each object what nobody reads, before
    /// anything else looks at it.
    #[must_use]
    pub fn trimmed(
        interests: Vec<Interest<T>>,
        indexes: Vec<Index<T>>,
        trim: impl Fn(&mut T) + Send + Sync + 'static,
    ) -> Self {
        let indexes = indexes.into_iter().map(|index| (index, BTreeSet::new())).collect();
        Self {
            shared: Arc::new(Shared {
                interests,
                trim: Box::new(trim),
                state: RwLock::new(State { objects: HashMap::new(), indexes, dropped: None, list: 0 }),
                listeners: Mutex::new(Listeners { next_id: 0, known: Vec::new() }),
                synced: watch::Sender::new(false),
            }),
        }
    }

    /// From now on the store also knows which objects are there although it does not keep them.
    #[must_use]
    pub fn remembering_dropped(self) -> Self {
        self.shared.state.write().dropped.get_or_insert_default();
        self
    }

    /// Whether there is an object under this key in which nobody is interested. What is neither kept nor dropped is missing, or
    /// too new to be known.
    #[must_use]
    pub fn has_dropped(&self, key: &ObjectKey) -> bool {
        self.shared.state.read().dropped.as_ref().is_some_and(|dropped| dropped.contains_key(key))
    }

    /// The object under this key.
    #[must_use]
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<T>> {
        self.shared.state.read().objects.get(key).map(|entry| Arc::clone(&entry.object))
    }

    /// The objects that an index has under this value, in the order of their keys.
    #[must_use]
    pub fn find(&self, index: &Index<T>, value: &str) -> Vec<Arc<T>> {
        let state = self.shared.state.read();
        let Some((_, entries)) = state.indexes.iter().find(|(known, _)| known.name == index.name) else {
            debug_assert!(false, "the store of {} has no index {}", T::KIND, index.name);
            return Vec::new();
        };
        let first = (Box::from(value), ObjectKey::new("", ""));
        let hits = entries.range(first..).take_while(|(found, _)| &**found == value);
        hits.filter_map(|(_, key)| state.objects.get(key)).map(|entry| Arc::clone(&entry.object)).collect()
    }

    /// The objects that are as wanted, in no order. It looks at all of them: for what happens rarely.
    #[must_use]
    pub fn filter(&self, wanted: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let state = self.shared.state.read();
        let objects = state.objects.values().map(|entry| &entry.object);
        objects.filter(|object| wanted(object)).map(Arc::clone).collect()
    }

    /// How many objects are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.state.read().objects.len()
    }

    /// Whether nothing is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns once the first list has been taken in whole.
    pub async fn synced(&self) {
        // Fails only if the sender is gone, and we hold it.
        let _ = self.shared.synced.subscribe().wait_for(|synced| *synced).await;
    }

    /// Tells `listener` of every object that is there now and of every change from now on, until the subscription is
    /// dropped. Listeners are called one after the other by the watch: they note what is to be done and return.
    #[must_use = "dropping the subscription ends it"]
    pub fn subscribe(&self, listener: impl Fn(Change<'_, T>) + Send + Sync + 'static) -> Subscription<T> {
        let mut listeners = self.shared.listeners.lock();
        let present: Vec<Arc<T>> = {
            let state = self.shared.state.read();
            state.objects.values().map(|entry| Arc::clone(&entry.object)).collect()
        };
        for object in &present {
            listener(Change::Applied { old: None, new: object });
        }
        let id = listeners.next_id;
        listeners.next_id += 1;
        listeners.known.push((id, Box::new(listener)));
        Subscription { store: Arc::downgrade(&self.shared), id }
    }

    /// A new list begins. If an earlier one was cut short, it is forgotten.
    pub fn begin_list(&self) {
        self.shared.state.write().list += 1;
    }

    /// The list is complete: what it did not show is gone.
    pub fn end_list(&self) {
        let listeners = self.shared.listeners.lock();
        let gone: Vec<ObjectKey> = {
            let state = self.shared.state.read();
            let missing = state.objects.iter().filter(|(_, entry)| entry.list != state.list);
            missing.map(|(key, _)| key.clone()).collect()
        };
        for key in &gone {
            self.remove(&listeners, key);
        }
        self.shared.state.write().forget_dropped();
        drop(listeners);
        self.shared.synced.send_replace(true);
    }

    /// The watch or the list showed an object.
    pub fn apply(&self, mut object: T) {
        (self.shared.trim)(&mut object);
        let listeners = self.shared.listeners.lock();
        if !self.shared.interests.iter().any(|interested| interested(&object)) {
            self.remove(&listeners, object.key());
            self.shared.state.write().note_dropped(object.key());
            return;
        }
        let new = Arc::new(object);
        let old = self.shared.state.write().insert(Arc::clone(&new));
        listeners.tell(&Change::Applied { old: old.as_deref(), new: &new });
    }

    /// The watch said that an object is gone.
    pub fn delete(&self, key: &ObjectKey) {
        let listeners = self.shared.listeners.lock();
        self.remove(&listeners, key);
    }

    fn remove(&self, listeners: &Listeners<T>, key: &ObjectKey) {
        let removed = self.shared.state.write().remove(key);
        if let Some(old) = removed {
            listeners.tell(&Change::Deleted { old: &old });
        }
    }
}

impl<T: Slim> State<T> {
    fn note_dropped(&mut self, key: &ObjectKey) {
        if let Some(dropped) = &mut self.dropped {
            dropped.insert(key.clone(), self.list);
        }
    }

    /// Those that the newest list did not show are gone.
    fn forget_dropped(&mut self) {
        if let Some(dropped) = &mut self.dropped {
            dropped.retain(|_, list| *list == self.list);
        }
    }

    fn insert(&mut self, object: Arc<T>) -> Option<Arc<T>> {
        let key = object.key().clone();
        let old = self.remove(&key);
        for (index, entries) in &mut self.indexes {
            entries.extend((index.values)(&object).into_iter().map(|value| (value, key.clone())));
        }
        self.objects.insert(key, Entry { object, list: self.list });
        old
    }

    fn remove(&mut self, key: &ObjectKey) -> Option<Arc<T>> {
        if let Some(dropped) = &mut self.dropped {
            dropped.remove(key);
        }
        let old = self.objects.remove(key)?.object;
        for (index, entries) in &mut self.indexes {
            for value in (index.values)(&old) {
                entries.remove(&(value, key.clone()));
            }
        }
        Some(old)
    }
}

impl<T> Listeners<T> {
    fn tell(&self, change: &Change<'_, T>) {
        for (_, listener) in &self.known {
            listener(match *change {
                Change::Applied { old, new } => Change::Applied { old, new },
                Change::Deleted { old } => Change::Deleted { old },
            });
        }
    }
}

/// As long as it lives, its listener is told of changes.
pub struct Subscription<T> {
    store: Weak<Shared<T>>,
    id: u64,
}

impl<T> Drop for Subscription<T> {
    fn drop(&mut self) {
        if let Some(store) = self.store.upgrade() {
            store.listeners.lock().known.retain(|(id, _)| *id != self.id);
        }
    }
}
