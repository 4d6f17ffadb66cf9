//! Clusters with local volumes: nodes, and claims that are bound to volumes on them.

mod ground;
mod node;
mod pod;

use anyhow::Result;
use futures::{StreamExt, stream};
use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::StorageClass,
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use testbed::Progress;

pub(crate) use self::{
    ground::{Ground, free_address, is_ready},
    pod::{REQUIRED, pod},
};
use super::pods;

/// The class whose volumes are local.
pub(crate) const LOCAL: &str = "local";
/// The class of another driver.
pub(crate) const FOREIGN: &str = "replicated";

/// The driver whose volumes are where their node is, by default.
pub(crate) const DRIVER: &str = "localdisk.csi.acstor.io";
const FOREIGN_DRIVER: &str = "disks.example.dev";

/// Where the claims are.
pub(crate) const NAMESPACE: &str = "bench-0";

/// As many as keep two cores of API server busy.
const AT_ONCE: usize = 64;

/// What a claim is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A local volume that may be left behind.
    Availability,
    /// A local volume that must not be.
    Durability,
    /// A volume of another driver.
    Foreign,
}

/// A claim with its volume.
#[derive(Clone, Copy)]
pub(crate) struct Bound {
    pub number: usize,
    pub kind: Kind,
    /// How many nodes there are.
    pub nodes: usize,
}

impl Bound {
    /// One with a local volume; every other one must not be left behind.
    pub(crate) fn local(number: usize, nodes: usize) -> Self {
        let kind = if number.is_multiple_of(2) { Kind::Availability } else { Kind::Durability };
        Self { number, kind, nodes }
    }

    /// One with a volume of another driver.
    pub(crate) fn foreign(number: usize, nodes: usize) -> Self {
        Self { number, kind: Kind::Foreign, nodes }
    }

    /// The pod that uses it.
    pub(crate) fn pod(self) -> String {
        let set = if self.kind == Kind::Foreign { "archive" } else { "index" };
        format!("{set}-{}", self.number)
    }

    /// Its name, as a `StatefulSet` makes it.
    pub(crate) fn name(self) -> String {
        format!("data-{}", self.pod())
    }

    /// Where the data is.
    pub(crate) fn node(self) -> String {
        node::name(self.number % self.nodes)
    }

    fn volume(self) -> String {
        format!("pvc-{}", uid(if self.kind == Kind::Foreign { 2 } else { 1 }, self.number))
    }

    fn class(self) -> &'static str {
        if self.kind == Kind::Foreign { FOREIGN } else { LOCAL }
    }

    fn claim_object(self) -> Value {
        let provisioner = if self.kind == Kind::Foreign { FOREIGN_DRIVER } else { DRIVER };
        json!({
            "metadata": {
                "name": self.name(),
                "labels": {"app.kubernetes.io/name": "index", "app.kubernetes.io/instance": "search"},
                "annotations": {
                    "pv.kubernetes.io/bind-completed": "yes",
                    "pv.kubernetes.io/bound-by-controller": "yes",
                    "volume.kubernetes.io/selected-node": self.node(),
                    "volume.kubernetes.io/storage-provisioner": provisioner,
                    "localdisk.csi.acstor.io/accept-ephemeral-storage": "true",
                },
            },
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "10Gi"}},
                "storageClassName": self.class(),
                "volumeName": self.volume(),
            },
        })
    }

    fn volume_object(self, claim: &PersistentVolumeClaim) -> Value {
        let name = self.volume();
        let csi = match self.kind {
            Kind::Foreign => json!({"driver": FOREIGN_DRIVER, "volumeHandle": name}),
            kind => {
                let mode = if kind == Kind::Durability { "durability" } else { "availability" };
                json!({
                    "driver": DRIVER,
                    "volumeHandle": format!("containerstorage#{name}"),
                    "volumeAttributes": {
                        "csi.storage.k8s.io/pv/name": name,
                        "csi.storage.k8s.io/pvc/name": self.name(),
                        "csi.storage.k8s.io/pvc/namespace": NAMESPACE,
                        "localdisk.csi.acstor.io/capacity": "10737418240",
                        "localdisk.csi.acstor.io/failover-mode": mode,
                        "localdisk.csi.acstor.io/limit": "10737418240",
                        "localdisk.csi.acstor.io/selected-initial-node": self.node(),
                        "storage.kubernetes.io/csiProvisionerIdentity": "1763200000000-8081-localdisk.csi.acstor.io",
                    },
                })
            }
        };
        json!({
            "metadata": {
                "name": name,
                "annotations": {
                    "pv.kubernetes.io/provisioned-by": csi["driver"],
                    "volume.kubernetes.io/provisioner-deletion-secret-name": "",
                    "volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
                },
            },
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "capacity": {"storage": "10Gi"},
                "claimRef": {
                    "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": NAMESPACE, "name": self.name(),
                    "uid": claim.metadata.uid, "resourceVersion": claim.metadata.resource_version,
                },
                "csi": csi,
                "persistentVolumeReclaimPolicy": "Delete",
                "storageClassName": self.class(),
            },
        })
    }

    /// Creates both, as they are when they have found each other: nobody binds them here.
    async fn create(self, client: Client) -> Result<()> {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), NAMESPACE);
        let claim = claims.create(&PostParams::default(), &serde_json::from_value(self.claim_object())?).await?;
        let volumes: Api<PersistentVolume> = Api::all(client);
        let volume = serde_json::from_value(self.volume_object(&claim))?;
        volumes.create(&PostParams::default(), &volume).await?;
        let by = PatchParams { field_manager: Some("kube-controller-manager".into()), ..PatchParams::default() };
        let bound = Patch::Merge(json!({"status": {"phase": "Bound"}}));
        volumes.patch_status(&self.volume(), &by, &bound).await?;
        let bound = json!({"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "10Gi"}});
        claims.patch_status(&self.name(), &by, &Patch::Merge(json!({"status": bound}))).await?;
        Ok(())
    }

    /// Creates its pod, which runs where the data is.
    async fn create_pod(self, client: Client) -> Result<()> {
        let mut object = pod(self);
        object["spec"]["nodeName"] = self.node().into();
        for made in ["uid", "creationTimestamp", "managedFields"] {
            object["metadata"][made] = Value::Null;
        }
        let pods: Api<Pod> = Api::namespaced(client, NAMESPACE);
        pods.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
        let status = Patch::Merge(json!({"status": pods::status("Running")}));
        pods.patch_status(&self.pod(), &PatchParams::apply("kubelet"), &status).await?;
        Ok(())
    }
}

/// Both classes, and the namespace for claims and pods.
pub(crate) async fn create_classes(client: &Client) -> Result<()> {
    pods::create_namespace(client, NAMESPACE).await?;
    for (name, provisioner) in [(LOCAL, DRIVER), (FOREIGN, FOREIGN_DRIVER)] {
        let class: StorageClass =
            serde_json::from_value(json!({"metadata": {"name": name}, "provisioner": provisioner}))?;
        Api::all(client.clone()).create(&PostParams::default(), &class).await?;
    }
    Ok(())
}

pub(crate) async fn create_nodes(client: &Client, count: usize) -> Result<()> {
    all("nodes", 0..count, |number| create_node(client.clone(), number)).await
}

async fn create_node(client: Client, number: usize) -> Result<()> {
    let node: Node = serde_json::from_value(node::node(number))?;
    Api::all(client).create(&PostParams::default(), &node).await?;
    Ok(())
}

pub(crate) async fn create_claims(client: &Client, bound: impl ExactSizeIterator<Item = Bound>) -> Result<()> {
    all("bound claims", bound, |bound| bound.create(client.clone())).await
}

pub(crate) async fn create_pods(client: &Client, bound: impl ExactSizeIterator<Item = Bound>) -> Result<()> {
    all("pods", bound, |bound| bound.create_pod(client.clone())).await
}

async fn all<T, F: Future<Output = Result<()>>>(
    what: &str,
    items: impl ExactSizeIterator<Item = T>,
    create: impl Fn(T) -> F,
) -> Result<()> {
    let count = items.len();
    let mut progress = Progress::start(&format!("Creating {count} {what}"));
    let mut created = stream::iter(items).map(create).buffer_unordered(AT_ONCE).enumerate();
    while let Some((done, result)) = created.next().await {
        result?;
        progress.update(&format!("{} of {count}", done + 1));
    }
    progress.finish("done");
    Ok(())
}

/// Something that looks like a uid, another one for every number of a kind.
fn uid(kind: u8, number: usize) -> String {
    format!("5b1c9e2a-{kind:04x}-4000-8000-{number:012}")
}
