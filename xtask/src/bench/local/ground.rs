//! A cluster in which the operator's webhooks run on this machine.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use kube::{
    Api,
    api::{DeleteParams, ListParams},
};
use serde_json::json;
use testbed::{ControlPlane, Options};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::create_classes;

/// API server and etcd, with the operator's chart and both classes.
pub(crate) struct Ground {
    pub control_plane: ControlPlane,
    /// The directory with tls.crt and tls.key.
    pub certificates: PathBuf,
    /// Who signed them.
    pub authority: PathBuf,
    features: String,
    /// Of the operator.
    kubeconfig: PathBuf,
}

impl Ground {
    pub(crate) async fn open(features: &[&str]) -> Result<Self> {
        let options = Options::default().nodes(0).provisioner(false).without_scheduler().without_controller_manager();
        let control_plane = ControlPlane::start(options.name("bench")).await?;
        let values = json!({"features": features});
        let kubeconfig = control_plane.install_chart("claimkeeper", "claimkeeper", &values).await?;
        let client = control_plane.admin().await?;
        // The servers are asked directly, if at all; the API server would look for the chart's Service.
        let (delete, all) = (DeleteParams::default(), ListParams::default());
        Api::<ValidatingWebhookConfiguration>::all(client.clone()).delete_collection(&delete, &all).await?;
        Api::<MutatingWebhookConfiguration>::all(client.clone()).delete_collection(&delete, &all).await?;
        create_classes(&client).await?;
        let pki = control_plane.directory().join("pki");
        let certificates = control_plane.directory().join("webhook");
        copy_certificates(&pki, &certificates)?;
        Ok(Self {
            control_plane,
            certificates,
            authority: pki.join("ca.crt"),
            features: features.join(", "),
            kubeconfig,
        })
    }

    /// The operator's command line: out of the box but for its ports, its certificates, an end without delay, and what else is said.
    pub(crate) fn operator(&self, address: SocketAddr, admin: SocketAddr, more: &str) -> Result<Vec<String>> {
        let config = self.control_plane.directory().join("operator.yaml");
        let (certificates, features) = (self.certificates.display(), &self.features);
        fs::write(
            &config,
            format!(
                "features: [{features}]\nadmin: {{listen: '{admin}'}}\nlog: {{format: json}}\n\
                 webhook: {{listen: '{address}', drainDelay: 0s, certificates: {{mode: files, directory: '{certificates}'}}}}\n\
                 {more}"
            ),
        )?;
        let (config, kubeconfig) = (config.display().to_string(), self.kubeconfig.display().to_string());
        Ok(["run", "--config", &config, "--kubeconfig", &kubeconfig].map(str::to_owned).to_vec())
    }

    /// The command line of the webhooks in Go that have these objects in their caches. They watch what the chart does not let the
    /// operator see.
    pub(crate) fn go(&self, address: SocketAddr, cached: &str) -> Vec<String> {
        let kubeconfig = self.control_plane.admin_kubeconfig().display().to_string();
        vec![kubeconfig, address.port().to_string(), self.certificates.display().to_string(), cached.to_owned()]
    }
}

/// The API server's own certificate will do: it is for this machine's loopback address.
fn copy_certificates(pki: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for (from, name) in [("serving.crt", "tls.crt"), ("serving.key", "tls.key")] {
        fs::copy(pki.join(from), to.join(name)).with_context(|| format!("cannot copy {from}"))?;
    }
    Ok(())
}

/// Whether the operator has read what there is and answers.
pub(crate) async fn is_ready(admin: SocketAddr) -> Result<()> {
    let mut stream = TcpStream::connect(admin).await?;
    stream.write_all(b"GET /readyz HTTP/1.0\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    ensure!(answer.split_whitespace().nth(1) == Some("200"), "it answers {answer}");
    Ok(())
}

/// An address where nobody listens.
pub(crate) fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}
