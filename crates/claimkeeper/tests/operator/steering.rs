//! New pods are told where their volumes are: the whole program behind the chart's webhook, with a certificate that it keeps itself.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    admissionregistration::v1::MutatingWebhookConfiguration,
    core::v1::{PersistentVolume, Pod},
};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::{Value, json};
use testbed::{Service, eventually};

use crate::home::{Home, Replica, ask};

/// As enforcement's scene has it: API servers ask there over HTTP/1.1, as they do through a Service.
const HOST: &str = "0.0.0.0";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_program_tells_new_pods_where_their_volumes_are() -> Result<()> {
    let home = Home::on(testbed::shared().await?, "steering").await?;
    let shop = Home::on(home.cluster.clone(), "steering-shop").await?;
    let mut service = Service::start(Duration::ZERO).await?;
    let replica = start(&home, &shop, &mut service).await?;
    let volumes: Api<PersistentVolume> = Api::all(shop.cluster.admin().await?);
    let volume = bind(&shop, &volumes).await?;

    eventually("the API server to ask, and the pod to be steered", async || {
        let rehearsal = PostParams { dry_run: true, ..PostParams::default() };
        let pod = shop.pods.create(&rehearsal, &pod("rehearsal")).await?;
        ensure!(required(&pod) == Some(json!(["node-2"])), "{:?}", pod.spec.and_then(|spec| spec.affinity));
        Ok(())
    })
    .await?;
    shop.pods.create(&PostParams::default(), &pod("web")).await?;
    let labels = r#"webhook="mutate-pod",decision="steer",reason="AtHome""#;
    let steered = replica.metric(&format!("claimkeeper_admission_requests_total{{{labels}}}")).await?;
    assert!(steered >= 2, "{steered}");
    let answered = replica.metric(r#"claimkeeper_admission_duration_seconds_count{webhook="mutate-pod"}"#).await?;
    assert!(answered >= steered, "{answered} of {steered}");
    eventually("the pod to be where its volume is", async || {
        let pod = shop.pods.get("web").await?;
        let node = pod.spec.and_then(|spec| spec.node_name).context("nowhere yet")?;
        ensure!(node == "node-2", "it is on {node}");
        Ok(())
    })
    .await?;

    let requests = shop.cluster.audit_log().user(&replica.user).requests()?;
    let refused: Vec<_> = requests.into_iter().filter(|request| request.code() == Some(403)).collect();
    assert!(refused.is_empty(), "the chart grants too little: {refused:?}");
    // Nobody answers after the test.
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(shop.cluster.admin().await?);
    configurations.delete(&home.namespace, &DeleteParams::default()).await?;
    shop.pods.delete("web", &DeleteParams::default().grace_period(0)).await?;
    volumes.delete(&volume, &DeleteParams::default()).await?;
    Ok(())
}

async fn start(home: &Home, shop: &Home, service: &mut Service) -> Result<Replica> {
    let (release, looked_after) = (&home.namespace, &shop.namespace);
    let values = json!({
        "features": ["placement"],
        "namespace": looked_after,
        "leaderElection": {"name": "shared"},
        "webhook": {
            "url": format!("https://{HOST}:{}", service.address().port()),
            // A busy machine is no failure.
            "hyperconverged": {"configuration": release, "failurePolicy": "Fail", "timeoutSeconds": 30},
            "certificates": {"secret": "shared"},
        },
    });
    let certificates = json!({"secret": "shared", "names": [HOST], "configurations": [format!("mutating/{release}")]});
    let config = json!({
        "features": ["placement"],
        "namespace": looked_after,
        "webhook": {
            "listen": "127.0.0.1:0", "requestTimeout": "25s", "drainDelay": "0s", "certificates": certificates,
        },
    });
    let replica = home.install("steering", &values, config).await?.start().await?;
    let (admin, webhook) = (replica.admin, replica.webhook.context("it answers no API server")?);
    service.add(webhook, move || async move { matches!(ask(admin, "/readyz").await, Ok((200, _))) });
    replica.until_ready().await?;
    eventually("the Service to know it", async || {
        ensure!(service.ready() == 1, "not yet");
        Ok(())
    })
    .await?;
    Ok(replica)
}

/// A claim whose volume must not be left, and is on node-2.
async fn bind(shop: &Home, volumes: &Api<PersistentVolume>) -> Result<String> {
    let volume = format!("volume-{}", shop.namespace);
    let storage = json!({"storage": "1Gi"});
    let local = json!({
        "metadata": {"name": volume},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": storage, "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"namespace": shop.namespace, "name": "data"},
            "csi": {"driver": "localdisk.csi.acstor.io", "volumeHandle": "containerstorage#data", "volumeAttributes": {
                "localdisk.csi.acstor.io/selected-initial-node": "node-2", "localdisk.csi.acstor.io/failover-mode": "durability",
            }},
        },
    });
    volumes.create(&PostParams::default(), &serde_json::from_value(local)?).await?;
    let claim = json!({"metadata": {"name": "data"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": storage}, "storageClassName": "", "volumeName": volume,
    }});
    shop.claims.create(&PostParams::default(), &serde_json::from_value(claim)?).await?;
    Ok(volume)
}

fn pod(name: &str) -> Pod {
    let volume = json!({"name": "data", "persistentVolumeClaim": {"claimName": "data"}});
    let containers = json!([{"name": "main", "image": "registry.example/main"}]);
    let pod = json!({"metadata": {"name": name}, "spec": {"containers": containers, "volumes": [volume]}});
    serde_json::from_value(pod).unwrap()
}

/// The host names that it must run on.
fn required(pod: &Pod) -> Option<Value> {
    let affinity = pod.spec.as_ref()?.affinity.as_ref()?.node_affinity.as_ref()?;
    let terms = &affinity.required_during_scheduling_ignored_during_execution.as_ref()?.node_selector_terms;
    Some(json!(terms.first()?.match_expressions.as_ref()?.first()?.values))
}
