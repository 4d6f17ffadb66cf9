//! The API server says no, or there is nothing to ask it for: the rest of `TestSyncHandler`.
//!
//! | there                 | here                                                                       |
//! |-----------------------|----------------------------------------------------------------------------|
//! | create                | `a_pod_gets_its_claim_and_runs_on_the_bound_volume`                        |
//! | no-such-pod           | `a_pod_that_is_gone_when_its_turn_comes_gets_nothing`                      |
//! | pod-deleted           | `pods_that_ended_or_are_being_deleted_get_nothing`                         |
//! | no-volumes            | `pods_without_ephemeral_volumes_get_nothing`                               |
//! | create-with-other-PVC | `a_claim_of_the_name_in_another_namespace_means_nothing`                   |
//! | wrong-PVC-owner       | `a_foreign_claim_of_the_name_is_left_alone_and_the_pod_is_warned`          |
//! | create-conflict       | `a_conflict_is_a_failure_that_is_told_and_tried_again`                     |

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::LimitRange;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::json;
use testbed::eventually;

use crate::{
    room::{Behind, Room, volume},
    webhook::Objection,
};

const CREATED: &str = "ephemeral_volume_controller_create_total";
const FAILED: &str = "ephemeral_volume_controller_create_failures_total";
const ADDS: &str = r#"workqueue_adds_total{name="ephemeral_volume"}"#;
const RETRIES: &str = r#"workqueue_retries_total{name="ephemeral_volume"}"#;
const PODS: &str = r#"claimkeeper_cache_objects{kind="pods"}"#;

#[tokio::test]
async fn a_pod_that_is_gone_when_its_turn_comes_gets_nothing() -> Result<()> {
    let room = Room::prepare("gone").await?;
    // A limit rather than a quota: nothing tells us when it is lifted, so the pod's next turn is sure to come by the clock.
    let limits: Api<LimitRange> = Api::namespaced(room.cluster.admin().await?, &room.namespace);
    let limit = json!({
        "metadata": {"name": "big-claims"},
        "spec": {"limits": [{"type": "PersistentVolumeClaim", "min": {"storage": "5Gi"}}]},
    });
    limits.create(&PostParams::default(), &serde_json::from_value(limit)?).await?;
    let room = room.start(Behind::Nothing).await?;
    let pod = room.create_pod("web", json!([volume("scratch")])).await?;
    let note = room.warning(&pod).await?.note.unwrap_or_default();
    assert!(note.contains("minimum storage usage per PersistentVolumeClaim is 5Gi"), "{note}");

    room.pods.delete("web", &DeleteParams::default().grace_period(0)).await?;
    eventually("the pod to leave the cache", async || {
        ensure!(room.process.metric(PODS) == 0, "it is there");
        Ok(())
    })
    .await?;
    limits.delete("big-claims", &DeleteParams::default()).await?;
    eventually("a turn in which nothing is asked for", async || {
        ensure!(room.process.metric(ADDS) > room.process.metric(CREATED), "not yet");
        Ok(())
    })
    .await?;
    // Whoever comes later has its turn later.
    room.create_pod("lives", json!([volume("scratch")])).await?;
    room.claim("lives-scratch").await?;
    assert_eq!(
        room.process.metric(CREATED),
        room.process.metric(FAILED) + 1,
        "each try was counted, and only the living pod's went well"
    );
    assert_eq!(
        room.process.metric(RETRIES),
        room.process.metric(FAILED),
        "a pod that is gone is no failure and not tried again"
    );
    assert_eq!(claim_names(&room).await?, ["lives-scratch"]);
    Ok(())
}

#[tokio::test]
async fn pods_without_ephemeral_volumes_get_nothing() -> Result<()> {
    let room = Room::open("plain").await?;
    room.create_pod("none", json!([])).await?;
    room.create_pod(
        "others",
        json!([
            {"name": "cache", "emptyDir": {}},
            {"name": "data", "persistentVolumeClaim": {"claimName": "others-cache"}},
        ]),
    )
    .await?;
    room.create_pod("one", json!([{"name": "cache", "emptyDir": {}}, volume("scratch")])).await?;
    room.claim("one-scratch").await?;
    assert_eq!(claim_names(&room).await?, ["one-scratch"]);
    assert_eq!(room.process.metric(ADDS), 1, "the others did not even have a turn");
    assert_eq!((room.process.metric(CREATED), room.process.metric(FAILED)), (1, 0));
    Ok(())
}

#[tokio::test]
async fn a_conflict_is_a_failure_that_is_told_and_tried_again() -> Result<()> {
    let room = Room::open("conflict").await?;
    // Like the answer to a name that is taken it is a 409, but there is no claim to be met.
    let conflict = json!({"code": 409, "reason": "Conflict", "message": "somebody was faster"});
    let objection = Objection::to_first_claim_of(&room, conflict).await?;
    let pod = room.create_pod("web", json!([volume("scratch")])).await?;
    let note = room.warning(&pod).await?.note.unwrap_or_default();
    assert!(note.starts_with("ephemeral volume scratch: create PVC web-scratch: "), "{note}");
    assert!(note.ends_with("somebody was faster"), "{note}");
    room.claim("web-scratch").await?;
    assert_eq!((room.process.metric(CREATED), room.process.metric(FAILED)), (2, 1));
    objection.withdraw().await
}

async fn claim_names(room: &Room) -> Result<Vec<String>> {
    Ok(room.claims.list(&ListParams::default()).await?.iter().map(ResourceExt::name_any).collect())
}
