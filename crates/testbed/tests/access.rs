//! Who may do what, and how a test finds out who did what.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    authentication::v1::SelfSubjectReview,
    core::v1::{ConfigMap, ServiceAccount},
    rbac::v1::{Role, RoleBinding},
};
use kube::{
    Api, ResourceExt,
    api::{ObjectMeta, PostParams},
};
use serde_json::json;
use testbed::{AuditedRequest, eventually};

fn named(name: &str) -> ObjectMeta {
    ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() }
}

fn status_code(error: &kube::Error) -> Option<u16> {
    if let kube::Error::Api(status) = error { Some(status.code) } else { None }
}

#[tokio::test]
async fn a_service_account_without_rights_is_refused_and_the_audit_log_tells() -> Result<()> {
    let cluster = testbed::shared().await?;
    let namespace = cluster.create_namespace("access").await?;
    let account = ServiceAccount { metadata: named("nobody"), ..ServiceAccount::default() };
    Api::namespaced(cluster.admin().await?, &namespace).create(&PostParams::default(), &account).await?;

    let before = jiff::Timestamp::now();
    let kubeconfig = cluster.service_account_kubeconfig(&namespace, "nobody").await?;
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client(&kubeconfig).await?, &namespace);
    let error = maps.list(&kube::api::ListParams::default()).await.unwrap_err();
    assert_eq!(status_code(&error), Some(403), "{error}");

    let requests = cluster
        .audit_log()
        .user(format!("system:serviceaccount:{namespace}:nobody"))
        .verb("list")
        .resource("configmaps")
        .namespace(namespace)
        .since(before);
    let found = eventually("the refusal to be in the audit log", async || {
        let found = requests.requests()?;
        ensure!(!found.is_empty(), "no such request");
        Ok(found)
    })
    .await?;
    assert_eq!(found.iter().map(AuditedRequest::code).collect::<Vec<_>>(), [Some(403)]);
    assert!(requests.until(before).requests()?.is_empty());
    Ok(())
}

#[tokio::test]
async fn a_users_kubeconfig_carries_the_user_and_all_of_its_groups() -> Result<()> {
    let cluster = testbed::shared().await?;
    let kubeconfig = cluster.user_kubeconfig("jane@example.org", &["tenant-a", "tenant-b", "auditors"]).await?;
    let reviews: Api<SelfSubjectReview> = Api::all(cluster.client(&kubeconfig).await?);
    let answer = reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await?;
    let user = answer.status.and_then(|status| status.user_info).context("no answer")?;
    assert_eq!(user.username.as_deref(), Some("jane@example.org"));
    let mut groups = user.groups.unwrap_or_default();
    groups.sort();
    assert_eq!(groups, ["auditors", "system:authenticated", "tenant-a", "tenant-b"]);
    Ok(())
}

#[tokio::test]
async fn an_owner_reference_that_blocks_deletion_needs_the_right_to_finalize_the_owner() -> Result<()> {
    let cluster = testbed::shared().await?;
    let (admin, namespace) = (cluster.admin().await?, cluster.create_namespace("access").await?);
    let account = ServiceAccount { metadata: named("creator"), ..ServiceAccount::default() };
    Api::namespaced(admin.clone(), &namespace).create(&PostParams::default(), &account).await?;
    let role: Role = serde_json::from_value(json!({
        "metadata": { "name": "creator" },
        "rules": [{ "apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"] }],
    }))?;
    Api::namespaced(admin.clone(), &namespace).create(&PostParams::default(), &role).await?;
    let binding: RoleBinding = serde_json::from_value(json!({
        "metadata": { "name": "creator" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "creator" },
        "subjects": [{ "kind": "ServiceAccount", "name": "creator", "namespace": namespace }],
    }))?;
    Api::namespaced(admin.clone(), &namespace).create(&PostParams::default(), &binding).await?;
    let owner = ConfigMap { metadata: named("owner"), ..ConfigMap::default() };
    let owner = Api::namespaced(admin, &namespace).create(&PostParams::default(), &owner).await?;

    let kubeconfig = cluster.service_account_kubeconfig(&namespace, "creator").await?;
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client(&kubeconfig).await?, &namespace);
    let dependent = |name: &str, block: bool| -> Result<ConfigMap> {
        Ok(serde_json::from_value(json!({ "metadata": { "name": name, "ownerReferences": [{
            "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.uid(), "blockOwnerDeletion": block,
        }] } }))?)
    };
    // The authorizer learns of the new role a moment later.
    let plain = dependent("plain", false)?;
    eventually("the role to take effect", async || maps.create(&PostParams::default(), &plain).await).await?;
    let error = maps.create(&PostParams::default(), &dependent("blocking", true)?).await.unwrap_err();
    assert_eq!(status_code(&error), Some(403), "{error}");
    assert!(error.to_string().contains("blockOwnerDeletion"), "{error}");
    Ok(())
}

#[tokio::test]
async fn kubectl_comes_with_the_cluster() -> Result<()> {
    let cluster = testbed::shared().await?;
    for mut kubectl in [cluster.kubectl(), std::process::Command::new(cluster.directory().join("bin/kubectl"))] {
        let output = kubectl.args(["get", "namespace", "default", "-o", "name"]).output()?;
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "namespace/default");
    }
    Ok(())
}

#[tokio::test]
async fn the_chart_can_be_installed_twice_and_its_service_account_used() -> Result<()> {
    let cluster = testbed::shared().await?;
    let namespace = cluster.create_namespace("access").await?;
    for _ in 0..2 {
        let kubeconfig = cluster.install_chart(&namespace, &namespace, &json!({ "features": ["ephemeral"] })).await?;
        let reviews: Api<SelfSubjectReview> = Api::all(cluster.client(&kubeconfig).await?);
        let answer = reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await?;
        let user = answer.status.and_then(|status| status.user_info).and_then(|user| user.username);
        let user = user.context("no answer")?;
        assert!(user.starts_with(&format!("system:serviceaccount:{namespace}:")), "{user}");
    }
    Ok(())
}
