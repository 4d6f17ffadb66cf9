//! The operator as it is out of the box, with the rights that its chart grants.

use std::{fs, path::PathBuf};

use anyhow::Result;
use serde_json::json;
use testbed::Cluster;

/// What it takes to run the operator in a cluster.
pub(crate) struct Installed {
    /// Its command line.
    pub arguments: Vec<String>,
    /// Its credentials.
    pub kubeconfig: PathBuf,
}

/// Installs the chart for one feature and writes a configuration in which only the port is our choice.
pub(crate) async fn install(cluster: &Cluster, feature: &str) -> Result<Installed> {
    install_with(cluster, feature, "").await
}

/// The same with settings that have no default here, such as where something is.
pub(crate) async fn install_with(cluster: &Cluster, feature: &str, settings: &str) -> Result<Installed> {
    let kubeconfig = cluster.install_chart("claimkeeper", "claimkeeper", &json!({"features": [feature]})).await?;
    let config = cluster.directory().join(format!("{feature}.yaml"));
    let own = format!("features: [{feature}]\nadmin: {{listen: '127.0.0.1:0'}}\nlog: {{format: json}}\n");
    fs::write(&config, own + settings)?;
    let arguments = ["run", "--config", &config.to_string_lossy(), "--kubeconfig", &kubeconfig.to_string_lossy()];
    Ok(Installed { arguments: arguments.map(str::to_owned).to_vec(), kubeconfig })
}
