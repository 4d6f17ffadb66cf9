//! What is never touched, and what happens when somebody else acts at the same time.

use anyhow::{Result, ensure};
use ephemeral::reclaim::ReclaimCompleted;
use k8s_openapi::api::{core::v1::PersistentVolumeClaim, rbac::v1::ClusterRole};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use testbed::eventually;

use crate::room::{Kind, Room, Sight};

const HOST_PATH: &[&str] = &["kubernetes.io/host-path"];

/// A pod that uses a claim by name.
fn user_of(claim: &str) -> Value {
    json!([{"name": "data", "persistentVolumeClaim": {"claimName": claim}}])
}

async fn create_claim(room: &Room, name: &str, metadata: Value) -> Result<PersistentVolumeClaim> {
    let mut claim = json!({"metadata": metadata, "spec": room.scratch()["ephemeral"]["volumeClaimTemplate"]["spec"]});
    claim["metadata"]["name"] = name.into();
    Ok(room.claims.create(&PostParams::default(), &serde_json::from_value(claim)?).await?)
}

#[tokio::test]
async fn a_claim_that_another_pod_uses_is_kept_until_that_pod_is_gone() -> Result<()> {
    let room = Room::prepare("shared").await?.start(ReclaimCompleted::Delete, HOST_PATH, Sight::Full).await?;
    room.run_pod("build", Kind::HostPath).await?;
    room.create_pod("debug", json!({"nodeName": room.namespace}), &user_of("build-scratch")).await?;
    room.until_running("debug").await?;
    room.end("build", "Succeeded").await?;
    room.until_decided("wait", "ClaimInUse").await?;
    room.untouched("build-scratch").await?;
    // Ended, it may still have it mounted, and the protection controller counts it, too.
    room.end("debug", "Succeeded").await?;
    room.untouched("build-scratch").await?;
    let lists = room.cluster.audit_log().user(room.user()).verb("list").resource("pods").requests()?;
    assert!(lists.is_empty(), "what the cache knows is not asked for: {lists:?}");
    room.delete_pod("debug").await?;
    room.until_gone("build-scratch").await?;
    room.close().await
}

#[tokio::test]
async fn a_user_that_the_cache_has_not_heard_of_is_found_live() -> Result<()> {
    let room = Room::prepare("unheard").await?.start(ReclaimCompleted::Delete, HOST_PATH, Sight::NoUsers).await?;
    room.run_pod("build", Kind::HostPath).await?;
    room.create_pod("debug", json!({"nodeName": room.namespace}), &user_of("build-scratch")).await?;
    room.end("build", "Succeeded").await?;
    room.until_decided("wait", "ClaimInUse").await?;
    room.untouched("build-scratch").await?;
    // Nobody tells of its end, so it is looked for.
    room.delete_pod("debug").await?;
    room.until_gone("build-scratch").await?;
    room.close().await
}

#[tokio::test]
async fn the_claim_of_a_living_pod_is_never_touched() -> Result<()> {
    let room = Room::prepare("lives").await?.start(ReclaimCompleted::Delete, HOST_PATH, Sight::Full).await?;
    room.run_pod("web", Kind::HostPath).await?;
    room.claims.delete("web-scratch", &DeleteParams::default()).await?;
    // What follows shows that the feature has had its chance.
    room.run_pod("build", Kind::HostPath).await?;
    room.end("build", "Succeeded").await?;
    room.until_gone("build-scratch").await?;
    let claim = room.claims.get("web-scratch").await?;
    assert!(claim.metadata.deletion_timestamp.is_some());
    assert_eq!(claim.owner_references().len(), 1, "still owned, so still protected");
    let writes = room.writes()?;
    assert_eq!(writes.iter().filter(|write| write.ends_with(" web-scratch")).count(), 1, "{writes:?}");
    room.close().await
}

#[tokio::test]
async fn a_claim_that_belongs_to_somebody_else_is_never_touched() -> Result<()> {
    let room = Room::prepare("foreign").await?;
    let foreign = create_claim(&room, "build-scratch", json!({})).await?;
    let room = room.start(ReclaimCompleted::Delete, HOST_PATH, Sight::Full).await?;
    room.create_pod("build", json!({"nodeName": room.namespace}), &json!([room.scratch()])).await?;
    room.until_running("build").await?;
    room.end("build", "Succeeded").await?;
    room.until_decided("leave", "ClaimNotOwned").await?;
    assert_eq!(room.untouched("build-scratch").await?.uid(), foreign.uid());
    assert!(room.writes()?.is_empty());
    room.close().await
}

#[tokio::test]
async fn a_claim_that_was_being_deleted_when_we_came_is_let_go() -> Result<()> {
    // As after a crash between the two writes, or when a user lost patience.
    let room = Room::prepare("halfway").await?.start(ReclaimCompleted::Off, HOST_PATH, Sight::Full).await?;
    let (pod, _) = room.run_pod("build", Kind::HostPath).await?;
    room.end("build", "Succeeded").await?;
    room.until_decided("leave", "ReclaimOff").await?;
    room.claims.delete("build-scratch", &DeleteParams::default()).await?;

    let room = room.start(ReclaimCompleted::Delete, HOST_PATH, Sight::Full).await?;
    room.until_gone("build-scratch").await?;
    let note = room.event(&pod, "ClaimReclaimed").await?.note.unwrap_or_default();
    assert!(note.contains("is let go, as it is being deleted"), "{note}");
    assert_eq!(room.writes()?, ["create build-scratch", "patch build-scratch"], "it is not deleted a second time");
    room.close().await
}

#[tokio::test]
async fn finalizers_of_others_are_left_to_them() -> Result<()> {
    let room = Room::prepare("finalizer").await?.start(ReclaimCompleted::Delete, HOST_PATH, Sight::Full).await?;
    let (pod, _) = room.run_pod("build", Kind::HostPath).await?;
    let hold = Patch::Merge(json!({"metadata": {"finalizers": ["kubernetes.io/pvc-protection", "example.dev/hold"]}}));
    room.claims.patch("build-scratch", &PatchParams::default(), &hold).await?;
    room.end("build", "Succeeded").await?;
    room.event(&pod, "ClaimReclaimed").await?;
    eventually("the protection controller to let go", async || {
        let claim = room.claims.get("build-scratch").await?;
        ensure!(claim.finalizers() == ["example.dev/hold"], "{:?}", claim.finalizers());
        ensure!(claim.owner_references().is_empty(), "still owned");
        Ok(())
    })
    .await?;
    let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    room.claims.patch("build-scratch", &PatchParams::default(), &release).await?;
    room.until_gone("build-scratch").await?;
    room.close().await
}

#[tokio::test]
async fn a_claim_that_somebody_makes_again_is_told_and_not_fought() -> Result<()> {
    let room = Room::prepare("again").await?.start(ReclaimCompleted::Delete, HOST_PATH, Sight::Full).await?;
    let (pod, _) = room.run_pod("build", Kind::HostPath).await?;
    room.end("build", "Succeeded").await?;
    room.until_gone("build-scratch").await?;

    // As the controller in Kubernetes does, for which a pod that has ended is a pod.
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "build", "uid": pod.uid(), "controller": true});
    create_claim(&room, "build-scratch", json!({"ownerReferences": [owner]})).await?;
    let note = room.event(&pod, "ClaimCameBack").await?.note.unwrap_or_default();
    assert!(note.contains("--controllers=*,-ephemeral-volume-controller"), "{note}");
    room.untouched("build-scratch").await?;
    assert_eq!(room.writes()?.iter().filter(|write| write.starts_with("delete ")).count(), 1);
    room.close().await
}

const ONLY_FOR_RECLAIM: [&str; 10] = [
    "list storageclasses",
    "watch storageclasses",
    "list csidrivers",
    "watch csidrivers",
    "list volumeattachments",
    "watch volumeattachments",
    "get persistentvolumes",
    "get nodes",
    "delete persistentvolumeclaims",
    "patch persistentvolumeclaims",
];

/// `verb resource` of all that the chart grants for the feature.
async fn rights(room: &Room) -> Result<Vec<String>> {
    let roles: Api<ClusterRole> = Api::all(room.cluster.admin().await?);
    let role = roles.get(&format!("{}:claimkeeper:ephemeral", room.namespace)).await?;
    let mut rights = Vec::new();
    for rule in role.rules.unwrap_or_default() {
        for resource in rule.resources.unwrap_or_default() {
            rights.extend(rule.verbs.iter().map(|verb| format!("{verb} {resource}")));
        }
    }
    Ok(rights)
}

#[tokio::test]
async fn the_chart_grants_every_right_that_was_needed_and_none_while_reclaim_is_off() -> Result<()> {
    let room = Room::prepare("rights").await?;
    room.add_driver(true).await?;
    let room = room.start(ReclaimCompleted::Delete, &[], Sight::Full).await?;
    let (pod, _) = room.run_pod("build", Kind::Csi).await?;
    room.end("build", "Succeeded").await?;
    room.event(&pod, "ClaimReclaimed").await?;
    room.until_gone("build-scratch").await?;
    let requests = room.cluster.audit_log().user(room.user()).requests()?;
    let refused: Vec<_> = requests.iter().filter(|request| request.code() == Some(403)).collect();
    assert!(!requests.is_empty() && refused.is_empty(), "{refused:?}");

    for (mode, granted) in [(json!("byClass"), true), (json!("off"), false), (json!(false), false)] {
        let values = json!({"features": ["ephemeral"], "ephemeral": {"reclaimCompleted": mode}});
        room.cluster.install_chart("claimkeeper", &room.namespace, &values).await?;
        let rights = rights(&room).await?;
        let has = |right: &str| rights.iter().any(|known| known == right);
        for right in ONLY_FOR_RECLAIM {
            assert_eq!(has(right), granted, "{right} with {mode}");
        }
        assert!(has("create persistentvolumeclaims") && !has("delete pods") && !has("list nodes"), "{rights:?}");
    }
    room.close().await
}
