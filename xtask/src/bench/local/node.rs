//! Nodes as a kubelet registers them.

use serde_json::{Value, json};

pub(super) fn name(number: usize) -> String {
    format!("pool-a-{number:05}")
}

pub(super) fn node(number: usize) -> Value {
    let name = name(number);
    let kinds = [
        ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
    ];
    let conditions = kinds.map(|(kind, status, reason, message)| {
        json!({
            "type": kind, "status": status, "reason": reason, "message": message,
            "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    });
    let images: Vec<Value> = (0..20)
        .map(|image| {
            json!({
                "names": [
                    format!("registry.example/team-{image}/service@sha256:{image:064x}"),
                    format!("registry.example/team-{image}/service:v1.{image}.0"),
                ],
                "sizeBytes": 50_000_000 + image,
            })
        })
        .collect();
    let resources = json!({
        "cpu": "16", "memory": "65843016Ki", "pods": "110", "ephemeral-storage": "129886128Ki",
        "hugepages-1Gi": "0", "hugepages-2Mi": "0",
    });
    json!({
        "metadata": {
            "name": name,
            "labels": {
                "beta.kubernetes.io/arch": "amd64",
                "beta.kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "node.kubernetes.io/instance-type": "storage-16",
                "topology.kubernetes.io/region": "north",
                "topology.kubernetes.io/zone": format!("north-{}", number % 3),
                "topology.localdisk.csi.acstor.io/node": name,
            },
            "annotations": {
                "csi.volume.kubernetes.io/nodeid": format!("{{\"localdisk.csi.acstor.io\":\"{name}\"}}"),
                "node.alpha.kubernetes.io/ttl": "0",
                "volumes.kubernetes.io/controller-managed-attach-detach": "true",
            },
        },
        "spec": {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"], "providerID": format!("example://{name}")},
        "status": {
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": name}],
            "allocatable": resources,
            "capacity": resources,
            "conditions": conditions,
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "images": images,
            "nodeInfo": {
                "architecture": "amd64", "bootID": super::uid(3, number), "containerRuntimeVersion": "containerd://2.4.2",
                "kernelVersion": "6.12.0", "kubeProxyVersion": "", "kubeletVersion": "v1.37.1",
                "machineID": format!("{number:032x}"), "operatingSystem": "linux", "osImage": "Linux",
                "systemUUID": super::uid(4, number),
            },
        },
    })
}
