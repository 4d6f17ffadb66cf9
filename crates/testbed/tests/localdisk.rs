//! The stand-in for a driver of local disks, among the real controllers and the real scheduler.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
    events::v1::Event,
    storage::v1::StorageClass,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::json;
use testbed::{Cluster, ControlPlane, LOCALDISK, LocalDisks, MODE, Options, eventually};

const CURRENT_NODE: &str = "localdisk.csi.acstor.io/selected-node";
const INITIAL_NODE: &str = "localdisk.csi.acstor.io/selected-initial-node";

/// A namespace with claims on local disks.
struct Shop {
    disks: LocalDisks,
    namespace: String,
    classes: Api<StorageClass>,
    claims: Api<PersistentVolumeClaim>,
    volumes: Api<PersistentVolume>,
    pods: Api<Pod>,
    client: Client,
}

impl Shop {
    async fn open(cluster: &Cluster) -> Result<Self> {
        let (client, namespace) = (cluster.admin().await?, cluster.create_namespace("localdisk").await?);
        Ok(Self {
            disks: LocalDisks::start(cluster, &namespace).await?,
            classes: Api::all(client.clone()),
            claims: Api::namespaced(client.clone(), &namespace),
            volumes: Api::all(client.clone()),
            pods: Api::namespaced(client.clone(), &namespace),
            namespace,
            client,
        })
    }

    fn class(&self, mode: &str) -> String {
        format!("{mode}-{}", self.namespace)
    }

    /// A class of this mode, a claim and a pod that are both named so, and the volume that they get.
    async fn bind(&self, mode: &str) -> Result<PersistentVolume> {
        let class = json!({
            "metadata": { "name": self.class(mode) },
            "provisioner": LOCALDISK,
            "parameters": { MODE: mode, "volumeGroup": "containerstorage" },
            "volumeBindingMode": "WaitForFirstConsumer",
        });
        self.classes.create(&PostParams::default(), &serde_json::from_value(class)?).await?;
        let claim = json!({
            "metadata": { "name": mode },
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": self.class(mode),
                "resources": { "requests": { "storage": "1Gi" } },
            },
        });
        self.claims.create(&PostParams::default(), &serde_json::from_value(claim)?).await?;
        self.run_pod(mode, mode, None).await?;
        let claim = self.claims.get(mode).await?;
        let name = claim.spec.and_then(|spec| spec.volume_name).context("a pod runs without its volume")?;
        eventually("the volume to be Bound", async || self.expect_phase(&name, "Bound").await).await?;
        Ok(self.volumes.get(&name).await?)
    }

    /// Runs a pod with a claim, where it is to be or the scheduler wants it.
    async fn run_pod(&self, name: &str, claim: &str, node: Option<&str>) -> Result<()> {
        let pod = json!({
            "metadata": { "name": name },
            "spec": {
                "nodeName": node,
                "containers": [{ "name": "main", "image": "app" }],
                "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": claim } }],
            },
        });
        self.pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        eventually("the pod to run", async || {
            let status = self.pods.get(name).await?.status.unwrap_or_default();
            ensure!(status.phase.as_deref() == Some("Running"), "{status:?}");
            Ok(())
        })
        .await
    }

    async fn end_pod(&self, name: &str) -> Result<()> {
        let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        self.pods.delete(name, &at_once).await?;
        eventually("the pod to go", async || {
            ensure!(self.pods.get_opt(name).await?.is_none(), "it is there");
            Ok(())
        })
        .await
    }

    async fn expect_phase(&self, volume: &str, phase: &str) -> Result<()> {
        let status = self.volumes.get(volume).await?.status.unwrap_or_default();
        ensure!(status.phase.as_deref() == Some(phase), "{status:?}");
        Ok(())
    }

    async fn until_gone(&self, volume: &str) -> Result<()> {
        eventually("the volume to go", async || {
            let volume = self.volumes.get_opt(volume).await?;
            ensure!(volume.is_none(), "it is there: {volume:?}");
            Ok(())
        })
        .await
    }

    /// Waits until a volume is blank on this node.
    async fn until_moved(&self, volume: &str, node: &str, generation: u32) -> Result<()> {
        eventually("the volume to be made anew", async || {
            let noted = self.volumes.get(volume).await?.annotations().get(CURRENT_NODE).cloned();
            ensure!(noted.as_deref() == Some(node), "it is noted at {noted:?}");
            let content = self.disks.read(volume).context("there is no such volume")?;
            ensure!((content.node.as_str(), content.generation) == (node, generation), "{content:?}");
            ensure!(content.text.is_empty(), "{content:?}");
            Ok(())
        })
        .await
    }

    /// How often it was told on a claim that its volume is blank.
    async fn told(&self, claim: &str) -> Result<usize> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), &self.namespace);
        let events = events.list(&ListParams::default()).await?.into_iter();
        let about = |event: &Event| event.regarding.as_ref().and_then(|object| object.name.clone());
        let empty = |event: &Event| event.reason.as_deref() == Some("ProvisionedEmptyVolume");
        let told = events.filter(|event| empty(event) && about(event).as_deref() == Some(claim));
        // The same news again is counted on the event that is there.
        let times = told.map(|event| event.series.map_or(1, |series| usize::try_from(series.count).unwrap_or(1)));
        Ok(times.sum())
    }
}

fn attribute(volume: &PersistentVolume, key: &str) -> Option<String> {
    volume.spec.clone()?.csi?.volume_attributes?.remove(key)
}

fn other_than<'a>(node: &str, nodes: [&'a str; 2]) -> &'a str {
    if nodes[0] == node { nodes[1] } else { nodes[0] }
}

#[tokio::test]
async fn a_volume_beside_a_webhook_is_made_blank_wherever_its_pod_runs() -> Result<()> {
    let cluster = testbed::shared().await?;
    let shop = Shop::open(&cluster).await?;
    let volume = shop.bind("webhook").await?;
    let (name, home) = (volume.name_any(), shop.disks.read(&volume.name_any()).context("no content")?.node);
    assert_eq!(attribute(&volume, INITIAL_NODE).as_ref(), Some(&home));
    assert_eq!(attribute(&volume, "volumeGroup").as_deref(), Some("containerstorage"));
    assert_eq!(volume.annotations().get(CURRENT_NODE), None);
    let labels = Api::<Node>::all(shop.client.clone()).get(&home).await?.metadata.labels.unwrap_or_default();
    assert_eq!(labels["topology.localdisk.csi.acstor.io/node"], home);
    shop.disks.write(&name, "precious")?;

    let elsewhere = other_than(&home, ["node-1", "node-2"]);
    shop.end_pod("webhook").await?;
    shop.run_pod("webhook", "webhook", Some(elsewhere)).await?;
    shop.until_moved(&name, elsewhere, 2).await?;
    shop.end_pod("webhook").await?;
    shop.run_pod("webhook", "webhook", Some(&home)).await?;
    shop.until_moved(&name, &home, 3).await?;
    eventually("both to be told", async || {
        let told = shop.told("webhook").await?;
        ensure!(told == 2, "it was told {told} times");
        Ok(())
    })
    .await?;

    // A pod that finds its volume where it was changes nothing: what the next one finds is one younger. There is no fence.
    shop.end_pod("webhook").await?;
    shop.run_pod("webhook", "webhook", Some(&home)).await?;
    shop.run_pod("second", "webhook", Some(elsewhere)).await?;
    shop.until_moved(&name, elsewhere, 4).await?;
    shop.end_pod("webhook").await?;
    shop.end_pod("second").await?;

    shop.claims.delete("webhook", &DeleteParams::default()).await?;
    shop.until_gone(&name).await?;
    assert_eq!(shop.disks.read(&name), None);
    shop.classes.delete(&shop.class("webhook"), &DeleteParams::default()).await?;
    Ok(())
}

#[tokio::test]
async fn what_is_tied_to_a_node_that_is_gone_stays_and_what_is_not_goes() -> Result<()> {
    let cluster = ControlPlane::start(Options::default().name("localdisk").nodes(1).provisioner(false)).await?;
    let shop = Shop::open(&cluster).await?;
    let (tied, free) = (shop.bind("affinity").await?, shop.bind("webhook").await?);
    let expression = json!({"key": "topology.localdisk.csi.acstor.io/node", "operator": "In", "values": ["node-1"]});
    let required = &serde_json::to_value(&tied)?["spec"]["nodeAffinity"]["required"];
    assert_eq!(*required, json!({"nodeSelectorTerms": [{"matchExpressions": [expression]}]}));
    assert_eq!(attribute(&tied, INITIAL_NODE), None);

    cluster.remove_node("node-1").await?;
    for mode in ["affinity", "webhook"] {
        shop.end_pod(mode).await?;
        shop.claims.delete(mode, &DeleteParams::default()).await?;
        if mode == "affinity" {
            let released = async || shop.expect_phase(&tied.name_any(), "Released").await;
            eventually("the volume to be Released", released).await?;
        }
    }
    // The driver looks at one after the other, so it has seen the tied one.
    shop.until_gone(&free.name_any()).await?;
    shop.expect_phase(&tied.name_any(), "Released").await?;
    cluster.add_node("node-1", &[]).await?;
    shop.until_gone(&tied.name_any()).await
}
