//! What the chart accepts.

use anyhow::Result;
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use kube::Api;
use serde_json::{Value, json};

#[tokio::test]
async fn values_that_mean_nothing_fail_the_installation_by_name() -> Result<()> {
    let cluster = testbed::shared().await?;
    let namespace = cluster.create_namespace("chart").await?;
    let refused = async |values: Value| match cluster.install_chart("bad", &namespace, &values).await {
        Ok(_) => panic!("{values} was accepted"),
        Err(error) => format!("{error:#}"),
    };
    assert!(refused(json!({"features": ["ephemral"]})).await.contains("/features/0"));
    assert!(refused(json!({"features": []})).await.contains("/features"));
    assert!(refused(json!({"features": ["ephemeral"], "leaderElecton": {}})).await.contains("leaderElecton"));
    let authorize = json!({"features": ["ephemeral"], "ephemeral": {"authorize": "maybe"}});
    assert!(refused(authorize).await.contains("/ephemeral/authorize"));
    Ok(())
}

#[tokio::test]
async fn off_means_off_also_where_yaml_takes_it_for_a_boolean() -> Result<()> {
    let cluster = testbed::shared().await?;
    let namespace = cluster.create_namespace("chart").await?;
    let values = json!({"features": ["ephemeral"], "namespace": namespace, "ephemeral": {"authorize": false}});
    cluster.install_chart("plain", &namespace, &values).await?;
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(cluster.admin().await?);
    assert!(policies.get_opt(&format!("ephemeral-volumes-denied.plain.{namespace}")).await?.is_some());
    assert!(policies.get_opt(&format!("ephemeral-volumes-authorized.plain.{namespace}")).await?.is_none());
    Ok(())
}
