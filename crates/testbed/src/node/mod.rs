//! A real node: containerd, kubelet and kube-proxy, in namespaces of their own on this machine.
//!
//! ```text
//! this process ──lifeline──► keeper (outside) ──► keeper (inside, process 1 of its pid namespace)
//!      │                        listens on the            │ network: lo, eth0 that leads nowhere
//!      │                        components' ports ──────► │ mounts:  /run and /var of its own
//!      │                                                  │
//!      ├── nsenter ──► etcd, kube-apiserver, …            │ (only the network)
//!      └── enter ────► containerd ──► shims ──► pods,  kubelet,  kube-proxy
//! ```
//!
//! No packet can leave the machine, and nothing can stay: when the inner keeper dies the kernel kills all processes of its
//! pid namespace, and with them go mounts, interfaces and nftables. The outer one removes the control groups.

mod config;
mod keeper;
mod requirements;

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

pub(crate) use config::{ADDRESS, NAME, write_credentials};
use keeper::Keeper;
pub(crate) use requirements::ensure_possible;
pub use requirements::real_node_unavailable;

use crate::{
    binaries::{Binaries, NodeBinaries},
    flags::Layout,
    process::{Component, Launch, Place},
};

/// Short, whatever the run directory is called: names of sockets must fit into 107 bytes. `/run` is the node's own.
const SOCKET: &str = "/run/claimkeeper/containerd.sock";

/// The namespaces of a node, and what it takes to start its components there.
#[derive(Debug)]
pub(crate) struct RealNode {
    keeper: Keeper,
    binaries: NodeBinaries,
}

impl RealNode {
    /// Makes the namespaces and writes the components' configuration.
    pub(crate) async fn create(layout: &Layout, binaries: &Binaries) -> Result<Self> {
        ensure_possible().await?;
        let node_binaries = tokio::task::spawn_blocking(NodeBinaries::get).await??;
        let keeper = Keeper::start(&layout.directory, binaries, &layout.ports.numbers()).await?;
        config::write(layout, &keeper.cgroup)?;
        Ok(Self { keeper, binaries: node_binaries })
    }

    /// The process whose namespaces are the node's.
    pub(crate) fn keeper(&self) -> u32 {
        self.keeper.pid
    }

    pub(crate) fn ctr(&self) -> PathBuf {
        self.binaries.ctr()
    }

    /// How to start the node's components.
    pub(crate) fn launches(&self, layout: &Layout, binaries: &Binaries) -> Vec<Launch> {
        let launch = |component, program, arguments| Launch {
            component,
            program,
            arguments,
            directory: layout.directory.clone(),
            place: Place::Node { keeper: self.keeper.pid, enter: binaries.controlplane() },
        };
        let file = |name: &str| layout.file(name).display().to_string();
        let containerd = vec![format!("--config={}", file("node/containerd.toml"))];
        let kubelet = vec![
            "kubelet".into(),
            format!("--config={}", file("node/kubelet.json")),
            format!("--kubeconfig={}", file("kubeconfigs/kubelet.kubeconfig")),
            format!("--root-dir={}", file("node/kubelet")),
            format!("--cert-dir={}", file("node/kubelet-certificates")),
            format!("--hostname-override={NAME}"),
            format!("--node-ip={ADDRESS}"),
        ];
        let proxy = vec!["kube-proxy".into(), format!("--config={}", file("node/kube-proxy.json"))];
        vec![
            launch(Component::Containerd, self.binaries.containerd(), containerd),
            launch(Component::Kubelet, self.binaries.kubelet(), kubelet),
            launch(Component::KubeProxy, self.binaries.kubelet(), proxy),
        ]
    }
}

/// The machine's statically linked busybox.
pub(crate) fn busybox() -> Result<PathBuf> {
    requirements::find("busybox").context("busybox is gone")
}

/// containerd's socket, as it is seen from outside the node.
pub(crate) fn socket(keeper: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{keeper}/root{SOCKET}"))
}

/// `ctr` in the node, ready for its arguments.
pub(crate) fn ctr(controlplane: &Path, keeper: u32, ctr: &Path) -> Command {
    let mut command = Command::new(controlplane);
    command.args(["enter", &keeper.to_string(), ""]).arg(ctr).args(["--address", SOCKET, "--namespace", "k8s.io"]);
    command
}
