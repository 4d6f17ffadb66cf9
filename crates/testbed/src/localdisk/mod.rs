//! A stand-in for a CSI driver of local disks, `localdisk.csi.acstor.io`: on the API it does what that driver does. For nodes that are
//! only objects it remembers what would be on their disks; real nodes mount real directories, by a driver beside their kubelet.
//!
//! ```text
//! claim ──scheduler──► selected-node ──► volume with the attribute selected-initial-node, free to be used anywhere
//! pod bound to another node ──► annotation selected-node on the volume, a blank copy there, event ProvisionedEmptyVolume
//! claim deleted ──► volume deleted by its node; or by anybody, if that node is gone
//! ```
//!
//! With the class parameter [`MODE`]` = affinity` its volumes are tied to their node, as if the driver ran without a webhook beside
//! it. Then nobody but that node deletes them: those of a node that is gone stay, and so does their finalizer.

mod objects;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::Write,
    pin::pin,
    sync::Arc,
};

use anyhow::{Context, Result};
use futures::{StreamExt, future::Either, stream};
use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::{CSIDriver, StorageClass},
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions},
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::task::JoinHandle;

use self::objects::{claims_of, is_of_driver, is_tied, node_of, owner, tied_to, volume_for};
use crate::{
    Cluster,
    provisioner::{SELECTED_NODE, STORAGE_PROVISIONER, WAIT, retry, watch},
};

/// The driver's name, for classes and volumes that a test makes.
pub const LOCALDISK: &str = "localdisk.csi.acstor.io";

/// The class parameter that says how pods are kept with their volumes: `affinity`, or else by somebody's webhook.
pub const MODE: &str = "testbed.claimkeeper.dev/mode";

const INITIAL_NODE: &str = "localdisk.csi.acstor.io/selected-initial-node";
const CURRENT_NODE: &str = "localdisk.csi.acstor.io/selected-node";
const TOPOLOGY: &str = "topology.localdisk.csi.acstor.io/node";
const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
/// Whose requests these are in the audit log.
const USER: &str = "testbed:localdisk";

/// The driver at work for the claims of one namespace, so that tests which share a cluster do not see each other's. It ends with this
/// value.
#[derive(Debug)]
pub struct LocalDisks {
    contents: Arc<Mutex<Contents>>,
    task: JoinHandle<()>,
}

/// What is on the disk of the node that has a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// The node.
    pub node: String,
    /// How often the volume was made anew, with the first time.
    pub generation: u32,
    /// What was written to it; nothing after it was made.
    pub text: String,
}

#[derive(Debug, Default)]
struct Contents {
    volumes: BTreeMap<String, Content>,
    /// Pods, by uid, that have their volumes: a kubelet asks once.
    staged: BTreeSet<String>,
}

impl LocalDisks {
    /// Starts the driver, and labels nodes as it does when it starts on them.
    pub async fn start(cluster: &Cluster, namespace: &str) -> Result<Self> {
        let client = cluster.client(&cluster.user_kubeconfig(USER, &["system:masters"]).await?).await?;
        create_driver(&client).await?;
        for node in Api::<Node>::all(client.clone()).list(&ListParams::default()).await? {
            label(&client, &node).await?;
        }
        let path = cluster.directory().join(format!("logs/localdisk-{namespace}.log"));
        let log = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        let contents = Arc::default();
        let recorder = Recorder::new(client.clone(), Reporter { controller: LOCALDISK.into(), instance: None });
        let driver = Driver { client, namespace: namespace.to_owned(), contents: Arc::clone(&contents), recorder };
        Ok(Self { contents, task: tokio::spawn(driver.run(log)) })
    }

    /// What is on a volume now; none if there is no such volume.
    #[must_use]
    pub fn read(&self, volume: &str) -> Option<Content> {
        self.contents.lock().volumes.get(volume).cloned()
    }

    /// Writes to a volume, as a pod on its node would.
    pub fn write(&self, volume: &str, text: &str) -> Result<()> {
        let mut contents = self.contents.lock();
        let content = contents.volumes.get_mut(volume);
        text.clone_into(&mut content.with_context(|| format!("there is no volume {volume}"))?.text);
        Ok(())
    }
}

impl Drop for LocalDisks {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Contents {
    /// Makes a volume on a node, if it is not there; says whether it was blank then.
    fn ensure(&mut self, volume: &str, node: &str) -> bool {
        let found = self.volumes.get(volume);
        if found.is_some_and(|content| content.node.eq_ignore_ascii_case(node)) {
            return false;
        }
        let generation = found.map_or(1, |content| content.generation + 1);
        let blank = Content { node: node.to_owned(), generation, text: String::new() };
        self.volumes.insert(volume.to_owned(), blank);
        true
    }
}

struct Driver {
    client: Client,
    namespace: String,
    contents: Arc<Mutex<Contents>>,
    recorder: Recorder,
}

impl Driver {
    /// Works through what changes, one after the other: what a node does to a volume must not overtake what another did before.
    async fn run(self, mut log: File) {
        let claims = watch(self.namespaced::<PersistentVolumeClaim>());
        let volumes = watch(Api::<PersistentVolume>::all(self.client.clone()));
        let pods = watch(self.namespaced::<Pod>());
        let nodes = watch(Api::<Node>::all(self.client.clone()));
        let work = stream::select(
            stream::select(claims.map(|o| o.map(Either::Left)), volumes.map(|o| o.map(Either::Right)))
                .map(|o| o.map(Either::Left)),
            stream::select(pods.map(|o| o.map(Either::Left)), nodes.map(|o| o.map(Either::Right)))
                .map(|o| o.map(Either::Right)),
        );
        let mut work = pin!(work);
        while let Some(object) = work.next().await {
            let outcome = match object {
                Ok(Either::Left(Either::Left(claim))) => retry(|| self.serve(&claim)).await,
                Ok(Either::Left(Either::Right(volume))) => retry(|| self.remove(&volume)).await,
                Ok(Either::Right(Either::Left(pod))) => retry(|| self.stage(&pod)).await,
                Ok(Either::Right(Either::Right(node))) => retry(|| self.register(&node)).await,
                Err(error) => Err(error.into()),
            };
            if let Err(error) = outcome {
                // There is no place left to complain about a log that can't be written.
                let _ = writeln!(log, "{} {error:#}", jiff::Timestamp::now());
            }
        }
    }

    fn namespaced<K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// A claim wants a volume, or has one, which a pod may be waiting for already.
    async fn serve(&self, claim: &PersistentVolumeClaim) -> Result<()> {
        if claim.spec.as_ref().is_none_or(|spec| spec.volume_name.is_none()) {
            return self.provision(claim).await;
        }
        let pods = self.namespaced::<Pod>().list(&ListParams::default()).await?;
        for pod in pods.iter().filter(|pod| claims_of(pod).contains(&claim.name_any())) {
            self.stage(pod).await?;
        }
        Ok(())
    }

    async fn provision(&self, claim: &PersistentVolumeClaim) -> Result<()> {
        let is_ours = claim.annotations().get(STORAGE_PROVISIONER).is_some_and(|provisioner| provisioner == LOCALDISK);
        let class = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
        let (true, None, Some(class)) = (is_ours, &claim.metadata.deletion_timestamp, class) else {
            return Ok(());
        };
        let class = Api::<StorageClass>::all(self.client.clone()).get(class).await?;
        let Some(node) = self.node_for(claim, &class).await? else { return Ok(()) };
        let volume = volume_for(claim, &class, &node)?;
        let (name, volumes) = (volume.name_any(), Api::<PersistentVolume>::all(self.client.clone()));
        // The news may be old, and the volume with a pod elsewhere.
        if volumes.get_opt(&name).await?.is_some() {
            return Ok(());
        }
        // First the disk, then the object: whoever sees the volume may use it.
        self.contents.lock().ensure(&name, &node);
        match volumes.create(&PostParams::default(), &volume).await {
            // The name is made of the claim's uid: whoever created it did so for this claim.
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
            outcome => outcome.map(drop).with_context(|| format!("cannot create the volume {name}")),
        }
    }

    /// The node that the scheduler selected; if it has gone meanwhile, the scheduler is asked for another one. If the class does not
    /// wait for a pod, the driver of any node may be the first.
    async fn node_for(&self, claim: &PersistentVolumeClaim, class: &StorageClass) -> Result<Option<String>> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        if class.volume_binding_mode.as_deref() != Some(WAIT) {
            return Ok(nodes.list(&ListParams::default()).await?.iter().map(ResourceExt::name_any).min());
        }
        let Some(node) = claim.annotations().get(SELECTED_NODE) else { return Ok(None) };
        let found = nodes.get_opt(node).await?.map(|node| node.name_any());
        if found.is_none() {
            let annotations = json!({ SELECTED_NODE: null });
            let metadata = json!({ "annotations": annotations, "resourceVersion": claim.resource_version() });
            let patch = Patch::Merge(json!({ "metadata": metadata }));
            let claims = self.namespaced::<PersistentVolumeClaim>();
            match claims.patch(&claim.name_any(), &PatchParams::default(), &patch).await {
                // Gone, or changed: then the watch brings what it has become.
                Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {}
                outcome => drop(outcome.context("cannot ask for another node")?),
            }
        }
        Ok(found)
    }

    /// What the driver on its node does for a pod before it starts.
    async fn stage(&self, pod: &Pod) -> Result<()> {
        let uid = pod.uid().unwrap_or_default();
        if node_of(pod).is_none() || self.contents.lock().staged.contains(&uid) {
            return Ok(());
        }
        // The news may be old, and the pod elsewhere again.
        let pods = self.namespaced::<Pod>();
        let Some(pod) = pods.get_opt(&pod.name_any()).await?.filter(|pod| pod.uid().as_ref() == Some(&uid)) else {
            return Ok(());
        };
        let Some(node) = node_of(&pod) else { return Ok(()) };
        if Api::<Node>::all(self.client.clone()).get_opt(node).await?.is_none() {
            return Ok(());
        }
        let mut claims = Vec::new();
        for name in claims_of(&pod) {
            let claim = self.namespaced::<PersistentVolumeClaim>().get_opt(&name).await?;
            // It is staged when the last of them has its volume.
            let Some(claim) = claim else { return Ok(()) };
            let Some(volume) = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()) else { return Ok(()) };
            claims.push((claim, volume));
        }
        for (claim, volume) in claims {
            self.stage_volume(&claim, &volume, node).await?;
        }
        self.contents.lock().staged.insert(uid);
        Ok(())
    }

    async fn stage_volume(&self, claim: &PersistentVolumeClaim, name: &str, node: &str) -> Result<()> {
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let volume = volumes.get(name).await?;
        if !is_of_driver(&volume) {
            return Ok(());
        }
        // The original moves what it owns first, and makes it then.
        if !is_tied(&volume) && !owner(&volume).is_some_and(|owner| owner.eq_ignore_ascii_case(node)) {
            let version = volume.resource_version();
            let moved = json!({"metadata": {"annotations": {CURRENT_NODE: node}, "resourceVersion": version, "uid": volume.uid()}});
            let patched = volumes.patch(name, &PatchParams::default(), &Patch::Merge(moved)).await;
            patched.with_context(|| format!("cannot move the volume {name} to {node}"))?;
        }
        if self.contents.lock().ensure(name, node) {
            let event = Event {
                type_: EventType::Normal,
                reason: "ProvisionedEmptyVolume".into(),
                note: Some(format!("made an empty volume {name} on {node}")),
                action: "ProvisionedEmptyVolume".into(),
                secondary: None,
            };
            self.recorder.publish(&event, &claim.object_ref(&())).await?;
        }
        Ok(())
    }

    /// A node has come: the driver starts there, and finds what is left to do.
    async fn register(&self, node: &Node) -> Result<()> {
        if !label(&self.client, node).await? {
            return Ok(());
        }
        for volume in Api::<PersistentVolume>::all(self.client.clone()).list(&ListParams::default()).await? {
            self.remove(&volume).await?;
        }
        Ok(())
    }

    async fn remove(&self, volume: &PersistentVolume) -> Result<()> {
        if !self.is_to_be_removed(volume) {
            return Ok(());
        }
        let owner = tied_to(volume).or_else(|| owner(volume)).unwrap_or_default();
        let owner_lives = Api::<Node>::all(self.client.clone()).get_opt(owner).await?.is_some();
        if is_tied(volume) && !owner_lives {
            return Ok(());
        }
        let (name, volumes) = (volume.name_any(), Api::<PersistentVolume>::all(self.client.clone()));
        let preconditions = Preconditions { uid: volume.uid(), resource_version: volume.resource_version() };
        let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        match volumes.delete(&name, &parameters).await {
            // Gone, or changed: then the watch brings what it has become.
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => return Ok(()),
            outcome => drop(outcome.with_context(|| format!("cannot delete the volume {name}"))?),
        }
        self.contents.lock().volumes.remove(&name);
        let Some(mut volume) = volumes.get_opt(&name).await?.filter(|now| now.uid() == volume.uid()) else {
            return Ok(());
        };
        volume.finalizers_mut().retain(|finalizer| finalizer != FINALIZER);
        let metadata = json!({
            "finalizers": volume.finalizers(),
            "uid": volume.uid(),
            "resourceVersion": volume.resource_version(),
        });
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        match volumes.patch(&name, &PatchParams::default(), &patch).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            outcome => outcome.map(drop).with_context(|| format!("cannot take the finalizer off the volume {name}")),
        }
    }

    fn is_to_be_removed(&self, volume: &PersistentVolume) -> bool {
        let spec = volume.spec.as_ref();
        let namespace = spec.and_then(|spec| spec.claim_ref.as_ref()).and_then(|claim| claim.namespace.as_deref());
        let policy = spec.and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
        let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
        let is_asked_for = volume.metadata.deletion_timestamp.is_none()
            || volume.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
        is_of_driver(volume)
            && is_asked_for
            && namespace == Some(self.namespace.as_str())
            && (phase, policy) == (Some("Released"), Some("Delete"))
    }
}

/// The object by which Kubernetes knows that nothing has to be attached.
async fn create_driver(client: &Client) -> Result<()> {
    let driver = serde_json::from_value(json!({
        "metadata": { "name": LOCALDISK },
        "spec": { "attachRequired": false, "podInfoOnMount": true, "fsGroupPolicy": "File" },
    }))?;
    match Api::<CSIDriver>::all(client.clone()).create(&PostParams::default(), &driver).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        outcome => outcome.map(drop).context("cannot create the CSIDriver"),
    }
}

/// Says where the driver runs; whether that was news.
async fn label(client: &Client, node: &Node) -> Result<bool> {
    if node.labels().contains_key(TOPOLOGY) {
        return Ok(false);
    }
    let labels = json!({ "metadata": { "labels": { TOPOLOGY: node.name_any() }, "uid": node.uid() } });
    match Api::<Node>::all(client.clone()).patch(&node.name_any(), &PatchParams::default(), &Patch::Merge(labels)).await
    {
        // Gone, or gone and come again: then it is a new one.
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(false),
        outcome => outcome.map(|_| true).with_context(|| format!("cannot label the node {}", node.name_any())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_blank_whenever_it_is_made_on_another_node() {
        let mut contents = Contents::default();
        assert!(contents.ensure("pv", "node-1"));
        contents.volumes.get_mut("pv").unwrap().text = "data".to_owned();
        assert!(!contents.ensure("pv", "Node-1"));
        assert_eq!(contents.volumes["pv"].text, "data");
        assert!(contents.ensure("pv", "node-2"));
        let blank = Content { node: "node-2".to_owned(), generation: 2, text: String::new() };
        assert_eq!(contents.volumes["pv"], blank);
    }
}
