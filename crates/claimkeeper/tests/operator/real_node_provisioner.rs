//! The original's example pod on a real node: it gets its claim, and what it writes is on the volume.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{core::v1::Pod, events::v1::Event, storage::v1::StorageClass};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::{Value, json};
use testbed::{BUSYBOX, ControlPlane, Options, real_node_turn, within};

use crate::{
    home::{Home, Replica},
    real_node::{PATIENCE, sh, until_running},
};

const POD: &str = "pod-with-dynamic-reclaimable-pvc";
const CLAIM: &str = "reclaimable-pvc";
const CLASS: &str = "reclaimable-storage-class";

/// The original's example. `<volumeName>` is for its reader to choose; the image is one that does not have to be pulled.
const EXAMPLE: &str = r#"apiVersion: v1
kind: Pod
metadata:
  name: pod-with-dynamic-reclaimable-pvc
  annotations:
    dynamic-pvc-provisioner.kubernetes.io/<volumeName>.enabled: "true"
    dynamic-pvc-provisioner.kubernetes.io/<volumeName>.pvc: |
      apiVersion: v1
      kind: PersistentVolumeClaim
      spec:
        storageClassName: reclaimable-storage-class
        resources:
          requests:
            storage: 1Gi
        accessModes:
          - ReadWriteOnce
spec:
  volumes:
    - name: <volumeName>
      persistentVolumeClaim:
        claimName: reclaimable-pvc
  containers:
    - name: web
      image: nginx
      volumeMounts:
        - name: <volumeName>
          mountPath: /data
"#;

#[tokio::test(flavor = "multi_thread")]
async fn the_example_of_the_original_writes_to_the_volume_of_its_claim() -> Result<()> {
    let Some(_turn) = real_node_turn().await? else { return Ok(()) };
    let control_plane = ControlPlane::start(Options::default().name("real-claims").real_node()).await?;
    let cluster = control_plane.cluster();
    let class = json!({"metadata": {"name": CLASS}, "provisioner": testbed::PROVISIONER});
    let classes: Api<StorageClass> = Api::all(cluster.admin().await?);
    classes.create(&PostParams::default(), &serde_json::from_value(class)?).await?;
    let (trusting, asking) =
        tokio::try_join!(Home::on(cluster.clone(), "trusting"), Home::on(cluster.clone(), "asking"))?;
    tokio::try_join!(without_authorization(&trusting), with_the_commands_of_the_denial(&asking))?;
    Ok(())
}

async fn without_authorization(home: &Home) -> Result<()> {
    let _operator = start(home, json!({"authorize": "none"})).await?;
    let pod = create_example(home).await?;
    expect_data_on_its_own_claim(home, &pod).await
}

async fn with_the_commands_of_the_denial(home: &Home) -> Result<()> {
    let _operator = start(home, json!({})).await?;
    let pod = create_example(home).await?;
    let denial = within(PATIENCE, "the denial", async || denial(home, &pod).await).await?;
    ensure!(home.claims.get_opt(CLAIM).await?.is_none(), "the claim was made all the same");
    let commands = denial.split_once("can allow it: ").with_context(|| format!("no way out in {denial:?}"))?.1;
    home.run_as_administrator(commands).await?;
    expect_data_on_its_own_claim(home, &pod).await
}

async fn start(home: &Home, provisioner: Value) -> Result<Replica> {
    let values = json!({
        "features": ["provisioner"], "namespace": home.namespace, "provisioner": provisioner,
        "leaderElection": {"name": "shared"},
    });
    let config = json!({"features": ["provisioner"], "provisioner": provisioner});
    home.install("solo", &values, config).await?.start().await
}

async fn create_example(home: &Home) -> Result<Pod> {
    let example = EXAMPLE.replace("<volumeName>", "cache");
    let mut pod: Value = serde_saphyr::from_str(&example)?;
    pod["spec"]["containers"][0]["image"] = json!(BUSYBOX);
    pod["spec"]["containers"][0]["command"] = json!(["sleep", "1000000"]);
    Ok(home.pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?)
}

/// What the pod's owner reads.
async fn denial(home: &Home, pod: &Pod) -> Result<String> {
    let events: Api<Event> = Api::namespaced(home.cluster.admin().await?, &home.namespace);
    let about_pod = |event: &Event| event.regarding.as_ref().is_some_and(|object| object.uid == pod.uid());
    let events = events.list(&ListParams::default()).await?.items;
    let mut denials =
        events.into_iter().filter(|event| about_pod(event) && event.reason.as_deref() == Some("ErrNotAuthorized"));
    denials.next().and_then(|event| event.note).context("no such event")
}

async fn expect_data_on_its_own_claim(home: &Home, pod: &Pod) -> Result<()> {
    until_running(home, POD).await?;
    let claim = home.claims.get(CLAIM).await?;
    let owners: Vec<_> = claim.owner_references().iter().map(|owner| owner.uid.clone()).collect();
    assert_eq!(owners, Vec::from_iter(pod.uid()), "the pod owns its claim");
    assert_eq!(claim.labels()["dynamic-pvc-provisioner.kubernetes.io/managed-by"], "claimkeeper");

    sh(home, POD, "echo kept > /data/file && sync").await?;
    assert_eq!(sh(home, POD, "cat /data/file").await?, "kept\n");
    let mounts = sh(home, POD, "grep -c ' /data ' /proc/mounts").await?;
    assert_eq!(mounts, "1\n", "a file in the container would be no proof");

    home.pods.delete(POD, &DeleteParams::default().grace_period(0)).await?;
    within(PATIENCE, "pod and claim to go", async || {
        let (pod, claim) = (home.pods.get_opt(POD).await?, home.claims.get_opt(CLAIM).await?);
        ensure!(pod.is_none() && claim.is_none(), "the claim is {:?}", claim.map(|claim| claim.metadata));
        Ok(())
    })
    .await
}
