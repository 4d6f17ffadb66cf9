//! Whose a claim is: the cases of the controller in Kubernetes (`TestVolumeIsForPod`), and those around them.
//!
//! | there            | here                                                                        |
//! |------------------|-----------------------------------------------------------------------------|
//! | owned            | `a_claim_that_already_belongs_to_the_pod_is_left_as_it_is`                  |
//! | other-pod        | `two_pods_whose_claims_would_share_a_name_do_not_share_the_claim`           |
//! | no-owner         | `a_foreign_claim_of_the_name_is_left_alone_and_the_pod_is_warned`           |
//! | different-namespace | `a_claim_of_the_name_in_another_namespace_means_nothing`                 |

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{Api, ResourceExt, api::PostParams};
use serde_json::json;
use testbed::eventually;

use crate::room::{Behind, Room, owner, spec, volume};

const CREATED: &str = "ephemeral_volume_controller_create_total";
const FAILED: &str = "ephemeral_volume_controller_create_failures_total";

#[tokio::test]
async fn a_claim_that_already_belongs_to_the_pod_is_left_as_it_is() -> Result<()> {
    let room = Room::prepare("owned").await?;
    let pod = room.create_pod("web", json!([volume("scratch")])).await?;
    let metadata = json!({"ownerReferences": [owner(&pod, true)], "labels": {"made-by": "somebody"}});
    let made = room.create_foreign_claim("web-scratch", metadata).await?;

    let room = room.start(Behind::Nothing).await?;
    let left = r#"claimkeeper_ephemeral_decisions_total{decision="leave",reason="ClaimExists"}"#;
    eventually("the claim to be recognized", async || {
        ensure!(room.process.metric(left) >= 1, "not yet");
        Ok(())
    })
    .await?;
    let after = room.claims.get("web-scratch").await?;
    assert_eq!((after.uid(), after.labels()), (made.uid(), made.labels()), "neither replaced nor relabelled");
    assert_eq!(after.spec.and_then(|spec| spec.storage_class_name).as_deref(), Some("testbed-immediate"));
    assert_eq!((room.process.metric(CREATED), room.process.metric(FAILED)), (0, 0));
    assert!(room.warnings(&pod).await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn two_pods_whose_claims_would_share_a_name_do_not_share_the_claim() -> Result<()> {
    let room = Room::open("collide").await?;
    let first = room.create_pod("web-a", json!([volume("scratch")])).await?;
    let claim = room.claim("web-a-scratch").await?;
    let second = room.create_pod("web", json!([volume("a-scratch")])).await?;

    let ns = &room.namespace;
    assert_eq!(
        room.warning(&second).await?.note,
        Some(format!(
            "ephemeral volume a-scratch: PVC {ns}/web-a-scratch was not created for pod {ns}/web (pod is not owner)"
        ))
    );
    let after = room.claims.get("web-a-scratch").await?;
    assert_eq!((after.uid(), owner_uid(&after)), (claim.uid(), first.uid()));
    assert_eq!((room.process.metric(CREATED), room.process.metric(FAILED)), (1, 0));
    Ok(())
}

#[tokio::test]
async fn a_claim_that_the_pod_owns_without_controlling_it_is_foreign() -> Result<()> {
    let room = Room::prepare("co-owned").await?;
    let pod = room.create_pod("web", json!([volume("scratch")])).await?;
    let co_owned = json!({"ownerReferences": [owner(&pod, false)]});
    let foreign = room.create_foreign_claim("web-scratch", co_owned).await?;
    let room = room.start(Behind::Nothing).await?;
    let note = room.warning(&pod).await?.note.context("no words")?;
    assert!(note.ends_with("(pod is not owner)"), "{note}");
    let after = room.claims.get("web-scratch").await?;
    assert_eq!((after.uid(), after.owner_references()), (foreign.uid(), foreign.owner_references()));
    assert_eq!(room.process.metric(CREATED), 0);
    Ok(())
}

/// The case `create-with-other-PVC` of `TestSyncHandler` as well.
#[tokio::test]
async fn a_claim_of_the_name_in_another_namespace_means_nothing() -> Result<()> {
    let room = Room::prepare("namespaces").await?;
    let elsewhere = room.cluster.create_namespace("elsewhere").await?;
    let others: Api<PersistentVolumeClaim> = Api::namespaced(room.cluster.admin().await?, &elsewhere);
    let pod = room.create_pod("web", json!([volume("scratch")])).await?;
    // Held, because the garbage collector has no use for owners in other namespaces.
    let claim = json!({
        "metadata": {
            "name": "web-scratch", "ownerReferences": [owner(&pod, true)], "finalizers": ["example.dev/hold"],
        },
        "spec": spec("testbed-immediate"),
    });
    others.create(&PostParams::default(), &serde_json::from_value(claim)?).await?;

    let room = room.start(Behind::Nothing).await?;
    assert_eq!(owner_uid(&room.claim("web-scratch").await?), pod.uid());
    assert_eq!((room.process.metric(CREATED), room.process.metric(FAILED)), (1, 0));
    assert!(room.warnings(&pod).await?.is_empty());
    let touched = room.cluster.audit_log().user(room.user()).namespace(&elsewhere).requests()?;
    assert!(touched.is_empty(), "{touched:?}");
    Ok(())
}

fn owner_uid(claim: &PersistentVolumeClaim) -> Option<String> {
    claim.owner_references().first().map(|owner| owner.uid.clone())
}
