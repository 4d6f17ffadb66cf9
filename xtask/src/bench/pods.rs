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

/// As many as keep two cores of API server busy.
const AT_ONCE: usize = 64;

/// What stands behind the scratch volume of a pod.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scratch {
    /// Nothing that takes a claim.
    EmptyDir,
    /// A generic ephemeral volume.
    Ephemeral,
    /// The same claim, which the pod asks for by annotation.
    Annotated,
}

/// Which pods there are to be. Those of several plans add up if each starts where the one before it ended.
pub(crate) struct Plan {
    /// How many there are already.
    pub first: usize,
    /// How many are created.
    pub count: usize,
    /// How many share a namespace.
    pub per_namespace: usize,
    /// Every how manyth takes a claim.
    pub claim_every: usize,
    /// How those take it.
    pub scratch: Scratch,
    /// How far they have come.
    pub phase: &'static str,
}

impl Plan {
    /// This many pods that run, in namespaces of a usual size, some of them with an ephemeral volume.
    pub(crate) fn new(count: usize, ephemeral_every: usize) -> Self {
        let (claim_every, scratch) = (ephemeral_every, Scratch::Ephemeral);
        Self { first: 0, count, per_namespace: 1_000, claim_every, scratch, phase: "Running" }
    }

    fn namespace(&self, pod: usize) -> String {
        format!("bench-{}", pod / self.per_namespace)
    }

    /// Where the pods are.
    pub(crate) fn namespaces(&self) -> impl Iterator<Item = String> {
        let first = self.first;
        let starts =
            (first..first + self.count).filter(move |pod| *pod == first || pod.is_multiple_of(self.per_namespace));
        starts.map(|pod| self.namespace(pod))
    }

    /// Creates the pods.
    pub(crate) async fn create(&self, client: &Client) -> Result<()> {
        let (first, end) = (self.first, self.first + self.count);
        for namespace in self.namespaces() {
            create_namespace(client, &namespace).await?;
        }
        let mut progress = Progress::start(&format!("Creating {} pods", self.count));
        let creating = stream::iter(first..end).map(|number| self.create_one(client, number));
        let mut created = creating.buffer_unordered(AT_ONCE).enumerate();
        while let Some((done, result)) = created.next().await {
            result?;
            progress.update(&format!("{} of {}", done + 1, self.count));
        }
        progress.finish("done");
        Ok(())
    }

    async fn create_one(&self, client: &Client, number: usize) -> Result<()> {
        let (namespace, name) = (self.namespace(number), name(number));
        let scratch = if number.is_multiple_of(self.claim_every) { self.scratch } else { Scratch::EmptyDir };
        create_one(client, &namespace, &name, scratch).await?;
        // The status brings a second manager with its own list of fields, as every scheduled pod has it.
        let status = Patch::Merge(json!({"status": status(self.phase)}));
        let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
        pods.patch_status(&name, &PatchParams::apply("kubelet"), &status).await?;
        Ok(())
    }
}

fn name(number: usize) -> String {
    format!("shop-frontend-7d9c6b5f4d-{number:05}")
}

/// Creates a namespace in which pods are admitted, unless it is there already.
pub(crate) async fn create_namespace(client: &Client, name: &str) -> Result<()> {
    let object: Namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    unless_there(Api::all(client.clone()).create(&PostParams::default(), &object).await)?;
    // Made by a controller that does not run here; without it no pod is admitted.
    let account: ServiceAccount = serde_json::from_value(json!({"metadata": {"name": "default"}}))?;
    unless_there(Api::namespaced(client.clone(), name).create(&PostParams::default(), &account).await)
}

fn unless_there<T>(created: kube::Result<T>) -> Result<()> {
    match created {
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        outcome => Ok(outcome.map(drop)?),
    }
}

/// Creates one pod that nobody runs.
pub(crate) async fn create_one(client: &Client, namespace: &str, name: &str, scratch: Scratch) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let object: Pod = serde_json::from_value(pod(name, scratch))?;
    let created = pods.create(&PostParams::default(), &object).await;
    created.map(drop).with_context(|| format!("cannot create pod {namespace}/{name}"))
}

/// How many bytes of JSON the first pod of a plan has.
pub(crate) async fn size_of_one(client: &Client) -> Result<usize> {
    let request = Request::new("/api/v1/namespaces/bench-0/pods").get(&name(0), &kube::api::GetParams::default())?;
    let text = tokio::time::timeout(Duration::from_secs(10), client.request_text(request)).await??;
    Ok(text.len())
}

fn pod(name: &str, scratch: Scratch) -> Value {
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
    let mut annotations = json!({
        "prometheus.io/scrape": "true",
        "prometheus.io/port": "8080",
        "checksum/config": format!("{:064x}", 42),
    });
    let mut template = json!({
        "metadata": {"labels": {"app": "shop"}},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "resources": {"requests": {"storage": "1Gi"}}},
    });
    let scratch = match scratch {
        Scratch::EmptyDir => json!({"name": "scratch", "emptyDir": {}}),
        Scratch::Ephemeral => json!({"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}),
        Scratch::Annotated => {
            template["apiVersion"] = "v1".into();
            template["kind"] = "PersistentVolumeClaim".into();
            annotations["dynamic-pvc-provisioner.kubernetes.io/scratch.enabled"] = "true".into();
            annotations["dynamic-pvc-provisioner.kubernetes.io/scratch.pvc"] = template.to_string().into();
            json!({"name": "scratch", "persistentVolumeClaim": {"claimName": format!("{name}-scratch")}})
        }
    };
    json!({
        "metadata": {
            "name": name,
            "labels": {"app": "shop", "component": "frontend", "pod-template-hash": "7d9c6b5f4d", "team": "storefront"},
            "annotations": annotations,
        },
        "spec": {
            "containers": containers,
            "volumes": [scratch, {"name": "settings", "configMap": {"name": "shop-settings"}}],
            "nodeName": format!("node-{}", name.len()),
        },
    })
}

/// The status of a pod that has come so far.
pub(crate) fn status(phase: &str) -> Value {
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
        "phase": phase, "hostIP": "10.0.0.1", "podIP": "10.1.0.1", "startTime": "2026-01-01T00:00:00Z",
        "conditions": conditions, "containerStatuses": containers,
    })
}
