//! To whom a volume goes.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use rehearsal::Told;
use serde_json::json;
use testbed::eventually;

use crate::room::{MANAGED_BY, PROVISIONED_BY, RELEASE, Room, reference};

#[tokio::test]
async fn a_soft_release_is_for_the_next_claim_of_the_name_alone() -> Result<()> {
    let room = Room::open("soft").await?;
    let class = room.create_class("data", json!({RELEASE: "soft"})).await?;
    let volume = room.create_released("db", &class, json!({}), json!({})).await?;
    let kept = room.until_phase(&volume, "Available").await?;
    assert_eq!(reference(&kept), Some([room.namespace.clone(), "db".to_owned(), String::new()]));
    assert!(
        room.told(&volume, "Released")
            .await?
            .ends_with(&format!("to the next claim of the name {}/db", room.namespace))
    );

    room.create_claim("stranger", &class, json!({})).await?;
    room.create_claim("db", &class, json!({})).await?;
    room.until_bound("db", &volume).await?;
    let stranger = room.claims.get("stranger").await?;
    assert_eq!(stranger.spec.and_then(|spec| spec.volume_name), None);
    Ok(())
}

#[tokio::test]
async fn a_volume_of_the_namespace_waits_for_a_claim_that_it_fits() -> Result<()> {
    let room = Room::open("tenant").await?;
    let class = room.create_class("cache", json!({RELEASE: "namespace"})).await?;
    let volume = room.create_released("one", &class, json!({}), json!({})).await?;
    room.until_decided("leave", "NoClaimWaits", 1).await?;
    room.until_phase(&volume, "Released").await?;

    let elsewhere = room.cluster.create_namespace("stranger").await?;
    let strangers: Api<k8s_openapi::api::core::v1::PersistentVolumeClaim> =
        Api::namespaced(room.admin.clone(), &elsewhere);
    let stranger = serde_json::from_value(json!({
        "metadata": {"name": "greedy"},
        "spec": {"storageClassName": class, "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }))?;
    strangers.create(&PostParams::default(), &stranger).await?;
    let before = room.decided("leave", "NoClaimWaits");
    room.create_claim("too-big", &class, json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}})).await?;
    room.until_decided("leave", "NoClaimWaits", before + 1).await?;
    let fitting = room.create_claim("fitting", &class, json!({})).await?;
    room.until_bound("fitting", &volume).await?;
    let bound = room.volumes.get(&volume).await?;
    assert_eq!(reference(&bound), Some([room.namespace.clone(), "fitting".to_owned(), fitting.uid().unwrap()]));
    assert_eq!(strangers.get("greedy").await?.spec.and_then(|spec| spec.volume_name), None);
    Ok(())
}

#[tokio::test]
async fn two_volumes_are_not_given_to_one_claim() -> Result<()> {
    let room = Room::prepare("pairs").await?;
    let class = room.create_class("cache", json!({RELEASE: "namespace"})).await?;
    let mut volumes = Vec::new();
    for number in 0..6 {
        volumes.push(room.create_released(&format!("v{number}"), &class, json!({}), json!({})).await?);
    }
    for volume in &volumes {
        room.until_phase(volume, "Released").await?;
    }
    for number in 0..6 {
        room.create_claim(&format!("c{number}"), &class, json!({})).await?;
    }
    // All at once: each finds all claims waiting.
    let settings = room.defaults();
    let room = room.start(settings).await?;
    for volume in &volumes {
        room.until_phase(volume, "Bound").await?;
    }
    room.until_decided("release", "Released", 6).await?;
    assert_eq!((room.decided("release", "Released"), room.decided("restore", "ClaimServedElsewhere")), (6, 0));
    Ok(())
}

#[tokio::test]
async fn the_class_overrides_every_label() -> Result<()> {
    let room = Room::open("class").await?;
    let never = room.create_class("never", json!({RELEASE: "never"})).await?;
    let soft = room.create_class("soft", json!({RELEASE: "soft"})).await?;
    let labels = json!({PROVISIONED_BY: "claimkeeper", MANAGED_BY: "claimkeeper"});
    let by_hand = json!({"metadata": {"labels": {MANAGED_BY: "claimkeeper"}}});
    let kept = room.create_released("kept", &never, labels.clone(), by_hand.clone()).await?;
    let reserved = room.create_released("reserved", &soft, labels, by_hand).await?;
    let reserved = room.until_phase(&reserved, "Available").await?;
    assert_eq!(reference(&reserved).map(|[_, name, uid]| (name, uid)), Some(("reserved".to_owned(), String::new())));
    room.until_decided("leave", "ClassSaysNever", 1).await?;
    room.until_phase(&kept, "Released").await?;
    Ok(())
}

#[tokio::test]
async fn a_volume_that_is_kept_for_a_name_is_taken_back_with_the_namespace() -> Result<()> {
    let room = Room::open("tenant").await?;
    let class = room.create_class("data", json!({RELEASE: "soft"})).await?;
    let volume = room.create_released("db", &class, json!({}), json!({})).await?;
    let previous =
        room.until_phase(&volume, "Available").await?.annotations()["claimkeeper.dev/previous-claim"].clone();
    let previous: serde_json::Value = serde_json::from_str(&previous)?;
    let namespaces: Api<Namespace> = Api::all(room.admin.clone());
    namespaces.delete(&room.namespace, &DeleteParams::default()).await?;
    let taken_back = room.until_phase(&volume, "Released").await?;
    assert_eq!(reference(&taken_back).map(|[_, _, uid]| uid), previous["uid"].as_str().map(str::to_owned));
    let events = room.events(&volume).await?;
    let warns = |told: &Told| told.kind == "Warning" && told.reason.starts_with("Namespace");
    assert!(events.iter().any(warns), "{events:?}");
    Ok(())
}

#[tokio::test]
async fn a_volume_that_was_taken_back_is_not_for_the_next_tenant_either() -> Result<()> {
    let mut room = Room::open("tenant").await?;
    let class = room.create_class("data", json!({RELEASE: "soft"})).await?;
    let volume = room.create_released("db", &class, json!({}), json!({})).await?;
    room.until_phase(&volume, "Available").await?;
    room.process.kill();
    let namespaces: Api<Namespace> = Api::all(room.admin.clone());
    namespaces.delete(&room.namespace, &DeleteParams::default()).await?;
    eventually("the namespace to go", async || {
        ensure!(namespaces.get_opt(&room.namespace).await?.is_none(), "it is there");
        Ok(())
    })
    .await?;

    let anew = json!({"metadata": {"name": room.namespace}});
    namespaces.create(&PostParams::default(), &serde_json::from_value(anew)?).await?;
    room.age_namespace().await?;
    let settings = room.defaults();
    let room = room.start(settings).await?;
    room.until_decided("restore", "NamespaceRecreated", 1).await?;
    room.until_phase(&volume, "Released").await?;
    room.until_decided("refuse", "NamespaceRecreated", 1).await?;
    room.create_claim("db", &class, json!({})).await?;
    // Another volume of the class, which is nobody's, shows that the claim would take what it can get.
    let free = room.create_volume("free", &class, json!({})).await?.name_any();
    room.until_bound("db", &free).await?;
    room.until_phase(&volume, "Released").await?;
    Ok(())
}

#[tokio::test]
async fn a_volume_whose_claim_got_another_one_first_waits_for_the_next_claim() -> Result<()> {
    let room = Room::prepare("late").await?;
    let class = room.create_class("cache", json!({RELEASE: "namespace"})).await?;
    let volume = room.create_released("one", &class, json!({}), json!({})).await?;
    let before = reference(&room.until_phase(&volume, "Released").await?);
    let other = room.create_volume("other", &class, json!({})).await?.name_any();
    let served = room.create_claim("served", &class, json!({})).await?;
    room.until_bound("served", &other).await?;
    // As if Kubernetes had bound the claim between our last look at it and our write.
    let [namespace, name, uid] = before.clone().context("it had a claim")?;
    let given_to = json!({"name": "served", "uid": served.uid()});
    let previous = json!({"namespace": namespace, "name": name, "uid": uid, "givenTo": given_to}).to_string();
    let given = json!({"namespace": namespace, "name": "served", "uid": served.uid(), "resourceVersion": null});
    let annotations = json!({"claimkeeper.dev/previous-claim": previous, "pv.kubernetes.io/bound-by-controller": null});
    room.patch_volume(&volume, json!({"metadata": {"annotations": annotations}, "spec": {"claimRef": given}})).await?;
    let lost = room.until_phase(&volume, "Available").await?;
    assert_eq!(reference(&lost), Some([namespace, "served".to_owned(), String::new()]), "so does Kubernetes");

    let settings = room.defaults();
    let room = room.start(settings).await?;
    let back = room.until_phase(&volume, "Released").await?;
    assert_eq!(reference(&back), before);
    assert!(room.told(&volume, "ClaimServedElsewhere").await?.contains("served"));
    room.create_claim("next", &class, json!({})).await?;
    room.until_bound("next", &volume).await?;
    let given = room.volumes.get(&volume).await?.annotations()["claimkeeper.dev/previous-claim"].clone();
    assert_eq!(serde_json::from_str::<serde_json::Value>(&given)?["givenTo"]["name"], "next");
    Ok(())
}

#[tokio::test]
async fn what_an_administrator_gives_to_the_name_of_the_last_claim_stays_there() -> Result<()> {
    let room = Room::open("by-name").await?;
    let class = room.create_class("cache", json!({RELEASE: "namespace"})).await?;
    let volume = room.create_released("one", &class, json!({}), json!({})).await?;
    room.create_claim("next", &class, json!({})).await?;
    room.until_bound("next", &volume).await?;
    room.delete_claim("next").await?;
    room.until_phase(&volume, "Released").await?;
    // It still remembers that we gave it to a claim of this name.
    room.patch_volume(&volume, json!({"spec": {"claimRef": {"uid": null, "resourceVersion": null}}})).await?;
    room.until_decided("leave", "Reserved", 1).await?;
    let kept = room.until_phase(&volume, "Available").await?;
    assert_eq!(reference(&kept), Some([room.namespace.clone(), "next".to_owned(), String::new()]));
    room.create_claim("next", &class, json!({})).await?;
    room.until_bound("next", &volume).await?;
    assert_eq!(room.decided("restore", "ClaimServedElsewhere"), 0);
    Ok(())
}

#[tokio::test]
async fn a_volume_stays_released_if_its_claim_was_made_anew_elsewhere() -> Result<()> {
    let room = Room::prepare("anew").await?;
    let class = room.create_class("data", json!({RELEASE: "soft"})).await?;
    let volume = room.create_released("db", &class, json!({}), json!({})).await?;
    room.until_phase(&volume, "Released").await?;
    let other = room.create_volume("other", &class, json!({})).await?.name_any();
    room.create_claim("db", &class, json!({})).await?;
    room.until_bound("db", &other).await?;
    let settings = room.defaults();
    let room = room.start(settings).await?;
    let note = room.told(&volume, "ClaimRecreatedElsewhere").await?;
    assert!(note.contains("has a volume"), "{note}");
    room.until_phase(&volume, "Released").await?;

    // Once that one is gone, the name is free again. Its own volume is the one that it has.
    room.delete_claim("db").await?;
    room.until_phase(&volume, "Available").await?;
    Ok(())
}

#[tokio::test]
async fn an_immediate_class_with_a_provisioner_is_refused() -> Result<()> {
    let room = Room::open("wins").await?;
    let class = room.create_class("disks", json!({RELEASE: "soft"})).await?;
    room.classes.delete(&class, &DeleteParams::default()).await?;
    let made = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": {"name": class, "annotations": {RELEASE: "namespace"}},
        "provisioner": "disks.example.dev", "reclaimPolicy": "Retain", "volumeBindingMode": "Immediate",
    });
    room.classes.patch(&class, &PatchParams::apply("test"), &Patch::Apply(made)).await?;
    let volume = room.create_released("one", &class, json!({}), json!({})).await?;
    assert!(room.told(&volume, "ProvisionerWins").await?.contains("WaitForFirstConsumer"));
    room.until_phase(&volume, "Released").await?;
    Ok(())
}
