//! Many pods of realistic size.

use std::time::Duration;

use anyhow::{Context, Result};
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
    core::Request,
};
use serde_json::{Value, json};
use testbed::Progress;

const PODS_PER_NAMESPACE: usize = 1_000;

/// As many as keep two cores of API server busy.
const AT_ONCE: usize = 64;

/// Creates `count` pods, of which every `ephemeral_every`th has a generic ephemeral volume; returns the size of one in bytes.
pub(crate) async fn create(client: &Client, count: usize, ephemeral_every: usize) -> Result<usize> {
    let namespaces = count.div_ceil(PODS_PER_NAMESPACE);
    for number in 0..namespaces {
        create_namespace(client, &namespace(number)).await?;
    }
    let mut progress = Progress::start(&format!("Creating {count} pods"));
    let creating = stream::iter(0..count).map(|number| create_one(client, number, ephemeral_every));
    let mut created = creating.buffer_unordered(AT_ONCE).enumerate();
    while let Some((done, result)) = created.next().await {
        result?;
        progress.update(&format!("{} of {count}", done + 1));
    }
    progress.finish("done");
    size_of_one(client).await
}

fn namespace(number: usize) -> String {
    format!("bench-{number}")
}

async fn create_namespace(client: &Client, name: &str) -> Result<()> {
    let object: Namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    Api::all(client.clone()).create(&PostParams::default(), &object).await?;
    // Made by a controller that does not run here; without it no pod is admitted.
    let account: ServiceAccount = serde_json::from_value(json!({"metadata": {"name": "default"}}))?;
    Api::namespaced(client.clone(), name).create(&PostParams::default(), &account).await?;
    Ok(())
}

async fn create_one(client: &Client, number: usize, ephemeral_every: usize) -> Result<()> {
    let namespace = namespace(number / PODS_PER_NAMESPACE);
    let name = format!("shop-frontend-7d9c6b5f4d-{number:05}");
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let object: Pod = serde_json::from_value(pod(&name, number.is_multiple_of(ephemeral_every)))?;
    pods.create(&PostParams::default(), &object)
        .await
        .with_context(|| format!("cannot create pod {namespace}/{name}"))?;
    // The status brings a second manager with its own list of fields, as every scheduled pod has it.
    let status = Patch::Merge(json!({"status": status()}));
    pods.patch_status(&name, &PatchParams::apply("kubelet"), &status).await?;
    Ok(())
}

async fn size_of_one(client: &Client) -> Result<usize> {
    let path = format!("/api/v1/namespaces/{}/pods", namespace(0));
    let request = Request::new(path).get("shop-frontend-7d9c6b5f4d-00000", &kube::api::GetParams::default())?;
    let text = tokio::time::timeout(Duration::from_secs(10), client.request_text(request)).await??;
    Ok(text.len())
}

fn pod(name: &str, ephemeral: bool) -> Value {
    let env = |container: usize| -> Vec<Value> {
        (0..10).map(|n| json!({"name": format!("SETTING_{container}_{n}"), "value": format!("value-{n}-of-a-realistic-length")})).collect()
    };
    let container = |(number, name): (usize, &str)| {
        json!({
            "name": name,
            "image": format!("registry.example/shop/{name}@sha256:{:064x}", number + 1),
            "env": env(number),
            "ports": [{"name": "http", "containerPort": 8080 + number}],
            "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
            "livenessProbe": {"httpGet": {"path": "/healthz", "port": "http"}, "periodSeconds": 10},
            "readinessProbe": {"httpGet": {"path": "/readyz", "port": "http"}, "periodSeconds": 5},
            "securityContext": {"readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false},
            "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}, {"name": "settings", "mountPath": "/etc/settings"}],
        })
    };
    let containers: Vec<Value> = ["frontend", "proxy"].into_iter().enumerate().map(container).collect();
    let scratch = if ephemeral {
        json!({"name": "scratch", "ephemeral": {"volumeClaimTemplate": {
            "metadata": {"labels": {"app": "shop"}},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "resources": {"requests": {"storage": "1Gi"}}},
        }}})
    } else {
        json!({"name": "scratch", "emptyDir": {}})
    };
    json!({
        "metadata": {
            "name": name,
            "labels": {"app": "shop", "component": "frontend", "pod-template-hash": "7d9c6b5f4d", "team": "storefront"},
            "annotations": {
                "prometheus.io/scrape": "true",
                "prometheus.io/port": "8080",
                "checksum/config": format!("{:064x}", 42),
            },
        },
        "spec": {
            "containers": containers,
            "volumes": [scratch, {"name": "settings", "configMap": {"name": "shop-settings"}}],
            "nodeName": format!("node-{}", name.len()),
        },
    })
}

fn status() -> Value {
    let conditions = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];
    let conditions: Vec<Value> = conditions
        .iter()
        .map(|kind| json!({"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}))
        .collect();
    let containers: Vec<Value> = ["frontend", "proxy"]
        .iter()
        .map(|name| {
            json!({
                "name": name, "image": format!("registry.example/shop/{name}"),
                "imageID": format!("registry.example/shop/{name}@sha256:{:064x}", 7),
                "containerID": format!("containerd://{:064x}", 9),
                "ready": true, "started": true, "restartCount": 0,
                "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
            })
        })
        .collect();
    json!({
        "phase": "Running", "hostIP": "10.0.0.1", "podIP": "10.1.0.1", "startTime": "2026-01-01T00:00:00Z",
        "conditions": conditions, "containerStatuses": containers,
    })
}
