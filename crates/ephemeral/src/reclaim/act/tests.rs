//! The writes against a real API server, with what was read beforehand no longer true.

use std::sync::Arc;

use anyhow::{Context, Result};
use cluster::{ObjectKey, Pod, Store, store::Slim};
use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaim, Pod as FullPod},
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::Timestamp,
};
use kube::{ResourceExt, api::PostParams};
use platform::{
    client::{self, ClientOptions, Fence, FencedClient},
    events::Recorder,
    metrics::Registry,
};
use testbed::Cluster;
use tokio::time::{Duration, Instant};

use super::*;
use crate::reclaim::{Caches, ReclaimCompleted, Settings};

/// A claim that a pod owns, and somebody who frees it.
struct Scene {
    reclaim: Reclaim,
    case: Case,
    claims: Api<PersistentVolumeClaim>,
}

impl Scene {
    async fn set(prefix: &str) -> Result<Self> {
        let cluster = testbed::shared().await?;
        let namespace = cluster.create_namespace(prefix).await?;
        let claims = Api::namespaced(cluster.admin().await?, &namespace);
        // Real owners: the garbage collector deletes what belongs to nobody.
        let (bystander, owner) =
            (create_pod(&cluster, &namespace, "bystander").await?, create_pod(&cluster, &namespace, "build").await?);
        let reference = |pod: &FullPod, controller: bool| json!({"apiVersion": "v1", "kind": "Pod", "name": pod.name_any(), "uid": pod.uid(), "controller": controller});
        let owners = [reference(&bystander, false), reference(&owner, true)];
        let claim = json!({
            // Without its finalizers nothing would keep it in sight.
            "metadata": {"name": "build-scratch", "finalizers": ["example.dev/hold"], "ownerReferences": owners},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        });
        claims.create(&PostParams::default(), &serde_json::from_value(claim)?).await?;

        let values = json!({"features": ["ephemeral"], "ephemeral": {"reclaimCompleted": "delete"}});
        let kubeconfig = cluster.install_chart("claimkeeper", &namespace, &values).await?;
        let (registry, fence) = (Registry::default(), Fence::new());
        fence.open_until(Instant::now() + Duration::from_hours(1));
        let config = client::load_config(Some(&kubeconfig))?;
        let client = FencedClient::build(config, ClientOptions::new(&registry), &fence)?;
        let (events, _) = Recorder::new(Client::clone(&client), "claimkeeper.dev/test", "test", &registry);
        let caches =
            Caches::beside(&Store::new(vec![], vec![]), &Store::new(vec![], vec![]), &Store::new(vec![], vec![]));
        let settings = Settings { reclaim_completed: ReclaimCompleted::Delete, without_attach: vec![], concurrency: 1 };
        let reclaim = Reclaim::new(caches, client, events, &registry, settings);
        let pod = serde_json::from_str(&serde_json::to_string(&owner)?)?;
        let pod = Pod::from_wire(pod).context("no pod")?;
        let case = Case { pod: Arc::new(pod), claim: ObjectKey::new(&namespace, "build-scratch") };
        Ok(Self { reclaim, case, claims })
    }

    async fn read(&self) -> Result<LiveClaim> {
        let wire = self.reclaim.claims_of(&self.case).get(self.case.claim.name()).await?;
        LiveClaim::from_wire(wire).context("no claim")
    }

    async fn delete(&self, claim: &LiveClaim) -> Result<(), u16> {
        code(self.reclaim.delete(&self.case, claim).await)
    }

    async fn disown(&self, claim: &LiveClaim) -> Result<(), u16> {
        code(self.reclaim.disown(&self.case, claim).await)
    }

    async fn owners(&self) -> Result<Vec<String>> {
        let claim = self.claims.get(self.case.claim.name()).await?;
        Ok(claim.owner_references().iter().map(|owner| owner.name.clone()).collect())
    }
}

async fn create_pod(cluster: &Cluster, namespace: &str, name: &str) -> Result<FullPod> {
    let spec = json!({
        "containers": [{"name": "main", "image": "example.invalid/main"}],
        "nodeSelector": {"kubernetes.io/hostname": "nowhere"},
    });
    let pod = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec}))?;
    Ok(Api::namespaced(cluster.admin().await?, namespace).create(&PostParams::default(), &pod).await?)
}

fn code(outcome: Result<(), kube::Error>) -> Result<(), u16> {
    outcome.map_err(|error| match error {
        kube::Error::Api(status) if is_lost_race(&status) => status.code,
        error => panic!("no lost race: {error}"),
    })
}

#[tokio::test]
async fn a_claim_that_changed_or_is_another_one_is_not_deleted() -> Result<()> {
    let scene = Scene::set("changed").await?;
    let read = scene.read().await?;
    let note = Patch::Merge(json!({"metadata": {"annotations": {"example.dev/note": "changed"}}}));
    scene.claims.patch("build-scratch", &PatchParams::default(), &note).await?;
    assert_eq!(scene.delete(&read).await, Err(409));
    let another = LiveClaim { uid: "another".into(), ..scene.read().await? };
    assert_eq!(scene.delete(&another).await, Err(409));
    assert_eq!(scene.read().await?.deleted_at, None);

    assert_eq!(scene.delete(&scene.read().await?).await, Ok(()));
    assert!(scene.read().await?.deleted_at.is_some());
    assert_eq!(scene.owners().await?, ["bystander"], "only the pod is taken out");
    Ok(())
}

#[tokio::test]
async fn a_claim_that_is_not_being_deleted_or_not_owned_any_more_is_not_disowned() -> Result<()> {
    let scene = Scene::set("disown").await?;
    let imagined = LiveClaim { deleted_at: Some(Time(Timestamp::UNIX_EPOCH)), ..scene.read().await? };
    assert_eq!(scene.disown(&imagined).await, Err(422));
    scene.claims.delete("build-scratch", &DeleteParams::default()).await?;
    assert_eq!(scene.disown(&imagined).await, Err(422), "deleted at another time");
    let read = scene.read().await?;
    for outdated in [
        LiveClaim { uid: "another".into(), ..read.clone() },
        LiveClaim { owner: Some((0, scene.case.pod.uid.clone())), ..read.clone() },
        LiveClaim { owner: Some((7, scene.case.pod.uid.clone())), ..read.clone() },
    ] {
        assert_eq!(scene.disown(&outdated).await, Err(422), "{outdated:?}");
    }
    assert_eq!(scene.owners().await?, ["bystander", "build"]);

    assert_eq!(scene.disown(&read).await, Ok(()));
    assert_eq!(scene.owners().await?, ["bystander"]);
    Ok(())
}
