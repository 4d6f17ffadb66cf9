//! Who may change claimkeeper's labels of a namespace, by the policy that the chart installs.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    core::v1::Namespace,
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use testbed::{Cluster, eventually};

const LABEL: &str = "claimkeeper.dev/enforcement";

/// A namespace whose labels are guarded, and two who may do with namespaces what they like; one may update classes, too.
struct Scene {
    namespace: String,
    admin: Api<Namespace>,
    tenant: Client,
    storage_admin: Client,
}

impl Scene {
    async fn open() -> Result<Self> {
        let cluster = testbed::shared().await?;
        let (home, namespace) = (cluster.create_namespace("guard").await?, cluster.create_namespace("guarded").await?);
        let values = json!({"features": ["enforcement"], "namespace": namespace});
        cluster.install_chart("claimkeeper", &home, &values).await?;
        let admin = cluster.admin().await?;
        let resources = ["namespaces", "namespaces/status", "namespaces/finalize"];
        let namespaces = json!({"apiGroups": [""], "resources": resources, "verbs": ["*"]});
        let classes = json!({"apiGroups": ["storage.k8s.io"], "resources": ["storageclasses"], "verbs": ["update"]});
        Ok(Self {
            tenant: user(&cluster, &admin, &format!("tenant-{namespace}"), &[&namespaces]).await?,
            storage_admin: user(&cluster, &admin, &format!("storage-{namespace}"), &[&namespaces, &classes]).await?,
            admin: Api::all(admin),
            namespace,
        })
    }

    /// Tries, without leaving anything behind.
    async fn label(&self, client: &Client, labels: &Value) -> kube::Result<()> {
        let parameters = PatchParams { dry_run: true, ..PatchParams::default() };
        let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
        Api::<Namespace>::all(client.clone()).patch(&self.namespace, &parameters, &patch).await.map(drop)
    }

    /// Waits until the policy counts and the user's rights do.
    async fn until_guarded(&self) -> Result<String> {
        eventually("the label to be guarded", async || match self.label(&self.tenant, &json!({LABEL: "audit"})).await {
            Err(kube::Error::Api(status)) if status.message.contains("NamespaceLabelsGuarded") => Ok(status.message),
            other => Err(anyhow::anyhow!("{other:?}")),
        })
        .await
    }
}

async fn user(cluster: &Cluster, admin: &Client, name: &str, rules: &[&Value]) -> Result<Client> {
    let role = json!({"metadata": {"name": name}, "rules": rules});
    Api::<ClusterRole>::all(admin.clone()).create(&PostParams::default(), &serde_json::from_value(role)?).await?;
    let group = "rbac.authorization.k8s.io";
    let binding = json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "User", "name": name, "apiGroup": group}],
    });
    let bindings: Api<ClusterRoleBinding> = Api::all(admin.clone());
    bindings.create(&PostParams::default(), &serde_json::from_value(binding)?).await?;
    cluster.client(&cluster.user_kubeconfig(name, &[]).await?).await
}

fn refused(result: &kube::Result<impl Sized>) -> bool {
    matches!(result, Err(kube::Error::Api(status)) if status.code == 403 && status.message.contains("NamespaceLabelsGuarded"))
}

#[tokio::test]
async fn only_who_may_update_classes_may_add_change_or_remove_our_labels() -> Result<()> {
    let scene = Scene::open().await?;
    let words = scene.until_guarded().await?;
    let (ns, name) = (&scene.namespace, format!("tenant-{}", scene.namespace));
    let expected = format!(
        "NamespaceLabelsGuarded: {name} may not change the label {LABEL} of namespace {ns}: only those who may update \
         storageclasses decide how claims are judged; ask one of them, or leave the label as it is"
    );
    assert!(words.ends_with(&expected), "{words}");
    eventually("the rights of who looks after classes to count", async || {
        scene.label(&scene.storage_admin, &json!({LABEL: "audit"})).await
    })
    .await?;

    // Other labels are nobody's business here, beside ours as well.
    scene.label(&scene.tenant, &json!({"team": "red"})).await?;
    assert!(refused(&scene.label(&scene.tenant, &json!({"team": "red", LABEL: "warn"})).await));
    assert!(refused(&scene.label(&scene.tenant, &json!({"claimkeeper.dev/anything": ""})).await));

    let patch = Patch::Merge(json!({"metadata": {"labels": {LABEL: "warn"}}}));
    scene.admin.patch(ns, &PatchParams::default(), &patch).await?;
    assert!(refused(&scene.label(&scene.tenant, &json!({LABEL: null})).await), "removed");
    assert!(refused(&scene.label(&scene.tenant, &json!({LABEL: "audit"})).await), "changed");
    scene.label(&scene.tenant, &json!({LABEL: "warn", "team": "red"})).await?;
    Ok(())
}

#[tokio::test]
async fn the_subresources_are_no_way_round_and_a_namespace_can_be_ended() -> Result<()> {
    let scene = Scene::open().await?;
    scene.until_guarded().await?;
    let (ns, tenant) = (&scene.namespace, Api::<Namespace>::all(scene.tenant.clone()));
    let patch = Patch::Merge(json!({"metadata": {"labels": {LABEL: "audit"}}}));
    assert!(refused(&tenant.patch_status(ns, &PatchParams::default(), &patch).await), "status");
    let mut namespace = scene.admin.get(ns).await?;
    namespace.labels_mut().insert(LABEL.to_owned(), "audit".to_owned());
    let finalize = tenant.replace_subresource("finalize", ns, &PostParams::default(), &namespace).await;
    assert!(refused(&finalize), "finalize");

    let labelled = Patch::Merge(json!({"metadata": {"labels": {LABEL: "warn"}}}));
    scene.admin.patch(ns, &PatchParams::default(), &labelled).await?;
    tenant.delete(ns, &DeleteParams::default()).await?;
    eventually("the namespace to end", async || {
        let left = scene.admin.get_opt(ns).await?;
        ensure!(left.is_none(), "it is still there");
        Ok(())
    })
    .await?;

    // Made anew with our label it is judged as well.
    let anew: Namespace = serde_json::from_value(json!({"metadata": {"name": ns, "labels": {LABEL: "warn"}}}))?;
    assert!(refused(&tenant.create(&PostParams::default(), &anew).await), "created");
    let plain: Namespace = serde_json::from_value(json!({"metadata": {"name": ns}}))?;
    tenant.create(&PostParams::default(), &plain).await.context("without our label it is nobody's business")?;
    Ok(())
}
