//! What users of the cluster notice of an installation: one real pod or claim for every feature.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use testbed::{BUSYBOX, LOCALDISK, within};

use crate::place::{PATIENCE, Place, RELEASE, SHOP};

/// Of disks that are lost with their node.
const LOCAL: &str = "local";
/// Of volumes that are kept.
const KEPT: &str = "kept";
const LOCAL_VOLUME: &str = "nvme";

impl Place {
    /// The classes, a local volume with its claim, and the right of pods to have claims made.
    pub(crate) async fn prepare_shop(&self) -> Result<()> {
        let class = |name: &str, provisioner: &str| {
            json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
                "provisioner": provisioner, "reclaimPolicy": "Retain", "volumeBindingMode": "WaitForFirstConsumer",
            })
        };
        let volume = json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": LOCAL_VOLUME},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": LOCAL,
                "claimRef": {"namespace": SHOP, "name": "data"},
                "csi": {
                    "driver": LOCALDISK, "volumeHandle": LOCAL_VOLUME,
                    "volumeAttributes": {"localdisk.csi.acstor.io/selected-initial-node": "node-1"},
                },
            },
        });
        let mut data = claim("data");
        data["spec"]["volumeName"] = json!(LOCAL_VOLUME);
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": "edit", "namespace": SHOP},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
            "subjects": [{"kind": "ServiceAccount", "namespace": SHOP, "name": "default"}],
        });
        for object in [class(LOCAL, LOCALDISK), class(KEPT, testbed::PROVISIONER), volume, data, binding] {
            self.apply(&object).await?;
        }
        Ok(())
    }

    /// Every feature, noticed by those whom it is for. The suffix makes names new ones.
    pub(crate) async fn users_are_served(&self, suffix: &str) -> Result<()> {
        self.claims_on_local_storage_are_refused().await?;
        self.pods_are_told_where_their_volume_is().await?;
        tokio::try_join!(self.an_ephemeral_volume_can_be_written(suffix), self.a_volume_goes_on_to_the_next(suffix))?;
        Ok(())
    }

    async fn claims_on_local_storage_are_refused(&self) -> Result<()> {
        // Behind the readiness of a pod is the way of the Service to it, which takes a moment.
        within(PATIENCE, "the API server to ask", async || {
            let dry = self.kubectl_with(&["create", "--dry-run=server", "-f", "-"], &claim("careless")).await;
            let refusal = dry.err().map(|error| error.to_string()).unwrap_or_default();
            ensure!(refusal.contains("claims.enforcement.claimkeeper.dev"), "the claim is not refused: {refusal}");
            Ok(())
        })
        .await?;
        let mut accepting = claim("accepting");
        accepting["metadata"]["annotations"] = json!({"localdisk.csi.acstor.io/accept-ephemeral-storage": "true"});
        self.kubectl_with(&["create", "--dry-run=server", "-f", "-"], &accepting).await.map(drop)
    }

    pub(crate) async fn nobody_is_asked_about_claims(&self) -> Result<()> {
        self.kubectl_with(&["create", "--dry-run=server", "-f", "-"], &claim("careless")).await.map(drop)
    }

    async fn pods_are_told_where_their_volume_is(&self) -> Result<()> {
        let mut pod = pod("db");
        pod["spec"]["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
        within(PATIENCE, "the API server to ask about pods", async || {
            let answer = self.kubectl_with(&["create", "--dry-run=server", "-o", "json", "-f", "-"], &pod).await?;
            let answer: Value = serde_json::from_str(&answer)?;
            let wish =
                &answer["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"][0];
            let node = &wish["preference"]["matchExpressions"][0];
            ensure!(node["values"] == json!(["node-1"]), "the pod is sent to {wish}");
            Ok(())
        })
        .await
    }

    async fn an_ephemeral_volume_can_be_written(&self, suffix: &str) -> Result<()> {
        let name = format!("scratch-{suffix}");
        let mut pod = pod(&name);
        let template = json!({"spec": claim_spec(KEPT)});
        pod["spec"]["volumes"] = json!([{"name": "data", "ephemeral": {"volumeClaimTemplate": template}}]);
        self.apply(&pod).await?;
        self.until_it_has_written(&name).await?;
        self.until(&["get", &format!("pvc/{name}-data")], "{.metadata.ownerReferences[0].name}", &name).await
    }

    /// Made for a pod by its annotation, and free again once pod and claim are gone.
    async fn a_volume_goes_on_to_the_next(&self, suffix: &str) -> Result<()> {
        let name = format!("build-{suffix}");
        let mut pod = pod(&name);
        let template = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": claim_spec(KEPT)});
        pod["metadata"]["annotations"] = json!({
            "dynamic-pvc-provisioner.kubernetes.io/data.enabled": "true",
            "dynamic-pvc-provisioner.kubernetes.io/data.pvc": template.to_string(),
        });
        pod["spec"]["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": name}}]);
        self.apply(&pod).await?;
        self.until_it_has_written(&name).await?;
        let claim = ["-n", SHOP, "get", &format!("pvc/{name}"), "-o", "jsonpath={.spec.volumeName}"];
        let volume = format!("pv/{}", self.kubectl(&claim).await?);
        let label = r"{.metadata.labels.reclaimable-pv-releaser\.kubernetes\.io/managed-by}";
        self.until(&["get", &volume], label, "claimkeeper").await?;
        self.kubectl(&["-n", SHOP, "delete", &format!("pod/{name}")]).await?;
        self.until(&["get", &volume], "{.status.phase}", "Available").await?;
        // Not to be found by the next, who is to have one made.
        self.kubectl(&["delete", &volume]).await.map(drop)
    }

    async fn until_it_has_written(&self, pod: &str) -> Result<()> {
        self.until_said(&["exec", pod, "--", "cat", "/data/file"], "here\n").await
    }

    async fn until(&self, get: &[&str], path: &str, expected: &str) -> Result<()> {
        let output = format!("jsonpath={path}");
        let arguments: Vec<&str> = get.iter().chain(&["-o", &output]).copied().collect();
        self.until_said(&arguments, expected).await
    }

    async fn until_said(&self, arguments: &[&str], expected: &str) -> Result<()> {
        let arguments: Vec<&str> = ["-n", SHOP].iter().chain(arguments).copied().collect();
        let awaited = format!("{expected:?} from {arguments:?}");
        let outcome = within(PATIENCE, &awaited, async || {
            let found = self.kubectl(&arguments).await?;
            ensure!(found == expected, "it is {found:?}");
            Ok(())
        });
        if let Err(error) = outcome.await {
            let events = self.kubectl(&["-n", SHOP, "get", "events"]).await.unwrap_or_default();
            let logs = ["-n", RELEASE, "logs", "--selector=app.kubernetes.io/name=claimkeeper", "--tail=50"];
            let logs = self.kubectl(&logs).await.unwrap_or_default();
            return Err(error.context(format!("{events}\n{logs}")));
        }
        Ok(())
    }
}

fn claim_spec(class: &str) -> Value {
    json!({"accessModes": ["ReadWriteOnce"], "storageClassName": class, "resources": {"requests": {"storage": "1Gi"}}})
}

/// One on local storage that does not say that its author knows what that means.
fn claim(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": SHOP},
        "spec": claim_spec(LOCAL),
    })
}

/// A pod that writes to its volume and stays.
fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": SHOP},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "main", "image": BUSYBOX, "command": ["sh", "-c", "echo here > /data/file && sleep 1000000"],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }],
        },
    })
}
