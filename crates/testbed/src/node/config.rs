//! The configuration files and credentials of the nodes' components.

use std::fs;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{RealNode, requirements::find};
use crate::{
    flags::Layout,
    image::PAUSE,
    kubeconfig::{self, Credentials},
    pki::Authority,
};

/// The subnets of all nodes are in it.
const POD_NETWORK: &str = "10.2.0.0/16";

/// Certificates and kubeconfigs: the kubelets' and kube-proxy's own, and the API server's for calling the kubelets.
pub(crate) fn write_credentials(layout: &Layout, authority: &Authority) -> Result<()> {
    authority.write_client("kubelet-client", "testbed:kube-apiserver", Some("system:masters"))?;
    let mut users = vec![("kube-proxy".to_owned(), "system:kube-proxy".to_owned(), None)];
    for node in layout.real_nodes() {
        let (kubelet, name) = (node.kubelet().name().into_owned(), node.name());
        authority.write_serving(&kubelet, &[&name, &node.address()])?;
        users.push((kubelet, format!("system:node:{name}"), Some("system:nodes")));
    }
    let ca = fs::read_to_string(layout.file("pki/ca.crt"))?;
    for (name, user, group) in users {
        let identity = authority.client(&user, group)?;
        let path = layout.file(&format!("kubeconfigs/{name}.kubeconfig"));
        kubeconfig::write(&path, &layout.url(), &ca, &user, &Credentials::Certificate(&identity))?;
    }
    Ok(())
}

/// Writes `nodes/` in the run directory, with a directory for each node and what they have in common.
pub(super) fn write(layout: &Layout, cgroup: &str) -> Result<()> {
    let plugins = find("ptp").context("the CNI plugins are gone")?;
    let plugins = plugins.parent().context("the CNI plugins are nowhere")?.display().to_string();
    let runc = find("runc").context("runc is gone")?.display().to_string();
    let mut files = vec![
        ("kube-proxy.json".to_owned(), kube_proxy(layout).to_string()),
        // There is no name server; an empty file makes look-ups fail at once instead of after a time.
        ("resolv.conf".to_owned(), String::new()),
    ];
    for node in layout.real_nodes() {
        let name = node.name();
        fs::create_dir_all(node.file(layout, "cni"))?;
        files.extend([
            (format!("{name}/containerd.toml"), containerd(layout, node, &plugins, &runc)),
            (format!("{name}/cni/10-testbed.conflist"), cni(layout, node).to_string()),
            (format!("{name}/kubelet.json"), kubelet(layout, node, cgroup)?.to_string()),
        ]);
    }
    for (name, content) in files {
        let path = layout.file("nodes").join(name);
        fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn containerd(layout: &Layout, node: RealNode, plugins: &str, runc: &str) -> String {
    let (disk, memory, socket) = (node.disk(layout).display().to_string(), node.memory(), node.socket());
    // The names of sockets and images, and the paths, hold nothing that a TOML literal string would have to escape.
    format!(
        "version = 3
root = '{disk}/containerd'
state = '{memory}/containerd'

[grpc]
address = '{socket}'

# Where these two write by default is the machine's own, and there is room for one containerd only.
[plugins.'io.containerd.internal.v1.opt']
path = '{disk}/opt'

[plugins.'io.containerd.nri.v1.nri']
disable = true

[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = '{PAUSE}'

[plugins.'io.containerd.cri.v1.runtime']
# Lowering a score takes CAP_SYS_RESOURCE, which root does not always have.
restrict_oom_score_adj = true
# So that the pods' networks go with the node's memory.
netns_mounts_under_state_dir = true

[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ['{plugins}']
conf_dir = '{disk}/cni'

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = 'io.containerd.runc.v2'

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
BinaryName = '{runc}'
Root = '{memory}/runc'
SystemdCgroup = false
"
    )
}

/// Point to point instead of a bridge, which takes a kernel module that is often missing. It makes a route for each pod, so
/// that pods of different nodes reach each other without more ado.
fn cni(layout: &Layout, node: RealNode) -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": "testbed",
        "plugins": [{
            "type": "ptp",
            "ipam": {
                "type": "host-local",
                "ranges": [[{ "subnet": node.pod_subnet() }]],
                "routes": [{ "dst": "0.0.0.0/0" }],
                "dataDir": node.file(layout, "addresses"),
            },
        }],
    })
}

fn kubelet(layout: &Layout, node: RealNode, cgroup: &str) -> Result<Value> {
    let health = layout.ports.kubelet_health.get(&node.number).context("a node without a port")?;
    Ok(json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": format!("unix://{}", node.socket()),
        // Its own and not all of them, so that every kubelet can have the usual port.
        "address": node.address(),
        "healthzPort": health.number(),
        "authentication": { "anonymous": { "enabled": false }, "x509": { "clientCAFile": layout.file("pki/ca.crt") } },
        "tlsCertFile": layout.file(&format!("pki/{}.crt", node.kubelet())),
        "tlsPrivateKeyFile": layout.file(&format!("pki/{}.key", node.kubelet())),
        // One group for the whole node, which the keeper makes and removes.
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{}", node.cgroup(cgroup)),
        // Otherwise all containers of all clusters would share one group, and the root above would mean nothing.
        "cgroupsPerQOS": true,
        "enforceNodeAllocatable": [],
        "failCgroupV1": false,
        "failSwapOn": false,
        "makeIPTablesUtilChains": false,
        "podLogsDir": node.file(layout, "pod-logs"),
        "volumePluginDir": node.file(layout, "volume-plugins"),
        "resolvConf": layout.file("nodes/resolv.conf"),
        // The disk of a machine that builds software is often nearly full, which is no reason to evict tests.
        "evictionHard": { "memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%",
            "imagefs.available": "0%", "imagefs.inodesFree": "0%" },
        "imageGCHighThresholdPercent": 100,
        "imageMinimumGCAge": "24h",
    }))
}

/// One for all nodes, because they have one network and with it one set of rules.
fn kube_proxy(layout: &Layout) -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": { "kubeconfig": layout.file("kubeconfigs/kube-proxy.kubeconfig") },
        "clusterCIDR": POD_NETWORK,
        "hostnameOverride": RealNode::FIRST.name(),
        "healthzBindAddress": format!("127.0.0.1:{}", layout.ports.proxy_health.number()),
        "metricsBindAddress": format!("127.0.0.1:{}", layout.ports.proxy_metrics.number()),
        // Zero leaves the machine's own limits alone; they are not the node's to change.
        "conntrack": { "maxPerCore": 0, "min": 0 },
    })
}
