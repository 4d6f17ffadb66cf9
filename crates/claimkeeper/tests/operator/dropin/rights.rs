//! The rights of the original's chart are enough, also where `OwnerReferencesPermissionEnforcement` is on, as it is in the
//! testbed.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Event;
use kube::{Api, ResourceExt, api::ListParams};
use serde_json::json;
use testbed::{AuditedRequest, eventually};

use super::{Original, owner, refused};

/// More than one at once find out what is not allowed.
const PODS: usize = 12;

#[tokio::test]
async fn the_rights_of_the_originals_chart_are_enough_and_what_is_missing_is_said_once() -> Result<()> {
    let original = Original::on(testbed::shared().await?, "rights").await?;
    let names: Vec<String> = (0..PODS).map(|number| format!("pod-{number}")).collect();
    for name in &names {
        original.ask(name).await?;
    }
    let replica = original.start("chart", &original.line("")).await?;
    for name in &names {
        let (pod, claim) = (original.home.pods.get(name).await?, original.claim_of(name).await?);
        let expected = json!([{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod.uid(), "controller": true}]);
        assert_eq!(owner(&claim)?, expected, "the owner does not wait for the claim to be deleted");
    }
    until_told(&original, &names).await?;

    let seen = eventually("both refusals in the audit log", async || {
        let seen = refused(&original.home.cluster, &replica.user)?;
        let kinds: BTreeSet<(&str, &str)> = seen.iter().map(kind).collect();
        ensure!(kinds.len() >= 2, "{kinds:?}");
        assert_eq!(kinds, BTreeSet::from([("", "persistentvolumeclaims"), ("events.k8s.io", "events")]), "{seen:?}");
        Ok(seen.len())
    })
    .await?;

    // From now on it knows.
    original.ask("later").await?;
    original.claim_of("later").await?;
    until_told(&original, &["later".to_owned()]).await?;
    assert_eq!(refused(&original.home.cluster, &replica.user)?.len(), seen);

    let output = replica.leash.output();
    for once in ["claims are made without blockOwnerDeletion from now on", "events go to core/v1 from now on"] {
        assert_eq!(output.matches(once).count(), 1, "{once}:\n{output}");
    }
    assert_eq!(output.lines().filter(|line| line.starts_with(['E', 'F'])).count(), 0, "{output}");
    Ok(())
}

/// What a request was for: group and resource, which are empty if it was for no object.
fn kind(request: &AuditedRequest) -> (&str, &str) {
    request.object_ref.as_ref().map_or(("", ""), |object| (&object.api_group, &object.resource))
}

/// Waits until each of the pods has its event.
async fn until_told(original: &Original, pods: &[String]) -> Result<()> {
    let events: Api<Event> = Api::namespaced(original.client().await?, &original.home.namespace);
    let provisioned = ListParams::default().fields("reason=PVCProvisioned,type=Normal");
    eventually("the events", async || {
        let events = events.list(&provisioned).await?.items;
        let told: BTreeSet<&str> = events.iter().filter_map(|event| event.involved_object.name.as_deref()).collect();
        ensure!(pods.iter().all(|pod| told.contains(pod.as_str())), "only {told:?} were told");
        assert!(events.iter().all(|event| event.message.as_deref() == Some("PVC created successfully")), "{events:?}");
        Ok(())
    })
    .await
}
