//! Nodes that can be lost, `StatefulSet`s that live on them, and the operator.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
    events::v1::Event,
    storage::v1::StorageClass,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::{Value, json};
use testbed::{ControlPlane, LOCALDISK, LocalDisks, Options, Service, within};
use tokio::time::timeout;

use crate::home::{Home, Replica, ask};

/// An address that API servers do not take for their own machine's; see the scene of the other tests.
const HOST: &str = "0.0.0.0";

/// Where the operator notes which machine has a volume.
const HOME_NODE: &str = "claimkeeper.dev/home-node";

/// Several controllers take turns after a loss, on a machine that may be busy with other tests.
pub(crate) const LONG: Duration = Duration::from_mins(4);

pub(crate) struct Stage {
    // Declared in the order in which they must end: the operator and the driver before their cluster.
    pub(crate) replica: Replica,
    pub(crate) disks: LocalDisks,
    _service: Service,
    pub(crate) shop: Home,
    pub(crate) volumes: Api<PersistentVolume>,
    pub(crate) nodes: Api<Node>,
    client: Client,
    pub(crate) cluster: ControlPlane,
}

impl Stage {
    /// Nodes `node-1` and up, each a machine of its own, and an operator with this configuration of `placement`.
    pub(crate) async fn open(name: &str, nodes: usize, placement: &Value) -> Result<Self> {
        let options = Options::default().name(name).nodes(nodes).provisioner(false);
        let cluster = ControlPlane::start(options).await?;
        let client = cluster.admin().await?;
        let found: Api<Node> = Api::all(client.clone());
        for node in found.list(&ListParams::default()).await? {
            let machine = json!({"spec": {"providerID": machine(&node.name_any())}});
            found.patch(&node.name_any(), &PatchParams::default(), &Patch::Merge(machine)).await?;
        }
        let shop = Home::on(cluster.cluster(), "shop").await?;
        let disks = LocalDisks::start(&cluster, &shop.namespace).await?;
        let (service, replica) = install(&cluster, placement).await?;
        Ok(Self {
            replica,
            disks,
            _service: service,
            shop,
            volumes: Api::all(client.clone()),
            nodes: found,
            client,
            cluster,
        })
    }

    /// A class of local disks.
    pub(crate) async fn class(&self, name: &str, parameters: &Value) -> Result<()> {
        let class = json!({
            "metadata": {"name": name},
            "provisioner": LOCALDISK,
            "parameters": parameters,
            "volumeBindingMode": "WaitForFirstConsumer",
        });
        let classes: Api<StorageClass> = Api::all(self.client.clone());
        classes.create(&PostParams::default(), &serde_json::from_value(class)?).await?;
        Ok(())
    }

    /// A `StatefulSet` with one volume for each replica, which all start at once.
    pub(crate) async fn stateful_set(&self, name: &str, class: &str, replicas: usize) -> Result<()> {
        let labels = json!({"app": name});
        let claim = json!({
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": class,
            "resources": {"requests": {"storage": "1Gi"}},
        });
        let set = json!({
            "metadata": {"name": name},
            "spec": {
                "replicas": replicas,
                "serviceName": name,
                "podManagementPolicy": "Parallel",
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {
                        "containers": [{
                            "name": "main",
                            "image": "registry.example/main",
                            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                        }],
                    },
                },
                "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": claim}],
            },
        });
        let sets: Api<StatefulSet> = Api::namespaced(self.client.clone(), &self.shop.namespace);
        sets.create(&PostParams::default(), &serde_json::from_value(set)?).await?;
        self.until_settled(&[(name, replicas)]).await
    }

    /// Waits until every replica runs on a node that is there, with a volume that is bound to a claim which nobody wants to end.
    pub(crate) async fn until_settled(&self, sets: &[(&str, usize)]) -> Result<()> {
        let replicas: Vec<String> =
            sets.iter().flat_map(|(set, count)| (0..*count).map(move |ordinal| format!("{set}-{ordinal}"))).collect();
        within(LONG, "every replica to run with its volume", async || {
            let nodes = self.living_nodes().await?;
            for replica in &replicas {
                self.check_settled(replica, &nodes).await.with_context(|| format!("replica {replica}"))?;
            }
            Ok::<_, anyhow::Error>(())
        })
        .await
    }

    async fn check_settled(&self, replica: &str, nodes: &[String]) -> Result<()> {
        let pod = self.shop.pods.get(replica).await?;
        let (spec, status) = (pod.spec.unwrap_or_default(), pod.status.unwrap_or_default());
        ensure!(status.phase.as_deref() == Some("Running"), "the pod is {:?}", status.conditions);
        ensure!(pod.metadata.deletion_timestamp.is_none(), "the pod is about to end");
        ensure!(spec.node_name.as_ref().is_some_and(|node| nodes.contains(node)), "its node is {:?}", spec.node_name);
        let claim = self.claim(replica).await?;
        ensure!(claim.metadata.deletion_timestamp.is_none(), "its claim is about to end");
        let phase = claim.status.and_then(|status| status.phase);
        ensure!(phase.as_deref() == Some("Bound"), "its claim is {phase:?}");
        let volume = self.volume(replica).await?;
        let claimed = volume.spec.and_then(|spec| spec.claim_ref).and_then(|claim| claim.uid);
        ensure!(claimed == claim.metadata.uid, "its volume is the one of another claim");
        ensure!(volume.metadata.deletion_timestamp.is_none(), "its volume is about to end");
        Ok(())
    }

    pub(crate) async fn claim(&self, replica: &str) -> Result<PersistentVolumeClaim> {
        Ok(self.shop.claims.get(&format!("data-{replica}")).await?)
    }

    pub(crate) async fn volume(&self, replica: &str) -> Result<PersistentVolume> {
        let claim = self.claim(replica).await?;
        let volume = claim.spec.and_then(|spec| spec.volume_name).context("its claim has no volume")?;
        Ok(self.volumes.get(&volume).await?)
    }

    /// Where a replica runs.
    pub(crate) async fn node(&self, replica: &str) -> Result<String> {
        let pod = self.shop.pods.get(replica).await?;
        pod.spec.and_then(|spec| spec.node_name).with_context(|| format!("{replica} is nowhere"))
    }

    pub(crate) async fn living_nodes(&self) -> Result<Vec<String>> {
        Ok(self.nodes.list(&ListParams::default()).await?.iter().map(ResourceExt::name_any).collect())
    }

    /// A new machine.
    pub(crate) async fn add_node(&self, name: &str) -> Result<()> {
        self.cluster.add_machine(name, Some(&machine(name)), &[]).await
    }

    /// Ends pods, as who takes a dead machine away does; Kubernetes itself would take a minute.
    pub(crate) async fn end_pods(&self, which: impl Fn(&Pod) -> bool) -> Result<()> {
        for pod in self.shop.pods.list(&ListParams::default()).await?.into_iter().filter(which) {
            let preconditions = Some(Preconditions { uid: pod.uid(), resource_version: None });
            let at_once = DeleteParams { grace_period_seconds: Some(0), preconditions, ..DeleteParams::default() };
            unless_gone(self.shop.pods.delete(&pod.name_any(), &at_once).await)?;
        }
        Ok(())
    }

    /// Restarts a replica, and waits until the next pod of its name runs.
    pub(crate) async fn restart(&self, set: &str, replicas: usize, replica: &str) -> Result<Pod> {
        let old = self.shop.pods.get(replica).await?.uid();
        self.end_pods(|pod| pod.uid() == old).await?;
        within(LONG, "the next pod", async || {
            let now = self.shop.pods.get(replica).await?.uid();
            ensure!(now != old, "it is the old one");
            Ok(())
        })
        .await?;
        self.until_settled(&[(set, replicas)]).await?;
        Ok(self.shop.pods.get(replica).await?)
    }

    /// Waits until it is noted which machines these nodes are, on every volume that is tied to one of them and in use.
    pub(crate) async fn until_noted(&self, nodes: &[String]) -> Result<()> {
        within(LONG, "the machines to be noted", async || {
            for volume in self.volumes.list(&ListParams::default()).await? {
                let is_bound = volume.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
                let is_there = tied_to(&volume).is_some_and(|node| nodes.contains(&node)) && is_bound;
                ensure!(!is_there || volume.annotations().contains_key(HOME_NODE), "{} is not", volume.name_any());
            }
            Ok(())
        })
        .await
    }

    /// A node that vanishes in the moment in which it gets a volume leaves nothing by which anybody could know it again, so an
    /// administrator is told to delete claim and volume by hand. Returns such volumes.
    pub(crate) async fn give_up_unnoted(&self) -> Result<Vec<String>> {
        let (living, mut given_up) = (self.living_nodes().await?, Vec::new());
        for volume in self.volumes.list(&ListParams::default()).await? {
            let is_lost = tied_to(&volume).is_some_and(|node| !living.contains(&node));
            if !is_lost || volume.annotations().contains_key(HOME_NODE) {
                continue;
            }
            let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.clone()).unwrap_or_default();
            let only = Some(Preconditions { uid: claim.uid, resource_version: None });
            let only = DeleteParams { preconditions: only, ..DeleteParams::default() };
            unless_gone(self.shop.claims.delete(&claim.name.unwrap_or_default(), &only).await)?;
            let name = volume.name_any();
            if volume.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Released") {
                unless_gone(self.volumes.delete(&name, &DeleteParams::default()).await)?;
                let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
                unless_gone(self.volumes.patch(&name, &PatchParams::default(), &patch).await)?;
            }
            given_up.push(name);
        }
        Ok(given_up)
    }

    /// Type and reason of what the operator told about an object, with how often.
    pub(crate) async fn told(&self, kind: &str, name: &str) -> Result<BTreeMap<(String, String), i32>> {
        let events: Api<Event> = Api::all(self.client.clone());
        let mut told = BTreeMap::new();
        for event in events.list(&ListParams::default()).await? {
            let about = event.regarding.unwrap_or_default();
            let ours = event.reporting_controller.as_deref().is_some_and(|who| who.starts_with("claimkeeper.dev/"));
            if ours && about.kind.as_deref() == Some(kind) && about.name.as_deref() == Some(name) {
                let key = (event.type_.unwrap_or_default(), event.reason.unwrap_or_default());
                *told.entry(key).or_default() += event.series.map_or(1, |series| series.count);
            }
        }
        Ok(told)
    }

    /// What the chart does not grant is a mistake, also if it did no harm.
    pub(crate) fn check_rights(&self) -> Result<()> {
        let requests = self.cluster.audit_log().user(&self.replica.user).requests()?;
        let refused: Vec<_> = requests.into_iter().filter(|request| request.code() == Some(403)).collect();
        ensure!(refused.is_empty(), "the chart grants too little: {refused:?}");
        Ok(())
    }
}

/// Installs the chart, with a webhook unless the configuration has none, and starts the operator.
async fn install(cluster: &ControlPlane, placement: &Value) -> Result<(Service, Replica)> {
    let home = Home::on(cluster.cluster(), "storage").await?;
    let mut service = Service::start(Duration::ZERO).await?;
    let with_webhook = placement["podWebhook"] != json!(false);
    let values = json!({
        "features": ["placement"],
        "leaderElection": {"name": "shared"},
        "placement": {"deletes": placement["nodeGone"] == "delete"},
        "webhook": {
            "url": format!("https://{HOST}:{}", service.address().port()),
            "enforceEphemeral": {"enabled": false},
            // A busy machine is no failure.
            "hyperconverged": {"enabled": with_webhook, "failurePolicy": "Fail", "timeoutSeconds": 30},
        },
    });
    let config = json!({
        "features": ["placement"],
        "namespace": null,
        "placement": placement,
        "webhook": {"listen": "127.0.0.1:0", "requestTimeout": "25s", "drainDelay": "0s", "certificates": {"names": [HOST]}},
    });
    let replica = home.install("claimkeeper", &values, config).await?.start().await?;
    if with_webhook {
        let (admin, webhook) = (replica.admin, replica.webhook.context("it answers no API server")?);
        service.add(webhook, move || async move {
            matches!(timeout(Duration::from_secs(30), ask(admin, "/readyz")).await, Ok(Ok((200, _))))
        });
    }
    replica.until_ready().await?;
    home.until_leader_is("claimkeeper").await?;
    Ok((service, replica))
}

/// The one node that a volume cannot leave.
pub(crate) fn tied_to(volume: &PersistentVolume) -> Option<String> {
    let spec = serde_json::to_value(&volume.spec).ok()?;
    let expression = &spec["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"][0];
    expression["values"][0].as_str().map(str::to_owned)
}

/// Others may have been faster.
fn unless_gone<T>(outcome: kube::Result<T>) -> kube::Result<()> {
    match outcome {
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
        outcome => outcome.map(drop),
    }
}

fn machine(name: &str) -> String {
    format!("testbed://{name}")
}
