//! Claims and pods on the testbed's classes, bound and run by the real controllers.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::StorageClass,
};
use kube::{Api, Client, ResourceExt, api::DeleteParams};
use serde_json::json;
use testbed::{Component, ControlPlane, Options, PROVISIONER, eventually};

fn claim(name: &str, class: &str) -> Result<PersistentVolumeClaim> {
    Ok(serde_json::from_value(json!({
        "metadata": { "name": name },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": class,
            "resources": { "requests": { "storage": "1Gi" } },
        },
    }))?)
}

fn pod(name: &str, claim: &str) -> Result<Pod> {
    Ok(serde_json::from_value(json!({
        "metadata": { "name": name },
        "spec": {
            "containers": [{ "name": "main", "image": "app" }],
            "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": claim } }],
        },
    }))?)
}

/// Passes when the object is in this phase, for `eventually`.
fn expect_phase<K: serde::Serialize>(object: &K, phase: &str) -> Result<()> {
    let object = serde_json::to_value(object)?;
    ensure!(object["status"]["phase"] == phase, "{:#}", object["status"]);
    Ok(())
}

async fn create<K>(client: &Client, namespace: &str, object: &K) -> Result<K>
where
    K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::Serialize
        + serde::de::DeserializeOwned,
{
    Ok(Api::namespaced(client.clone(), namespace).create(&kube::api::PostParams::default(), object).await?)
}

/// Waits until the claim is bound and returns its volume.
async fn bound_volume(client: &Client, namespace: &str, claim: &str) -> Result<PersistentVolume> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    eventually("the claim to be Bound", async || expect_phase(&claims.get(claim).await?, "Bound")).await?;
    let volume = claims.get(claim).await?.spec.and_then(|spec| spec.volume_name).context("bound without a volume")?;
    Ok(Api::all(client.clone()).get(&volume).await?)
}

#[tokio::test]
async fn a_pod_with_a_claim_that_waits_for_it_runs_with_the_claim_bound() -> Result<()> {
    let cluster = testbed::shared().await?;
    let (client, namespace) = (cluster.admin().await?, cluster.create_namespace("volumes").await?);
    create(&client, &namespace, &claim("data", "testbed-wait")?).await?;
    create(&client, &namespace, &pod("app", "data")?).await?;

    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    eventually("the pod to run", async || expect_phase(&pods.get("app").await?, "Running")).await?;
    let volume = bound_volume(&client, &namespace, "data").await?;
    let spec = volume.spec.clone().unwrap_or_default();
    assert_eq!(spec.capacity.unwrap_or_default()["storage"].0, "1Gi");
    assert_eq!(spec.access_modes.unwrap_or_default(), ["ReadWriteOnce"]);
    assert_eq!(spec.persistent_volume_reclaim_policy.as_deref(), Some("Delete"));
    Ok(())
}

#[tokio::test]
async fn pods_run_and_claims_get_volumes_again_after_an_outage_of_the_api_server() -> Result<()> {
    let control_plane = ControlPlane::start(Options::default()).await?;
    let (client, namespace) = (control_plane.admin().await?, control_plane.create_namespace("volumes").await?);
    control_plane.kill(Component::ApiServer)?;
    control_plane.start_component(Component::ApiServer).await?;
    create(&client, &namespace, &claim("data", "testbed-wait")?).await?;
    create(&client, &namespace, &pod("app", "data")?).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    eventually("the pod to run", async || expect_phase(&pods.get("app").await?, "Running")).await
}

#[tokio::test]
async fn a_claim_that_waits_for_a_pod_stays_pending_while_an_immediate_one_is_bound() -> Result<()> {
    let cluster = testbed::shared().await?;
    let (client, namespace) = (cluster.admin().await?, cluster.create_namespace("volumes").await?);
    create(&client, &namespace, &claim("waiting", "testbed-wait")?).await?;
    create(&client, &namespace, &claim("immediate", "testbed-immediate")?).await?;
    bound_volume(&client, &namespace, "immediate").await?;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client, &namespace);
    expect_phase(&claims.get("waiting").await?, "Pending")
}

#[tokio::test]
async fn a_deleted_claim_takes_its_volume_along_or_leaves_it_released_as_its_class_says() -> Result<()> {
    let cluster = testbed::shared().await?;
    let (client, namespace) = (cluster.admin().await?, cluster.create_namespace("volumes").await?);
    create(&client, &namespace, &claim("deleted", "testbed-immediate")?).await?;
    create(&client, &namespace, &claim("retained", "testbed-immediate-retain")?).await?;
    let deleted = bound_volume(&client, &namespace, "deleted").await?.name_any();
    let retained = bound_volume(&client, &namespace, "retained").await?.name_any();

    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &namespace);
    claims.delete("deleted", &DeleteParams::default()).await?;
    claims.delete("retained", &DeleteParams::default()).await?;
    let volumes: Api<PersistentVolume> = Api::all(client);
    eventually("the volume to go", async || {
        ensure!(volumes.get_opt(&deleted).await?.is_none(), "it is there");
        Ok(())
    })
    .await?;
    eventually("the volume to be Released", async || expect_phase(&volumes.get(&retained).await?, "Released")).await?;
    volumes.delete(&retained, &DeleteParams::default()).await?;
    Ok(())
}

#[tokio::test]
async fn a_volume_of_a_class_with_node_topology_is_tied_to_the_node_of_its_pod() -> Result<()> {
    let cluster = testbed::shared().await?;
    let (client, namespace) = (cluster.admin().await?, cluster.create_namespace("volumes").await?);
    let class: StorageClass = serde_json::from_value(json!({
        "metadata": { "name": format!("local-{namespace}") },
        "provisioner": PROVISIONER,
        "parameters": { "topology": "node" },
        "volumeBindingMode": "WaitForFirstConsumer",
    }))?;
    Api::<StorageClass>::all(client.clone()).create(&kube::api::PostParams::default(), &class).await?;
    create(&client, &namespace, &claim("data", &class.name_any())?).await?;
    create(&client, &namespace, &pod("app", "data")?).await?;

    let volume = serde_json::to_value(bound_volume(&client, &namespace, "data").await?)?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    eventually("the pod to run", async || expect_phase(&pods.get("app").await?, "Running")).await?;
    let node = pods.get("app").await?.spec.and_then(|spec| spec.node_name);
    let expression = &volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"][0];
    assert_eq!(*expression, json!({ "key": "kubernetes.io/hostname", "operator": "In", "values": [node] }));
    Api::<StorageClass>::all(client).delete(&class.name_any(), &DeleteParams::default()).await?;
    Ok(())
}
