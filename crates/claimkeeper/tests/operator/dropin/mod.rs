//! The binary in the place of the programs that it replaces: under their names, with their flags, and with the rights of their
//! charts.

mod answers;
mod contention;
mod log;
mod moving;
mod releaser;
mod rights;

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use k8s_openapi::api::{
    core::v1::{PersistentVolumeClaim, Pod, ServiceAccount},
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};
use kube::{Api, Client, api::PostParams};
use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};
use testbed::{AuditedRequest, Cluster, Leash, eventually};

use crate::home::{BINARY, Home, Replica};

const NAME: &str = "dynamic-pvc-provisioner";
const RELEASER: &str = "reclaimable-pv-releaser";

/// The key of the label and the annotations starts like this.
const DOMAIN: &str = "dynamic-pvc-provisioner.kubernetes.io";

/// The binary under the other names, as an image would have it.
fn installed() -> TempDir {
    let directory = tempdir().unwrap();
    for name in [NAME, RELEASER] {
        symlink(BINARY, directory.path().join(name)).unwrap();
    }
    directory
}

/// A place where the original was installed with its chart.
struct Original {
    home: Home,
    programs: TempDir,
}

/// Someone with a kubeconfig.
struct Account {
    kubeconfig: PathBuf,
    user: String,
}

impl Original {
    async fn on(cluster: Cluster, prefix: &str) -> Result<Self> {
        Self::at(Home::on(cluster, prefix).await?).await
    }

    async fn at(home: Home) -> Result<Self> {
        // All of them: no pods/finalizers, no events.k8s.io.
        let rules = json!([
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
            {"apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["get", "list", "watch", "create"]},
        ]);
        Self::with(home, rules).await
    }

    /// With the rights of a chart, besides those that both charts grant.
    async fn with(home: Home, rules: Value) -> Result<Self> {
        let original = Self { home, programs: installed() };
        let mut role = json!({
            "metadata": {"name": original.role()},
            "rules": [
                {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["*"]},
                {"apiGroups": [""], "resources": ["events"],
                 "verbs": ["get", "list", "watch", "create", "update", "patch"]},
            ],
        });
        role["rules"].as_array_mut().unwrap().extend(rules.as_array().unwrap().clone());
        let granted: Api<ClusterRole> = Api::all(original.client().await?);
        granted.create(&PostParams::default(), &serde_json::from_value(role)?).await?;
        Ok(original)
    }

    fn role(&self) -> String {
        format!("{NAME}-{}", self.home.namespace)
    }

    async fn client(&self) -> Result<Client> {
        self.home.cluster.admin().await
    }

    /// An account with these rights; one for each replica, so that the audit log tells them apart.
    async fn account(&self, name: &str) -> Result<Account> {
        let (client, namespace) = (self.client().await?, &self.home.namespace);
        let account: ServiceAccount = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        Api::namespaced(client.clone(), namespace).create(&PostParams::default(), &account).await?;
        let binding: ClusterRoleBinding = serde_json::from_value(json!({
            "metadata": {"name": format!("{}-{name}", self.role())},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": self.role()},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        }))?;
        Api::all(client).create(&PostParams::default(), &binding).await?;
        let kubeconfig = self.home.cluster.service_account_kubeconfig(namespace, name).await?;
        Ok(Account { kubeconfig, user: format!("system:serviceaccount:{namespace}:{name}") })
    }

    /// Starts what a command line says, as this account, and does not wait for it.
    async fn launch(&self, name: &str, account: &Account, line: &str) -> Result<Leash> {
        launch(&self.home, self.programs.path(), name, &account.kubeconfig, line).await
    }

    /// The same for one that comes up, under an account of its own.
    async fn start(&self, name: &str, line: &str) -> Result<Replica> {
        let account = self.account(name).await?;
        let leash = self.launch(name, &account, line).await?;
        let replica = up(leash, account.user).await?;
        replica.until_ready().await?;
        Ok(replica)
    }

    /// What the original's chart or its users would say of this place, with the Lease that [`Home`] looks at.
    fn line(&self, more: &str) -> String {
        let namespace = &self.home.namespace;
        format!("{NAME} -controller-id=ci -namespace={namespace} -lease-lock-name=shared {more}")
    }

    /// A pod that asks with the original's annotations for the claim `<name>-1`.
    async fn ask(&self, name: &str) -> Result<Pod> {
        ask(&self.home.pods, name).await
    }

    async fn claim_of(&self, pod: &str) -> Result<PersistentVolumeClaim> {
        let name = format!("{pod}-1");
        eventually(&format!("claim {name}"), async || self.home.claims.get(&name).await).await
    }
}

async fn ask(pods: &Api<Pod>, name: &str) -> Result<Pod> {
    let template = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "spec": {
            "storageClassName": "testbed-wait",
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    });
    let pod = json!({
        "metadata": {
            "name": name,
            "annotations": {
                format!("{DOMAIN}/cache.enabled"): "true",
                format!("{DOMAIN}/cache.pvc"): template.to_string(),
                format!("{DOMAIN}/other.enabled"): "false",
            },
        },
        "spec": {
            "containers": [{"name": "main", "image": "registry.example/main"}],
            "volumes": [{"name": "cache", "persistentVolumeClaim": {"claimName": format!("{name}-1")}}],
        },
    });
    Ok(pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?)
}

/// Starts a command line as a shell would, whose words need no quotes; the program is taken from `programs`. The kubeconfig
/// comes from the environment, so that the line stays as it is.
async fn launch(home: &Home, programs: &Path, name: &str, kubeconfig: &Path, line: &str) -> Result<Leash> {
    let line = line.replace("\\\n", " ");
    let mut words = line.split_whitespace();
    let program = Path::new(words.next().context("an empty command line")?).file_name().context("no program")?;
    let program = programs.join(program);
    let directory = home.cluster.directory();
    // A name without colons, which separate the files that KUBECONFIG lists.
    let listed = directory.join(format!("{}-{name}.kubeconfig", home.namespace));
    fs::copy(kubeconfig, &listed)?;
    let environment = [
        "-C".to_owned(),
        directory.display().to_string(),
        format!("KUBECONFIG={}", listed.display()),
        program.display().to_string(),
    ];
    // It becomes the program, so that signals reach that one.
    let arguments: Vec<&str> = environment.iter().map(String::as_str).chain(words).collect();
    Leash::start(directory, &format!("{}-{name}", home.namespace), "env".as_ref(), &arguments).await
}

/// Waits until a program has said where its admin server is, in a line of klog's or of ours.
async fn up(leash: Leash, user: String) -> Result<Replica> {
    let admin = eventually("the program to start", async || {
        let output = leash.output();
        let places = ["admin=\"", "\"admin\":\""].map(|key| output.split_once(key));
        let address = places.into_iter().flatten().find_map(|(_, rest)| rest.split('"').next()?.parse().ok());
        address.with_context(|| format!("it printed {output:?}"))
    })
    .await?;
    Ok(Replica { leash, admin, webhook: None, user })
}

/// The requests of a user that were answered with 403.
fn refused(cluster: &Cluster, user: &str) -> Result<Vec<AuditedRequest>> {
    let mut requests = cluster.audit_log().user(user).requests()?;
    requests.retain(|request| request.code() == Some(403));
    Ok(requests)
}

/// The only owner of a claim.
fn owner(claim: &PersistentVolumeClaim) -> Result<Value> {
    let owners = claim.metadata.owner_references.as_deref().unwrap_or_default();
    Ok(serde_json::to_value(owners)?)
}
