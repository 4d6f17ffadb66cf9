//! A pod follows its local volume while the node is there; when the node is gone it starts anew elsewhere, and that is recorded.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use testbed::{LOCALDISK, LocalDisks, within};

use super::{PATIENCE, Stage, step, title};

const NAMESPACE: &str = "vault";
const CLASS: &str = "nvme";
const POD: &str = "db-0";
const CLAIM: &str = "data-db-0";

/// Keeps the pods of the other features off nodes that run nothing.
const TAINT: &str = "demo.claimkeeper.dev/objects";

/// The parts that matter, as a user would write them.
const ASKED_FOR: &str = "  $ kubectl --namespace vault apply -f db.yaml
    kind: StatefulSet
    metadata: {name: db}
    spec:
      volumeClaimTemplates:
        - metadata: {name: data, annotations: {localdisk.csi.acstor.io/accept-ephemeral-storage: \"true\"}}
          spec: {storageClassName: nvme, …, storage: 1Gi}
";

impl Stage {
    /// Beside a real node those that are only objects are for the pods of this step alone.
    pub(super) async fn reserve_nodes(&self) -> Result<()> {
        if self.has_real_node {
            let taint = format!("{TAINT}:NoSchedule");
            self.kubectl(&["taint", "nodes", "--selector", "testbed.claimkeeper.dev/kubelet=kwok", &taint]).await?;
        }
        Ok(())
    }

    pub(super) async fn a_pod_follows_its_volume(&self, operator: &Path) -> Result<LocalDisks> {
        title("placement: a volume on a disk of a node, free to be made anew elsewhere; but the data is only here");
        self.kubectl(&["create", "namespace", NAMESPACE]).await?;
        step("Standing in for the CSI driver localdisk.csi.acstor.io on nodes without machines");
        let disks = LocalDisks::start(&self.cluster, NAMESPACE).await?;
        self.apply(&json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {"name": CLASS},
            "provisioner": LOCALDISK, "volumeBindingMode": "WaitForFirstConsumer",
        }))
        .await?;
        println!("{ASKED_FOR}");
        self.apply(&stateful_set()).await?;
        self.until_it_runs(None).await?;
        let home = self.node_of_the_pod().await?;
        self.show_the_pod().await?;

        title("placement: the next pod is told where the volume is, so it finds its data");
        let uid = self.uid_of_the_pod().await?;
        self.present(&["--namespace", NAMESPACE, "delete", "pod", POD, "--wait=false"]).await?;
        self.until_it_runs(Some(&uid)).await?;
        ensure!(self.node_of_the_pod().await? == home, "the pod did not follow its volume");
        self.show_the_pod().await?;
        self.ask_why(operator, &[&format!("pod/{POD}"), "--namespace", NAMESPACE]).await?;
        Ok(disks)
    }

    pub(super) async fn what_was_lost_is_recorded(&self) -> Result<()> {
        title(
            "placement: the node is gone, and the data with it; the pod starts anew, and who needs to know can see it",
        );
        let (home, uid) = (self.node_of_the_pod().await?, self.uid_of_the_pod().await?);
        self.present(&["delete", "node", &home]).await?;
        self.present(&["--namespace", NAMESPACE, "delete", "pod", POD, "--force"]).await?;
        self.until_it_runs(Some(&uid)).await?;
        let recreations = r"jsonpath={.metadata.annotations.claimkeeper\.dev/blank-recreations}";
        self.until("the record", &["--namespace", NAMESPACE, "get", "pvc", CLAIM, "-o", recreations], "count").await?;
        self.show_the_pod().await?;
        let columns =
            r"custom-columns=CLAIM:.metadata.name,BLANK:.metadata.annotations.claimkeeper\.dev/blank-recreations";
        self.present(&["--namespace", NAMESPACE, "get", "pvc", CLAIM, "-o", columns]).await?;
        let blank = "involvedObject.kind=PersistentVolumeClaim,reason=VolumeRecreatedBlank";
        let events = ["--namespace", NAMESPACE, "get", "events", "--field-selector", blank, "-o"];
        let with = |output| [&events[..], &[output]].concat();
        self.until("the event", &with("jsonpath={.items[*].reason}"), "VolumeRecreatedBlank").await?;
        self.present(&with("custom-columns=TYPE:.type,REASON:.reason,CLAIM:.involvedObject.name,MESSAGE:.message"))
            .await
    }

    async fn show_the_pod(&self) -> Result<()> {
        let term = ".spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0]";
        let columns = format!(
            "custom-columns=POD:.metadata.name,STATUS:.status.phase,NODE:.spec.nodeName,\
             PREFERS:{term}.preference.matchExpressions[0].values[0],WEIGHT:{term}.weight"
        );
        self.present(&["--namespace", NAMESPACE, "get", "pod", POD, "-o", &columns]).await
    }

    async fn until_it_runs(&self, instead_of: Option<&str>) -> Result<()> {
        within(PATIENCE, "the database to run", async || {
            let shown = self.of_the_pod("{.status.phase} {.metadata.uid}").await?;
            let (phase, uid) = shown.split_once(' ').context("there is no pod")?;
            ensure!(phase == "Running" && Some(uid) != instead_of, "{shown}");
            Ok(())
        })
        .await
    }

    async fn node_of_the_pod(&self) -> Result<String> {
        self.of_the_pod("{.spec.nodeName}").await
    }

    async fn uid_of_the_pod(&self) -> Result<String> {
        self.of_the_pod("{.metadata.uid}").await
    }

    async fn of_the_pod(&self, path: &str) -> Result<String> {
        let output = format!("jsonpath={path}");
        let output = self.kubectl(&["--namespace", NAMESPACE, "get", "pod", POD, "-o", &output]).await?;
        Ok(String::from_utf8(output.stdout)?)
    }
}

fn stateful_set() -> serde_json::Value {
    let labels = json!({"app": "db"});
    let accepted = json!({"localdisk.csi.acstor.io/accept-ephemeral-storage": "true"});
    json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet",
        "metadata": {"name": "db", "namespace": NAMESPACE},
        "spec": {
            "serviceName": "db",
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "nodeSelector": {"testbed.claimkeeper.dev/kubelet": "kwok"},
                    "tolerations": [{"key": TAINT, "operator": "Exists"}],
                    "containers": [{
                        "name": "main", "image": "registry.example/db",
                        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                    }],
                },
            },
            "volumeClaimTemplates": [{
                "metadata": {"name": "data", "annotations": accepted},
                "spec": {
                    "storageClassName": CLASS,
                    "accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": {"storage": "1Gi"}},
                },
            }],
        },
    })
}
