//! The part of the feature on a real control plane, with the chart's rights, looking after one namespace of its own and nodes that
//! no other test's pods are given to.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use cluster::{Store, watch::Watches};
use json_patch::merge;
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::StorageClass,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use placement::{
    Caches, Context, Counts, INDEXES_OF_NODES, INDEXES_OF_PODS, INDEXES_OF_VOLUMES, Settings, gone::Gone,
    settings::Percent,
};
use rehearsal::{Events, Means, Process};
use serde_json::{Value, json};
use testbed::{Cluster, eventually};
use tokio_util::sync::CancellationToken;

pub(crate) const NODE_GONE: &str = "claimkeeper.dev/node-gone";
pub(crate) const NODE_GONE_AFTER: &str = "claimkeeper.dev/node-gone-after";
pub(crate) const HOME_NODE: &str = "claimkeeper.dev/home-node";
pub(crate) const SINCE: &str = "claimkeeper.dev/node-gone-since";
pub(crate) const RECREATE: &str = "claimkeeper.dev/recreate";
pub(crate) const PENDING: &str = "claimkeeper.dev/recreate-claim";
pub(crate) const PROVISIONER_FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
const REPORTER: &str = "claimkeeper.dev/placement";

/// A running part of the feature and what it looks after.
pub(crate) struct Room {
    pub(crate) cluster: Cluster,
    pub(crate) namespace: String,
    pub(crate) admin: Client,
    pub(crate) volumes: Api<PersistentVolume>,
    pub(crate) claims: Api<PersistentVolumeClaim>,
    pub(crate) pods: Api<Pod>,
    pub(crate) sets: Api<StatefulSet>,
    pub(crate) nodes: Api<Node>,
    pub(crate) process: Process,
    events: Events,
    /// Whether the chart lets it delete.
    pub(crate) deletes: bool,
}

impl Room {
    pub(crate) async fn open(prefix: &str) -> Result<Self> {
        let room = Self::prepare(prefix).await?;
        let settings = room.defaults();
        room.start(settings).await
    }

    /// Without the feature, for what must be there before it.
    pub(crate) async fn prepare(prefix: &str) -> Result<Self> {
        let cluster = testbed::shared().await?;
        let namespace = cluster.create_namespace(prefix).await?;
        let admin = cluster.admin().await?;
        Ok(Self {
            volumes: Api::all(admin.clone()),
            claims: Api::namespaced(admin.clone(), &namespace),
            pods: Api::namespaced(admin.clone(), &namespace),
            sets: Api::namespaced(admin.clone(), &namespace),
            nodes: Api::all(admin.clone()),
            process: Process::default(),
            events: Events::of(REPORTER, &admin, &namespace),
            deletes: true,
            admin,
            cluster,
            namespace,
        })
    }

    /// Only this namespace, and without the brake: other tests lose nodes, too.
    pub(crate) fn defaults(&self) -> Settings {
        Settings { namespace: Some(self.namespace.clone()), node_gone_brake: Percent(100), ..Settings::default() }
    }

    pub(crate) async fn start(mut self, settings: Settings) -> Result<Self> {
        self.restart(settings).await?;
        Ok(self)
    }

    /// As if its process were started.
    pub(crate) async fn restart(&mut self, settings: Settings) -> Result<()> {
        let (context, watches) = self.build(settings).await?;
        let part = Gone::new(&context);
        let Caches { pods, claims, classes, volumes, nodes } = context.caches;
        self.process.spawn(watches.feed(&pods));
        self.process.spawn(watches.feed(&claims));
        self.process.spawn(watches.feed_cluster_scoped(&classes));
        self.process.spawn(watches.feed_cluster_scoped(&volumes));
        self.process.spawn(watches.feed_cluster_scoped(&nodes));
        self.process.spawn(async move {
            tokio::join!(claims.synced(), classes.synced(), volumes.synced(), nodes.synced());
            part.run(CancellationToken::new()).await;
        });
        Ok(())
    }

    /// The part's surroundings, with stores that nobody feeds yet.
    pub(crate) async fn build(&mut self, settings: Settings) -> Result<(Context, Watches)> {
        let values =
            json!({"features": ["placement"], "namespace": self.namespace, "placement": {"deletes": self.deletes}});
        let Means { client, watches, recorder, .. } =
            self.process.start(&self.cluster, &self.namespace, &values, REPORTER).await?;
        let caches = Caches {
            pods: Store::new(vec![|_| true], INDEXES_OF_PODS.into()),
            claims: Store::new(vec![|_| true], vec![]),
            classes: Store::new(vec![|_| true], vec![]),
            volumes: Store::new(vec![|_| true], INDEXES_OF_VOLUMES.into()),
            nodes: Store::new(vec![|_| true], INDEXES_OF_NODES.into()),
        };
        let registry = self.process.registry.clone();
        let (settings, counts) = (Arc::new(settings), Counts::new(&registry));
        Ok((Context { caches, client, recorder, settings, registry, counts }, watches))
    }

    /// A name that no other test uses for what lives in no namespace.
    pub(crate) fn own(&self, name: &str) -> String {
        format!("{}-{name}", self.namespace)
    }

    /// A node of this name and machine, for the pods of this test only.
    pub(crate) async fn add_node(&self, name: &str, machine: &str) -> Result<String> {
        let name = self.own(name);
        let node = json!({
            "metadata": {"name": name, "labels": {
                "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "test": self.namespace,
                "testbed.claimkeeper.dev/kubelet": "kwok", "topology.kubernetes.io/zone": self.own("zone"),
            }},
            "spec": {"taints": [{"key": "test", "value": self.namespace, "effect": "NoSchedule"}]},
        });
        self.nodes.create(&PostParams::default(), &serde_json::from_value(node)?).await?;
        let said = |what: &str| if machine.is_empty() { String::new() } else { format!("{what}-{machine}") };
        let info = json!({
            "systemUUID": said("s"), "machineID": said("m"), "bootID": "", "kernelVersion": "", "osImage": "",
            "containerRuntimeVersion": "", "kubeletVersion": "", "kubeProxyVersion": "", "operatingSystem": "", "architecture": "",
        });
        // kwok writes the status, too.
        eventually(&format!("node {name} to be Ready and known"), async || {
            let node = self.nodes.get(&name).await?;
            let status = node.status.unwrap_or_default();
            let ready =
                status.conditions.iter().flatten().any(|found| found.type_ == "Ready" && found.status == "True");
            if status.node_info.is_none_or(|found| found.system_uuid != said("s")) {
                let patch = Patch::Strategic(json!({"status": {"nodeInfo": info}}));
                self.nodes.patch_status(&name, &PatchParams::default(), &patch).await?;
                anyhow::bail!("it did not say which machine it is");
            }
            ensure!(ready, "it is not Ready");
            Ok(())
        })
        .await?;
        Ok(name)
    }

    /// A class with these annotations, and a second of grace.
    pub(crate) async fn create_class(&self, name: &str, mode: &str, provisioner: &str) -> Result<String> {
        let class = json!({
            "metadata": {"name": self.own(name), "annotations": {NODE_GONE: mode, NODE_GONE_AFTER: "1s"}},
            "provisioner": provisioner,
            "parameters": {"topology": "node"},
            "reclaimPolicy": "Delete",
            "volumeBindingMode": "WaitForFirstConsumer",
        });
        let classes: Api<StorageClass> = Api::all(self.admin.clone());
        Ok(classes.create(&PostParams::default(), &serde_json::from_value(class)?).await?.name_any())
    }

    /// A claim and its volume, bound to each other by hand, the volume tied to this label.
    pub(crate) async fn create_bound(
        &self,
        name: &str,
        class: &str,
        tie: (&str, &str),
        claim: Value,
        volume: Value,
    ) -> Result<String> {
        let volume_name = self.own(name);
        let mut made = json!({
            "metadata": {"name": name},
            "spec": {
                "storageClassName": class, "volumeName": volume_name, "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
            },
        });
        merge(&mut made, &claim);
        self.claims.create(&PostParams::default(), &serde_json::from_value(made)?).await?;
        let on_node = json!({"key": tie.0, "operator": "In", "values": [tie.1]});
        let mut made = json!({
            "metadata": {
                "name": volume_name, "finalizers": [PROVISIONER_FINALIZER],
                // Nobody of this name is there, so that nobody but us deletes it.
                "annotations": {"pv.kubernetes.io/provisioned-by": "nobody.example.dev"},
            },
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Delete",
                "storageClassName": class, "csi": {"driver": "nobody.example.dev", "volumeHandle": volume_name},
                "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": self.namespace, "name": name},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [on_node]}]}},
            },
        });
        merge(&mut made, &volume);
        self.volumes.create(&PostParams::default(), &serde_json::from_value(made)?).await?;
        self.until_phase(&volume_name, "Bound").await?;
        Ok(volume_name)
    }

    /// The same, tied to the name of this node, and its machine noted.
    pub(crate) async fn create_noted(&self, name: &str, class: &str, node: &str, claim: Value) -> Result<String> {
        let tie = ("kubernetes.io/hostname", node);
        let volume = self.create_bound(name, class, tie, claim, json!({})).await?;
        self.until_noted(&volume).await?;
        Ok(volume)
    }

    pub(crate) async fn until_noted(&self, volume: &str) -> Result<Value> {
        eventually(&format!("the machine of volume {volume} to be noted"), async || {
            let volume = self.volumes.get(volume).await?;
            let note = volume.annotations().get(HOME_NODE).context("nothing is noted")?;
            anyhow::Ok(serde_json::from_str(note)?)
        })
        .await
    }

    pub(crate) async fn until_phase(&self, volume: &str, phase: &str) -> Result<PersistentVolume> {
        eventually(&format!("volume {volume} to be {phase}"), async || {
            let volume = self.volumes.get(volume).await?;
            let found = volume.status.as_ref().and_then(|status| status.phase.as_deref());
            ensure!(found == Some(phase), "it is {found:?}");
            Ok(volume)
        })
        .await
    }

    /// Waits until the volume is gone.
    pub(crate) async fn until_gone(&self, volume: &str) -> Result<()> {
        eventually(&format!("the end of volume {volume}"), async || {
            let found = self.volumes.get_opt(volume).await?;
            ensure!(found.is_none(), "it is there: {:?}", found.map(|volume| volume.metadata));
            Ok(())
        })
        .await
    }

    /// Waits for a claim of this name other than that of this uid.
    pub(crate) async fn until_another(&self, claim: &str, uid: Option<&str>) -> Result<PersistentVolumeClaim> {
        eventually(&format!("a new claim {claim}"), async || {
            let found = self.claims.get(claim).await?;
            ensure!(
                found.uid().as_deref() != uid,
                "it is the old one, deleted: {:?}",
                found.metadata.deletion_timestamp
            );
            Ok(found)
        })
        .await
    }

    /// Waits for an event of this reason about the object of this uid and returns its note.
    pub(crate) async fn told(&self, uid: Option<&str>, reason: &str) -> Result<String> {
        Ok(self.events.until_told(uid, reason).await?.note)
    }

    pub(crate) fn decided(&self, decision: &str, reason: &str) -> u64 {
        self.process.decided("placement", decision, reason)
    }

    pub(crate) async fn annotate(&self, volume: &str, annotations: Value) -> Result<()> {
        let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
        self.volumes.patch(volume, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// As Kubernetes does a minute after a node is gone.
    pub(crate) async fn collect_pods_of(&self, node: &str) -> Result<()> {
        for pod in self.pods.list(&ListParams::default()).await?.items {
            if pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node) {
                let _ = self.pods.delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await;
            }
        }
        Ok(())
    }

    pub(crate) async fn uid_of_claim(&self, claim: &str) -> Result<Option<String>> {
        Ok(self.claims.get(claim).await?.uid())
    }
}
