//! What the chart accepts.

use anyhow::Result;
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
    Ok(())
}
