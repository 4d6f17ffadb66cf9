//! The feature on a real control plane, with the chart's rights, in a namespace, on a node and with a class of its own.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use cluster::{Store, watch::Watches};
use ephemeral::{
    Caches, Ephemeral,
    reclaim::{self, Reclaim, ReclaimCompleted, Settings},
};
use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod as FullPod},
    events::v1::Event,
    storage::v1::{CSIDriver, StorageClass, VolumeAttachment},
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use rehearsal::{Means, Process};
use serde_json::{Value, json};
use testbed::{Cluster, eventually};
use tokio_util::sync::CancellationToken;

const REPORTER: &str = "claimkeeper.dev/ephemeral";

/// A running feature and what it looks after. Class and node are called like the namespace.
pub(crate) struct Room {
    pub(crate) cluster: Cluster,
    pub(crate) namespace: String,
    pub(crate) pods: Api<FullPod>,
    pub(crate) claims: Api<PersistentVolumeClaim>,
    pub(crate) volumes: Api<PersistentVolume>,
    pub(crate) attachments: Api<VolumeAttachment>,
    pub(crate) nodes: Api<Node>,
    pub(crate) classes: Api<StorageClass>,
    pub(crate) drivers: Api<CSIDriver>,
    pub(crate) process: Process,
    admin: Client,
}

/// What kind of volume a claim gets.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// One of the room's CSI driver.
    Csi,
    /// A directory of the node.
    HostPath,
}

/// What the cache of pods is told.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sight {
    Full,
    /// Only of pods with ephemeral volumes, as if it had not heard of any other yet.
    NoUsers,
}

impl Room {
    pub(crate) async fn open(prefix: &str, mode: ReclaimCompleted) -> Result<Self> {
        Self::prepare(prefix).await?.start(mode, &[], Sight::Full).await
    }

    /// All but the feature, for what must be there before it.
    pub(crate) async fn prepare(prefix: &str) -> Result<Self> {
        let room = Self::on(testbed::shared().await?, prefix).await?;
        room.cluster.add_node(&room.namespace, &[]).await?;
        // The pods of other tests are not to come here.
        let cordon = Patch::Merge(json!({"spec": {"unschedulable": true}}));
        room.nodes.patch(&room.namespace, &PatchParams::default(), &cordon).await?;
        let class = json!({"metadata": {"name": room.namespace}, "provisioner": "kubernetes.io/no-provisioner"});
        room.classes.create(&PostParams::default(), &serde_json::from_value(class)?).await?;
        Ok(room)
    }

    /// Only a namespace.
    pub(crate) async fn on(cluster: Cluster, prefix: &str) -> Result<Self> {
        let namespace = cluster.create_namespace(prefix).await?;
        let admin = cluster.admin().await?;
        Ok(Self {
            pods: Api::namespaced(admin.clone(), &namespace),
            claims: Api::namespaced(admin.clone(), &namespace),
            volumes: Api::all(admin.clone()),
            attachments: Api::all(admin.clone()),
            nodes: Api::all(admin.clone()),
            classes: Api::all(admin.clone()),
            drivers: Api::all(admin.clone()),
            process: Process::default(),
            admin,
            cluster,
            namespace,
        })
    }

    /// Starts the feature, or ends the one that runs and starts another.
    pub(crate) async fn start(mut self, mode: ReclaimCompleted, without_attach: &[&str], sight: Sight) -> Result<Self> {
        // Rights depend only on whether it is on at all.
        let values = json!({"features": ["ephemeral"], "ephemeral": {"reclaimCompleted": "byClass"}});
        let Means { client, watches, recorder, .. } =
            self.process.start(&self.cluster, &self.namespace, &values, REPORTER).await?;

        let mut interests: Vec<fn(&cluster::Pod) -> bool> = vec![ephemeral::interesting];
        if sight == Sight::Full {
            interests.push(reclaim::uses_claims);
        }
        let indexes = ephemeral::INDEXES_OF_PODS.into_iter().chain(reclaim::INDEXES_OF_PODS);
        let caches = Caches {
            pods: Store::new(interests, indexes.collect()),
            claims: Store::new(vec![|_| true], vec![]),
            namespaces: Store::new(vec![|_| true], vec![]),
            quotas: Store::new(vec![|_| true], vec![]),
        };
        let beside = reclaim::Caches::beside(&caches.pods, &caches.claims, &Store::new(vec![|_| true], vec![]));
        self.feed(&watches, &caches, &beside);

        let make = Ephemeral::new(caches, client.clone(), recorder.clone(), &self.process.registry, 4);
        let make = Arc::new(make);
        self.process.spawn(async move { make.run(CancellationToken::new()).await });
        let without_attach = without_attach.iter().map(|name| (*name).to_owned()).collect();
        let settings = Settings { reclaim_completed: mode, without_attach, concurrency: 4 };
        let free = Arc::new(Reclaim::new(beside, client, recorder, &self.process.registry, settings));
        self.process.spawn(async move { free.run(CancellationToken::new()).await });
        Ok(self)
    }

    fn feed(&mut self, watches: &Watches, caches: &Caches, beside: &reclaim::Caches) {
        self.process.spawn(watches.feed(&caches.pods));
        self.process.spawn(watches.feed(&caches.claims));
        self.process.spawn(watches.feed_namespaces(&caches.namespaces));
        self.process.spawn(watches.feed(&caches.quotas));
        self.process.spawn(watches.feed_cluster_scoped(&beside.classes));
        self.process.spawn(watches.feed_cluster_scoped(&beside.drivers));
        self.process.spawn(watches.feed_cluster_scoped(&beside.attachments));
    }

    /// The name of the room's CSI driver.
    pub(crate) fn driver(&self) -> String {
        format!("{}.example.dev", self.namespace)
    }

    /// How a node lists a volume of [`Kind::Csi`] as in use.
    pub(crate) fn listed_as(&self, claim: &str) -> String {
        format!("kubernetes.io/csi/{}^handle-of-{claim}", self.driver())
    }

    pub(crate) async fn add_driver(&self, attach_required: bool) -> Result<()> {
        let driver = json!({"metadata": {"name": self.driver()}, "spec": {"attachRequired": attach_required}});
        self.drivers.create(&PostParams::default(), &serde_json::from_value(driver)?).await?;
        Ok(())
    }

    /// Says of the room's class what becomes of the claims of ended pods; null leaves it to the configuration.
    pub(crate) async fn annotate_class(&self, value: Value) -> Result<()> {
        let patch = Patch::Merge(json!({"metadata": {"annotations": {"claimkeeper.dev/reclaim-completed": value}}}));
        self.classes.patch(&self.namespace, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// A volume that only this claim can have. It stays when its claim goes, so that we see what becomes of it.
    pub(crate) async fn add_volume(&self, claim: &str, kind: Kind) -> Result<String> {
        let name = format!("{}-{claim}", self.namespace);
        let mut volume = json!({
            "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": self.namespace,
                "persistentVolumeReclaimPolicy": "Retain", "claimRef": {"namespace": self.namespace, "name": claim},
            },
        });
        match kind {
            Kind::Csi => {
                let handle = format!("handle-of-{claim}");
                volume["spec"]["csi"] = json!({"driver": self.driver(), "volumeHandle": handle});
            }
            Kind::HostPath => volume["spec"]["hostPath"] = json!({"path": "/tmp"}),
        }
        self.volumes.create(&PostParams::default(), &serde_json::from_value(volume)?).await?;
        Ok(name)
    }

    pub(crate) async fn attach(&self, volume: &str) -> Result<()> {
        let attachment = json!({
            "metadata": {"name": volume},
            "spec": {"attacher": self.driver(), "nodeName": self.namespace, "source": {"persistentVolumeName": volume}},
        });
        self.attachments.create(&PostParams::default(), &serde_json::from_value(attachment)?).await?;
        Ok(())
    }

    pub(crate) async fn set_in_use(&self, volumes: &[String]) -> Result<()> {
        let patch = Patch::Merge(json!({"status": {"volumesInUse": volumes}}));
        self.nodes.patch_status(&self.namespace, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// A pod on the room's node that runs with a bound claim `<name>-scratch`. Returns the pod and the volume's name.
    pub(crate) async fn run_pod(&self, name: &str, kind: Kind) -> Result<(FullPod, String)> {
        let claim = format!("{name}-scratch");
        let volume = self.add_volume(&claim, kind).await?;
        let pod = self.create_pod(name, json!({"nodeName": self.namespace}), &json!([self.scratch()])).await?;
        eventually("the claim to be bound", async || {
            let phase = self.claims.get(&claim).await?.status.and_then(|status| status.phase);
            ensure!(phase.as_deref() == Some("Bound"), "it is {phase:?}");
            Ok(())
        })
        .await?;
        self.until_running(name).await?;
        Ok((pod, volume))
    }

    /// An ephemeral volume of the room's class.
    pub(crate) fn scratch(&self) -> Value {
        let spec = json!({
            "accessModes": ["ReadWriteOnce"], "storageClassName": self.namespace,
            "resources": {"requests": {"storage": "1Gi"}},
        });
        json!({"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": spec}}})
    }

    pub(crate) async fn create_pod(&self, name: &str, mut spec: Value, volumes: &Value) -> Result<FullPod> {
        spec["containers"] = json!([{"name": "main", "image": "example.invalid/main"}]);
        spec["volumes"] = volumes.clone();
        // Kubernetes would add this to pods that the scheduler places.
        spec["tolerations"] = json!([{"operator": "Exists"}]);
        let pod = json!({"metadata": {"name": name}, "spec": spec});
        Ok(self.pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?)
    }

    pub(crate) async fn until_running(&self, pod: &str) -> Result<()> {
        eventually("the pod to run", async || {
            let phase = self.pods.get(pod).await?.status.and_then(|status| status.phase);
            ensure!(phase.as_deref() == Some("Running"), "it is {phase:?}");
            Ok(())
        })
        .await
    }

    pub(crate) async fn end(&self, pod: &str, phase: &str) -> Result<()> {
        self.cluster.set_pod_phase(&self.namespace, pod, phase).await
    }

    pub(crate) async fn until_gone(&self, claim: &str) -> Result<()> {
        eventually("the claim to go", async || {
            let claim = self.claims.get_opt(claim).await?.map(|claim| claim.metadata);
            ensure!(claim.is_none(), "it is there: {claim:?}");
            Ok(())
        })
        .await
    }

    /// The claim as it is, which nobody has begun to delete.
    pub(crate) async fn untouched(&self, claim: &str) -> Result<PersistentVolumeClaim> {
        let claim = self.claims.get(claim).await?;
        ensure!(claim.metadata.deletion_timestamp.is_none(), "it is being deleted");
        Ok(claim)
    }

    pub(crate) async fn delete_pod(&self, pod: &str) -> Result<()> {
        self.pods.delete(pod, &DeleteParams::default().grace_period(0)).await?;
        Ok(())
    }

    /// Waits until this was decided; returns how often it was.
    pub(crate) async fn until_decided(&self, decision: &str, reason: &str) -> Result<u64> {
        eventually(&format!("the decision to {decision}: {reason}"), async || {
            let count = self.decided(decision, reason);
            ensure!(count > 0, "decided so far: {:?}", self.process.metrics("claimkeeper_ephemeral_decisions"));
            Ok(count)
        })
        .await
    }

    pub(crate) fn decided(&self, decision: &str, reason: &str) -> u64 {
        self.process.decided("ephemeral", decision, reason)
    }

    /// Our events with this reason about the object of this uid, wherever they are.
    pub(crate) async fn events(&self, uid: Option<&str>, reason: &str) -> Result<Vec<Event>> {
        let mut events = Api::<Event>::all(self.admin.clone()).list(&ListParams::default()).await?.items;
        events.retain(|event| {
            // The features of other tests see the same classes.
            event.reporting_instance.as_deref() == Some(&*self.namespace)
                && event.reason.as_deref() == Some(reason)
                && event.regarding.as_ref().and_then(|regarding| regarding.uid.as_deref()) == uid
        });
        Ok(events)
    }

    pub(crate) async fn event(&self, pod: &FullPod, reason: &str) -> Result<Event> {
        eventually(&format!("the event {reason}"), async || {
            let first = self.events(pod.uid().as_deref(), reason).await?.into_iter().next();
            first.context("there is none")
        })
        .await
    }

    /// As whom the feature runs.
    pub(crate) fn user(&self) -> String {
        format!("system:serviceaccount:{}:claimkeeper", self.namespace)
    }

    /// `verb name` of every write to a claim that the feature sent and the server accepted, in order. Others lost a race.
    pub(crate) fn writes(&self) -> Result<Vec<String>> {
        let requests = self.cluster.audit_log().user(self.user()).resource("persistentvolumeclaims").requests()?;
        let accepted = requests.into_iter().filter(|request| request.code().is_some_and(|code| code < 300));
        let writes = accepted.filter(|request| !["get", "list", "watch"].contains(&request.verb.as_str()));
        Ok(writes.map(|request| format!("{} {}", request.verb, request.object_ref.unwrap_or_default().name)).collect())
    }

    /// Takes away what stands outside the namespace.
    pub(crate) async fn close(self) -> Result<()> {
        let at_once = DeleteParams::default().grace_period(0);
        for pod in self.pods.list(&ListParams::default()).await? {
            self.pods.delete(&pod.name_any(), &at_once).await?;
        }
        for volume in self.volumes.list(&ListParams::default()).await? {
            if volume.name_any().starts_with(&self.namespace) {
                self.volumes.delete(&volume.name_any(), &at_once).await?;
            }
        }
        self.classes.delete(&self.namespace, &at_once).await?;
        if self.drivers.get_opt(&self.driver()).await?.is_some() {
            self.drivers.delete(&self.driver(), &at_once).await?;
        }
        if self.nodes.get_opt(&self.namespace).await?.is_some() {
            self.nodes.delete(&self.namespace, &at_once).await?;
        }
        Ok(())
    }
}
