//! Access to a control plane, whether this process owns it or another one does.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::{Namespace, ServiceAccount},
};
use kube::{
    Api, Client, Config,
    api::{ObjectMeta, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde::{Deserialize, Serialize};

use crate::{
    AuditLog, Component,
    binaries::Binaries,
    flags::Layout,
    image::{self, Image},
    kubeconfig::{self, Credentials},
    node::{self, RealNode, RealNodes},
    pki::Identity,
    process,
};

/// The file in the run directory by which other processes find everything else.
const DESCRIPTION: &str = "cluster.json";
/// Longer than any test or demo, so that nobody has to renew.
const TOKEN_SECONDS: i64 = 24 * 60 * 60;

/// A handle on a control plane: cheap to clone, usable from any runtime, and without power over its life.
#[derive(Debug, Clone)]
pub struct Cluster {
    description: Arc<Description>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Description {
    url: String,
    /// Where the store listens, for who asks it directly.
    store: String,
    directory: PathBuf,
    admin_kubeconfig: PathBuf,
    controlplane: PathBuf,
    helm: PathBuf,
    real_nodes: usize,
    /// The client of the real nodes' containerd, if there are such nodes.
    ctr: Option<PathBuf>,
}

impl Cluster {
    /// Writes down what others need to attach.
    pub(crate) fn describe(layout: &Layout, binaries: &Binaries, nodes: Option<&RealNodes>) -> Result<Self> {
        let description = Description {
            url: layout.url(),
            store: layout.store(),
            directory: layout.directory.clone(),
            admin_kubeconfig: layout.file("kubeconfigs/admin.kubeconfig"),
            controlplane: binaries.controlplane(),
            helm: binaries.helm(),
            real_nodes: layout.real_nodes().count(),
            ctr: nodes.map(RealNodes::ctr),
        };
        fs::write(layout.file(DESCRIPTION), serde_json::to_vec_pretty(&description)?)?;
        let cluster = Self { description: Arc::new(description) };
        cluster.write_wrappers()?;
        Ok(cluster)
    }

    /// A handle on the control plane that some process runs in this directory.
    pub fn attach(directory: &Path) -> Result<Self> {
        let file = directory.join(DESCRIPTION);
        let text = fs::read(&file).with_context(|| {
            format!("no control plane runs in {}: {} cannot be read", directory.display(), file.display())
        })?;
        let description = serde_json::from_slice(&text)
            .with_context(|| format!("{} does not describe a control plane", file.display()))?;
        Ok(Self { description: Arc::new(description) })
    }

    /// The API server's address.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.description.url
    }

    pub(crate) fn store(&self) -> &str {
        &self.description.store
    }

    /// The run directory: logs, certificates, kubeconfigs and, in `bin/`, `kubectl` and `helm`.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.description.directory
    }

    /// The kubeconfig of a cluster administrator.
    #[must_use]
    pub fn admin_kubeconfig(&self) -> &Path {
        &self.description.admin_kubeconfig
    }

    /// The Helm client.
    #[must_use]
    pub fn helm(&self) -> &Path {
        &self.description.helm
    }

    /// The file with a component's output.
    #[must_use]
    pub fn logs(&self, component: Component) -> PathBuf {
        process::log_file(self.directory(), component)
    }

    /// The process id of a component, if it runs.
    #[must_use]
    pub fn pid(&self, component: Component) -> Option<u32> {
        fs::read_to_string(process::pid_file(self.directory(), component)).ok()?.parse().ok()
    }

    /// The names of the real nodes that it was made with.
    #[must_use]
    pub fn real_nodes(&self) -> Vec<String> {
        RealNode::all(self.description.real_nodes).map(RealNode::name).collect()
    }

    /// The process in whose namespaces the real nodes live, if there are any.
    #[must_use]
    pub fn keeper(&self) -> Option<u32> {
        fs::read_to_string(self.directory().join("pids/keeper")).ok()?.parse().ok()
    }

    /// Listens at an address of the real nodes, where their pods can connect. Nobody waits on the socket by itself: it does not block.
    pub fn listen(&self, address: SocketAddr) -> Result<TcpListener> {
        node::listen(self.keeper().context("there is no real node to listen on")?, address)
    }

    /// Gives an image to every real node whose containerd runs, where pods then find it by its name.
    pub async fn import_image(&self, image: &Image) -> Result<()> {
        let nodes = self.description.ctr.as_ref().zip(self.keeper());
        let (ctr, keeper) = nodes.context("only a real node takes images, and this cluster has none")?;
        let takers = RealNode::all(self.description.real_nodes).filter(|node| self.pid(node.containerd()).is_some());
        let clients = takers.map(|node| node.ctr(&self.description.controlplane, keeper, ctr)).collect();
        image::import(clients, image, self.directory()).await
    }

    /// Every request that the API server has answered.
    #[must_use]
    pub fn audit_log(&self) -> AuditLog {
        AuditLog::read_from(self.directory().join("audit.log"))
    }

    /// `kubectl`, ready for its arguments, as administrator.
    #[must_use]
    pub fn kubectl(&self) -> Command {
        let mut command = Command::new(&self.description.controlplane);
        command.arg("kubectl").env("KUBECONFIG", self.admin_kubeconfig());
        command
    }

    /// A client with an administrator's rights. It belongs to the current runtime: each test makes its own.
    pub async fn admin(&self) -> Result<Client> {
        self.client(self.admin_kubeconfig()).await
    }

    /// A client for any kubeconfig.
    pub async fn client(&self, kubeconfig: &Path) -> Result<Client> {
        let content = Kubeconfig::read_from(kubeconfig)?;
        let config = Config::from_custom_kubeconfig(content, &KubeConfigOptions::default()).await?;
        Client::try_from(config).with_context(|| format!("cannot make a client of {}", kubeconfig.display()))
    }

    /// A kubeconfig with a token of a `ServiceAccount`, good for a day.
    pub async fn service_account_kubeconfig(&self, namespace: &str, name: &str) -> Result<PathBuf> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.admin().await?, namespace);
        let spec = TokenRequestSpec { expiration_seconds: Some(TOKEN_SECONDS), ..TokenRequestSpec::default() };
        let request = TokenRequest { spec, ..TokenRequest::default() };
        let answer = accounts
            .create_token_request(name, &PostParams::default(), &request)
            .await
            .with_context(|| format!("cannot get a token of the ServiceAccount {namespace}/{name}"))?;
        let token = answer.status.map(|status| status.token).context("the API server answered without a token")?;
        let user = format!("system:serviceaccount:{namespace}:{name}");
        self.write_kubeconfig(&user, &Credentials::Token { token: &token, namespace })
    }

    /// A kubeconfig with a client certificate of a user in these groups. Neither has to exist: Kubernetes keeps no list.
    pub async fn user_kubeconfig(&self, user: &str, groups: &[&str]) -> Result<PathBuf> {
        let pki = self.directory().join("pki");
        let output = tokio::process::Command::new(&self.description.controlplane)
            .arg("user-certificate")
            .args([pki.join("ca.crt"), pki.join("ca.key")])
            .arg(user)
            .args(groups)
            .output()
            .await
            .context("cannot run the program that signs certificates")?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "cannot sign a certificate for the user {user}: {}", error.trim());
        let pem = String::from_utf8(output.stdout)?;
        let start_of_key = pem.find("-----BEGIN PRIVATE KEY").context("the signed certificate came without its key")?;
        let (certificate, key) = pem.split_at(start_of_key);
        let identity = Identity { certificate: certificate.to_owned(), key: key.to_owned() };
        self.write_kubeconfig(user, &Credentials::Certificate(&identity))
    }

    /// Creates a namespace of a new name that starts with the prefix, and returns the name.
    pub async fn create_namespace(&self, prefix: &str) -> Result<String> {
        let client = self.admin().await?;
        let name = format!("{prefix}-{:08x}", rand::random::<u32>());
        let metadata = ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() };
        let namespace = Namespace { metadata, ..Namespace::default() };
        Api::all(client.clone())
            .create(&PostParams::default(), &namespace)
            .await
            .with_context(|| format!("cannot create the namespace {name}"))?;
        // The controller manager would make it in a moment, but pods are refused until it exists.
        let metadata = ObjectMeta { name: Some("default".into()), ..ObjectMeta::default() };
        let account = ServiceAccount { metadata, ..ServiceAccount::default() };
        match Api::namespaced(client, &name).create(&PostParams::default(), &account).await {
            Ok(_) => Ok(name),
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(name),
            Err(error) => Err(error).with_context(|| format!("cannot create the ServiceAccount {name}/default")),
        }
    }

    fn write_kubeconfig(&self, user: &str, credentials: &Credentials<'_>) -> Result<PathBuf> {
        let ca = fs::read_to_string(self.directory().join("pki/ca.crt"))?;
        let file_name = user.replace(|c: char| !c.is_ascii_alphanumeric() && !"-_.:@".contains(c), "_");
        // Two callers may ask for the same user at once, and one must not read what the other has half written.
        let path = self.directory().join("kubeconfigs").join(format!("{file_name}.kubeconfig"));
        let unfinished = path.with_extension(format!("{:08x}", rand::random::<u32>()));
        kubeconfig::write(&unfinished, self.url(), &ca, user, credentials)?;
        fs::rename(&unfinished, &path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    fn write_wrappers(&self) -> Result<()> {
        let kubectl = format!("{} kubectl", self.description.controlplane.display());
        for (name, program) in [("kubectl", kubectl), ("helm", self.helm().display().to_string())] {
            let kubeconfig = self.admin_kubeconfig().display();
            let script =
                format!("#!/bin/sh\nexport KUBECONFIG=\"${{KUBECONFIG:-{kubeconfig}}}\"\nexec {program} \"$@\"\n");
            let path = self.directory().join("bin").join(name);
            fs::write(&path, script)?;
            fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        }
        Ok(())
    }
}
