//! Gathers what the rules look at and carries out what they decide.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use cluster::{
    Node, ObjectKey, Volume,
    decision::Decision,
    node::HOSTNAME,
    store::{Change, Slim, Subscription},
};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{Client, Resource, api::GetParams, core::Request};
use parking_lot::Mutex;
use platform::{
    events::EventKind,
    queue::{self, Outcome, Queue},
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::decision::{AFFINITY, AFFINITY_IMMUTABLE, Action, Observation, Tie};
use crate::{
    Context,
    act::{Told, preconditioned},
    followed,
    home::Home,
    settings::{Driver, Mode, Settings},
};

/// The part of the feature that ties volumes.
pub struct Affinity {
    context: Context,
    queue: Queue<ObjectKey>,
    memory: Arc<Memory>,
}

/// What is remembered of volumes; nothing that could not be forgotten without harm.
#[derive(Default)]
struct Memory {
    /// Volumes whose home node is gone.
    homeless: Mutex<HashSet<ObjectKey>>,
    /// Volumes of which the server does not let this be their node affinity.
    refused: Mutex<HashMap<ObjectKey, (Box<str>, Tie)>>,
    told: Told,
}

/// As long as they live, changes wake the part.
type Subscriptions = (Subscription<Node>, Subscription<Volume>);

impl Affinity {
    /// The part on top of caches that somebody else feeds.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        let queue = Queue::new("placement-affinity", &context.registry);
        Self { context: context.clone(), queue, memory: Arc::default() }
    }

    /// Acts until `stop` is cancelled (then it finishes what it has begun) or the future is dropped (then it ends at once).
    pub async fn run(&self, stop: CancellationToken) {
        let _subscriptions = self.subscribe();
        queue::run(&self.queue, self.context.settings.concurrency, stop, |volume| self.handle(volume)).await;
    }

    fn subscribe(&self) -> Subscriptions {
        let (queue, memory) = (self.queue.clone(), Arc::clone(&self.memory));
        let nodes = self.context.caches.nodes.subscribe(move |change| {
            // Only what comes: a volume that is tied stays tied.
            if let Change::Applied { old, new } = change
                && old.is_none_or(|old| old.labels != new.labels)
            {
                memory.homeless.lock().iter().for_each(|volume| queue.add(volume.clone()));
            }
        });
        let (queue, memory) = (self.queue.clone(), Arc::clone(&self.memory));
        let settings = Arc::clone(&self.context.settings);
        let volumes = self.context.caches.volumes.subscribe(move |change| match change {
            Change::Applied { old, new } => {
                if old.is_none_or(|old| old.version != new.version) && driver_of(new, &settings).is_some() {
                    queue.add(new.key.clone());
                }
            }
            Change::Deleted { old } => memory.forget(&old.key),
        });
        (nodes, volumes)
    }

    async fn handle(&self, key: ObjectKey) -> Outcome {
        let Some(volume) = self.context.caches.volumes.get(&key) else { return Outcome::Done };
        let Some(driver) = driver_of(&volume, &self.context.settings) else { return Outcome::Done };
        let done = self.look_after(&volume, driver).await;
        if self.context.caches.volumes.get(&key).is_none() {
            self.memory.forget(&key);
        }
        done.map_or_else(|error| Context::failed(&key, "tying a volume to its node", &error), |()| Outcome::Done)
    }

    async fn look_after(&self, volume: &Volume, driver: &Driver) -> kube::Result<()> {
        let home = Home::of(volume, driver, &self.context.settings);
        // Whoever is without a home is woken by the next node, so that has to be known before looking for it.
        self.memory.homeless.lock().insert(volume.key.clone());
        let node = home.as_ref().and_then(|home| home.find(&self.context.caches.nodes));
        let mut seen = self.observe(volume, driver, node.as_deref());
        let mut version = None;
        if AFFINITY.decide(&seen).action == Action::Look {
            let Some((now, affinity)) = self.read(volume).await? else { return Ok(()) };
            let node = match Home::of(&now, driver, &self.context.settings) {
                Some(home) => followed::node(&self.context.client, &home).await?,
                None => None,
            };
            seen = self.observe(&now, driver, node.as_deref());
            let key = key_of(driver);
            seen.has_our_form = Some(affinity.is_null() || is_ours(&affinity, key));
            version = Some(now.version);
        }
        let mut decision = AFFINITY.decide(&seen);
        if let (Action::Tie(tie) | Action::Retie(tie), Some(version)) = (&decision.action, &version) {
            match self.tie(volume, version, tie).await {
                Err(kube::Error::Api(status)) if status.code == 422 && seen.reach.is_limited => {
                    let refused = (volume.uid.clone(), tie.clone());
                    self.memory.refused.lock().insert(volume.key.clone(), refused);
                    seen.is_immutable = true;
                    decision = AFFINITY.decide(&seen);
                }
                written => written?,
            }
        }
        if seen.tie.is_some() {
            self.memory.homeless.lock().remove(&volume.key);
        }
        self.tell(volume, &decision);
        Ok(())
    }

    fn tell(&self, volume: &Volume, decision: &Decision<Action>) {
        self.context.counts.count(decision, decision.action.name());
        let Decision { action, reason, message } = decision;
        let news = |kind| {
            if self.memory.told.is_news(&volume.key, &volume.uid, reason, message) {
                tracing::info!(feature = "placement", volume = %volume.key, reason, "{message}");
                self.context.tell(volume.reference(), kind, "TieVolume", reason, message);
            }
        };
        match action {
            Action::Tie(_) | Action::Retie(_) => news(EventKind::Normal),
            _ if matches!(*reason, AFFINITY_IMMUTABLE | "HomeNodeGone") => news(EventKind::Warning),
            _ => tracing::debug!(feature = "placement", volume = %volume.key, reason, "{message}"),
        }
    }

    fn observe(&self, volume: &Volume, driver: &Driver, node: Option<&Node>) -> Observation {
        let seen = observe(volume, driver, node, &self.context.settings);
        let refused = self.memory.refused.lock().get(&volume.key).cloned();
        let is_immutable = refused.is_some_and(|(uid, tie)| uid == volume.uid && Some(&tie) == seen.tie.as_ref());
        Observation { is_immutable, ..seen }
    }

    /// The volume as it is now, with its node affinity word for word; none if it is another one, or gone.
    async fn read(&self, volume: &Volume) -> kube::Result<Option<(Volume, Value)>> {
        let path = PersistentVolume::url_path(&(), None);
        let request = Request::new(path).get(volume.key.name(), &GetParams::default());
        let request = request.map_err(kube::Error::BuildRequest)?;
        let mut whole: Value = match Client::clone(&self.context.client).request(request).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(None),
            whole => whole?,
        };
        let affinity = whole["spec"]["nodeAffinity"].clone();
        let wire = serde_json::from_value(whole.take()).map_err(kube::Error::SerdeError)?;
        Ok(Volume::from_wire(wire).filter(|now| now.uid == volume.uid).map(|now| (now, affinity)))
    }

    async fn tie(&self, volume: &Volume, version: &str, tie: &Tie) -> kube::Result<()> {
        let change = json!({"spec": {"nodeAffinity": affinity(&tie.key, &tie.value)}});
        self.context.patch::<PersistentVolume>(&volume.key, preconditioned(&volume.uid, Some(version), change)).await
    }
}

impl Memory {
    fn forget(&self, volume: &ObjectKey) {
        self.homeless.lock().remove(volume);
        self.refused.lock().remove(volume);
        self.told.forget(volume);
    }
}

/// The driver of a volume, if its volumes are to be tied.
pub(super) fn driver_of<'a>(volume: &Volume, settings: &'a Settings) -> Option<&'a Driver> {
    let driver = settings.driver(&volume.driver).filter(|_| settings.looks_after(volume));
    driver.filter(|driver| settings.mode(driver) == Mode::VolumeAffinity)
}

/// What is seen of a volume, and of its home node, if that is there.
pub(super) fn observe(volume: &Volume, driver: &Driver, node: Option<&Node>, settings: &Settings) -> Observation {
    let key = key_of(driver);
    let value = |node: &Node| node.labels.get(key).map_or_else(|| node.key.name(), String::as_str).into();
    Observation {
        volume: volume.key.name().into(),
        being_deleted: volume.being_deleted,
        home: Home::of(volume, driver, settings),
        tie: node.map(|node| Tie { key: key.into(), value: value(node) }),
        reach: volume.reach.clone(),
        has_our_form: None,
        is_immutable: false,
    }
}

fn key_of(driver: &Driver) -> &str {
    driver.topology_key.as_deref().unwrap_or(HOSTNAME)
}

fn affinity(key: &str, value: &str) -> Value {
    let expression = json!({"key": key, "operator": "In", "values": [value]});
    json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}})
}

/// Whether it is exactly what we would write, for whichever node.
fn is_ours(whole: &Value, key: &str) -> bool {
    let value = whole.pointer("/required/nodeSelectorTerms/0/matchExpressions/0/values/0").and_then(Value::as_str);
    value.is_some_and(|value| *whole == affinity(key, value))
}
