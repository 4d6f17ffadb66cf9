//! What people and other programs do to our objects is undone, within moments.

use anyhow::{Result, ensure};
use kube::{
    ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams, PropagationPolicy},
};
use serde_json::{Value, json};
use shared_volumes::names::VOLUME_ID;
use testbed::{eventually, storageos::Route};

use crate::room::Room;

const HERE: &str = "10.1.0.4:25705";

/// What of a Service matters.
fn essence(service: &k8s_openapi::api::core::v1::Service) -> Value {
    let json = serde_json::to_value(service).unwrap();
    let spec = &json["spec"];
    json!({
        "type": spec["type"], "clusterIP": spec["clusterIP"], "selector": spec["selector"], "ports": spec["ports"],
        "internalTrafficPolicy": spec["internalTrafficPolicy"], "label": json["metadata"]["labels"][VOLUME_ID],
        "owners": json["metadata"]["ownerReferences"], "uid": json["metadata"]["uid"],
    })
}

#[tokio::test]
async fn whatever_drifts_about_a_service_is_repaired_and_the_address_stays() -> Result<()> {
    let room = Room::open("drift").await?;
    let (id, address) = room.published("files", HERE).await?;
    let right = essence(&room.services.get("files").await?);
    let port = |change: Value| {
        let mut port = json!({"name": "nfs", "port": 2049, "protocol": "TCP", "targetPort": 25_705});
        json_patch::merge(&mut port, &change);
        json!({"spec": {"ports": [port]}})
    };
    for drift in [
        json!({"spec": {"type": "NodePort"}}),
        json!({"spec": {"type": "ExternalName", "externalName": "elsewhere.example", "clusterIP": null, "clusterIPs": null}}),
        json!({"spec": {"selector": {"app": "web"}}}),
        json!({"spec": {"internalTrafficPolicy": "Local"}}),
        port(json!({"port": 2050})),
        port(json!({"name": "web"})),
        port(json!({"protocol": "UDP"})),
        port(json!({"targetPort": 1})),
        json!({"metadata": {"labels": null}}),
        json!({"metadata": {"labels": {VOLUME_ID: "another-volume"}}}),
        json!({"metadata": {"ownerReferences": null}}),
    ] {
        room.patch_service("files", drift.clone()).await?;
        eventually(&format!("the repair of {drift}"), async || {
            let found = essence(&room.services.get("files").await?);
            ensure!(found == right, "it is {found}");
            Ok(())
        })
        .await?;
    }
    room.until_leads("files", Some(HERE)).await?;
    assert_eq!(room.server.published(&id)?, Some(address));
    assert_eq!(room.server.requests_to(Route::MountEndpoint).len(), 1, "something else was published in between");
    Ok(())
}

#[tokio::test]
async fn whatever_drifts_about_a_slice_is_repaired() -> Result<()> {
    let room = Room::open("slices").await?;
    room.published("files", HERE).await?;
    let name = room.slices_of("files").await?[0].name_any();
    let two = json!([{"addresses": ["10.1.0.4"]}, {"addresses": ["10.1.0.9"]}]);
    for drift in [
        json!({"endpoints": two}),
        json!({"endpoints": []}),
        json!({"endpoints": [{"addresses": ["10.1.0.4"], "conditions": {"ready": false}}]}),
        json!({"ports": [{"name": "web", "port": 25_705, "protocol": "TCP"}]}),
        json!({"ports": [{"name": "nfs", "port": 1, "protocol": "TCP"}]}),
        json!({"metadata": {"ownerReferences": null}}),
        json!({"metadata": {"labels": {"endpointslice.kubernetes.io/managed-by": "somebody"}}}),
        json!({"metadata": {"labels": {"kubernetes.io/service-name": "other"}}}),
        json!({"metadata": {"labels": {VOLUME_ID: null}}}),
        json!({"metadata": {"labels": {VOLUME_ID: "another-volume"}}}),
    ] {
        room.slices.patch(&name, &PatchParams::default(), &Patch::Merge(&drift)).await?;
        eventually(&format!("the repair of {drift}"), async || {
            let slices = serde_json::to_value(room.slices_of("files").await?)?;
            let [slice] = slices.as_array().map(Vec::as_slice).unwrap_or_default() else {
                anyhow::bail!("there are {slices}");
            };
            ensure!(slice["endpoints"][0]["addresses"] == json!(["10.1.0.4"]), "{slice}");
            ensure!(
                slice["endpoints"][0]["conditions"]["ready"] == json!(true) && slice["endpoints"][1].is_null(),
                "{slice}"
            );
            ensure!(slice["ports"] == json!([{"name": "nfs", "port": 25_705, "protocol": "TCP"}]), "{slice}");
            let labels = &slice["metadata"]["labels"];
            ensure!(labels["endpointslice.kubernetes.io/managed-by"] == "shared-volumes.claimkeeper.dev", "{slice}");
            ensure!(
                labels[VOLUME_ID].is_string() && slice["metadata"]["ownerReferences"][0]["kind"] == "Service",
                "{slice}"
            );
            Ok(())
        })
        .await?;
    }
    room.slices.delete(&name, &DeleteParams::default()).await?;
    room.until_leads("files", Some(HERE)).await
}

#[tokio::test]
async fn a_slice_that_somebody_adds_to_our_service_is_removed() -> Result<()> {
    let room = Room::open("added").await?;
    room.published("files", HERE).await?;
    let added = json!({
        "metadata": {"name": "files-added", "labels": {"kubernetes.io/service-name": "files"}},
        "addressType": "IPv4",
        "ports": [{"name": "nfs", "port": 25_705, "protocol": "TCP"}],
        "endpoints": [{"addresses": ["10.1.0.66"]}],
    });
    room.slices.create(&PostParams::default(), &serde_json::from_value(added)?).await?;
    eventually("the end of the slice", async || {
        ensure!(room.slices.get_opt("files-added").await?.is_none(), "it is there");
        Ok(())
    })
    .await?;
    assert_eq!(room.leads("files").await?, [HERE]);
    Ok(())
}

#[tokio::test]
async fn whatever_drifts_about_an_endpoints_object_is_repaired() -> Result<()> {
    let room = Room::open("endpoints").await?;
    room.published("files", HERE).await?;
    let subset = |ips: &[&str], port: Value| {
        let addresses: Vec<Value> = ips.iter().map(|ip| json!({"ip": ip})).collect();
        json!({"subsets": [{"addresses": addresses, "ports": [port]}]})
    };
    let right = json!({"name": "nfs", "port": 25_705, "protocol": "TCP"});
    for drift in [
        subset(&["10.1.0.4", "10.1.0.9"], right.clone()),
        subset(&["10.1.0.9"], right.clone()),
        // The original sees this one, does not repair it, and says so once a minute for ever.
        subset(&["10.1.0.4"], json!({"name": "web", "port": 25_705})),
        json!({"subsets": null}),
        json!({"metadata": {"labels": null}}),
        json!({"metadata": {"labels": {VOLUME_ID: "another-volume"}}}),
        json!({"metadata": {"labels": {"endpointslice.kubernetes.io/skip-mirror": null}}}),
        json!({"metadata": {"ownerReferences": null}}),
    ] {
        room.endpoints.patch("files", &PatchParams::default(), &Patch::Merge(&drift)).await?;
        until_endpoints_are_right(&room, &drift.to_string()).await?;
    }
    room.endpoints.delete("files", &DeleteParams::default()).await?;
    until_endpoints_are_right(&room, "its end").await?;
    room.until_leads("files", Some(HERE)).await
}

async fn until_endpoints_are_right(room: &Room, drift: &str) -> Result<()> {
    let ports = json!([{"name": "nfs", "port": 25_705, "protocol": "TCP"}]);
    eventually(&format!("the repair of {drift}"), async || {
        let found = serde_json::to_value(room.endpoints.get("files").await?)?;
        ensure!(found["subsets"] == json!([{"addresses": [{"ip": "10.1.0.4"}], "ports": ports}]), "it is {found}");
        let (labels, owners) = (&found["metadata"]["labels"], &found["metadata"]["ownerReferences"]);
        ensure!(labels["endpointslice.kubernetes.io/skip-mirror"] == "true", "it is {found}");
        let volume = room.services.get("files").await?.labels().get(VOLUME_ID).cloned();
        ensure!(labels[VOLUME_ID] == json!(volume) && owners[0]["kind"] == "Service", "it is {found}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_service_is_owned_by_the_claim_that_its_volume_is_bound_to_now() -> Result<()> {
    let room = Room::open("rebound").await?;
    let (_, address) = room.published("files", HERE).await?;
    let before = room.services.get("files").await?.uid();
    let orphan = DeleteParams { propagation_policy: Some(PropagationPolicy::Orphan), ..DeleteParams::default() };
    room.claims.delete("files", &orphan).await?;
    eventually("the end of the claim", async || {
        ensure!(room.claims.get_opt("files").await?.is_none(), "it is there");
        Ok(())
    })
    .await?;
    let claim = room.create_claim("files", json!({})).await?;
    eventually("the new owner", async || {
        let owners = room.services.get("files").await?.owner_references().to_vec();
        ensure!(owners.len() == 1 && Some(&owners[0].uid) == claim.metadata.uid.as_ref(), "owned by {owners:?}");
        Ok(())
    })
    .await?;
    room.until_noted("files", "Served").await?;
    assert_eq!(room.services.get("files").await?.uid(), before);
    assert_eq!(format!("{}:2049", room.cluster_ip("files").await?), address);
    Ok(())
}

#[tokio::test]
async fn a_claim_that_gets_another_volume_is_not_served_this_one_any_longer() -> Result<()> {
    let room = Room::open("bound-late").await?;
    room.published("files", HERE).await?;
    let bound = json!({"spec": {"volumeName": "pv-something-else"}});
    room.claims.patch("files", &PatchParams::default(), &Patch::Merge(&bound)).await?;
    room.until_leads("files", None).await?;
    room.until_counted("ClaimHasOtherVolume", 1).await
}
