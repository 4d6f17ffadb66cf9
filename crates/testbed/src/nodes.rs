//! Nodes as objects, most of them without machines: kwok keeps these Ready and runs their pods.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Node, NodeSpec, Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams},
    runtime::{conditions, wait},
};
use serde_json::json;

use crate::{Cluster, Component};

/// Marks the nodes that kwok looks after.
pub(crate) const KWOK_NODE_LABEL: &str = "testbed.claimkeeper.dev/kubelet=kwok";
const READY_DEADLINE: Duration = Duration::from_secs(30);

impl Cluster {
    /// Adds a node and waits until it is Ready. It has the labels a kubelet would set, and these.
    pub async fn add_node(&self, name: &str, labels: &[(&str, &str)]) -> Result<()> {
        self.add_machine(name, None, labels).await
    }

    /// Adds a node that says from the start which machine it is, by what its cloud calls it.
    pub async fn add_machine(&self, name: &str, provider_id: Option<&str>, labels: &[(&str, &str)]) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.admin().await?);
        let mut all_labels = BTreeMap::from([
            ("kubernetes.io/hostname".to_owned(), name.to_owned()),
            ("kubernetes.io/os".to_owned(), "linux".to_owned()),
            ("kubernetes.io/arch".to_owned(), "amd64".to_owned()),
        ]);
        all_labels.extend(KWOK_NODE_LABEL.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned())));
        all_labels.extend(labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
        let metadata = ObjectMeta { name: Some(name.to_owned()), labels: Some(all_labels), ..ObjectMeta::default() };
        let spec = NodeSpec { provider_id: provider_id.map(str::to_owned), ..NodeSpec::default() };
        let node = Node { metadata, spec: Some(spec), ..Node::default() };
        nodes.create(&PostParams::default(), &node).await.with_context(|| format!("cannot create the node {name}"))?;
        self.wait_for_node(name, Component::Kwok).await
    }

    /// Waits until a node is Ready, which this component sees to.
    pub(crate) async fn wait_for_node(&self, name: &str, kubelet: Component) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.admin().await?);
        let ready = wait::await_condition(nodes, name, |node: Option<&Node>| node.is_some_and(is_ready));
        tokio::time::timeout(READY_DEADLINE, ready).await.with_context(|| {
            let log = self.logs(kubelet);
            format!("the node {name} was not Ready after {} s; see {}", READY_DEADLINE.as_secs(), log.display())
        })??;
        Ok(())
    }

    /// Deletes a node object, like an administrator who takes a dead machine out of the cluster.
    pub async fn remove_node(&self, name: &str) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.admin().await?);
        let deleted = nodes.delete(name, &DeleteParams::default()).await;
        let deleted = deleted.with_context(|| format!("cannot delete the node {name}"))?;
        if let Some(uid) = deleted.left().and_then(|node| node.uid()) {
            let gone = wait::await_condition(nodes, name, conditions::is_deleted(&uid));
            tokio::time::timeout(READY_DEADLINE, gone)
                .await
                .with_context(|| format!("the node {name} did not go"))??;
        }
        Ok(())
    }

    /// Says how a pod ended (`Succeeded`, `Failed`), or that it runs; kwok itself only ever makes pods Running.
    pub async fn set_pod_phase(&self, namespace: &str, name: &str, phase: &str) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.admin().await?, namespace);
        let ready = if phase == "Running" { "True" } else { "False" };
        let status = json!({ "status": {
            "phase": phase,
            "conditions": [{ "type": "Ready", "status": ready }, { "type": "ContainersReady", "status": ready }],
        }});
        // Strategic, because a merge patch would drop the other conditions.
        pods.patch_status(name, &PatchParams::default(), &Patch::Strategic(status))
            .await
            .with_context(|| format!("cannot set the phase of the pod {namespace}/{name} to {phase}"))?;
        Ok(())
    }
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
