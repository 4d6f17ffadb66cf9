//! Real nodes: containerd and kubelet for each, and one kube-proxy, in namespaces of their own on this machine.
//!
//! ```text
//! this process ──lifeline──► keeper (outside) ──► keeper (inside, process 1 of its pid namespace)
//!      │                        listens on the            │ network: lo, eth0 that leads nowhere
//!      │                        components' ports ──────► │ mounts:  /run and /var of its own
//!      │                                                  │
//!      ├── nsenter ──► etcd, kube-apiserver, …            │ (only the network)
//!      └── enter ────► kube-proxy,  containerd ──► shims ──► pods,  kubelet  (the last three for each node)
//! ```
//!
//! No packet can leave the machine, and nothing can stay: when the inner keeper dies the kernel kills all processes of its
//! pid namespace, and with them go mounts, interfaces and nftables. The outer one removes the control groups, and those that
//! a killed one could not.
//!
//! All nodes of a cluster share these namespaces. What makes a node is a name, an address, a subnet for its pods, a directory
//! each in memory and on disk, and a control group with everything that runs on it: without this group and this memory it is a
//! machine without power. What they can't have on their own, because there is one network: ports of pods with `hostNetwork`,
//! and a kube-proxy, which takes itself for `node-1`'s and ends when that Node object is deleted.
//!
//! Each kubelet has the driver of local disks beside it that [`LocalDisks`](crate::LocalDisks) stands in for on the API: what pods write
//! to such a volume is in the directory `localdisk` of their node.

mod config;
mod keeper;
mod requirements;

use std::{
    fs::File,
    net::{SocketAddr, TcpListener},
    ops::RangeInclusive,
    os::fd::AsFd,
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use anyhow::{Context, Result, anyhow, ensure};

pub(crate) use config::write_credentials;
use keeper::Keeper;
pub(crate) use requirements::ensure_possible;
pub use requirements::{real_node_turn, real_node_unavailable};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::{
    binaries::{Binaries, NodeBinaries},
    flags::Layout,
    process::{Component, Launch, Place},
};

/// How many real nodes a cluster can have. More than three would need more processors than small machines have.
pub const REAL_NODES: RangeInclusive<usize> = 1..=MOST_REAL_NODES;
pub(crate) const MOST_REAL_NODES: usize = 3;

/// One of the real nodes, by its number: where everything of it is to be found.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RealNode {
    pub(crate) number: usize,
}

impl RealNode {
    /// The one that every cluster with real nodes has.
    pub(crate) const FIRST: Self = Self { number: 1 };

    /// The nodes of a cluster that has so many.
    pub(crate) fn all(count: usize) -> impl Iterator<Item = Self> {
        (1..=count).map(|number| Self { number })
    }

    /// Its name in the cluster.
    pub(crate) fn name(self) -> String {
        format!("node-{}", self.number)
    }

    /// The same in every cluster: each has a network of its own.
    pub(crate) fn address(self) -> String {
        format!("10.1.0.{}", self.number)
    }

    fn pod_subnet(self) -> String {
        format!("10.2.{}.0/24", self.number)
    }

    pub(crate) fn containerd(self) -> Component {
        Component::Containerd(self.number)
    }

    pub(crate) fn kubelet(self) -> Component {
        Component::Kubelet(self.number)
    }

    /// What a power failure takes. Short, whatever the run directory is called: names of sockets must fit into 107 bytes. `/run`
    /// is the nodes' own.
    fn memory(self) -> String {
        format!("/run/claimkeeper/{}", self.name())
    }

    /// What a power failure leaves.
    fn disk(self, layout: &Layout) -> PathBuf {
        layout.file("nodes").join(self.name())
    }

    fn file(self, layout: &Layout, name: &str) -> PathBuf {
        self.disk(layout).join(name)
    }

    /// Of containerd.
    fn socket(self) -> String {
        format!("{}/containerd.sock", self.memory())
    }

    /// containerd's socket, as it is seen from outside the node.
    pub(crate) fn socket_from_outside(self, keeper: u32) -> PathBuf {
        PathBuf::from(format!("/proc/{keeper}/root{}", self.socket()))
    }

    /// The control group with all that runs on the node, below the cluster's.
    fn cgroup(self, cluster: &str) -> String {
        format!("{cluster}/{}", self.name())
    }

    /// `ctr` in the node, ready for its arguments.
    pub(crate) fn ctr(self, controlplane: &Path, keeper: u32, ctr: &Path) -> Command {
        let mut command = Command::new(controlplane);
        command.args(["enter", &keeper.to_string(), "", ""]).arg(ctr);
        command.args(["--address", &self.socket(), "--namespace", "k8s.io"]);
        command
    }
}

/// The namespaces of a cluster's nodes, and what it takes to start their components there.
#[derive(Debug)]
pub(crate) struct RealNodes {
    keeper: Keeper,
    binaries: NodeBinaries,
    controlplane: PathBuf,
}

impl RealNodes {
    /// Makes the namespaces and writes the components' configuration.
    pub(crate) async fn create(layout: &Layout, binaries: &Binaries) -> Result<Self> {
        ensure_possible().await?;
        let node_binaries = tokio::task::spawn_blocking(NodeBinaries::get).await??;
        let nodes = layout.real_nodes().collect::<Vec<_>>();
        let keeper = Keeper::start(&layout.directory, binaries, &nodes, &layout.ports.numbers()).await?;
        config::write(layout, &keeper.cgroup)?;
        Ok(Self { keeper, binaries: node_binaries, controlplane: binaries.controlplane() })
    }

    /// The process whose namespaces are the nodes'.
    pub(crate) fn keeper(&self) -> u32 {
        self.keeper.pid
    }

    pub(crate) fn ctr(&self) -> PathBuf {
        self.binaries.ctr()
    }

    /// How to start the components of all nodes.
    pub(crate) fn launches(&self, layout: &Layout) -> Vec<Launch> {
        let proxy =
            vec!["kube-proxy".to_owned(), format!("--config={}", layout.file("nodes/kube-proxy.json").display())];
        let nodes = layout.real_nodes().flat_map(|node| {
            let cgroup = format!("{}/components", node.cgroup(&self.keeper.cgroup));
            let containerd = vec![format!("--config={}", node.file(layout, "containerd.toml").display())];
            let kubelet = kubelet_arguments(layout, node);
            [
                self.launch(layout, node.containerd(), self.binaries.containerd(), containerd, &cgroup),
                self.launch(layout, node.kubelet(), self.binaries.kubelet(), kubelet, &cgroup),
            ]
        });
        nodes.chain([self.launch(layout, Component::KubeProxy, self.binaries.kubelet(), proxy, "")]).collect()
    }

    fn launch(
        &self,
        layout: &Layout,
        component: Component,
        program: PathBuf,
        arguments: Vec<String>,
        cgroup: &str,
    ) -> Launch {
        let (keeper, enter) = (self.keeper.pid, self.controlplane.clone());
        let place = Place::Node { keeper, cgroup: cgroup.to_owned(), enter };
        Launch { component, program, arguments, directory: layout.directory.clone(), place }
    }

    /// Ends all that runs on a node, and what it had in memory, as a power failure does.
    pub(crate) async fn cut_power(&self, layout: &Layout, node: RealNode) -> Result<()> {
        let output = tokio::process::Command::new(&self.controlplane)
            .args(["powercut", &self.keeper.pid.to_string(), &node.cgroup(&self.keeper.cgroup), &node.memory()])
            .arg(node.disk(layout))
            .output()
            .await
            .context("cannot run the program that cuts the power")?;
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "cannot cut the power of {}: {}", node.name(), complaint.trim());
        Ok(())
    }
}

fn kubelet_arguments(layout: &Layout, node: RealNode) -> Vec<String> {
    let kubeconfig = layout.file(&format!("kubeconfigs/{}.kubeconfig", node.kubelet()));
    vec![
        "kubelet".into(),
        format!("--config={}", node.file(layout, "kubelet.json").display()),
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--root-dir={}", node.file(layout, "kubelet").display()),
        format!("--cert-dir={}", node.file(layout, "kubelet-certificates").display()),
        format!("--hostname-override={}", node.name()),
        format!("--node-ip={}", node.address()),
    ]
}

/// Listens in the network of the nodes that this keeper has.
pub(crate) fn listen(keeper: u32, address: SocketAddr) -> Result<TcpListener> {
    let network = File::open(format!("/proc/{keeper}/ns/net")).context("the network of the nodes is gone")?;
    // A thread of its own, because the others are to stay where they are. The socket stays where it was made.
    let listening = thread::spawn(move || {
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true).map(|()| listener)
    });
    let listener = listening.join().map_err(|_| anyhow!("the thread that was to listen has panicked"))?;
    listener.with_context(|| format!("cannot listen on {address} of the nodes"))
}

/// The machine's statically linked busybox.
pub(crate) fn busybox() -> Result<PathBuf> {
    requirements::find("busybox").context("busybox is gone")
}
