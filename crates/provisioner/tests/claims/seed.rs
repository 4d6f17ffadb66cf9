//! The conditions and modifications that the original's documentation lists.

use anyhow::{Result, ensure};
use kube::{ResourceExt, api::PostParams};
use provisioner::{request::Enabling, template::Rules};
use serde_json::{Value, json};
use testbed::eventually;

use crate::room::{Room, TEMPLATE, defaults, volume};

const ORIGINAL: &str = "dynamic-pvc-provisioner.kubernetes.io";

/// The pod of the original's documentation, with the volume's name filled in.
const EXAMPLE: &str = r#"
apiVersion: v1
kind: Pod
metadata:
  name: pod-with-dynamic-reclaimable-pvc
  annotations:
    dynamic-pvc-provisioner.kubernetes.io/data.enabled: "true"
    dynamic-pvc-provisioner.kubernetes.io/data.pvc: |
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
    - name: data
      persistentVolumeClaim:
        claimName: reclaimable-pvc
  containers:
    - name: web
      image: nginx
      volumeMounts:
        - name: data
          mountPath: /data
"#;

fn asks(enabled: &str) -> Value {
    json!({format!("{ORIGINAL}/cache.enabled"): enabled, format!("{ORIGINAL}/cache.pvc"): TEMPLATE})
}

#[tokio::test]
async fn the_originals_example_gets_its_claim() -> Result<()> {
    let room = Room::open("example").await?;
    let pod = room.pods.create(&PostParams::default(), &serde_saphyr::from_str(EXAMPLE)?).await?;
    let claim = room.claim("reclaimable-pvc").await?;
    assert_eq!(
        serde_json::to_value(claim.owner_references())?,
        json!([{"apiVersion": "v1", "kind": "Pod", "name": pod.name_any(), "uid": pod.uid(), "controller": true,
                "blockOwnerDeletion": true}])
    );
    assert_eq!(serde_json::to_value(claim.labels())?, json!({format!("{ORIGINAL}/managed-by"): "claimkeeper"}));
    let spec = serde_json::to_value(&claim.spec)?;
    assert_eq!(spec["storageClassName"], "reclaimable-storage-class");
    assert_eq!(spec["resources"], json!({"requests": {"storage": "1Gi"}}));
    assert_eq!(spec["accessModes"], json!(["ReadWriteOnce"]));
    assert_eq!(room.told(&pod, "PVCProvisioned").await?, "PVC created successfully");
    assert!(room.events(&pod).await?.iter().all(|told| told.kind == "Normal"));
    Ok(())
}

#[tokio::test]
async fn an_annotation_that_comes_later_works_and_only_true_enables() -> Result<()> {
    let room = Room::open("later").await?;
    for (name, value) in [("off", "false"), ("shouted", "TRUE"), ("number", "1")] {
        room.create_pod(name, asks(value), json!([volume("cache", &format!("{name}-1"))])).await?;
    }
    room.create_pod("late", json!({}), json!([volume("cache", "late-1")])).await?;
    room.annotate("late", asks("true")).await?;
    room.claim("late-1").await?;
    for name in ["off", "shouted", "number"] {
        assert!(room.claims.get_opt(&format!("{name}-1")).await?.is_none(), "{name}");
    }
    Ok(())
}

#[tokio::test]
async fn the_drop_in_enables_as_go_does_and_takes_templates_as_they_are() -> Result<()> {
    let room = Room::prepare("go").await?;
    let settings =
        provisioner::Settings { rules: Rules::Seed, enabling: Enabling::AsGo, authorize: false, ..defaults() };
    let room = room.start(settings).await?;
    let mut annotations = asks("T");
    let template = TEMPLATE.replace("spec:", "metadata: {name: x, finalizers: [example.dev/hold]}\nspec:");
    annotations[format!("{ORIGINAL}/cache.pvc")] = template.into();
    room.create_pod("build", annotations, json!([volume("cache", "build-1")])).await?;
    let claim = room.claim("build-1").await?;
    assert!(claim.finalizers().contains(&"example.dev/hold".to_owned()));
    room.delete_claim("build-1").await
}

#[tokio::test]
async fn each_condition_that_is_not_met_is_told_and_the_other_volumes_get_theirs() -> Result<()> {
    let room = Room::open("conditions").await?;
    let annotations = json!({
        format!("{ORIGINAL}/missing.enabled"): "true",
        format!("{ORIGINAL}/missing.pvc"): TEMPLATE,
        format!("{ORIGINAL}/tmp.enabled"): "true",
        format!("{ORIGINAL}/tmp.pvc"): TEMPLATE,
        format!("{ORIGINAL}/bare.enabled"): "true",
        "claimkeeper.dev/twice.claim": TEMPLATE,
        format!("{ORIGINAL}/twice.enabled"): "true",
        format!("{ORIGINAL}/twice.pvc"): TEMPLATE,
        "claimkeeper.dev/good.claim": TEMPLATE,
    });
    let volumes = json!([
        {"name": "tmp", "emptyDir": {}}, volume("bare", "bare-1"), volume("twice", "twice-1"), volume("good", "good-1"),
    ]);
    let pod = room.create_pod("web", annotations, volumes).await?;
    room.claim("good-1").await?;
    assert_eq!(room.told(&pod, "ErrMissingVolume").await?, "Pod was missing volume 'missing'");
    assert_eq!(room.told(&pod, "ErrMissingPVC").await?, format!("'{ORIGINAL}/bare.pvc' missing PVC"));
    let expected = [
        format!("'{ORIGINAL}/tmp.pvc' invalid PVC: consumer volume for requested pvc wasn't a persistentVolumeClaim type"),
        "'claimkeeper.dev/twice.claim' invalid PVC: the original's annotation asks for the same volume; keep one of them"
            .to_owned(),
    ];
    eventually("both invalid ones to be told", async || {
        let events = room.events(&pod).await?;
        for note in &expected {
            ensure!(events.iter().any(|told| told.reason == "ErrInvalidPVC" && told.note == *note), "{events:?}");
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn pods_that_run_or_are_being_deleted_get_nothing() -> Result<()> {
    let room = Room::prepare("gone").await?;
    room.let_create_claims("default").await?;
    room.ask("running", TEMPLATE).await?;
    room.cluster.set_pod_phase(&room.namespace, "running", "Running").await?;
    room.ask("leaving", TEMPLATE).await?;
    let hold = kube::api::Patch::Merge(json!({"metadata": {"finalizers": ["example.dev/hold"]}}));
    room.pods.patch("leaving", &kube::api::PatchParams::default(), &hold).await?;
    room.pods.delete("leaving", &kube::api::DeleteParams::default()).await?;
    let room = room.start(defaults()).await?;
    room.ask("waiting", TEMPLATE).await?;
    room.claim("waiting-1").await?;
    for name in ["running-1", "leaving-1"] {
        assert!(room.claims.get_opt(name).await?.is_none(), "{name}");
    }
    Ok(())
}
