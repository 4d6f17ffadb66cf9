//! The binary in the place of reclaimable-pv-releaser.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{Event, PersistentVolume};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::json;
use testbed::eventually;

use super::{Original, RELEASER, refused};
use crate::home::Home;

/// As its code spells it, whatever its documentation says.
const MANAGED_BY: &str = "reclaimable-pv-releaser/managed-by";

/// The original with the rules of its chart, all of them: no namespaces, no volumeattachments, no events.k8s.io.
async fn original(prefix: &str) -> Result<Original> {
    let rules = json!([
        {"apiGroups": ["storage.k8s.io"], "resources": ["storageclasses"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["persistentvolumes"],
         "verbs": ["get", "list", "watch", "update", "patch"]},
    ]);
    Original::with(Home::on(testbed::shared().await?, prefix).await?, rules).await
}

async fn phase(volumes: &Api<PersistentVolume>, name: &str, wanted: &str) -> Result<PersistentVolume> {
    eventually(&format!("volume {name} to be {wanted}"), async || {
        let volume = volumes.get(name).await?;
        let found = volume.status.as_ref().and_then(|status| status.phase.as_deref());
        ensure!(found == Some(wanted), "it is {found:?}");
        Ok(volume)
    })
    .await
}

#[tokio::test]
async fn the_releasers_example_runs_with_the_rights_of_its_chart() -> Result<()> {
    let original = original("releaser").await?;
    let (home, client) = (&original.home, original.client().await?);
    // The documented example, with names that belong to this test alone: volumes belong to everybody.
    let id = &home.namespace;
    let line = format!(
        "{RELEASER} \\
           -controller-id {id} \\
           -lease-lock-name reclaimable-pvc-releaser-test \\
           -lease-lock-namespace {id}"
    );
    let replica = original.start("releaser", &line).await?;

    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let name = format!("{id}-pv");
    let volume = json!({
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": id, "hostPath": {"path": "/nonexistent"},
        },
    });
    volumes.create(&PostParams::default(), &serde_json::from_value(volume)?).await?;
    let claim = json!({
        "metadata": {"name": "build", "labels": {"dynamic-pvc-provisioner.kubernetes.io/managed-by": id}},
        "spec": {
            "storageClassName": id, "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
        },
    });
    home.claims.create(&PostParams::default(), &serde_json::from_value(claim)?).await?;
    eventually("the association", async || {
        let labels = volumes.get(&name).await?.labels().clone();
        ensure!(labels.get(MANAGED_BY) == Some(id), "its labels are {labels:?}");
        Ok(())
    })
    .await?;
    home.claims.delete("build", &DeleteParams::default()).await?;
    let free = phase(&volumes, &name, "Available").await?;
    assert!(free.labels().is_empty() && free.spec.and_then(|spec| spec.claim_ref).is_none());

    let events: Api<Event> = Api::namespaced(client, "default");
    eventually("both events, through core/v1", async || {
        let about = ListParams::default().fields(&format!("involvedObject.name={name}"));
        let events = events.list(&about).await?.items;
        let told: Vec<_> =
            events.iter().filter_map(|event| event.reason.as_deref().zip(event.message.as_deref())).collect();
        for wanted in [("Associated", "PV associated successfully"), ("Released", "PV released successfully")] {
            ensure!(told.contains(&wanted), "{told:?}");
        }
        Ok(())
    })
    .await?;
    let output = replica.leash.output();
    let unguarded = "volumes are released without asking whether they are still attached";
    assert_eq!(output.matches(unguarded).count(), 1, "{output}");
    assert!(replica.metric("claimkeeper_releaser_unguarded_total").await? >= 1);
    let kinds = refused(&home.cluster, &replica.user)?;
    // Volumes belong to everybody, and those of other tests make it look at their namespaces.
    let ours = kinds.iter().filter_map(|request| request.object_ref.as_ref());
    let ours = ours.filter(|object| object.name.is_empty() || object.name.contains(id.as_str()));
    let kinds = ours.map(|object| object.resource.as_str());
    assert!(
        kinds.clone().all(|kind| ["volumeattachments", "events"].contains(&kind)),
        "{:?}",
        kinds.collect::<Vec<_>>()
    );
    Ok(())
}

#[tokio::test]
async fn what_belongs_to_the_provisioner_alone_is_said_once() -> Result<()> {
    let original = original("lease").await?;
    let line = format!("{RELEASER} -controller-id={0} -namespace={0} -lease-lock-name=lock", original.home.namespace);
    let replica = original.start("releaser", &line).await?;
    let output = replica.leash.output();
    assert_eq!(output.matches("-namespace is only where the Lease is by default").count(), 1, "{output}");
    // A replica is ready without leading, so it may answer before it has asked for the Lease.
    eventually("a holder of the Lease", async || {
        let lease = original.home.leases.get("lock").await?;
        ensure!(lease.spec.is_some_and(|spec| spec.holder_identity.is_some()), "nobody holds it");
        Ok(())
    })
    .await
}
