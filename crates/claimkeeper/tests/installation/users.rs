//! What users of the cluster notice of an installation: real pods on real volumes, for every feature.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use testbed::{BUSYBOX, LOCALDISK, within};

use crate::place::{PATIENCE, Place, SHOP};

/// Of disks that are lost with their node.
const LOCAL: &str = "local";
/// Of volumes that are kept.
const KEPT: &str = "kept";
/// The first node that a pod with a local volume would rather run on.
const PREFERRED: &str = "{.spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0]\
                         .preference.matchExpressions[0].values[0]}";

impl Place {
    /// The classes, and the right of pods to have claims made.
    pub(crate) async fn prepare_shop(&self) -> Result<()> {
        let class = |name: &str, provisioner: &str, reclaim: &str| {
            json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
                "provisioner": provisioner, "reclaimPolicy": reclaim, "volumeBindingMode": "WaitForFirstConsumer",
            })
        };
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": "edit", "namespace": SHOP},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
            "subjects": [{"kind": "ServiceAccount", "namespace": SHOP, "name": "default"}],
        });
        let (local, kept) = (class(LOCAL, LOCALDISK, "Delete"), class(KEPT, testbed::PROVISIONER, "Retain"));
        for object in [local, kept, binding] {
            self.apply(&object).await?;
        }
        Ok(())
    }

    pub(crate) async fn claims_on_local_storage_are_refused(&self) -> Result<()> {
        // Behind the readiness of a pod is the way of the Service to it, which takes a moment.
        within(PATIENCE, "the API server to ask", async || self.expect_refused(&["--dry-run=server"]).await).await?;
        self.expect_refused(&[]).await
    }

    async fn expect_refused(&self, more: &[&str]) -> Result<()> {
        let arguments = [&["create", "-f", "-"], more].concat();
        let outcome = self.kubectl_with(&arguments, &claim("careless")).await;
        let refusal = outcome.err().map(|error| error.to_string()).unwrap_or_default();
        ensure!(refusal.contains("claims.enforcement.claimkeeper.dev"), "the claim is not refused: {refusal}");
        Ok(())
    }

    pub(crate) async fn nobody_is_asked_about_claims(&self) -> Result<()> {
        // The API server hears of a webhook's end as others do: a moment later.
        within(PATIENCE, "the API server not to ask", async || {
            self.kubectl_with(&["create", "--dry-run=server", "-f", "-"], &claim("careless")).await
        })
        .await
        .map(drop)
    }

    /// Neither those who want a claim nor those who have one get what they want while nobody answers.
    pub(crate) async fn nobody_gets_anything(&self) -> Result<()> {
        let mut pod = pod("anybody");
        pod["spec"]["volumes"] = claimed("anything");
        let webhooks = ["claims.enforcement.claimkeeper.dev", "pods.placement.claimkeeper.dev"];
        for (object, webhook) in [claim("careless"), pod].iter().zip(webhooks) {
            within(PATIENCE, "the last replica to be forgotten", async || {
                let outcome = self.kubectl_with(&["create", "--dry-run=server", "-f", "-"], object).await;
                let complaint = outcome.err().map(|error| error.to_string()).unwrap_or_default();
                let expected = format!("failed calling webhook {webhook:?}");
                ensure!(complaint.contains(&expected), "it passes: {complaint}");
                Ok(())
            })
            .await?;
        }
        Ok(())
    }

    /// Whoever accepts the risk has a local volume; the next pod is sent where it is, and finds there what the first one wrote.
    pub(crate) async fn a_pod_follows_its_local_volume(&self, suffix: &str) -> Result<()> {
        let name = format!("db-{suffix}");
        let (mut claim, mut pod) = (claim(&name), pod(&name));
        claim["metadata"]["annotations"] = json!({"localdisk.csi.acstor.io/accept-ephemeral-storage": "true"});
        pod["spec"]["volumes"] = claimed(&name);
        self.apply(&claim).await?;
        self.apply(&pod).await?;
        self.until_written(&name, &[&name]).await?;
        let object = format!("pod/{name}");
        let home = self.show(&object, "{.spec.nodeName}").await?;
        self.kubectl(&["-n", SHOP, "delete", &object]).await?;
        within(PATIENCE, "the API server to ask about pods", async || {
            let output = format!("jsonpath={PREFERRED}");
            let node = self.kubectl_with(&["create", "--dry-run=server", "-o", &output, "-f", "-"], &pod).await?;
            ensure!(node == home, "the pod is sent to {node:?}");
            Ok(())
        })
        .await?;
        self.apply(&pod).await?;
        self.until_written(&name, &[&name, &name]).await?;
        let sent = self.show(&object, PREFERRED).await?;
        ensure!(sent == home, "the pod was sent to {sent:?} instead of {home}");
        self.kubectl(&["-n", SHOP, "delete", &object, &format!("pvc/{name}")]).await.map(drop)
    }

    /// Local storage is for those who want it no longer than they live, without asking anybody.
    pub(crate) async fn a_pod_has_a_local_volume_of_its_own(&self, suffix: &str) -> Result<()> {
        let name = format!("scratch-{suffix}");
        let mut pod = pod(&name);
        let template = json!({"spec": claim_spec(LOCAL)});
        pod["spec"]["volumes"] = json!([{"name": "data", "ephemeral": {"volumeClaimTemplate": template}}]);
        self.apply(&pod).await?;
        self.until_written(&name, &[&name]).await?;
        let claim = format!("pvc/{name}-data");
        let owner = self.show(&claim, "{.metadata.ownerReferences[0].name}").await?;
        ensure!(owner == name, "the claim is {owner:?}'s");
        self.kubectl(&["-n", SHOP, "delete", &format!("pod/{name}")]).await?;
        self.wait("delete", &claim).await
    }

    /// A claim is made for a pod by its annotation. Once pod and claim are gone the volume goes on to the next one, with what is on it.
    /// The id is what claims and volumes are marked with.
    pub(crate) async fn a_volume_goes_on_to_the_next(&self, suffix: &str, id: &str) -> Result<()> {
        let (first, next) = (format!("build-{suffix}"), format!("next-{suffix}"));
        let volume = self.build(&first, id, &[&first]).await?;
        self.end_build(&first, &volume).await?;
        let same = self.build(&next, id, &[&first, &next]).await?;
        ensure!(same == volume, "{next} has {same}, and {first} had {volume}");
        self.end_build(&next, &volume).await?;
        // Not to be found by others, who are to have one made.
        self.kubectl(&["delete", &volume]).await.map(drop)
    }

    /// Runs a pod that asks for a claim, until this is what was written to its volume. Returns the volume.
    async fn build(&self, name: &str, id: &str, written: &[&str]) -> Result<String> {
        let mut pod = pod(name);
        let template = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": claim_spec(KEPT)});
        pod["metadata"]["annotations"] = json!({
            "dynamic-pvc-provisioner.kubernetes.io/data.enabled": "true",
            "dynamic-pvc-provisioner.kubernetes.io/data.pvc": template.to_string(),
        });
        pod["spec"]["volumes"] = claimed(name);
        // The testbed's volumes are of one node, and on another one there would be none to go on.
        pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": "node-1"});
        self.apply(&pod).await?;
        self.until_written(name, written).await?;
        let claim = format!("pvc/{name}");
        let mark = r"{.metadata.labels.dynamic-pvc-provisioner\.kubernetes\.io/managed-by}";
        let marked = self.show(&claim, mark).await?;
        ensure!(marked == id, "the claim is marked with {marked:?}");
        let volume = format!("pv/{}", self.show(&claim, "{.spec.volumeName}").await?);
        let mark = r"{.metadata.labels.reclaimable-pv-releaser\.kubernetes\.io/managed-by}";
        self.until(&volume, mark, id).await?;
        Ok(volume)
    }

    async fn end_build(&self, name: &str, volume: &str) -> Result<()> {
        self.kubectl(&["-n", SHOP, "delete", &format!("pod/{name}")]).await?;
        self.until(volume, "{.status.phase}", "Available").await
    }

    /// Waits until these pods have written their names to a pod's volume, in this order.
    async fn until_written(&self, pod: &str, names: &[&str]) -> Result<()> {
        let lines = names.join("\n") + "\n";
        self.wait("condition=Ready", &format!("pod/{pod}")).await?;
        self.until_said(&["exec", pod, "--", "cat", "/data/file"], &lines).await
    }

    pub(crate) async fn until(&self, object: &str, path: &str, expected: &str) -> Result<()> {
        self.wait(&format!("jsonpath={path}={expected}"), object).await
    }

    /// Lets kubectl wait, which costs less than asking it again and again.
    async fn wait(&self, condition: &str, object: &str) -> Result<()> {
        let timeout = format!("--timeout={}s", PATIENCE.as_secs());
        let outcome = self.kubectl(&["-n", SHOP, "wait", &format!("--for={condition}"), object, &timeout]).await;
        self.explained(outcome.map(drop)).await
    }

    pub(crate) async fn show(&self, object: &str, path: &str) -> Result<String> {
        self.kubectl(&["-n", SHOP, "get", object, "-o", &format!("jsonpath={path}")]).await
    }

    pub(crate) async fn until_said(&self, arguments: &[&str], expected: &str) -> Result<()> {
        let arguments: Vec<&str> = ["-n", SHOP].iter().chain(arguments).copied().collect();
        let awaited = format!("{expected:?} from {arguments:?}");
        let outcome = within(PATIENCE, &awaited, async || {
            let found = self.kubectl(&arguments).await?;
            ensure!(found == expected, "it is {found:?}");
            Ok(())
        });
        self.explained(outcome.await).await
    }

    /// With what may be the reason, if it is a failure.
    pub(crate) async fn explained<T>(&self, outcome: Result<T>) -> Result<T> {
        let Err(error) = outcome else { return outcome };
        let events = self.kubectl(&["-n", SHOP, "get", "events"]).await.unwrap_or_default();
        let pods = self.kubectl(&["-n", SHOP, "get", "pods", "-o", "wide"]).await.unwrap_or_default();
        Err(error.context(format!("{pods}\n{events}\n{}", self.logs().await)))
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

/// The volumes of a pod that has this claim.
fn claimed(claim: &str) -> Value {
    json!([{"name": "data", "persistentVolumeClaim": {"claimName": claim}}])
}

/// A pod that adds its name to what is on its volume, and stays.
fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": SHOP},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "main", "image": BUSYBOX,
                "command": ["sh", "-c", format!("echo {name} >> /data/file && sleep 1000000")],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }],
        },
    })
}
