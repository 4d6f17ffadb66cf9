//! The original of shared volumes, `storageos/api-manager` v1.2.16, as a peer to be measured and an oracle to be asked.
//!
//! It takes a port of all interfaces that no flag changes, so it runs in a network of its own, where nothing is but the loopback
//! interface and two doors:
//!
//! ```text
//! this process ──listens inside──► 127.0.0.1:<API server>, 127.0.0.1:<StorageOS> ◄── api-manager
//!      └──connects outside──► the same addresses
//! ```
//!
//! A namespace takes root; [`unavailable`] says so where there is none.

use std::{
    fs::{self, File},
    net::{SocketAddr, TcpListener as Listener},
    os::fd::AsFd,
    path::Path,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, ensure};
use rcgen::{CertificateParams, KeyPair};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tempfile::TempDir;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use crate::{Cluster, Leash, PATIENCE, binaries, real_node_unavailable, storageos::StorageOs, within};

/// Whom the API server takes it for, for its audit log.
pub const USER: &str = "storageos-api-manager";
/// Leaves out all of its controllers but the one for shared volumes, as far as that can be done: the others find nothing to do.
const FLAGS: [&str; 7] = [
    "-namespace=storageos",
    "-scheduler-name=",
    "-node-poll-interval=1h",
    "-enable-pvc-label-sync=false",
    "-enable-node-label-sync=false",
    "-node-delete-gc-interval=0s",
    "-namespace-delete-gc-interval=0s",
];
/// Waits inside until there are doors; then it becomes the program, with the same process id.
const ENTER: &str = r#"
PATH="$PATH:/usr/sbin:/sbin" ip link set lo up && : > "$1/inside" || exit 1
until [ -e "$1/doors" ]; do sleep 0.02; done
shift
exec "$@"
"#;
const START_DEADLINE: Duration = Duration::from_secs(20);

/// Why the original cannot run on this machine, if so.
///
/// It takes what a real node takes, and the first call takes its time like [`real_node_unavailable`].
pub async fn unavailable() -> Option<String> {
    real_node_unavailable().await
}

/// The original, running. It ends with its owner.
pub struct ApiManager {
    leash: Leash,
    _doors: JoinSet<()>,
    _directory: TempDir,
}

impl ApiManager {
    /// Starts it between a cluster and a StorageOS, with these flags after those that leave its other controllers out.
    ///
    /// There can be one for a cluster: it mirrors StorageOS into the cluster and removes what it does not find there.
    pub async fn start(cluster: &Cluster, storageos: &StorageOs, flags: &[&str]) -> Result<Self> {
        let (program, module) = tokio::task::spawn_blocking(binaries::original).await??;
        define_resources(cluster, &module.join("config/crd/bases")).await?;
        let directory = tempfile::Builder::new().prefix("claimkeeper-original-").tempdir()?;
        let path = directory.path().to_str().context("an odd path")?;
        write_certificate(directory.path())?;
        let kubeconfig = cluster.user_kubeconfig(USER, &["system:masters"]).await?;

        let (program, environment) = (program.to_string_lossy().into_owned(), format!("TMPDIR={path}"));
        let own = [
            format!("-kubeconfig={}", kubeconfig.display()),
            format!("-api-endpoint={}", storageos.address()),
            format!("-api-secret-path={}", storageos.secret_path().display()),
        ];
        let enter = ["--net", "--", "env", &environment, "sh", "-c", ENTER, "sh", path, &program];
        let arguments =
            enter.into_iter().chain(FLAGS).chain(own.iter().map(String::as_str)).chain(flags.iter().copied());
        let arguments = arguments.collect::<Vec<_>>();
        let mut leash = Leash::start(directory.path(), "api-manager", Path::new("unshare"), &arguments).await?;

        within(START_DEADLINE, "the original's network", async || {
            ensure!(!leash.has_ended()?, "it has ended: {}", leash.output().trim());
            ensure!(directory.path().join("inside").exists(), "it is not there yet");
            Ok(())
        })
        .await?;
        let doors = open_doors(leash.pid(), [api_server(cluster)?, storageos.address()]).await?;
        fs::write(directory.path().join("doors"), "")?;
        Ok(Self { leash, _doors: doors, _directory: directory })
    }

    /// Waits until it follows its mirror of StorageOS. A volume that is mirrored before that is missed until it changes.
    pub async fn ready(&mut self) -> Result<()> {
        within(PATIENCE, "the original's controller", async || {
            ensure!(!self.leash.has_ended()?, "it has ended: {}", self.leash.output().trim());
            let output = self.leash.output();
            let mut lines = output.lines().filter(|line| line.contains("controllers.SharedVolume.controller.volume"));
            ensure!(lines.any(|line| line.contains("Starting workers")), "it is not there yet: {output}");
            Ok(())
        })
        .await
    }

    /// The process, to be signalled and measured; its output is its log.
    #[must_use]
    pub fn process(&mut self) -> &mut Leash {
        &mut self.leash
    }
}

/// Without its own resources the original does not start.
async fn define_resources(cluster: &Cluster, definitions: &Path) -> Result<()> {
    for action in [["apply", "--server-side"], ["wait", "--for=condition=Established"]] {
        let mut kubectl = cluster.kubectl();
        kubectl.args(action).arg("-f").arg(definitions);
        let output = tokio::process::Command::from(kubectl).kill_on_drop(true).output().await?;
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "cannot define the original's resources: {}", complaint.trim());
    }
    Ok(())
}

/// Where the original looks for the certificate of its webhooks before it asks the cluster for one.
fn write_certificate(directory: &Path) -> Result<()> {
    let directory = directory.join("k8s-webhook-server/serving-certs");
    fs::create_dir_all(&directory)?;
    let key = KeyPair::generate()?;
    let certificate = CertificateParams::new(["localhost".to_owned()])?.self_signed(&key)?;
    fs::write(directory.join("tls.crt"), certificate.pem())?;
    fs::write(directory.join("tls.key"), key.serialize_pem())?;
    Ok(())
}

fn api_server(cluster: &Cluster) -> Result<SocketAddr> {
    let authority = cluster.url().strip_prefix("https://").and_then(|rest| rest.trim_end_matches('/').parse().ok());
    authority.with_context(|| format!("the API server's address is no address: {}", cluster.url()))
}

/// Listens in the network of a process, and leads every connection to the same address here.
async fn open_doors(inside: i32, addresses: [SocketAddr; 2]) -> Result<JoinSet<()>> {
    let listen = move || -> Result<Vec<(SocketAddr, Listener)>> {
        let network = File::open(format!("/proc/{inside}/ns/net"))?;
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
        let listener = |address| Ok((address, Listener::bind(address)?));
        addresses.into_iter().map(listener).collect()
    };
    // A socket belongs to the network that its thread was in, and this thread does not come back from there.
    let listeners = tokio::task::spawn_blocking(move || std::thread::spawn(listen).join()).await?;
    let listeners = listeners.map_err(|_| anyhow!("the thread in the original's network has panicked"))?;
    let mut doors = JoinSet::new();
    for (address, listener) in listeners.context("cannot listen in the original's network")? {
        listener.set_nonblocking(true)?;
        doors.spawn(lead(TcpListener::from_std(listener)?, address));
    }
    Ok(doors)
}

async fn lead(listener: TcpListener, address: SocketAddr) {
    let mut connections = JoinSet::new();
    while let Ok((mut inside, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        connections.spawn(async move {
            // Where nobody listens outside, the connection ends: the client inside cannot be refused any more.
            if let Ok(mut outside) = TcpStream::connect(address).await {
                let _ = (inside.set_nodelay(true), outside.set_nodelay(true));
                let _ = copy_bidirectional(&mut inside, &mut outside).await;
            }
        });
    }
}
