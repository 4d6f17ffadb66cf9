//! What the control plane holds, and how a test changes it while clients ask.

use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{
    Call, Endpoint, Fault, Report, Request, Route, Script, Sessions, Spec, Volume,
    answer::{self, Answer},
    fault::{Effect, Faults},
    memory::Memory,
    script::Pending,
    session::Gate,
    volume::{MOUNT_ENDPOINT, Stored, random_id, version},
};

/// A namespace of StorageOS: the one that a claim's namespace is called like.
#[derive(Debug)]
pub(super) struct Namespace {
    pub(super) id: String,
    pub(super) name: String,
    created: Timestamp,
}

impl Namespace {
    pub(super) fn json(&self) -> Value {
        let Self { id, name, created } = self;
        json!({
            "id": id, "name": name, "labels": {}, "createdAt": created, "updatedAt": created, "version": version(1),
        })
    }
}

/// All that a request can read or change.
#[derive(Debug)]
pub(super) struct State {
    pub(super) spec: Spec,
    pub(super) gate: Gate,
    pub(super) namespaces: Vec<Namespace>,
    pub(super) volumes: Vec<Stored>,
    pub(super) nodes: Vec<Value>,
}

impl State {
    pub(super) fn volume_mut(&mut self, id: &str) -> Option<&mut Stored> {
        self.volumes.iter_mut().find(|volume| volume.id == id)
    }

    fn namespace_id(&mut self, name: &str) -> String {
        if let Some(namespace) = self.namespaces.iter().find(|namespace| namespace.name == name) {
            return namespace.id.clone();
        }
        let id = random_id();
        self.namespaces.push(Namespace { id: id.clone(), name: name.to_owned(), created: Timestamp::now() });
        id
    }
}

/// The state of a [`StorageOs`](super::StorageOs), which answers from it; every change is seen by the next request.
pub struct Store {
    state: Mutex<State>,
    faults: Mutex<Faults>,
    memory: Mutex<Memory>,
    pub(super) scripts: Mutex<Vec<Pending>>,
}

impl Store {
    pub(super) fn new(username: &str, password: &str) -> Self {
        let state = State {
            spec: Spec::default(),
            gate: Gate::new(username, password),
            namespaces: Vec::new(),
            volumes: Vec::new(),
            nodes: Vec::new(),
        };
        Self { state: Mutex::new(state), faults: Mutex::default(), memory: Mutex::default(), scripts: Mutex::default() }
    }

    /// Speaks as this release of the API from now on.
    pub fn speak(&self, spec: Spec) {
        let mut state = self.state.lock();
        state.spec = spec;
        state.volumes.iter_mut().for_each(|stored| stored.speak(spec));
    }

    /// Adds a namespace, unless there is one of this name, and returns its id.
    pub fn add_namespace(&self, name: &str) -> String {
        self.state.lock().namespace_id(name)
    }

    /// Removes a namespace and the volumes in it.
    pub fn remove_namespace(&self, name: &str) {
        let mut state = self.state.lock();
        state.namespaces.retain(|namespace| namespace.name != name);
        state.volumes.retain(|stored| stored.volume.namespace != name);
    }

    /// Adds a volume, and its namespace if need be, and returns the volume's id.
    pub fn add_volume(&self, volume: Volume) -> String {
        let mut state = self.state.lock();
        let stored = Stored::new(state.namespace_id(&volume.namespace), volume, state.spec);
        let id = stored.id.clone();
        state.volumes.push(stored);
        id
    }

    /// Removes a volume.
    pub fn remove_volume(&self, id: &str) {
        self.state.lock().volumes.retain(|stored| stored.id != id);
    }

    /// A volume as it is now.
    pub fn volume(&self, id: &str) -> Result<Volume> {
        self.with(id, |stored| stored.volume.clone())
    }

    /// The ids and the volumes that there are now, in the order in which they were added.
    pub fn volumes(&self) -> Vec<(String, Volume)> {
        let volume = |stored: &Stored| (stored.id.clone(), stored.volume.clone());
        self.state.lock().volumes.iter().map(volume).collect()
    }

    /// A volume's `version` now.
    pub fn version(&self, id: &str) -> Result<String> {
        self.with(id, |stored| stored.version())
    }

    /// The address that was published for a volume.
    pub fn published(&self, id: &str) -> Result<Option<String>> {
        self.with(id, |stored| stored.volume.labels.get(MOUNT_ENDPOINT).cloned())
    }

    /// Changes a volume, as someone else would; it has a new version afterwards. Returns when that was.
    pub fn change(&self, id: &str, change: impl FnOnce(&mut Volume)) -> Result<Timestamp> {
        self.with(id, |stored| {
            change(&mut stored.volume);
            stored.touch();
            stored.updated
        })
    }

    /// Gives a volume a new version, as any write of anyone does.
    pub fn touch(&self, id: &str) -> Result<Timestamp> {
        self.change(id, |_| {})
    }

    /// Lets a volume's NFS server run somewhere else, or nowhere ([`Endpoint::Null`] and its like).
    pub fn failover(&self, id: &str, endpoint: impl Into<Endpoint>) -> Result<Timestamp> {
        self.change(id, |volume| volume.endpoint = endpoint.into())
    }

    /// Sets the nodes, which are none at first, as the API tells them.
    pub fn set_nodes(&self, nodes: Vec<Value>) {
        self.state.lock().nodes = nodes;
    }

    /// Changes how tokens are given out from now on.
    pub fn sessions(&self, change: impl FnOnce(&mut Sessions)) {
        change(&mut self.state.lock().gate.sessions);
    }

    /// Lets all tokens that are out expire now.
    pub fn expire_tokens(&self) {
        self.state.lock().gate.forget_tokens();
    }

    /// Changes the user's password; tokens that are out stay good.
    pub fn set_password(&self, password: &str) {
        password.clone_into(&mut self.state.lock().gate.password);
    }

    /// Lets something go wrong from now on. The number is for [`Self::clear_fault`].
    pub fn fault(&self, fault: Fault) -> u64 {
        self.faults.lock().add(fault)
    }

    /// Ends a fault. A request that hangs already goes on hanging.
    pub fn clear_fault(&self, number: u64) {
        self.faults.lock().remove(number);
    }

    /// Ends all faults.
    pub fn clear_faults(&self) {
        self.faults.lock().clear();
    }

    /// Every request since the start, in the order of arrival.
    pub fn requests(&self) -> Vec<Request> {
        self.memory.lock().requests().cloned().collect()
    }

    /// Every request of a kind since the start.
    pub fn requests_to(&self, route: Route) -> Vec<Request> {
        self.memory.lock().requests().filter(|request| request.route == route).cloned().collect()
    }

    /// What the API has said of a volume's endpoint and when, in whole answers that reached their connection. The volume may
    /// be gone.
    pub fn reports(&self, id: &str) -> Vec<Report> {
        self.memory.lock().reports(id)
    }

    /// Which endpoints the API has told for a volume between two moments: what a client may act upon at the later one if it
    /// asks at least that often.
    pub fn reported_between(&self, id: &str, from: Timestamp, to: Timestamp) -> Vec<Option<String>> {
        let reports = self.reports(id).into_iter();
        reports.filter(|report| report.first <= to && report.last >= from).map(|report| report.endpoint).collect()
    }

    /// Lets a script run beside whatever else happens. It ends with the server.
    pub fn run(&self, script: Script) {
        self.scripts.lock().push(script.start());
    }

    fn with<T>(&self, id: &str, read: impl FnOnce(&mut Stored) -> T) -> Result<T> {
        let mut state = self.state.lock();
        state.volume_mut(id).map(read).with_context(|| format!("the server has no volume with the id {id}"))
    }

    /// Notes a request that has arrived, and what shall happen to it.
    pub(super) fn receive(&self, call: &mut Call) -> (u64, Duration, Option<Effect>) {
        let state = self.state.lock();
        let namespace = state.namespaces.iter().find(|namespace| Some(&namespace.id) == call.namespace_id.as_ref());
        call.namespace = namespace.map(|namespace| namespace.name.clone());
        drop(state);
        let number = self.memory.lock().arrived(Request::arrived(call));
        let (delay, effect) = self.faults.lock().strike(call);
        (number, delay, effect)
    }

    pub(super) fn answer(&self, call: &Call) -> Answer {
        answer::to(call, &mut self.state.lock())
    }

    /// Notes how a request was answered, or that it was not.
    pub(super) fn answered(&self, number: u64, status: Option<u16>, told: &[(String, Option<String>)]) {
        let mut memory = self.memory.lock();
        memory.answered(number, status, told.len());
        for (volume, endpoint) in told {
            memory.told(volume, endpoint.as_deref());
        }
    }
}
