//! What the leader has to do all the time: claims that pods ask for in both ways, and volumes to be released. And who did it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim, Pod},
    events::v1::Event,
    rbac::v1::{Role, RoleBinding},
    storage::v1::StorageClass,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ListParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use testbed::{AuditLog, AuditedRequest, within};
use tokio::{
    task::JoinHandle,
    time::{Instant, MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;

use crate::stage::Stage;

/// A pod with two claims, and a volume.
const EVERY: Duration = Duration::from_millis(250);

/// Longer than the API server is ever away, and than a lease.
const PATIENCE: Duration = Duration::from_mins(3);
const RETRY: Duration = Duration::from_millis(100);

const REPORTER: &str = "claimkeeper.dev/claimkeeper";

/// What is told where a machine is too slow for the limits of requests, which is not what happens here.
const TOO_SLOW: [&str; 2] = ["overloaded or cannot be reached", "cannot be read, so that the pod is not kept with it"];

/// The load, until it is told to end.
pub(crate) struct Work {
    shop: Shop,
    made: Arc<Mutex<Vec<Made>>>,
    enough: CancellationToken,
    load: JoinHandle<Result<()>>,
}

/// Where the work is.
#[derive(Clone)]
struct Shop {
    client: Client,
    namespace: String,
    audit: AuditLog,
    /// What the names of all replicas begin with.
    replicas: String,
    /// Of the volumes that are released.
    pool: String,
    ephemeral_claim: Value,
}

/// A pod that has asked. The volume has its name.
#[derive(Clone)]
struct Made {
    name: String,
    uid: String,
}

impl Work {
    pub(crate) async fn begin(stage: &Stage) -> Result<Self> {
        let (home, shop) = (&stage.scene.home, &stage.scene.shop);
        let shop = Shop {
            client: stage.client.clone(),
            namespace: shop.namespace.clone(),
            audit: shop.cluster.audit_log(),
            replicas: format!("system:serviceaccount:{}:", home.namespace),
            pool: format!("pool-{}", shop.namespace),
            ephemeral_claim: stage.scene.claim_spec(),
        };
        shop.furnish().await?;
        let (made, enough) = (Arc::<Mutex<Vec<Made>>>::default(), CancellationToken::new());
        let load = tokio::spawn(load(shop.clone(), Arc::clone(&made), enough.clone()));
        Ok(Self { shop, made, enough, load })
    }

    fn count(&self) -> usize {
        self.made.lock().unwrap().len()
    }

    /// Until something is done that was not even asked for yet.
    pub(crate) async fn until_done(&self) -> Result<()> {
        let next = self.count() + 1;
        within(PATIENCE, "new work to be done", async || {
            ensure!(!self.load.is_finished(), "nobody asks any more");
            let made = self.made.lock().unwrap().get(next).cloned().context("nothing new was asked for")?;
            for claim in made.claims() {
                self.shop.claims().get(&claim).await?;
            }
            ensure!(is_released(&self.shop.volumes().get(&made.name).await?), "its volume is not released");
            Ok(())
        })
        .await
    }

    /// How long the pod waited that waited longest for one of the claims that were made since then.
    pub(crate) fn longest_wait(&self, since: Timestamp) -> Result<SignedDuration> {
        let born: BTreeMap<String, Timestamp> = self.shop.created("pods")?.into_iter().collect();
        let claims = self.shop.created("persistentvolumeclaims")?.into_iter().filter(|(_, time)| *time > since);
        let waits = claims.filter_map(|(claim, made)| {
            let (pod, _) = claim.rsplit_once('-')?;
            Some(made.duration_since(*born.get(pod)?))
        });
        waits.max().context("no claim was made")
    }

    pub(crate) fn first_claim_after(&self, time: Timestamp) -> Result<Timestamp> {
        let times = self.shop.created("persistentvolumeclaims")?.into_iter().map(|(_, made)| made);
        times.filter(|made| *made > time).min().context("no claim was made")
    }

    /// Nobody was told of a failure.
    pub(crate) async fn expect_no_warning(&self) -> Result<()> {
        let warnings = self.shop.warnings().await?;
        ensure!(warnings.is_empty(), "{} warnings, such as: {}", warnings.len(), warnings[0]);
        Ok(())
    }

    /// Asks for no more, and makes sure that all was done, and once.
    pub(crate) async fn end(self, stage: &Stage) -> Result<()> {
        self.enough.cancel();
        self.load.await??;
        let made = self.made.lock().unwrap().clone();
        within(PATIENCE, "every claim and volume", async || self.shop.expect_all(&made).await).await?;
        let writers = self.shop.expect_once(&made)?;
        let passed_on = stage.transitions().await?;
        ensure!(writers.len() > 2, "only {writers:?} made claims");
        ensure!(writers.len() <= passed_on + 1, "the lease passed on {passed_on} times, but {writers:?} made claims");
        println!("{} claims were made and {} volumes released, by {writers:?}", made.len() * 2, made.len());
        Ok(())
    }
}

async fn load(shop: Shop, made: Arc<Mutex<Vec<Made>>>, enough: CancellationToken) -> Result<()> {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for number in 0_usize.. {
        ticks.tick().await;
        if enough.is_cancelled() {
            break;
        }
        let name = format!("build-{number}");
        surely(&shop.volumes(), &shop.volume(&name)).await?;
        let pod = surely(&shop.pods(), &shop.pod(&name)).await?;
        let uid = pod.uid().context("a pod without uid")?;
        made.lock().unwrap().push(Made { name, uid });
    }
    Ok(())
}

/// Creates it, also if the API server is away for a while, or dies before it has said that it did.
async fn surely<K>(api: &Api<K>, object: &Value) -> Result<K>
where
    K: Resource + Clone + DeserializeOwned + Serialize + std::fmt::Debug,
{
    let object: K = serde_json::from_value(object.clone())?;
    let (mut ticks, end) = (interval(RETRY), Instant::now() + PATIENCE);
    loop {
        ticks.tick().await;
        let taken = match api.create(&PostParams::default(), &object).await {
            Err(kube::Error::Api(status)) if status.is_already_exists() => api.get(&object.name_any()).await,
            outcome => outcome,
        };
        match taken {
            Err(error) if Instant::now() > end => return Err(error).context("the API server does not take an object"),
            Err(_) => {}
            Ok(object) => return Ok(object),
        }
    }
}

impl Made {
    fn claims(&self) -> [String; 2] {
        ["scratch", "cache"].map(|volume| format!("{}-{volume}", self.name))
    }
}

impl Shop {
    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn volumes(&self) -> Api<PersistentVolume> {
        Api::all(self.client.clone())
    }

    /// A class whose volumes are released, and the right of pods to have claims made.
    async fn furnish(&self) -> Result<()> {
        let pool = json!({
            "metadata": {"name": self.pool, "annotations": {"claimkeeper.dev/release": "pool"}},
            "provisioner": "kubernetes.io/no-provisioner", "reclaimPolicy": "Retain",
        });
        surely::<StorageClass>(&Api::all(self.client.clone()), &pool).await?;
        let rules = json!([{"apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["create"]}]);
        let role = json!({"metadata": {"name": "claims"}, "rules": rules});
        surely::<Role>(&Api::namespaced(self.client.clone(), &self.namespace), &role).await?;
        let binding = json!({
            "metadata": {"name": "claims"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "claims"},
            "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": self.namespace}],
        });
        surely::<RoleBinding>(&Api::namespaced(self.client.clone(), &self.namespace), &binding).await?;
        Ok(())
    }

    /// One with an ephemeral volume, on storage that only such volumes may have, and with one that it asks for by annotation.
    fn pod(&self, name: &str) -> Value {
        let claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "spec": {
                "storageClassName": self.pool, "accessModes": ["ReadWriteMany"],
                "resources": {"requests": {"storage": "1Gi"}},
            },
        });
        let spec = &self.ephemeral_claim;
        json!({
            "metadata": {"name": name, "annotations": {"claimkeeper.dev/cache.claim": claim.to_string()}},
            "spec": {
                "containers": [{"name": "main", "image": "registry.example/main"}],
                "volumes": [
                    {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": spec}}},
                    {"name": "cache", "persistentVolumeClaim": {"claimName": format!("{name}-cache")}},
                ],
            },
        })
    }

    /// One whose claim is gone. It fits none of the claims here.
    fn volume(&self, name: &str) -> Value {
        json!({
            "metadata": {"name": name},
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain", "storageClassName": self.pool,
                "hostPath": {"path": "/nonexistent"},
                "claimRef": {
                    "namespace": self.namespace, "name": "gone", "uid": "00000000-0000-0000-0000-000000000000",
                },
            },
        })
    }

    /// Everybody has what was asked for, and nobody has anything else.
    async fn expect_all(&self, made: &[Made]) -> Result<()> {
        let owner = |claim: &PersistentVolumeClaim| match claim.owner_references() {
            [owner] if owner.controller == Some(true) => owner.uid.clone(),
            owners => format!("{owners:?}"),
        };
        let claims = self.claims().list(&ListParams::default()).await?.items;
        let mut found: BTreeMap<_, _> = claims.iter().map(|claim| (claim.name_any(), owner(claim))).collect();
        found.remove("data").context("the claim of nobody is gone")?;
        let asked = made.iter().flat_map(|made| made.claims().map(|claim| (claim, made.uid.clone())));
        let asked: BTreeMap<_, _> = asked.collect();
        let missing = asked.iter().find(|(claim, uid)| found.get(*claim) != Some(*uid));
        ensure!(
            missing.is_none() && found.len() == asked.len(),
            "{} of {} claims; {missing:?}",
            found.len(),
            asked.len()
        );
        let volumes = self.volumes().list(&ListParams::default()).await?.items;
        let waits =
            |volume: &&PersistentVolume| made.iter().any(|made| made.name == volume.name_any()) && !is_released(volume);
        let waiting = volumes.iter().filter(waits).count();
        ensure!(waiting == 0, "{waiting} volumes are not released");
        Ok(())
    }

    /// Nothing was done twice or undone. Returns who made claims, in their order, each as often as it began to.
    fn expect_once(&self, made: &[Made]) -> Result<Vec<String>> {
        let asked: BTreeSet<String> = made.iter().flat_map(Made::claims).collect();
        let claims = self.audit.clone().namespace(&self.namespace).resource("persistentvolumeclaims");
        let creations = self.by_replicas(&claims.clone().verb("create"))?;
        let counted = count(&creations);
        ensure!(counted.values().all(|times| *times == 1), "claims were made again: {:?}", again(&counted));
        let unasked = counted.keys().find(|claim| !asked.contains(*claim));
        ensure!(unasked.is_none(), "nobody asked for the claim {unasked:?}");
        let deletions =
            claims.clone().verb("delete").requests()?.len() + claims.verb("deletecollection").requests()?.len();
        ensure!(deletions == 0, "claims were deleted {deletions} times");
        let releases = count(&self.by_replicas(&self.audit.clone().resource("persistentvolumes").verb("patch"))?);
        ensure!(releases.values().all(|times| *times == 1), "volumes were released again: {:?}", again(&releases));
        let users = creations.iter().map(|request| request.user.username.trim_start_matches(&self.replicas).to_owned());
        let mut writers: Vec<String> = users.collect();
        writers.dedup();
        Ok(writers)
    }

    /// What replicas did, in the order in which they asked for it.
    fn by_replicas(&self, log: &AuditLog) -> Result<Vec<AuditedRequest>> {
        let mut requests = log.requests()?;
        requests.retain(|request| is_done(request) && request.user.username.starts_with(&self.replicas));
        requests.sort_by_key(|request| request.request_received_timestamp);
        Ok(requests)
    }

    /// What was made here, and when.
    fn created(&self, resource: &str) -> Result<Vec<(String, Timestamp)>> {
        let requests = self.audit.clone().namespace(&self.namespace).resource(resource).verb("create").requests()?;
        let made = requests.into_iter().filter(|request| is_done(request) && !request.request_uri.contains("dryRun"));
        Ok(made.filter_map(|request| Some((request.object_ref?.name, request.stage_timestamp))).collect())
    }

    async fn warnings(&self) -> Result<Vec<String>> {
        let mut warnings = Vec::new();
        // Events about volumes, which belong to no namespace, are in the second one.
        for namespace in [&self.namespace, "default"] {
            let events: Api<Event> = Api::namespaced(self.client.clone(), namespace);
            let ours = ListParams::default().fields(&format!("reportingController={REPORTER},type=Warning"));
            let told = events.list(&ours).await?.into_iter();
            let told = told.map(|event| [event.reason, event.note].map(Option::unwrap_or_default).join(": "));
            warnings.extend(told.filter(|told| !TOO_SLOW.iter().any(|words| told.contains(words))));
        }
        Ok(warnings)
    }
}

fn is_done(request: &AuditedRequest) -> bool {
    request.code().is_some_and(|code| code < 300)
}

fn is_released(volume: &PersistentVolume) -> bool {
    volume.spec.as_ref().is_some_and(|spec| spec.claim_ref.is_none())
}

/// How often each object was written.
fn count(requests: &[AuditedRequest]) -> BTreeMap<String, usize> {
    let mut counted = BTreeMap::new();
    for object in requests.iter().filter_map(|request| request.object_ref.as_ref()) {
        *counted.entry(object.name.clone()).or_default() += 1;
    }
    counted
}

fn again(counted: &BTreeMap<String, usize>) -> Vec<(&String, &usize)> {
    counted.iter().filter(|(_, times)| **times > 1).collect()
}
