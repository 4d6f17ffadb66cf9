//! The feature on a real control plane, with the chart's rights, looking at one namespace of its own.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use cluster::{Claim, Pod, Store};
use k8s_openapi::api::{
    core::v1::{PersistentVolumeClaim, Pod as FullPod},
    rbac::v1::{Role, RoleBinding},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use provisioner::{Caches, Provisioner, Settings, request::Enabling, template::Rules};
use rehearsal::{Events, Means, Process, Told};
use serde_json::{Value, json};
use testbed::{Cluster, eventually, within};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

const REPORTER: &str = "claimkeeper.dev/provisioner";

/// A running feature and the namespace it looks after.
pub(crate) struct Room {
    pub(crate) cluster: Cluster,
    pub(crate) namespace: String,
    pub(crate) pods: Api<FullPod>,
    pub(crate) claims: Api<PersistentVolumeClaim>,
    pub(crate) process: Process,
    events: Events,
    hears_of_claims: Option<AbortHandle>,
}

/// As the configuration has it by default.
pub(crate) fn defaults() -> Settings {
    Settings {
        controller_id: "claimkeeper".to_owned(),
        rules: Rules::Strict { allowed: Vec::new() },
        enabling: Enabling::Documented,
        authorize: true,
        concurrency: 4,
    }
}

impl Room {
    /// The feature with its defaults, in a namespace whose pods may have claims.
    pub(crate) async fn open(prefix: &str) -> Result<Self> {
        let room = Self::prepare(prefix).await?;
        room.let_create_claims("default").await?;
        room.start(defaults()).await
    }

    /// The namespace without the feature, for what must be there before it.
    pub(crate) async fn prepare(prefix: &str) -> Result<Self> {
        let cluster = testbed::shared().await?;
        let namespace = cluster.create_namespace(prefix).await?;
        let client = cluster.admin().await?;
        Ok(Self {
            pods: Api::namespaced(client.clone(), &namespace),
            claims: Api::namespaced(client.clone(), &namespace),
            process: Process::default(),
            events: Events::of(REPORTER, &client, &namespace),
            hears_of_claims: None,
            cluster,
            namespace,
        })
    }

    pub(crate) async fn start(mut self, settings: Settings) -> Result<Self> {
        let authorize = if settings.authorize { "service-account" } else { "none" };
        let values = json!({
            "features": ["provisioner"], "namespace": self.namespace, "provisioner": {"authorize": authorize},
        });
        let Means { reader, client, watches, recorder } =
            self.process.start(&self.cluster, &self.namespace, &values, REPORTER).await?;
        let pods: Store<Pod> = Store::new(vec![provisioner::interesting], provisioner::INDEXES_OF_PODS.into());
        let claims: Store<Claim> = Store::new(vec![|_| true], vec![]);
        let caches = Caches { pods: pods.clone(), claims: claims.clone() };
        let feature = Arc::new(Provisioner::new(caches, client, reader, recorder, &self.process.registry, settings));
        self.process.spawn(watches.feed(&pods));
        self.hears_of_claims = Some(self.process.spawn(watches.feed(&claims)));
        self.process.spawn(async move { feature.run(CancellationToken::new()).await });
        Ok(self)
    }

    /// From now on the cache of claims stays as it is.
    pub(crate) async fn stop_hearing_of_claims(&self) -> Result<()> {
        let watch = self.hears_of_claims.as_ref().context("it does not run")?;
        watch.abort();
        eventually("the watch to end", async || {
            ensure!(watch.is_finished(), "it goes on");
            Ok(())
        })
        .await
    }

    /// Grants what the denial asks for.
    pub(crate) async fn let_create_claims(&self, account: &str) -> Result<()> {
        let client = self.cluster.admin().await?;
        let role: Role = serde_json::from_value(json!({
            "metadata": {"name": format!("{account}-create-claims")},
            "rules": [{"apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["create"]}],
        }))?;
        let binding: RoleBinding = serde_json::from_value(json!({
            "metadata": {"name": format!("{account}-create-claims")},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": format!("{account}-create-claims")},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": self.namespace}],
        }))?;
        Api::namespaced(client.clone(), &self.namespace).create(&PostParams::default(), &role).await?;
        Api::namespaced(client, &self.namespace).create(&PostParams::default(), &binding).await?;
        Ok(())
    }

    pub(crate) async fn create_pod(&self, name: &str, annotations: Value, volumes: Value) -> Result<FullPod> {
        let pod = json!({
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"containers": [{"name": "main", "image": "example.invalid/main"}], "volumes": volumes},
        });
        Ok(self.pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?)
    }

    /// A pod that asks for the claim `<name>-1` by our annotation.
    pub(crate) async fn ask(&self, name: &str, template: &str) -> Result<FullPod> {
        let annotations = json!({"claimkeeper.dev/cache.claim": template});
        self.create_pod(name, annotations, json!([volume("cache", &format!("{name}-1"))])).await
    }

    /// The same for a pod that stays Pending, because no node fits.
    pub(crate) async fn ask_and_wait(&self, name: &str, template: &str) -> Result<FullPod> {
        let pod = json!({
            "metadata": {"name": name, "annotations": {"claimkeeper.dev/cache.claim": template}},
            "spec": {
                "nodeSelector": {"nowhere": "at-all"},
                "containers": [{"name": "main", "image": "example.invalid/main"}],
                "volumes": [volume("cache", &format!("{name}-1"))],
            },
        });
        Ok(self.pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?)
    }

    pub(crate) async fn create_foreign_claim(&self, name: &str, metadata: Value) -> Result<PersistentVolumeClaim> {
        let mut claim: Value = serde_saphyr::from_str(TEMPLATE)?;
        claim["metadata"] = metadata;
        claim["metadata"]["name"] = name.into();
        Ok(self.claims.create(&PostParams::default(), &serde_json::from_value(claim)?).await?)
    }

    pub(crate) async fn claim(&self, name: &str) -> Result<PersistentVolumeClaim> {
        eventually(&format!("claim {name}"), async || self.claims.get(name).await).await
    }

    /// Waits for the claim that belongs to this very pod; Kubernetes may have to remove another one first, and has much to do.
    pub(crate) async fn own_claim(&self, name: &str, pod: &FullPod) -> Result<PersistentVolumeClaim> {
        within(Duration::from_mins(2), &format!("claim {name} of the pod"), async || {
            let claim = self.claims.get(name).await?;
            let owned = claim.owner_references().iter().any(|owner| Some(&owner.uid) == pod.uid().as_ref());
            ensure!(owned, "it belongs to {:?}", claim.owner_references());
            Ok(claim)
        })
        .await
    }

    /// Our events about a pod.
    pub(crate) async fn events(&self, pod: &FullPod) -> Result<Vec<Told>> {
        self.events.about(pod.uid().as_deref()).await
    }

    /// Waits for an event of this reason and returns its note.
    pub(crate) async fn told(&self, pod: &FullPod, reason: &str) -> Result<String> {
        Ok(self.events.until_told(pod.uid().as_deref(), reason).await?.note)
    }

    pub(crate) async fn annotate(&self, pod: &str, annotations: Value) -> Result<()> {
        let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
        self.pods.patch(pod, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    pub(crate) async fn delete_claim(&self, claim: &str) -> Result<()> {
        self.claims.delete(claim, &DeleteParams::default()).await?;
        let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        match self.claims.patch(claim, &PatchParams::default(), &patch).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            outcome => Ok(outcome.map(drop)?),
        }
    }

    /// As whom the feature runs.
    pub(crate) fn user(&self) -> String {
        format!("system:serviceaccount:{}:claimkeeper", self.namespace)
    }
}

/// A claim that can be made.
pub(crate) const TEMPLATE: &str = "\
apiVersion: v1
kind: PersistentVolumeClaim
spec:
  storageClassName: testbed-wait
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 1Gi}}
";

/// A volume that uses a claim.
pub(crate) fn volume(name: &str, claim: &str) -> Value {
    json!({"name": name, "persistentVolumeClaim": {"claimName": claim}})
}
