//! The cluster: API server and etcd, two classes, and the claims that everybody has in the cache.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::{
    admissionregistration::v1::ValidatingWebhookConfiguration,
    core::v1::{Namespace, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::{Value, json};
use testbed::{AuditLog, ControlPlane, Options};

use super::{
    contestant::Programs,
    reviews::{self, DRIVER, FOREIGN, LOCAL, NAMESPACE},
};

const AT_ONCE: usize = 32;
const OPERATOR: &str = "system:serviceaccount:claimkeeper:claimkeeper";

/// The cluster.
pub(crate) struct Scene {
    pub(crate) control_plane: ControlPlane,
    pub(super) programs: Programs,
    /// Of the operator.
    pub(super) kubeconfig: PathBuf,
    /// The directory with tls.crt and tls.key.
    pub(super) certificates: PathBuf,
    /// Who signed them.
    pub(super) authority: PathBuf,
    claims: usize,
}

impl Scene {
    /// A cluster with the operator's chart and both classes in it.
    pub(crate) async fn open(programs: Programs) -> Result<Self> {
        let options = Options::default().nodes(0).provisioner(false).without_scheduler().without_controller_manager();
        let control_plane = ControlPlane::start(options.name("bench")).await?;
        let values = json!({"features": ["enforcement"]});
        let kubeconfig = control_plane.install_chart("claimkeeper", "claimkeeper", &values).await?;
        let client = control_plane.admin().await?;
        // The servers are asked directly; the API server would look for the chart's Service.
        let configurations: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
        configurations.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
        let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}}))?;
        Api::all(client.clone()).create(&PostParams::default(), &namespace).await?;
        for (name, provisioner) in [(LOCAL, DRIVER), (FOREIGN, "disks.example.dev")] {
            let class: StorageClass =
                serde_json::from_value(json!({"metadata": {"name": name}, "provisioner": provisioner}))?;
            Api::all(client.clone()).create(&PostParams::default(), &class).await?;
        }
        let pki = control_plane.directory().join("pki");
        let certificates = control_plane.directory().join("webhook");
        copy_certificates(&pki, &certificates)?;
        Ok(Self { control_plane, programs, kubeconfig, certificates, authority: pki.join("ca.crt"), claims: 0 })
    }

    /// Adds claims until there are so many.
    pub(crate) async fn fill(&mut self, wanted: usize) -> Result<()> {
        eprintln!("Making {wanted} claims …");
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.control_plane.admin().await?, NAMESPACE);
        let one = async |number: usize| -> Result<()> {
            let mut claim = reviews::claim(&format!("claim-{number}"), LOCAL, true);
            claim["metadata"]["managedFields"] = Value::Null;
            claims.create(&PostParams::default(), &serde_json::from_value(claim)?).await?;
            Ok(())
        };
        stream::iter(self.claims..wanted).map(one).buffer_unordered(AT_ONCE).try_collect::<()>().await?;
        self.claims = wanted;
        Ok(())
    }

    /// What the API server is asked by the operator from now on.
    pub(crate) fn audit(&self) -> Result<AuditLog> {
        Ok(self.control_plane.audit_log().from_now()?.user(OPERATOR))
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
