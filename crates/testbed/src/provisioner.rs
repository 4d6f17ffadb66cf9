//! An external provisioner for the testbed's classes, so that claims are really bound by the real controllers:
//!
//! ```text
//! claim ──PV controller──► annotation storage-provisioner=testbed… ──(WaitForFirstConsumer: scheduler──► selected-node)──►
//!       we create the volume with a claimRef ──PV controller──► both Bound
//! claim deleted ──PV controller──► volume Released ──policy Delete──► we delete the volume
//! ```
//!
//! A class of one's own works too: any parameters, this provisioner's name. With the parameter `topology: node` its
//! volumes can only be used on the node that the scheduler selected, like local disks.
//!
//! In a cluster with real nodes all volumes are local: directories of the node that the scheduler selected, which its pods
//! really mount.

use std::{
    fs::{self, File},
    io::{ErrorKind, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    pin::pin,
    time::Duration,
};

use anyhow::{Context, Result};
use futures::{Stream, StreamExt, future::Either, stream};
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, PostParams, Preconditions},
    runtime::{WatchStreamExt, watcher},
};
use serde::de::DeserializeOwned;
use serde_json::json;

/// The provisioner's name, for classes that a test makes itself.
pub const PROVISIONER: &str = "testbed.claimkeeper.dev/provisioner";

pub(crate) const STORAGE_PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
pub(crate) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
pub(crate) const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
pub(crate) const WAIT: &str = "WaitForFirstConsumer";
const CONCURRENCY: usize = 16;
/// For errors that pass by themselves. Longer outages break the watch, and its return brings every object again.
const ATTEMPTS: u32 = 5;
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// Where volumes of the real nodes have their data.
#[derive(Debug)]
pub(crate) struct Disks {
    /// There is a directory for each node in it.
    pub(crate) directory: PathBuf,
    pub(crate) nodes: Vec<String>,
}

impl Disks {
    /// The node for a volume. Where the scheduler selects none, because the class does not wait for a pod, it is always the
    /// first: its pods follow it there, and a test knows where to look.
    fn node<'a>(&'a self, selected: Option<&'a str>) -> Result<&'a str> {
        selected.or_else(|| self.nodes.first().map(String::as_str)).context("there is no node for the volume")
    }

    /// Makes the directory of a volume, for whichever user its pod runs as. On a node that is only an object there is nothing
    /// to be made.
    fn make(&self, node: &str, uid: &str) -> Result<PathBuf> {
        if !self.nodes.iter().any(|real| real == node) {
            return Ok(nowhere(uid));
        }
        let path = self.directory.join(node).join(uid);
        fs::create_dir_all(&path)
            .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o777)))
            .with_context(|| format!("cannot make {}", path.display()))?;
        Ok(path)
    }

    fn remove(&self, volume: &PersistentVolume) -> Result<()> {
        let path = volume.spec.as_ref().and_then(|spec| Some(Path::new(&spec.local.as_ref()?.path)));
        let Some(path) = path.filter(|path| path.starts_with(&self.directory)) else { return Ok(()) };
        match fs::remove_dir_all(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", path.display()))
            }
            _ => Ok(()),
        }
    }
}

/// Creates `testbed-immediate` and `testbed-wait`, whose volumes go with their claims, and the same with `-retain`.
pub(crate) async fn create_classes(client: &Client) -> Result<()> {
    let classes: Api<StorageClass> = Api::all(client.clone());
    for (name, binding, reclaim) in [
        ("testbed-immediate", "Immediate", "Delete"),
        ("testbed-wait", WAIT, "Delete"),
        ("testbed-immediate-retain", "Immediate", "Retain"),
        ("testbed-wait-retain", WAIT, "Retain"),
    ] {
        let class = serde_json::from_value(json!({
            "metadata": { "name": name },
            "provisioner": PROVISIONER,
            "volumeBindingMode": binding,
            "reclaimPolicy": reclaim,
        }))?;
        let created = classes.create(&PostParams::default(), &class).await;
        created.with_context(|| format!("cannot create the class {name}"))?;
    }
    Ok(())
}

/// Makes and removes volumes until it is aborted; what goes wrong is written to the log.
pub(crate) async fn run(client: Client, disks: Option<Disks>, mut log: File) {
    let disks = disks.as_ref();
    let claims = watch(Api::<PersistentVolumeClaim>::all(client.clone())).map(|claim| claim.map(Either::Left));
    let volumes = watch(Api::<PersistentVolume>::all(client.clone())).map(|volume| volume.map(Either::Right));
    let work = stream::select(claims, volumes)
        .map(|object| {
            let client = client.clone();
            async move {
                match object {
                    Ok(Either::Left(claim)) => retry(|| provision(&client, disks, &claim)).await,
                    Ok(Either::Right(volume)) => retry(|| remove(&client, disks, &volume)).await,
                    Err(error) => Err(error.into()),
                }
            }
        })
        .buffer_unordered(CONCURRENCY);
    let mut work = pin!(work);
    while let Some(outcome) = work.next().await {
        if let Err(error) = outcome {
            // There is no place left to complain about a log that can't be written.
            let _ = writeln!(log, "{} {error:#}", jiff::Timestamp::now());
        }
    }
}

/// Opens the log next to the components' own.
pub(crate) fn open_log(directory: &Path) -> Result<File> {
    let path = directory.join("logs/provisioner.log");
    File::create(&path).with_context(|| format!("cannot write {}", path.display()))
}

pub(crate) fn watch<K>(api: Api<K>) -> impl Stream<Item = Result<K, watcher::Error>>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    watcher(api, watcher::Config::default()).default_backoff().applied_objects()
}

pub(crate) async fn retry<F: Future<Output = Result<()>>>(action: impl Fn() -> F) -> Result<()> {
    for _ in 1..ATTEMPTS {
        if action().await.is_ok() {
            return Ok(());
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
    action().await
}

async fn provision(client: &Client, disks: Option<&Disks>, claim: &PersistentVolumeClaim) -> Result<()> {
    let spec = claim.spec.as_ref();
    let is_ours = claim.annotations().get(STORAGE_PROVISIONER).is_some_and(|provisioner| provisioner == PROVISIONER);
    let is_bound = spec.is_some_and(|spec| spec.volume_name.is_some());
    let class_name = spec.and_then(|spec| spec.storage_class_name.as_deref());
    let (true, false, None, Some(class_name)) = (is_ours, is_bound, &claim.metadata.deletion_timestamp, class_name)
    else {
        return Ok(());
    };
    let class = Api::<StorageClass>::all(client.clone()).get(class_name).await?;
    let node = claim.annotations().get(SELECTED_NODE);
    if class.volume_binding_mode.as_deref() == Some(WAIT) && node.is_none() {
        return Ok(());
    }
    let volume = volume_for(claim, &class, node.map(String::as_str), disks)?;
    match Api::all(client.clone()).create(&PostParams::default(), &volume).await {
        // The name is made of the claim's uid: whoever created it did so for this claim.
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        outcome => outcome.map(drop).with_context(|| format!("cannot create the volume {}", volume.name_any())),
    }
}

fn volume_for(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    node: Option<&str>,
    disks: Option<&Disks>,
) -> Result<PersistentVolume> {
    let uid = claim.uid().context("a claim without uid")?;
    let spec = claim.spec.clone().unwrap_or_default();
    let requests = spec.resources.and_then(|resources| resources.requests).unwrap_or_default();
    let mut volume = json!({
        "metadata": { "name": format!("pvc-{uid}"), "annotations": { PROVISIONED_BY: PROVISIONER } },
        "spec": {
            "accessModes": spec.access_modes,
            "capacity": { "storage": requests.get("storage") },
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": claim.namespace(),
                "name": claim.name_any(),
                "uid": uid,
                "resourceVersion": claim.resource_version(),
            },
            "persistentVolumeReclaimPolicy": class.reclaim_policy.as_deref().unwrap_or("Delete"),
            "storageClassName": class.name_any(),
            "volumeMode": spec.volume_mode,
            "mountOptions": class.mount_options,
        },
    });
    let is_local =
        class.parameters.as_ref().is_some_and(|p| p.get("topology").is_some_and(|topology| topology == "node"));
    let (path, node) = match disks {
        Some(disks) => {
            let node = disks.node(node)?;
            (disks.make(node, &uid)?, Some(node))
        }
        None => (nowhere(&uid), node.filter(|_| is_local)),
    };
    match node {
        Some(node) => {
            let on_node = json!({ "key": "kubernetes.io/hostname", "operator": "In", "values": [node] });
            volume["spec"]["local"] = json!({ "path": path });
            volume["spec"]["nodeAffinity"] = json!({
                "required": { "nodeSelectorTerms": [{ "matchExpressions": [on_node] }] },
            });
        }
        None => volume["spec"]["hostPath"] = json!({ "path": path }),
    }
    Ok(serde_json::from_value(volume)?)
}

/// The directory of a volume that nothing ever mounts.
fn nowhere(uid: &str) -> PathBuf {
    PathBuf::from(format!("/testbed/{uid}"))
}

async fn remove(client: &Client, disks: Option<&Disks>, volume: &PersistentVolume) -> Result<()> {
    let is_ours = volume.annotations().get(PROVISIONED_BY).is_some_and(|provisioner| provisioner == PROVISIONER);
    let is_released = volume.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Released"));
    let policy = volume.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    let (true, true, Some("Delete"), None) = (is_ours, is_released, policy, &volume.metadata.deletion_timestamp) else {
        return Ok(());
    };
    if let Some(disks) = disks {
        disks.remove(volume)?;
    }
    // Not a volume that someone released from its claim and that is in use again.
    let preconditions = Preconditions { uid: volume.uid(), resource_version: volume.resource_version() };
    let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    match Api::<PersistentVolume>::all(client.clone()).delete(&volume.name_any(), &parameters).await {
        // Gone, or changed: then the watch brings what it has become.
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
        outcome => outcome.map(drop).with_context(|| format!("cannot delete the volume {}", volume.name_any())),
    }
}
