//! What becomes of claims when workloads come and go: scheduler, `DaemonSet` controller and garbage collector at work.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{PersistentVolumeClaim, Pod},
    storage::v1::StorageClass,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::json;
use testbed::eventually;

use crate::room::{Room, volume};

/// The example of the enhancement proposal with the field names that were shipped. Its namespace is each test's own.
const EXAMPLE: &str = r#"
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: fluentd-elasticsearch
spec:
  selector:
    matchLabels:
      name: fluentd-elasticsearch
  template:
    metadata:
      labels:
        name: fluentd-elasticsearch
    spec:
      containers:
      - name: fluentd-elasticsearch
        image: quay.io/fluentd_elasticsearch/fluentd:v2.5.2
        volumeMounts:
        - name: varlog
          mountPath: /var/log
        - name: scratch
          mountPath: /scratch
      volumes:
      - name: varlog
        hostPath:
          path: /var/log
      - name: scratch
        ephemeral:
          volumeClaimTemplate:
            metadata:
              labels:
                type: fluentd-elasticsearch-volume
            spec:
              accessModes: [ "ReadWriteOnce" ]
              storageClassName: "scratch-storage-class"
              resources:
                requests:
                  storage: 1Gi
"#;

#[tokio::test]
async fn every_pod_of_a_daemon_set_gets_a_claim_of_its_own_and_they_go_together() -> Result<()> {
    let room = Room::open("daemons").await?;
    let client = room.cluster.admin().await?;
    let classes: Api<StorageClass> = Api::all(client.clone());
    let class = json!({
        "metadata": {"name": "scratch-storage-class"}, "provisioner": testbed::PROVISIONER,
        "volumeBindingMode": "WaitForFirstConsumer", "parameters": {"topology": "node"},
    });
    classes.create(&PostParams::default(), &serde_json::from_value(class)?).await?;
    let sets: Api<DaemonSet> = Api::namespaced(client, &room.namespace);
    sets.create(&PostParams::default(), &serde_saphyr::from_str(EXAMPLE)?).await?;

    eventually("a ready pod on every node", async || {
        let status = sets.get("fluentd-elasticsearch").await?.status.unwrap_or_default();
        let (wanted, ready) = (status.desired_number_scheduled, status.number_ready);
        ensure!(wanted > 1 && ready == wanted, "{ready} of {wanted}");
        Ok(())
    })
    .await?;
    let pods = room.pods.list(&ListParams::default()).await?;
    let mut claims = named(room.claims.list(&ListParams::default()).await?.items);
    for pod in &pods {
        let claim = claims.remove(&format!("{}-scratch", pod.name_any())).context("a pod without its claim")?;
        assert_eq!(claim.owner_references().first().map(|owner| &owner.uid), pod.uid().as_ref());
        assert_eq!(claim.labels().get("type").map(String::as_str), Some("fluentd-elasticsearch-volume"));
        let selected = claim.annotations().get("volume.kubernetes.io/selected-node");
        assert_eq!(selected, node(pod).as_ref(), "the volume is made where the pod runs");
    }
    assert!(claims.is_empty(), "claims without a pod: {:?}", claims.keys());

    sets.delete("fluentd-elasticsearch", &DeleteParams::default()).await?;
    eventually("pods and claims to go", async || expect_nothing_left(&room).await).await?;
    let made = room.cluster.audit_log().user(room.user()).verb("create").resource("persistentvolumeclaims");
    assert_eq!(made.requests()?.len(), pods.items.len(), "no claim was made for a pod on its way out");
    classes.delete("scratch-storage-class", &DeleteParams::default()).await?;
    Ok(())
}

#[tokio::test]
async fn the_scheduler_takes_the_claim_for_the_pods_own_and_the_garbage_collector_removes_it_after_the_pod()
-> Result<()> {
    let room = Room::open("collected").await?;
    for (pod, deletion) in [("background", DeleteParams::background()), ("foreground", DeleteParams::foreground())] {
        room.create_pod(pod, json!([volume("scratch"), volume("more")])).await?;
        eventually("the pod to run", async || {
            let phase = room.pods.get(pod).await?.status.and_then(|status| status.phase);
            ensure!(phase.as_deref() == Some("Running"), "{phase:?}");
            Ok(())
        })
        .await?;
        let runs_on = node(&room.pods.get(pod).await?);
        assert!(runs_on.is_some());
        for volume in ["scratch", "more"] {
            let claim = room.claims.get(&format!("{pod}-{volume}")).await?;
            assert_eq!(claim.annotations().get("volume.kubernetes.io/selected-node"), runs_on.as_ref());
        }
        room.pods.delete(pod, &deletion).await?;
        eventually("pod and claims to go", async || expect_nothing_left(&room).await).await?;
    }
    assert_eq!(room.process.metric("ephemeral_volume_controller_create_total"), 4, "none was made again in between");
    Ok(())
}

async fn expect_nothing_left(room: &Room) -> Result<()> {
    let pods = room.pods.list(&ListParams::default()).await?.items.len();
    let claims = named(room.claims.list(&ListParams::default()).await?.items);
    ensure!(pods == 0 && claims.is_empty(), "{pods} pods and the claims {:?} are left", claims.keys());
    Ok(())
}

fn node(pod: &Pod) -> Option<String> {
    pod.spec.as_ref()?.node_name.clone()
}

fn named(claims: Vec<PersistentVolumeClaim>) -> BTreeMap<String, PersistentVolumeClaim> {
    claims.into_iter().map(|claim| (claim.name_any(), claim)).collect()
}
