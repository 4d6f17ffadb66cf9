//! One of the two clusters: how a step is carried out there, and what there is afterwards.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, ResourceQuota};
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    core::NamespaceResourceScope,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use testbed::{Cluster, eventually};

use super::script::{Plan, Step};

/// Keeps an object in sight after its deletion.
pub(crate) const HOLD: &str = "example.dev/hold";

/// A namespace in one of the clusters.
pub(crate) struct Side {
    cluster: Cluster,
    pub(crate) namespace: String,
    pods: Api<Pod>,
    claims: Api<PersistentVolumeClaim>,
    quotas: Api<ResourceQuota>,
}

impl Side {
    pub(crate) async fn new(cluster: Cluster, namespace: String) -> Result<Self> {
        let client = cluster.admin().await?;
        Ok(Self {
            pods: Api::namespaced(client.clone(), &namespace),
            claims: Api::namespaced(client.clone(), &namespace),
            quotas: Api::namespaced(client, &namespace),
            cluster,
            namespace,
        })
    }

    pub(crate) async fn objects(&self) -> Result<(Vec<Pod>, Vec<PersistentVolumeClaim>)> {
        // Claims first: then a claim never seems to be ownerless only because its pod is newer than the list.
        let claims = self.claims.list(&ListParams::default()).await?.items;
        Ok((self.pods.list(&ListParams::default()).await?.items, claims))
    }

    pub(crate) async fn apply(&self, step: &Step) -> Result<()> {
        match step {
            Step::CreatePod(plan) => self.create_pod(plan).await?,
            Step::DeletePod(name) => delete(&self.pods, name).await?,
            Step::ReplacePod(plan) => {
                delete(&self.pods, plan.name).await?;
                self.create_pod(plan).await?;
            }
            Step::HoldAndDeletePod(name) => hold_and_delete(&self.pods, name).await?,
            Step::LetPodGo(name) => let_go(&self.pods, name).await?,
            Step::EndPod(name, phase) => self.cluster.set_pod_phase(&self.namespace, name, phase).await?,
            Step::CreateForeignClaim(name) => self.create_foreign_claim(name).await?,
            Step::DeleteClaim(name) => delete(&self.claims, name).await?,
            Step::HoldAndDeleteClaim(name) => hold_and_delete(&self.claims, name).await?,
            Step::LetClaimGo(name) => let_go(&self.claims, name).await?,
            Step::RelabelClaim(name) => {
                let metadata = json!({"labels": {"app": "changed"}, "annotations": {"example.dev/note": null}});
                let patch = Patch::Merge(json!({ "metadata": metadata }));
                self.claims.patch(name, &PatchParams::default(), &patch).await?;
            }
            Step::LimitClaims { to } => self.limit_claims(*to).await?,
        }
        Ok(())
    }

    async fn create_pod(&self, plan: &Plan) -> Result<()> {
        self.pods.create(&PostParams::default(), &serde_json::from_value(plan.pod())?).await?;
        Ok(())
    }

    async fn create_foreign_claim(&self, name: &str) -> Result<()> {
        let spec = json!({
            "accessModes": ["ReadWriteOnce"], "storageClassName": "testbed-immediate",
            "resources": {"requests": {"storage": "1Gi"}},
        });
        let claim = json!({"metadata": {"name": name, "labels": {"made-by": "a-user"}}, "spec": spec});
        self.claims.create(&PostParams::default(), &serde_json::from_value(claim)?).await?;
        Ok(())
    }

    /// Returns when the quota is in force.
    async fn limit_claims(&self, to: u32) -> Result<()> {
        let quota = json!({
            "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "claims"},
            "spec": {"hard": {"persistentvolumeclaims": to.to_string()}},
        });
        self.quotas.patch("claims", &PatchParams::apply("test"), &Patch::Apply(quota)).await?;
        eventually("the quota to be in force", async || {
            let hard = self.quotas.get("claims").await?.status.and_then(|status| status.hard).unwrap_or_default();
            ensure!(hard.get("persistentvolumeclaims").is_some_and(|hard| hard.0 == to.to_string()), "not yet");
            Ok(())
        })
        .await
    }
}

async fn delete<K>(api: &Api<K>, name: &str) -> Result<()>
where
    K: Resource<Scope = NamespaceResourceScope> + Clone + DeserializeOwned + std::fmt::Debug,
{
    api.delete(name, &DeleteParams::default()).await?;
    Ok(())
}

async fn hold_and_delete<K>(api: &Api<K>, name: &str) -> Result<()>
where
    K: Resource<Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Serialize + std::fmt::Debug,
{
    let mut finalizers = api.get(name).await?.finalizers().to_vec();
    finalizers.push(HOLD.to_owned());
    set_finalizers(api, name, &finalizers).await?;
    delete(api, name).await
}

async fn let_go<K>(api: &Api<K>, name: &str) -> Result<()>
where
    K: Resource<Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Serialize + std::fmt::Debug,
{
    // A controller may remove its own at the same moment, and ours would bring it back.
    eventually("the finalizer to go", async || {
        let mut finalizers = api.get(name).await?.finalizers().to_vec();
        finalizers.retain(|finalizer| finalizer != HOLD);
        set_finalizers(api, name, &finalizers).await
    })
    .await
}

async fn set_finalizers<K>(api: &Api<K>, name: &str, finalizers: &[String]) -> Result<()>
where
    K: Resource<Scope = NamespaceResourceScope> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let patch = Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
    api.patch(name, &PatchParams::default(), &patch).await?;
    Ok(())
}
