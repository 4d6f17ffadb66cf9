//! What the original's documentation promises.

use anyhow::{Result, ensure};
use kube::ResourceExt;
use releaser::Settings;
use serde_json::json;
use testbed::eventually;

use crate::room::{MANAGED_BY, PROVISIONED_BY, Room, reference};

/// As the original's code spells it.
const MANAGED_BY_IN_CODE: &str = "reclaimable-pv-releaser/managed-by";
const CONTROLLER_ID: &str = "reclaimable-pv-releaser.kubernetes.io/controller-id";

#[tokio::test]
async fn a_volume_is_associated_while_its_claim_is_there_and_released_when_it_is_gone() -> Result<()> {
    let room = Room::open("story").await?;
    let class = room.create_class("cache", json!({})).await?;
    let volume = room.create_volume("one", &class, json!({})).await?.name_any();
    let claim =
        room.create_claim("build", &class, json!({"metadata": {"labels": {PROVISIONED_BY: "claimkeeper"}}})).await?;
    room.until_bound("build", &volume).await?;
    assert_eq!(room.told(&volume, "Associated").await?, "PV associated successfully");
    let associated = room.volumes.get(&volume).await?;
    assert_eq!(associated.labels().get(MANAGED_BY).map(String::as_str), Some("claimkeeper"));

    room.delete_claim("build").await?;
    let free = room.until_phase(&volume, "Available").await?;
    assert_eq!((reference(&free), free.labels().get(MANAGED_BY)), (None, None));
    assert!(!free.annotations().contains_key("pv.kubernetes.io/bound-by-controller"));
    let previous: serde_json::Value = serde_json::from_str(&free.annotations()["claimkeeper.dev/previous-claim"])?;
    assert!(previous["goneSince"].is_string());
    let expected = json!({
        "namespace": room.namespace, "name": "build", "uid": claim.uid(), "goneSince": previous["goneSince"],
    });
    assert_eq!(previous, expected);
    assert_eq!(room.told(&volume, "Released").await?, "PV released successfully");

    room.create_claim("next", &class, json!({})).await?;
    room.until_bound("next", &volume).await
}

#[tokio::test]
async fn labels_by_hand_count_in_both_spellings_and_go_with_the_release() -> Result<()> {
    let room = Room::prepare("labels").await?;
    let settings = Settings { automatic_association: false, ..room.defaults() };
    let class = room.create_class("cache", json!({})).await?;
    let labelled = |key: &str, id: &str| json!({"metadata": {"labels": {key: id}}});
    let documented = room.create_released("documented", &class, json!({}), labelled(MANAGED_BY, "claimkeeper")).await?;
    let coded = room.create_released("coded", &class, json!({}), labelled(MANAGED_BY_IN_CODE, "claimkeeper")).await?;
    let theirs = room.create_released("theirs", &class, json!({}), labelled(MANAGED_BY, "other")).await?;
    let labels = json!({PROVISIONED_BY: "claimkeeper"});
    let unassociated = room.create_released("unassociated", &class, labels, json!({})).await?;
    // All this before anybody looks: a backlog.
    let room = room.start(settings).await?;
    for volume in [&documented, &coded] {
        let free = room.until_phase(volume, "Available").await?;
        assert!(!free.labels().contains_key(MANAGED_BY) && !free.labels().contains_key(MANAGED_BY_IN_CODE), "{volume}");
    }
    room.until_decided("leave", "ManagedByOther", 1).await?;
    room.until_decided("leave", "NotManaged", 1).await?;
    assert_eq!(room.until_phase(&theirs, "Released").await?.labels()[MANAGED_BY], "other");
    room.until_phase(&unassociated, "Released").await?;
    Ok(())
}

#[tokio::test]
async fn an_association_is_never_overwritten() -> Result<()> {
    let room = Room::open("theirs").await?;
    let class = room.create_class("cache", json!({})).await?;
    let theirs = json!({"metadata": {"labels": {MANAGED_BY: "other"}}});
    let volume = room.create_released("one", &class, json!({PROVISIONED_BY: "claimkeeper"}), theirs).await?;
    room.until_phase(&volume, "Released").await?;
    room.until_decided("leave", "ManagedByOther", 1).await?;
    assert_eq!(room.volumes.get(&volume).await?.labels()[MANAGED_BY], "other");
    assert_eq!(room.decided("associate", "Associated"), 0);
    Ok(())
}

#[tokio::test]
async fn a_claim_that_is_labelled_later_has_its_volume_associated() -> Result<()> {
    let room = Room::open("later").await?;
    let class = room.create_class("cache", json!({})).await?;
    let volume = room.create_volume("one", &class, json!({})).await?.name_any();
    room.create_claim("build", &class, json!({})).await?;
    room.until_bound("build", &volume).await?;
    let label = kube::api::Patch::Merge(json!({"metadata": {"labels": {PROVISIONED_BY: "claimkeeper"}}}));
    room.claims.patch("build", &kube::api::PatchParams::default(), &label).await?;
    room.told(&volume, "Associated").await?;
    Ok(())
}

#[tokio::test]
async fn the_class_annotation_of_the_later_versions_releases_also_what_was_released_before_it() -> Result<()> {
    let room = Room::open("class").await?;
    let class = room.create_class("cache", json!({})).await?;
    let volume = room.create_released("one", &class, json!({}), json!({})).await?;
    room.until_phase(&volume, "Released").await?;
    room.until_decided("leave", "NotManaged", 1).await?;
    room.annotate_class(&class, json!({CONTROLLER_ID: "other"})).await?;
    room.until_decided("leave", "ManagedByOther", 1).await?;
    room.annotate_class(&class, json!({CONTROLLER_ID: "claimkeeper"})).await?;
    room.until_phase(&volume, "Available").await?;
    Ok(())
}

#[tokio::test]
async fn fifty_claims_in_turn_use_the_same_volume() -> Result<()> {
    let room = Room::open("cycles").await?;
    let class = room.create_class("cache", json!({})).await?;
    let volume = room.create_volume("one", &class, json!({})).await?.name_any();
    for cycle in 0..50 {
        let name = format!("build-{cycle}");
        let labels = json!({"metadata": {"labels": {PROVISIONED_BY: "claimkeeper"}}});
        room.create_claim(&name, &class, labels).await?;
        room.until_bound(&name, &volume).await?;
        // The claim's wish is lost with the claim; whoever deletes it at once must use the class.
        eventually("the association", async || {
            ensure!(room.volumes.get(&volume).await?.labels().contains_key(MANAGED_BY), "not yet");
            Ok(())
        })
        .await?;
        room.delete_claim(&name).await?;
        // Kubernetes looks at a claim that found no free volume only every 15 seconds; the test has not that much time.
        room.until_phase(&volume, "Available").await?;
    }
    assert_eq!(room.decided("release", "Released"), 50);
    Ok(())
}
