//! The claims that are there already, judged as if they were made now: those that are older than the rule or than their class,
//! and those that the garbage collector has orphaned.
//!
//! ```text
//! claims and volumes, listed live page by page ──┐
//! pods, classes, namespaces: cached (or live) ───┴──> decide ──> Finding ──> gauge | `claimkeeper audit`
//! ```
//!
//! Claims are not cached for this: nobody else needs their annotations and owners in memory all the time. Whoever leads looks
//! now and then, and soon after the caches show something by which claims that nobody touched may be judged differently.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use cluster::{
    Class, Finding, Namespace, ObjectKey, Store, Volume,
    decision::Decision,
    fit::WireSpec,
    live,
    store::{Change, Slim},
};
use k8s_openapi::{api::core::v1::PersistentVolumeClaim, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{Api, Client, Resource, core::NamespaceResourceScope};
use parking_lot::Mutex;
use platform::{
    metrics::{Family, Gauge, Registry},
    trouble::{Trouble, causes},
};
use serde::Deserialize;
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    claim::AskedClaim,
    decision::{ADMIT_CLAIM, Verdict},
    observation::{Asked, Look, Observation, Write},
    observe::{Caches, INDEXES_OF_VOLUMES},
    settings::Settings,
};

/// How often the claims are looked at, whatever happens.
const PERIOD: Duration = Duration::from_mins(10);

/// The shortest pause between two looks, so that a series of changes costs one of them.
const PAUSE: Duration = Duration::from_secs(5);

/// What would be refused today. Everything is read live, with the rights of who asks.
pub async fn find(client: &Client, settings: &Arc<Settings>, namespace: Option<&str>) -> kube::Result<Vec<Finding>> {
    let namespaces: Api<<Namespace as Slim>::Wire> = Api::all(client.clone());
    let namespaces = match namespace {
        Some(name) => namespaces.get_opt(name).await?.and_then(Namespace::from_wire).into_iter().collect(),
        None => live::list(&namespaces).await?,
    };
    let caches = Caches {
        pods: stored(live::list(&within(client, namespace)).await?),
        classes: stored(live::list(&Api::all(client.clone())).await?),
        namespaces: stored(namespaces),
        volumes: live_volumes(client).await?,
    };
    let violations = judge_all(client, &caches, settings, namespace).await?;
    Ok(violations.into_iter().map(Violation::tell).collect())
}

/// The cached ones are only those that a new claim could get.
async fn live_volumes(client: &Client) -> kube::Result<Store<Volume>> {
    let volumes = Store::new(vec![|_| true], INDEXES_OF_VOLUMES.into());
    fill(&volumes, live::list(&Api::all(client.clone())).await?);
    Ok(volumes)
}

fn within<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    namespace.map_or_else(|| Api::all(client.clone()), |namespace| Api::namespaced(client.clone(), namespace))
}

fn stored<T: Slim>(objects: Vec<T>) -> Store<T> {
    let store = Store::new(vec![|_| true], vec![]);
    fill(&store, objects);
    store
}

fn fill<T: Slim>(store: &Store<T>, objects: Vec<T>) {
    store.begin_list();
    for object in objects {
        store.apply(object);
    }
    store.end_list();
}

/// A claim that would be refused.
struct Violation {
    claim: ObjectKey,
    /// Its class, if there is such a class: any other name could be anything.
    class: Option<ObjectKey>,
    decision: Decision<Verdict>,
}

impl Violation {
    fn tell(self) -> Finding {
        let Self { claim, decision: Decision { action, reason, message }, .. } = self;
        Finding {
            feature: "enforcement",
            namespace: claim.namespace().to_owned(),
            kind: "PersistentVolumeClaim",
            name: claim.name().to_owned(),
            decision: action.name(),
            reason,
            message,
        }
    }
}

async fn judge_all(
    client: &Client,
    caches: &Caches,
    settings: &Arc<Settings>,
    namespace: Option<&str>,
) -> kube::Result<Vec<Violation>> {
    let mut violations = Vec::new();
    let look = |claim: Wire| violations.extend(claim.asked().and_then(|claim| judge(caches, settings, claim)));
    live::visit(&within::<Wire>(client, namespace), look).await?;
    Ok(violations)
}

fn judge(caches: &Caches, settings: &Arc<Settings>, claim: AskedClaim) -> Option<Violation> {
    let key = claim.key.clone();
    // Nobody in particular makes it: who did is not known any more.
    let write = Write { claim, old: None, user: String::new() };
    let mut seen = caches.observe(settings, Asked::Claim(Box::new(write)));
    // All that there is was listed.
    missing(&mut seen.class);
    missing(&mut seen.named_volume);
    missing(&mut seen.owner);
    missing(&mut seen.namespace);
    if owner_ends(&seen) {
        return None;
    }
    let decision = ADMIT_CLAIM.decide(&seen);
    let refused = matches!(decision.action, Verdict::Deny | Verdict::Warn | Verdict::Audit);
    refused.then(|| Violation { claim: key, class: seen.class.known().map(|class| class.key.clone()), decision })
}

fn missing<T>(look: &mut Look<T>) {
    if matches!(look, Look::NotCached) {
        *look = Look::Missing;
    }
}

/// A claim goes with its pod; while that takes its time, nothing is wrong.
fn owner_ends(seen: &Observation) -> bool {
    let uid = seen.write().and_then(|write| write.claim.pod()).map(|pod| pod.uid.as_str());
    seen.owner.known().is_some_and(|pod| pod.being_deleted && Some(&*pod.uid) == uid)
}

/// A claim on its way from the API server.
#[derive(Debug, Clone, Deserialize, Resource)]
#[resource(inherit = PersistentVolumeClaim)]
struct Wire {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: WireSpec,
}

impl Wire {
    fn asked(self) -> Option<AskedClaim> {
        let Self { mut metadata, spec } = self;
        let namespace = metadata.namespace.take()?;
        Some(AskedClaim::new(&namespace, metadata.into(), spec))
    }
}

/// Counts what would be refused, while this replica leads.
pub struct Audit {
    client: Client,
    caches: Caches,
    settings: Arc<Settings>,
    namespace: Option<String>,
    violations: Gauges,
}

impl Audit {
    /// Reads claims and volumes with this client, and the rest from the caches.
    #[must_use]
    pub fn new(
        client: Client,
        caches: Caches,
        settings: Arc<Settings>,
        namespace: Option<String>,
        registry: &Registry,
    ) -> Self {
        Self { client, caches, settings, namespace, violations: Gauges::register(registry) }
    }

    /// Looks now and then, and soon after something has changed that matters, until it is told to stop.
    pub async fn run(&self, stopping: CancellationToken) {
        stopping.run_until_cancelled(self.look_on()).await;
        // Whoever leads next counts them; two counts would be one too many.
        self.violations.set(&BTreeMap::new());
    }

    async fn look_on(&self) {
        let Caches { pods, classes, namespaces, .. } = &self.caches;
        tokio::join!(pods.synced(), classes.synced(), namespaces.synced());
        let changed = Arc::new(Notify::new());
        let _subscriptions =
            (classes.subscribe(wake_of_classes(&changed)), namespaces.subscribe(wake_of_namespaces(&changed)));
        let mut trouble = Trouble::default();
        changed.notify_one();
        loop {
            // Either is a reason to look.
            let _ = timeout(PERIOD, changed.notified()).await;
            match self.look().await {
                Ok(()) if trouble.ends() => tracing::info!(feature = "enforcement", "claims can be audited again"),
                Ok(()) => {}
                Err(error) => {
                    let error = causes(&error);
                    if trouble.begins(&error) {
                        tracing::warn!(feature = "enforcement", error, "the claims that are there cannot be audited");
                    }
                    changed.notify_one();
                }
            }
            sleep(PAUSE).await;
        }
    }

    async fn look(&self) -> kube::Result<()> {
        let caches = Caches { volumes: live_volumes(&self.client).await?, ..self.caches.clone() };
        let violations = judge_all(&self.client, &caches, &self.settings, self.namespace.as_deref()).await?;
        let mut counts = BTreeMap::new();
        for Violation { class, decision, .. } in violations {
            let class = class.map(|class| class.name().to_owned()).unwrap_or_default();
            *counts.entry((class, decision.reason)).or_default() += 1;
        }
        self.violations.set(&counts);
        Ok(())
    }
}

/// Any class may be that of a claim which has waited for it.
fn wake_of_classes(changed: &Arc<Notify>) -> impl Fn(Change<'_, Class>) + Send + Sync + use<> {
    let changed = Arc::clone(changed);
    move |change| {
        if !matches!(change, Change::Applied { old: Some(old), new } if old == new) {
            changed.notify_one();
        }
    }
}

/// A namespace that comes has no claims, and one that goes has lost them.
fn wake_of_namespaces(changed: &Arc<Notify>) -> impl Fn(Change<'_, Namespace>) + Send + Sync + use<> {
    let changed = Arc::clone(changed);
    move |change| {
        if matches!(change, Change::Applied { old: Some(old), new } if old.enforcement != new.enforcement) {
            changed.notify_one();
        }
    }
}

/// How many claims would be refused, by class and reason.
struct Gauges {
    family: Family<Gauge>,
    /// What was ever counted: a gauge without any must not stay at what it was.
    known: Mutex<BTreeSet<(String, &'static str)>>,
}

impl Gauges {
    fn register(registry: &Registry) -> Self {
        let help =
            "Claims that are there and would be refused today, by class and reason; counted by the replica that leads.";
        let family = registry.gauges("claimkeeper_enforcement_violations", help, &["class", "reason"]);
        Self { family, known: Mutex::default() }
    }

    fn set(&self, counts: &BTreeMap<(String, &'static str), u32>) {
        let mut known = self.known.lock();
        known.extend(counts.keys().cloned());
        for labels in &*known {
            let count = counts.get(labels).copied().unwrap_or_default();
            self.family.with(&[&labels.0, labels.1]).set(count.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_that_is_listed_is_read_like_one_that_is_asked_about() {
        let claim = r#"{
            "metadata": {
                "namespace": "ci", "name": "data-7", "generateName": "data-", "uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z",
                "annotations": {"claimkeeper.dev/accept-ephemeral-storage": "true"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "w", "controller": true}]
            },
            "spec": {"storageClassName": "local", "volumeName": "one", "accessModes": ["ReadWriteOnce"]}
        }"#;
        let listed: Wire = serde_json::from_str(claim).unwrap();
        assert_eq!(listed.asked(), Some(AskedClaim::read(claim, "ci").unwrap()));
    }
}
