//! The count of claims that would be refused, made with the rights that the chart grants.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::{sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use cluster::{Store, server::ListMode, watch::Watches};
use enforcement::{
    Caches,
    audit::Audit,
    observe::{INDEXES_OF_VOLUMES, interesting_pod, interesting_volume},
};
use k8s_openapi::api::{
    core::v1::{Namespace, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use platform::{
    client::{self, ClientOptions},
    metrics::Registry,
    readiness::Readiness,
};
use serde_json::json;
use testbed::within;
use tokio_util::sync::CancellationToken;

#[tokio::test]
async fn claims_that_would_be_refused_are_counted_and_again_when_a_class_comes_or_a_namespace_changes_its_mind()
-> Result<()> {
    let cluster = testbed::shared().await?;
    let (home, namespace) = (cluster.create_namespace("count").await?, cluster.create_namespace("counted").await?);
    let admin = cluster.admin().await?;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(admin.clone(), &namespace);
    let (known, late) = (format!("known-{namespace}"), format!("late-{namespace}"));
    let classes: Api<StorageClass> = Api::all(admin.clone());
    let class = |name: &str| serde_json::from_value(json!({"metadata": {"name": name}, "provisioner": "topolvm.io"}));
    classes.create(&PostParams::default(), &class(&known)?).await?;
    for (name, class) in [("one", &known), ("two", &known), ("three", &late)] {
        let spec = json!({
            "storageClassName": class, "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
        });
        let claim = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec}))?;
        claims.create(&PostParams::default(), &claim).await?;
    }

    let values = json!({"features": ["enforcement"], "namespace": namespace});
    let config = client::load_config(Some(&cluster.install_chart("claimkeeper", &home, &values).await?))?;
    let (registry, readiness) = (Registry::default(), Readiness::default());
    let client = client::build(config, ClientOptions::new(&registry))?;
    let caches = Caches {
        pods: Store::new(vec![interesting_pod], vec![]),
        classes: Store::new(vec![|_| true], vec![]),
        namespaces: Store::new(vec![|_| true], vec![]),
        volumes: Store::new(vec![interesting_volume], INDEXES_OF_VOLUMES.into()),
    };
    let watches = Watches {
        client: client.clone(),
        namespace: Some(namespace.clone()),
        list_mode: ListMode::Streamed,
        readiness,
        registry: registry.clone(),
    };
    let feeds = [
        tokio::spawn(watches.feed(&caches.pods)),
        tokio::spawn(watches.feed_cluster_scoped(&caches.classes)),
        tokio::spawn(watches.feed_namespaces(&caches.namespaces)),
    ];
    let settings = serde_json::from_value(json!({"drivers": [{"preset": "topolvm"}]}))?;
    let audit = Audit::new(client, caches, Arc::new(settings), Some(namespace.clone()), &registry);
    let stopping = CancellationToken::new();
    let stop = stopping.clone();
    let audit = tokio::spawn(async move { audit.run(stop).await });

    let counted = async |class: &str, count: u32| {
        let line = format!("claimkeeper_enforcement_violations{{class=\"{class}\",reason=\"NotEphemeral\"}} {count}");
        within(Duration::from_secs(90), &line, async || {
            ensure!(registry.encode().lines().any(|found| found == line), "{}", registry.encode());
            Ok(())
        })
        .await
    };
    counted(&known, 2).await?;
    assert!(!registry.encode().contains(&late), "its class does not exist");
    classes.create(&PostParams::default(), &class(&late)?).await?;
    counted(&late, 1).await?;

    // Whatever is done about them, they are there. The deletion comes first: only the label makes anybody look.
    claims.delete("one", &DeleteParams::default()).await?;
    let label = Patch::Merge(json!({"metadata": {"labels": {"claimkeeper.dev/enforcement": "audit"}}}));
    Api::<Namespace>::all(admin).patch(&namespace, &PatchParams::default(), &label).await?;
    counted(&known, 1).await?;

    stopping.cancel();
    audit.await?;
    counted(&known, 0).await?;
    for feed in feeds {
        feed.abort();
    }
    let refused = cluster.audit_log().user(format!("system:serviceaccount:{home}:claimkeeper")).requests()?;
    assert!(refused.iter().all(|request| request.code() != Some(403)), "the chart grants too little");
    Ok(())
}
