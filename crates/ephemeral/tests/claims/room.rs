//! The feature on a real control plane, with the chart's rights, looking at one namespace of its own.

use std::sync::Arc;

use anyhow::{Result, ensure};
use cluster::{Claim, Pod, Store, watch::Watches};
use ephemeral::{Caches, Ephemeral};
use k8s_openapi::api::{
    core::v1::{Namespace, PersistentVolumeClaim, Pod as FullPod, ResourceQuota},
    events::v1::Event,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use rehearsal::{Means, Process};
use serde_json::{Value, json};
use testbed::{Cluster, eventually};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

const REPORTER: &str = "claimkeeper.dev/ephemeral";

/// A running feature and the namespace it looks after.
pub(crate) struct Room {
    pub(crate) cluster: Cluster,
    pub(crate) namespace: String,
    pub(crate) pods: Api<FullPod>,
    pub(crate) claims: Api<PersistentVolumeClaim>,
    pub(crate) events: Api<Event>,
    pub(crate) process: Process,
    claim_watch: Option<ClaimWatch>,
}

/// What it takes to stop watching claims and to start again.
struct ClaimWatch {
    watches: Watches,
    store: Store<Claim>,
    running: AbortHandle,
}

/// Which caches are fed by a watch, and which stay as empty as if they were far behind.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Behind {
    Nothing,
    Claims,
    Namespaces,
}

impl Room {
    pub(crate) async fn open(prefix: &str) -> Result<Self> {
        let room = Self::prepare(prefix).await?;
        room.start(Behind::Nothing).await
    }

    /// The namespace without the feature, for what must be there before it.
    pub(crate) async fn prepare(prefix: &str) -> Result<Self> {
        let cluster = testbed::shared().await?;
        let namespace = cluster.create_namespace(prefix).await?;
        let client = cluster.admin().await?;
        Ok(Self {
            pods: Api::namespaced(client.clone(), &namespace),
            claims: Api::namespaced(client.clone(), &namespace),
            events: Api::namespaced(client, &namespace),
            process: Process::default(),
            claim_watch: None,
            cluster,
            namespace,
        })
    }

    pub(crate) async fn start(mut self, behind: Behind) -> Result<Self> {
        let values = json!({"features": ["ephemeral"]});
        let Means { client, watches, recorder, .. } =
            self.process.start(&self.cluster, &self.namespace, &values, REPORTER).await?;
        let pods: Store<Pod> = Store::new(vec![ephemeral::interesting], ephemeral::INDEXES_OF_PODS.into());
        let claims: Store<Claim> = Store::new(vec![|_| true], vec![]);
        let namespaces = Store::new(vec![|_| true], vec![]);
        let quotas = Store::new(vec![|_| true], vec![]);
        self.process.spawn(watches.feed(&pods));
        if behind == Behind::Claims {
            claims.end_list();
        } else {
            let running = self.process.spawn(watches.feed(&claims));
            self.claim_watch = Some(ClaimWatch { watches: watches.clone(), store: claims.clone(), running });
        }
        if behind == Behind::Namespaces {
            namespaces.end_list();
        } else {
            self.process.spawn(watches.feed_namespaces(&namespaces));
        }
        self.process.spawn(watches.feed(&quotas));
        let caches = Caches { pods, claims, namespaces, quotas };
        let feature = Arc::new(Ephemeral::new(caches, client, recorder, &self.process.registry, 4));
        self.process.spawn(async move { feature.run(CancellationToken::new()).await });
        Ok(self)
    }

    /// Deaf to what happens to claims, as when the connection is cut.
    pub(crate) fn interrupt_claim_watch(&self) {
        self.claim_watch.iter().for_each(|watch| watch.running.abort());
    }

    /// The watch is back, with a new list.
    pub(crate) fn resume_claim_watch(&mut self) {
        if let Some(watch) = &mut self.claim_watch {
            watch.running = self.process.spawn(watch.watches.feed(&watch.store));
        }
    }

    pub(crate) async fn create_pod(&self, name: &str, volumes: Value) -> Result<FullPod> {
        Ok(self.pods.create(&PostParams::default(), &pod(name, &volumes)).await?)
    }

    pub(crate) async fn create_foreign_claim(&self, name: &str, metadata: Value) -> Result<PersistentVolumeClaim> {
        let mut claim = json!({"metadata": metadata, "spec": spec("testbed-immediate")});
        claim["metadata"]["name"] = name.into();
        Ok(self.claims.create(&PostParams::default(), &serde_json::from_value(claim)?).await?)
    }

    pub(crate) async fn claim(&self, name: &str) -> Result<PersistentVolumeClaim> {
        eventually(&format!("claim {name}"), async || self.claims.get(name).await).await
    }

    /// Our Warning events about a pod; the scheduler has its own.
    pub(crate) async fn warnings(&self, pod: &FullPod) -> Result<Vec<Event>> {
        let mut events = self.events.list(&ListParams::default()).await?.items;
        events.retain(|event| {
            event.regarding.as_ref().is_some_and(|regarding| regarding.uid == pod.uid())
                && event.reporting_controller.as_deref() == Some(REPORTER)
                && event.type_.as_deref() == Some("Warning")
        });
        Ok(events)
    }

    pub(crate) async fn warning(&self, pod: &FullPod) -> Result<Event> {
        eventually("a Warning event on the pod", async || {
            let found = self.warnings(pod).await?;
            ensure!(!found.is_empty(), "no event");
            Ok(found.into_iter().next())
        })
        .await?
        .ok_or_else(|| anyhow::anyhow!("no event"))
    }

    pub(crate) async fn drop_finalizers(&self, claim: &str) -> Result<()> {
        let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        self.claims.patch(claim, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    pub(crate) fn ignore_missing(error: anyhow::Error) -> Result<()> {
        match error.downcast_ref::<kube::Error>() {
            Some(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            _ => Err(error),
        }
    }

    /// Keeps a pod in sight after its deletion.
    pub(crate) async fn hold_pod(&self, pod: &str) -> Result<()> {
        let patch = Patch::Merge(json!({"metadata": {"finalizers": ["example.dev/hold"]}}));
        self.pods.patch(pod, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// A quota on the number of claims, in force when this returns.
    pub(crate) async fn limit_claims(&self, count: u32) -> Result<()> {
        self.limit("persistentvolumeclaims", &count.to_string()).await
    }

    /// A quota, in force when this returns.
    pub(crate) async fn limit(&self, resource: &str, amount: &str) -> Result<()> {
        let quotas = self.quotas().await?;
        let quota = json!({
            "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "claims"},
            "spec": {"hard": {resource: amount}},
        });
        quotas.patch("claims", &PatchParams::apply("test"), &Patch::Apply(quota)).await?;
        eventually("the quota to be in force", async || {
            let hard = quotas.get("claims").await?.status.and_then(|status| status.hard).unwrap_or_default();
            ensure!(hard.get(resource).is_some_and(|hard| hard.0 == amount), "not yet");
            Ok(())
        })
        .await
    }

    pub(crate) async fn remove_quota(&self) -> Result<()> {
        self.quotas().await?.delete("claims", &DeleteParams::default()).await?;
        Ok(())
    }

    async fn quotas(&self) -> Result<Api<ResourceQuota>> {
        Ok(Api::namespaced(self.cluster.admin().await?, &self.namespace))
    }

    /// Says of the namespace whether it takes ephemeral volumes; null takes the label away.
    pub(crate) async fn label_namespace(&self, ephemeral_volumes: Value) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.cluster.admin().await?);
        let patch = json!({"metadata": {"labels": {"claimkeeper.dev/ephemeral-volumes": ephemeral_volumes}}});
        namespaces.patch(&self.namespace, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// As whom the feature runs.
    pub(crate) fn user(&self) -> String {
        format!("system:serviceaccount:{}:claimkeeper", self.namespace)
    }

    pub(crate) async fn delete_claim(&self, claim: &str) -> Result<()> {
        self.claims.delete(claim, &DeleteParams::default()).await?;
        Ok(())
    }
}

pub(crate) fn spec(class: &str) -> Value {
    json!({"accessModes": ["ReadWriteOnce"], "storageClassName": class, "resources": {"requests": {"storage": "1Gi"}}})
}

/// A reference to the pod as an owner of something.
pub(crate) fn owner(pod: &FullPod, controller: bool) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "name": pod.name_any(), "uid": pod.uid(), "controller": controller})
}

/// An ephemeral volume.
pub(crate) fn volume(name: &str) -> Value {
    json!({"name": name, "ephemeral": {"volumeClaimTemplate": {"spec": spec("testbed-wait")}}})
}

fn pod(name: &str, volumes: &Value) -> FullPod {
    let mounts: Vec<Value> = volumes
        .as_array()
        .unwrap()
        .iter()
        .map(|volume| json!({"name": volume["name"], "mountPath": format!("/{}", volume["name"].as_str().unwrap())}))
        .collect();
    serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": "example.invalid/main", "volumeMounts": mounts}], "volumes": volumes},
    })).unwrap()
}
