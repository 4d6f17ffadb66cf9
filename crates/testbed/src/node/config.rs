//! The configuration files and credentials of a node's components.

use std::fs;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{SOCKET, requirements::find};
use crate::{
    flags::Layout,
    image::PAUSE,
    kubeconfig::{self, Credentials},
    pki::Authority,
};

/// The node's name in the cluster.
pub(crate) const NAME: &str = "node-1";
/// The node's address. The same in every cluster: each has a network of its own.
pub(crate) const ADDRESS: &str = "10.1.0.1";
const POD_SUBNET: &str = "10.2.0.0/24";

/// Certificates and kubeconfigs: the kubelet's and kube-proxy's own, and the API server's for calling the kubelet.
pub(crate) fn write_credentials(layout: &Layout, authority: &Authority) -> Result<()> {
    authority.write_serving("kubelet", &[NAME, ADDRESS])?;
    authority.write_client("kubelet-client", "testbed:kube-apiserver", Some("system:masters"))?;
    let ca = fs::read_to_string(layout.file("pki/ca.crt"))?;
    for (name, user, group) in [
        ("kubelet", format!("system:node:{NAME}"), Some("system:nodes")),
        ("kube-proxy", "system:kube-proxy".to_owned(), None),
    ] {
        let identity = authority.client(&user, group)?;
        let path = layout.file(&format!("kubeconfigs/{name}.kubeconfig"));
        kubeconfig::write(&path, &layout.url(), &ca, &user, &Credentials::Certificate(&identity))?;
    }
    Ok(())
}

/// Writes `node/` in the run directory.
pub(super) fn write(layout: &Layout, cgroup: &str) -> Result<()> {
    let plugins = find("ptp").context("the CNI plugins are gone")?;
    let plugins = plugins.parent().context("the CNI plugins are nowhere")?.display().to_string();
    let runc = find("runc").context("runc is gone")?.display().to_string();
    fs::create_dir_all(layout.file("node/cni"))?;
    for (name, content) in [
        ("containerd.toml", containerd(layout, &plugins, &runc)),
        ("cni/10-testbed.conflist", cni(layout).to_string()),
        ("kubelet.json", kubelet(layout, cgroup).to_string()),
        ("kube-proxy.json", kube_proxy(layout).to_string()),
        // There is no name server; an empty file makes look-ups fail at once instead of after a time.
        ("resolv.conf", String::new()),
    ] {
        let path = layout.file("node").join(name);
        fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn containerd(layout: &Layout, plugins: &str, runc: &str) -> String {
    let directory = layout.file("node").display().to_string();
    // The names of sockets and images, and the paths, hold nothing that a TOML literal string would have to escape.
    format!(
        "version = 3
root = '{directory}/containerd'
state = '/run/claimkeeper/containerd'

[grpc]
address = '{SOCKET}'

[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = '{PAUSE}'

[plugins.'io.containerd.cri.v1.runtime']
# Lowering a score takes CAP_SYS_RESOURCE, which root does not always have.
restrict_oom_score_adj = true

[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ['{plugins}']
conf_dir = '{directory}/cni'

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = 'io.containerd.runc.v2'

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
BinaryName = '{runc}'
SystemdCgroup = false
"
    )
}

/// Point to point instead of a bridge, which takes a kernel module that is often missing.
fn cni(layout: &Layout) -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": "testbed",
        "plugins": [{
            "type": "ptp",
            "ipam": {
                "type": "host-local",
                "ranges": [[{ "subnet": POD_SUBNET }]],
                "routes": [{ "dst": "0.0.0.0/0" }],
                "dataDir": layout.file("node/addresses"),
            },
        }],
    })
}

fn kubelet(layout: &Layout, cgroup: &str) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": format!("unix://{SOCKET}"),
        "healthzPort": layout.ports.kubelet_health.number(),
        "authentication": { "anonymous": { "enabled": false }, "x509": { "clientCAFile": layout.file("pki/ca.crt") } },
        "tlsCertFile": layout.file("pki/kubelet.crt"),
        "tlsPrivateKeyFile": layout.file("pki/kubelet.key"),
        // One group for the whole node, which the keeper makes and removes.
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{cgroup}"),
        // Otherwise all containers of all clusters would share one group, and the root above would mean nothing.
        "cgroupsPerQOS": true,
        "enforceNodeAllocatable": [],
        "failCgroupV1": false,
        "failSwapOn": false,
        "makeIPTablesUtilChains": false,
        "podLogsDir": layout.file("node/pod-logs"),
        "volumePluginDir": layout.file("node/volume-plugins"),
        "resolvConf": layout.file("node/resolv.conf"),
        // The disk of a machine that builds software is often nearly full, which is no reason to evict tests.
        "evictionHard": { "memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%",
            "imagefs.available": "0%", "imagefs.inodesFree": "0%" },
        "imageGCHighThresholdPercent": 100,
        "imageMinimumGCAge": "24h",
    })
}

fn kube_proxy(layout: &Layout) -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": { "kubeconfig": layout.file("kubeconfigs/kube-proxy.kubeconfig") },
        "clusterCIDR": POD_SUBNET,
        "hostnameOverride": NAME,
        "healthzBindAddress": format!("127.0.0.1:{}", layout.ports.proxy_health.number()),
        "metricsBindAddress": format!("127.0.0.1:{}", layout.ports.proxy_metrics.number()),
        // Zero leaves the machine's own limits alone; they are not the node's to change.
        "conntrack": { "maxPerCore": 0, "min": 0 },
    })
}
