//! What a `StatefulSet` does with the real scheduler and the real controllers.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{ResourceExt, api::PostParams};
use serde_json::{Value, json};
use testbed::within;

use crate::room::Room;

const PROVISIONER: &str = "testbed.claimkeeper.dev/provisioner";

impl Room {
    async fn create_set(&self, name: &str, class: &str, replicas: i32, change: Value) -> Result<()> {
        let labels = json!({"app": name});
        let mut set = json!({
            "metadata": {"name": name},
            "spec": {
                "serviceName": name, "replicas": replicas, "selector": {"matchLabels": labels}, "podManagementPolicy": "Parallel",
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {
                        "terminationGracePeriodSeconds": 0,
                        "nodeSelector": {"test": self.namespace},
                        "tolerations": [{"key": "test", "operator": "Exists"}],
                        "containers": [{
                            "name": "c", "image": "none", "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                        }],
                    },
                },
                "volumeClaimTemplates": [{
                    "metadata": {"name": "data"},
                    "spec": {
                        "storageClassName": class, "accessModes": ["ReadWriteOnce"],
                        "resources": {"requests": {"storage": "1Gi"}},
                    },
                }],
            },
        });
        json_patch::merge(&mut set, &change);
        self.sets.create(&PostParams::default(), &serde_json::from_value(set)?).await?;
        Ok(())
    }

    /// Waits until the pod runs, and returns where.
    async fn until_running(&self, pod: &str, but: Option<&str>) -> Result<(Pod, String)> {
        within(Duration::from_mins(2), &format!("pod {pod} to run"), async || {
            let found = self.pods.get(pod).await?;
            let phase = found.status.as_ref().and_then(|status| status.phase.clone());
            let node = found.spec.as_ref().and_then(|spec| spec.node_name.clone());
            let conditions = found.status.as_ref().and_then(|status| status.conditions.clone());
            ensure!(phase.as_deref() == Some("Running"), "it is {phase:?} on {node:?}: {conditions:?}");
            ensure!(found.uid().as_deref() != but, "it is the old one");
            let node = node.context("it is nowhere")?;
            Ok((found, node))
        })
        .await
    }

    async fn volume_of(&self, claim: &str) -> Result<String> {
        self.claims.get(claim).await?.spec.and_then(|spec| spec.volume_name).context("it has no volume")
    }
}

#[tokio::test]
async fn a_stateful_set_runs_again_with_an_empty_volume_and_its_other_pods_notice_nothing() -> Result<()> {
    let room = Room::open("story").await?;
    let class = room.create_class("local", "delete", PROVISIONER).await?;
    for (node, machine) in [("a", "a"), ("b", "b"), ("c", "c")] {
        room.add_node(node, machine).await?;
    }
    room.create_set("web", &class, 3, json!({})).await?;
    let mut before = Vec::new();
    for ordinal in 0..3 {
        let (pod, node) = room.until_running(&format!("web-{ordinal}"), None).await?;
        let claim = format!("data-web-{ordinal}");
        let volume = room.volume_of(&claim).await?;
        room.until_noted(&volume).await?;
        before.push((pod.uid(), node, room.uid_of_claim(&claim).await?, volume));
    }
    let lost = before[1].1.clone();
    room.cluster.remove_node(&lost).await?;
    for (ordinal, (pod, node, claim, volume)) in before.iter().enumerate() {
        let (pod_name, claim_name) = (format!("web-{ordinal}"), format!("data-web-{ordinal}"));
        if *node == lost {
            room.told(claim.as_deref(), "ClaimDeleted").await?;
            room.collect_pods_of(&lost).await?;
            let (_, now) = room.until_running(&pod_name, pod.as_deref()).await?;
            assert_ne!(now, lost);
            assert_ne!(room.uid_of_claim(&claim_name).await?, *claim);
            room.until_gone(volume).await?;
        } else {
            let (found, now) = room.until_running(&pod_name, None).await?;
            assert_eq!((&found.uid(), &now), (pod, node));
            assert_eq!(room.uid_of_claim(&claim_name).await?, *claim);
            assert_eq!(room.volume_of(&claim_name).await?, *volume);
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_claim_that_its_stateful_set_was_scaled_away_from_is_kept() -> Result<()> {
    let room = Room::open("scaled").await?;
    let class = room.create_class("local", "delete", PROVISIONER).await?;
    let node = room.add_node("a", "a").await?;
    room.create_set("web", &class, 2, json!({})).await?;
    for ordinal in 0..2 {
        room.until_running(&format!("web-{ordinal}"), None).await?;
        room.until_noted(&room.volume_of(&format!("data-web-{ordinal}")).await?).await?;
    }
    let patch = kube::api::Patch::Merge(json!({"spec": {"replicas": 1}}));
    room.sets.patch("web", &kube::api::PatchParams::default(), &patch).await?;
    let (kept, made) = (room.uid_of_claim("data-web-1").await?, room.uid_of_claim("data-web-0").await?);
    within(Duration::from_mins(1), "the pod to go", async || {
        ensure!(room.pods.get_opt("web-1").await?.is_none(), "it is there");
        Ok(())
    })
    .await?;
    room.cluster.remove_node(&node).await?;
    room.told(made.as_deref(), "ClaimDeleted").await?;
    room.told(kept.as_deref(), "NobodyRecreates").await?;
    assert!(room.claims.get("data-web-1").await?.metadata.deletion_timestamp.is_none());
    Ok(())
}

/// The node comes back as another machine, and the scheduler gives it the pod, which can never start there.
#[tokio::test]
async fn a_pod_that_waits_in_vain_on_the_machine_that_took_the_name_does_not_keep_the_claim() -> Result<()> {
    let mut room = Room::open("stuck").await?;
    let class = room.create_class("local", "delete", PROVISIONER).await?;
    let lost = room.add_node("a", "a").await?;
    room.create_set("web", &class, 1, json!({})).await?;
    let (pod, _) = room.until_running("web-0", None).await?;
    let claim = room.uid_of_claim("data-web-0").await?;
    room.until_noted(&room.volume_of("data-web-0").await?).await?;
    room.process.kill();
    room.cluster.remove_node(&lost).await?;
    room.collect_pods_of(&lost).await?;
    // Nothing makes its pods run: it has no disk for them.
    let node = json!({
        "metadata": {"name": lost, "labels": {"kubernetes.io/hostname": lost, "test": room.namespace}},
        "spec": {"providerID": "other"},
        "status": {
            "allocatable": {"cpu": "8", "memory": "8Gi", "pods": "110"}, "capacity": {"cpu": "8", "memory": "8Gi", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2040-01-01T00:00:00Z"}],
            "nodeInfo": {
                "systemUUID": "s-b", "machineID": "m-b", "bootID": "", "kernelVersion": "", "osImage": "", "kubeletVersion": "",
                "containerRuntimeVersion": "", "kubeProxyVersion": "", "operatingSystem": "", "architecture": "",
            },
        },
    });
    room.nodes.create(&PostParams::default(), &serde_json::from_value(node)?).await?;
    let stuck = within(Duration::from_mins(2), "the pod to be given to the new machine", async || {
        let found = room.pods.get("web-0").await?;
        ensure!(found.uid() != pod.uid(), "it is the old one");
        ensure!(found.spec.as_ref().and_then(|spec| spec.node_name.as_ref()) == Some(&lost), "it is nowhere");
        Ok(found.uid())
    })
    .await?;
    room.add_node("b", "c").await?;
    room.restart(room.defaults()).await?;
    room.told(claim.as_deref(), "ClaimDeleted").await?;
    room.told(claim.as_deref(), "PodsKeepClaim").await?;
    let new = room.until_another("data-web-0", claim.as_deref()).await?;
    assert_ne!(new.uid(), claim);
    within(Duration::from_mins(1), "a new pod", async || {
        ensure!(room.pods.get("web-0").await?.uid() != stuck, "it is the old one");
        Ok(())
    })
    .await
}
