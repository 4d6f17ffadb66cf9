//! The feature on a real control plane, with the chart's rights, in a namespace with a driver, a class and nodes of its own.

use std::sync::Arc;

use anyhow::{Result, ensure};
use cluster::{Store, Volume, store::Interest};
use json_patch::merge;
use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::StorageClass,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use placement::{Caches, Context, Counts, Placement, Settings};
use rehearsal::{Events, Means, Process};
use serde_json::{Value, json};
use testbed::{Cluster, eventually};
use tokio_util::sync::CancellationToken;

const REPORTER: &str = "claimkeeper.dev/placement";

/// Where the drivers of these tests note the home of a volume.
pub(crate) const SELECTED: &str = "disks.example.dev/selected-node";
pub(crate) const INITIAL: &str = "disks.example.dev/initial-node";
pub(crate) const FAILOVER_MODE: &str = "disks.example.dev/failover-mode";
pub(crate) const NOTE: &str = "claimkeeper.dev/blank-recreations";
pub(crate) const HOSTNAME: &str = "kubernetes.io/hostname";
/// The label of all nodes of a room; its value is the namespace.
pub(crate) const ROOM: &str = "testbed.claimkeeper.dev/room";

/// A running feature and what it looks after.
pub(crate) struct Room {
    pub(crate) cluster: Cluster,
    pub(crate) namespace: String,
    pub(crate) pods: Api<Pod>,
    pub(crate) claims: Api<PersistentVolumeClaim>,
    pub(crate) volumes: Api<PersistentVolume>,
    pub(crate) classes: Api<StorageClass>,
    pub(crate) nodes: Api<Node>,
    pub(crate) admin: Client,
    pub(crate) process: Process,
    pub(crate) events: Events,
}

impl Room {
    /// The namespace without the feature, with its class and some nodes.
    pub(crate) async fn prepare(prefix: &str, nodes: &[&str]) -> Result<Self> {
        Self::on(testbed::shared().await?, prefix, nodes).await
    }

    pub(crate) async fn on(cluster: Cluster, prefix: &str, nodes: &[&str]) -> Result<Self> {
        let namespace = cluster.create_namespace(prefix).await?;
        let admin = cluster.admin().await?;
        let room = Self {
            pods: Api::namespaced(admin.clone(), &namespace),
            claims: Api::namespaced(admin.clone(), &namespace),
            volumes: Api::all(admin.clone()),
            classes: Api::all(admin.clone()),
            nodes: Api::all(admin.clone()),
            process: Process::default(),
            events: Events::of(REPORTER, &admin, &namespace),
            admin,
            cluster,
            namespace,
        };
        let class = json!({"metadata": {"name": room.namespace}, "provisioner": "kubernetes.io/no-provisioner"});
        room.classes.create(&PostParams::default(), &serde_json::from_value(class)?).await?;
        for node in nodes {
            room.add_node(node, &json!({})).await?;
        }
        Ok(room)
    }

    /// The settings with one driver, this room's own; `driver` says more about it.
    pub(crate) fn settings(&self, driver: &Value) -> Result<Settings> {
        let mut driver = driver.clone();
        driver["name"] = self.driver().into();
        driver["selectedNodeAnnotation"] = SELECTED.into();
        driver["initialNodeAttribute"] = INITIAL.into();
        driver["failoverModeAttribute"] = FAILOVER_MODE.into();
        // Whoever looks after nodes that are gone looks at volumes of all drivers, and others test here, too.
        Ok(serde_json::from_value(json!({"drivers": [driver], "nodeGone": "off"}))?)
    }

    pub(crate) fn driver(&self) -> String {
        format!("{}.example.dev", self.namespace)
    }

    pub(crate) async fn start(&mut self, settings: Settings) -> Result<()> {
        let values = json!({"features": ["placement"], "namespace": self.namespace});
        let Means { client, watches, recorder, .. } =
            self.process.start(&self.cluster, &self.namespace, &values, REPORTER).await?;
        let caches = caches(&settings);
        let feature = Placement::new(&Context {
            caches: caches.clone(),
            client,
            recorder,
            settings: Arc::new(settings),
            registry: self.process.registry.clone(),
            counts: Counts::new(&self.process.registry),
        });
        self.process.spawn(watches.feed(&caches.pods));
        self.process.spawn(watches.feed(&caches.claims));
        self.process.spawn(watches.feed_cluster_scoped(&caches.classes));
        self.process.spawn(watches.feed_cluster_scoped(&caches.volumes));
        self.process.spawn(watches.feed_cluster_scoped(&caches.nodes));
        self.process.spawn(async move { feature.run(CancellationToken::new()).await });
        Ok(())
    }

    /// A name that no other test uses for what lives in no namespace.
    pub(crate) fn own(&self, name: &str) -> String {
        format!("{}-{name}", self.namespace)
    }

    /// A node that only this room's pods may run on, and waits until it is Ready. kwok looks after it.
    pub(crate) async fn add_node(&self, name: &str, labels: &Value) -> Result<()> {
        let name = self.own(name);
        let mut node = json!({
            "metadata": {"name": name, "labels": {
                HOSTNAME: name, ROOM: self.namespace, "testbed.claimkeeper.dev/kubelet": "kwok",
            }},
            "spec": {"taints": [{"key": ROOM, "value": self.namespace, "effect": "NoSchedule"}]},
        });
        merge(&mut node["metadata"]["labels"], labels);
        self.nodes.create(&PostParams::default(), &serde_json::from_value(node)?).await?;
        eventually(&format!("node {name} to be usable"), async || {
            let node = serde_json::to_value(self.nodes.get(&name).await?)?;
            let ready = node["status"]["conditions"].as_array().into_iter().flatten();
            ensure!(ready.into_iter().any(|found| found["type"] == "Ready" && found["status"] == "True"), "not Ready");
            let taints = node["spec"]["taints"].as_array().map_or(0, Vec::len);
            ensure!(taints == 1, "it has taints {}", node["spec"]["taints"]);
            Ok(())
        })
        .await
    }

    pub(crate) async fn remove_node(&self, name: &str) -> Result<()> {
        self.cluster.remove_node(&self.own(name)).await
    }

    /// A volume of the room's driver and the claim that has it, both called alike, bound to each other.
    pub(crate) async fn create_volume(&self, name: &str, change: &Value) -> Result<PersistentVolume> {
        let mut volume = json!({
            "metadata": {"name": self.own(name)},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": self.namespace,
                "claimRef": {"namespace": self.namespace, "name": name},
                "csi": {"driver": self.driver(), "volumeHandle": format!("disks#{}", self.own(name))},
            },
        });
        merge(&mut volume, change);
        let modes = volume["spec"]["accessModes"].clone();
        self.volumes.create(&PostParams::default(), &serde_json::from_value(volume)?).await?;
        let claim = json!({
            "metadata": {"name": name},
            "spec": {
                "storageClassName": self.namespace,
                "volumeName": self.own(name),
                "accessModes": modes,
                "resources": {"requests": {"storage": "1Gi"}},
            },
        });
        self.claims.create(&PostParams::default(), &serde_json::from_value(claim)?).await?;
        eventually(&format!("claim {name} to be bound"), async || {
            let volume = self.volumes.get(&self.own(name)).await?;
            let phase = |object: Value| object["status"]["phase"].as_str().map(str::to_owned);
            let found =
                [phase(serde_json::to_value(&volume)?), phase(serde_json::to_value(self.claims.get(name).await?)?)];
            ensure!(found.iter().all(|phase| phase.as_deref() == Some("Bound")), "they are {found:?}");
            Ok(volume)
        })
        .await
    }

    /// What says that a volume was made on this node of the room.
    pub(crate) fn made_on(&self, node: &str) -> Value {
        json!({"spec": {"csi": {"volumeAttributes": {INITIAL: self.own(node)}}}})
    }

    /// The same for one that must not be left.
    pub(crate) fn durable_on(&self, node: &str) -> Value {
        json!({"spec": {"csi": {"volumeAttributes": {INITIAL: self.own(node), FAILOVER_MODE: "durability"}}}})
    }

    /// A pod with one claim, which only this room's nodes take.
    pub(crate) async fn create_pod(&self, name: &str, claim: &str, change: &Value) -> Result<Pod> {
        let mut pod = json!({
            "metadata": {"name": name},
            "spec": {
                "restartPolicy": "Always",
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "main", "image": "app"}],
                "nodeSelector": {ROOM: self.namespace},
                "tolerations": [{"key": ROOM, "operator": "Exists"}],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
            },
        });
        merge(&mut pod, change);
        Ok(self.pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?)
    }

    /// The same, on one node.
    pub(crate) async fn run_pod(&self, name: &str, claim: &str, node: &str) -> Result<Pod> {
        let selector = json!({"spec": {"nodeSelector": {HOSTNAME: self.own(node)}}});
        self.create_pod(name, claim, &selector).await?;
        let pod = self.until_running(name).await?;
        assert_eq!(node_of(&pod), Some(self.own(node)));
        Ok(pod)
    }

    pub(crate) async fn until_running(&self, name: &str) -> Result<Pod> {
        eventually(&format!("pod {name} to run"), async || {
            let pod = self.pods.get(name).await?;
            let status = pod.status.clone().unwrap_or_default();
            ensure!(status.phase.as_deref() == Some("Running"), "it is {:?}, {:?}", status.phase, status.conditions);
            Ok(pod)
        })
        .await
    }

    pub(crate) async fn delete_pod(&self, name: &str) -> Result<()> {
        match self.pods.delete(name, &DeleteParams::default().grace_period(0)).await {
            // Kubernetes deletes pods by itself whose node is not there.
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            deleted => drop(deleted?),
        }
        eventually(&format!("the end of pod {name}"), async || {
            ensure!(self.pods.get_opt(name).await?.is_none(), "it is there");
            Ok(())
        })
        .await
    }

    pub(crate) async fn annotate_volume(&self, name: &str, annotations: &Value) -> Result<()> {
        let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
        self.volumes.patch(&self.own(name), &PatchParams::default(), &patch).await?;
        Ok(())
    }

    pub(crate) async fn annotate_class(&self, annotations: &Value) -> Result<()> {
        let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
        self.classes.patch(&self.namespace, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Waits until this was decided at least so often.
    pub(crate) async fn until_decided(&self, decision: &str, reason: &str, times: u64) -> Result<()> {
        eventually(&format!("the decision {decision}, {reason}"), async || {
            let found = self.decided(decision, reason);
            ensure!(found >= times, "decided {found} times");
            Ok(())
        })
        .await
    }

    /// How often this was decided.
    pub(crate) fn decided(&self, decision: &str, reason: &str) -> u64 {
        self.process.decided("placement", decision, reason)
    }

    /// Waits until the operator has written these objects, and no others.
    pub(crate) async fn until_written(&self, objects: &[&str]) -> Result<()> {
        let user = format!("system:serviceaccount:{}:claimkeeper", self.namespace);
        eventually("the audit log to have what was written", async || {
            let requests = self.cluster.audit_log().user(user.clone()).requests()?;
            let refused: Vec<_> = requests.iter().filter(|request| request.code() == Some(403)).collect();
            ensure!(refused.is_empty(), "{refused:?}");
            let writes = requests.into_iter().filter(|request| request.verb == "patch" && request.code() == Some(200));
            let written = writes.filter_map(|request| request.object_ref).filter(|object| object.resource != "events");
            let mut written: Vec<String> =
                written.map(|object| format!("{}/{}", object.resource, object.name)).collect();
            written.sort();
            // Saying again what is there already changes nothing.
            written.dedup();
            ensure!(written == objects, "there are {written:?}");
            Ok(())
        })
        .await
    }
}

fn caches(settings: &Settings) -> Caches {
    let known = settings.clone();
    let interests: Vec<Interest<Volume>> = vec![Box::new(move |volume| placement::interesting_volume(volume, &known))];
    let known = settings.clone();
    let volumes = Store::trimmed(interests, placement::INDEXES_OF_VOLUMES.into(), move |volume: &mut Volume| {
        volume.keep_only(|key| known.reads(key));
    });
    let known = settings.clone();
    let nodes = Store::trimmed(
        vec![Box::new(|_| true)],
        placement::INDEXES_OF_NODES.into(),
        move |node: &mut cluster::Node| {
            node.keep_only(|key| known.is_node_key(key));
        },
    );
    Caches {
        pods: Store::new(vec![placement::interesting_pod], placement::INDEXES_OF_PODS.into()),
        claims: Store::new(vec![|_| true], vec![]),
        classes: Store::new(vec![|_| true], vec![]),
        volumes,
        nodes,
    }
}

pub(crate) fn node_of(pod: &Pod) -> Option<String> {
    pod.spec.as_ref()?.node_name.clone()
}

/// The note on an object.
pub(crate) fn note_of(object: &impl ResourceExt) -> Option<Value> {
    object.annotations().get(NOTE).map(|text| serde_json::from_str(text).unwrap())
}
