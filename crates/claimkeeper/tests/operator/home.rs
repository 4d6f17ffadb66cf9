//! A namespace and the replicas that look after it.

use std::{env, fs, net::SocketAddr, path::PathBuf, process::Stdio, time::Duration};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{PersistentVolumeClaim, Pod},
};
use kube::{Api, Client, api::PostParams};
use serde_json::{Value, json};
use testbed::{Cluster, Leash, eventually};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    process::Command,
    time::timeout,
};

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_claimkeeper");

/// A namespace that one or more replicas look after.
pub(crate) struct Home {
    pub(crate) cluster: Cluster,
    pub(crate) namespace: String,
    pub(crate) pods: Api<Pod>,
    pub(crate) claims: Api<PersistentVolumeClaim>,
    pub(crate) leases: Api<Lease>,
}

impl Home {
    pub(crate) async fn on(cluster: Cluster, prefix: &str) -> Result<Self> {
        let namespace = cluster.create_namespace(prefix).await?;
        Self::at(cluster, namespace).await
    }

    /// In a namespace that somebody else has made.
    pub(crate) async fn at(cluster: Cluster, namespace: String) -> Result<Self> {
        let client: Client = cluster.admin().await?;
        Ok(Self {
            pods: Api::namespaced(client.clone(), &namespace),
            claims: Api::namespaced(client.clone(), &namespace),
            leases: Api::namespaced(client, &namespace),
            cluster,
            namespace,
        })
    }

    /// Starts a replica under an account of its own, so that the audit log tells the replicas apart.
    pub(crate) async fn start(&self, replica: &str, leader_election: Value) -> Result<Replica> {
        self.start_with(replica, leader_election, json!({})).await
    }

    /// The same with a configuration of the feature.
    pub(crate) async fn start_with(&self, replica: &str, leader_election: Value, ephemeral: Value) -> Result<Replica> {
        self.prepare(replica, leader_election, ephemeral).await?.start().await
    }

    /// Installs the chart for a replica and writes its configuration.
    pub(crate) async fn prepare(&self, replica: &str, leader_election: Value, ephemeral: Value) -> Result<Prepared> {
        let reclaim = ephemeral.get("reclaimCompleted").cloned().unwrap_or_else(|| json!("off"));
        let values = json!({
            "features": ["ephemeral"],
            "ephemeral": {"reclaimCompleted": reclaim},
            "leaderElection": {"name": "shared"},
        });
        let config = json!({"features": ["ephemeral"], "leaderElection": leader_election, "ephemeral": ephemeral});
        self.install(replica, &values, config).await
    }

    /// Installs the chart with these values for a replica, and completes its configuration.
    pub(crate) async fn install(&self, replica: &str, values: &Value, mut config: Value) -> Result<Prepared> {
        let kubeconfig = self.cluster.install_chart(replica, &self.namespace, values).await?;
        let mut election = json!({"name": "shared", "identity": replica});
        election.as_object_mut().unwrap().extend(config["leaderElection"].as_object().cloned().unwrap_or_default());
        config["leaderElection"] = election;
        // Enforcement spares its own namespace, so who tests it looks after another one.
        config.as_object_mut().unwrap().entry("namespace").or_insert_with(|| json!(self.namespace));
        config["admin"] = json!({"listen": "127.0.0.1:0"});
        let name = format!("{}-{replica}", self.namespace);
        let file = self.cluster.directory().join(format!("{name}.yaml"));
        fs::write(&file, config.to_string())?;
        let user = format!("system:serviceaccount:{}:{replica}", self.namespace);
        Ok(Prepared { directory: self.cluster.directory().to_owned(), name, config: file, kubeconfig, user })
    }

    /// Runs commands as they stand somewhere for an administrator to copy.
    pub(crate) async fn run_as_administrator(&self, commands: &str) -> Result<()> {
        let programs = self.cluster.directory().join("bin");
        let others = env::var_os("PATH").unwrap_or_default();
        let path = env::join_paths([programs].into_iter().chain(env::split_paths(&others)))?;
        let mut shell = Command::new("sh");
        shell.args(["-e", "-c", commands]).env("PATH", path).env_remove("KUBECONFIG").stdin(Stdio::null());
        let output = shell.kill_on_drop(true).output().await?;
        ensure!(output.status.success(), "{commands:?} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(())
    }

    pub(crate) async fn create_pod(&self, name: &str) -> Result<Pod> {
        let pod = json!({
            "metadata": {"name": name},
            "spec": {
                "containers": [{"name": "main", "image": "registry.example/main"}],
                "volumes": [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": claim_spec()}}}],
            },
        });
        Ok(self.pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?)
    }

    /// A claim that belongs to nobody.
    pub(crate) async fn create_claim(&self, name: &str) -> Result<PersistentVolumeClaim> {
        let claim = json!({"metadata": {"name": name}, "spec": claim_spec()});
        Ok(self.claims.create(&PostParams::default(), &serde_json::from_value(claim)?).await?)
    }

    pub(crate) async fn create_plain_pod(&self, name: &str) -> Result<Pod> {
        let pod = json!({
            "metadata": {"name": name},
            "spec": {"containers": [{"name": "main", "image": "registry.example/main"}]},
        });
        Ok(self.pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?)
    }

    pub(crate) async fn claim_of(&self, pod: &str) -> Result<PersistentVolumeClaim> {
        let name = format!("{pod}-scratch");
        eventually(&format!("claim {name}"), async || self.claims.get(&name).await).await
    }

    pub(crate) async fn leader(&self) -> Result<String> {
        let lease = self.leases.get("shared").await?;
        let holder = lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
        ensure!(!holder.is_empty(), "nobody holds the lease");
        Ok(holder)
    }

    pub(crate) async fn until_leader_is(&self, replica: &str) -> Result<()> {
        eventually(&format!("{replica} to lead"), async || {
            let leader = self.leader().await?;
            ensure!(leader == replica, "{leader} leads");
            Ok(())
        })
        .await
    }
}

fn claim_spec() -> Value {
    json!({
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "testbed-wait",
        "resources": {"requests": {"storage": "1Gi"}},
    })
}

/// A replica that can be started, the first time and again.
pub(crate) struct Prepared {
    directory: PathBuf,
    name: String,
    config: PathBuf,
    kubeconfig: PathBuf,
    pub(crate) user: String,
}

impl Prepared {
    /// Starts the program and does not wait for it.
    pub(crate) async fn launch(&self) -> Result<Leash> {
        let arguments = ["run", "--config", text(&self.config)?, "--kubeconfig", text(&self.kubeconfig)?];
        Leash::start(&self.directory, &self.name, BINARY.as_ref(), &arguments).await
    }

    /// The program for someone who starts it very often: without the hundred milliseconds that a leash takes to put on, but
    /// only as long as the thread lives that starts it.
    pub(crate) fn command(&self) -> Result<Command> {
        let log = fs::File::create(self.log())?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig=KILL", "--", BINARY, "run", "--config", text(&self.config)?]);
        command.args(["--kubeconfig", text(&self.kubeconfig)?]).stdout(log.try_clone()?).stderr(log).kill_on_drop(true);
        Ok(command)
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.directory.join(format!("{}.log", self.name))
    }

    pub(crate) async fn start(&self) -> Result<Replica> {
        Replica::started(self.launch().await?, self.user.clone()).await
    }
}

/// A running operator.
pub(crate) struct Replica {
    pub(crate) leash: Leash,
    pub(crate) admin: SocketAddr,
    /// Where API servers are answered, if a feature has answers.
    pub(crate) webhook: Option<SocketAddr>,
    pub(crate) user: String,
}

impl Replica {
    /// A process that was just started, once it says where its servers are.
    pub(crate) async fn started(leash: Leash, user: String) -> Result<Self> {
        let (admin, webhook) = eventually("the operator to say where its servers are", async || {
            let output = leash.output();
            let started = output.lines().find_map(|line| {
                let line: Value = serde_json::from_str(line).ok()?;
                let address = |key: &str| line[key].as_str()?.parse().ok();
                Some((address("admin")?, address("webhook")))
            });
            started.with_context(|| format!("it printed {output:?}"))
        })
        .await?;
        Ok(Self { leash, admin, webhook, user })
    }

    pub(crate) async fn ask(&self, path: &str) -> Result<(u16, String)> {
        timeout(Duration::from_secs(5), ask(self.admin, path)).await?
    }

    pub(crate) async fn until_ready(&self) -> Result<()> {
        eventually("the replica to be ready", async || {
            let (status, body) = self.ask("/readyz?verbose").await?;
            ensure!(status == 200, "{body}");
            Ok(())
        })
        .await
    }

    /// The value of the series whose line starts like this.
    pub(crate) async fn metric(&self, series: &str) -> Result<u64> {
        let (_, text) = self.ask("/metrics").await?;
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))
            .with_context(|| format!("no {series}"))?;
        Ok(value.parse()?)
    }
}

pub(crate) async fn ask(address: SocketAddr, path: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: admin\r\nConnection: close\r\n\r\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no HTTP answer")?;
    let status = head.split(' ').nth(1).context("no status")?.parse()?;
    Ok((status, body.to_owned()))
}

fn text(path: &std::path::Path) -> Result<&str> {
    path.to_str().context("not UTF-8")
}

/// A file in a directory that goes with the test.
pub(crate) fn file(directory: &tempfile::TempDir, name: &str, content: &str) -> PathBuf {
    let path = directory.path().join(name);
    fs::write(&path, content).unwrap();
    path
}
