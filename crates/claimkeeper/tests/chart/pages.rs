//! API servers that do not stream lists: those before Kubernetes 1.34, and those whose administrator said so. What the chart grants
//! must do there, too.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::StorageClass,
};
use kube::{Api, Client, ResourceExt, api::PostParams, core::NamespaceResourceScope};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use testbed::{Cluster, ControlPlane, Options, eventually, storageos::Volume};

use crate::{home::Home, pod::PodOfChart, release::Release};

#[tokio::test(flavor = "multi_thread")]
async fn every_feature_alone_does_its_work_where_lists_come_in_pages() -> Result<()> {
    let options = Options::default().name("chart-pages").nodes(0).provisioner(false).without_scheduler();
    let control_plane = ControlPlane::start(options.apiserver_flag("--feature-gates=WatchList=false")).await?;
    let cluster = control_plane.cluster();
    makes_the_claim_of_an_ephemeral_volume(&cluster).await.context("ephemeral")?;
    makes_the_claim_that_a_pod_asks_for(&cluster).await.context("provisioner")?;
    releases_a_volume(&cluster).await.context("releaser")?;
    counts_a_claim_that_breaks_the_rule(&cluster).await.context("enforcement")?;
    notes_the_machine_of_a_volume(&cluster).await.context("placement")?;
    publishes_an_address(&cluster).await.context("shared-volumes")?;
    answers_beside_those_that_act(&cluster).await.context("split")
}

/// Starts a replica, which has got its lists in pages when it is ready.
async fn start(release: &Release, deployment: &str) -> Result<PodOfChart> {
    let pod = release.start(deployment).await?;
    let (_, metrics) = pod.replica.ask("/metrics").await?;
    let kinds = |mode: &str| {
        let ending = format!("\",mode=\"{mode}\"}} ");
        let series = metrics.lines().filter_map(|line| line.strip_prefix("claimkeeper_cache_list_mode_total{kind=\""));
        series.filter_map(|rest| Some(rest.split_once(&ending)?.0.to_owned())).collect::<Vec<_>>()
    };
    let paged = kinds("paged");
    ensure!(!paged.is_empty() && kinds("streamed").iter().all(|kind| paged.contains(kind)), "{metrics}");
    Ok(pod)
}

/// A replica with this feature alone.
async fn run(cluster: &Cluster, values: &Value) -> Result<(Release, PodOfChart)> {
    let release = Release::on(cluster.clone(), values).await?;
    let pod = start(&release, "claimkeeper").await?;
    Ok((release, pod))
}

async fn create<K>(api: &Api<K>, object: Value) -> Result<K>
where
    K: kube::Resource + Clone + std::fmt::Debug + DeserializeOwned + Serialize,
{
    Ok(api.create(&PostParams::default(), &serde_json::from_value(object)?).await?)
}

fn within<K: kube::Resource<Scope = NamespaceResourceScope>>(client: &Client, release: &Release) -> Api<K>
where
    K::DynamicType: Default,
{
    Api::namespaced(client.clone(), &release.namespace)
}

fn spec(class: &str) -> Value {
    let resources = json!({"requests": {"storage": "1Gi"}});
    json!({"storageClassName": class, "accessModes": ["ReadWriteOnce"], "resources": resources})
}

/// Of a class of its own, so that no claim gets it that does not want it.
fn volume(name: &str, namespace: &str, more: &Value) -> Value {
    let mut volume = json!({
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": name, "csi": {"driver": "nobody.example.dev", "volumeHandle": name},
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": "data"},
        },
    });
    crate::documents::over(&mut volume, more);
    volume
}

async fn makes_the_claim_of_an_ephemeral_volume(cluster: &Cluster) -> Result<()> {
    let values = json!({"features": ["ephemeral"], "ephemeral": {"reclaimCompleted": "byClass"}});
    let (release, pod) = run(cluster, &values).await?;
    let home = Home::at(cluster.clone(), release.namespace.clone()).await?;
    home.create_pod("web").await?;
    home.claim_of("web").await?;
    release.requests(pod).await.map(drop)
}

async fn makes_the_claim_that_a_pod_asks_for(cluster: &Cluster) -> Result<()> {
    let values = json!({"features": ["provisioner"], "provisioner": {"authorize": "none"}});
    let (release, pod) = run(cluster, &values).await?;
    let client = cluster.admin().await?;
    let template = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": spec("by-hand")}).to_string();
    let asks = json!({
        "metadata": {"name": "web", "annotations": {"claimkeeper.dev/cache.claim": template}},
        "spec": {
            "containers": [{"name": "main", "image": "registry.example/main"}],
            "volumes": [{"name": "cache", "persistentVolumeClaim": {"claimName": "web-1"}}],
        },
    });
    create(&within::<Pod>(&client, &release), asks).await?;
    let claims: Api<PersistentVolumeClaim> = within(&client, &release);
    eventually("the claim", async || claims.get("web-1").await).await?;
    release.requests(pod).await.map(drop)
}

async fn releases_a_volume(cluster: &Cluster) -> Result<()> {
    let (release, pod) = run(cluster, &json!({"features": ["releaser"], "releaser": {"scrub": true}})).await?;
    let volumes: Api<PersistentVolume> = Api::all(cluster.admin().await?);
    let ended = json!({
        "metadata": {"labels": {"reclaimable-pv-releaser.kubernetes.io/managed-by": "claimkeeper"}},
        "spec": {"claimRef": {"uid": "00000000-0000-0000-0000-000000000000"}},
    });
    create(&volumes, volume("released", &release.namespace, &ended)).await?;
    eventually("the volume to be available", async || {
        let status = volumes.get("released").await?.status.unwrap_or_default();
        ensure!(status.phase.as_deref() == Some("Available"), "{:?}", status.phase);
        Ok(())
    })
    .await?;
    release.requests(pod).await.map(drop)
}

async fn counts_a_claim_that_breaks_the_rule(cluster: &Cluster) -> Result<()> {
    let client = cluster.admin().await?;
    let class = json!({"metadata": {"name": "local"}, "provisioner": "localdisk.csi.acstor.io"});
    create(&Api::<StorageClass>::all(client), class).await?;
    let shop = Home::on(cluster.clone(), "shop").await?;
    create(&shop.claims, json!({"metadata": {"name": "data"}, "spec": spec("local")})).await?;
    let (release, pod) = run(cluster, &json!({"features": ["enforcement"], "namespace": shop.namespace})).await?;
    let series = r#"claimkeeper_enforcement_violations{class="local",reason="NotEphemeral"}"#;
    eventually("the claim to be counted", async || {
        ensure!(pod.replica.metric(series).await? == 1, "it is not");
        Ok(())
    })
    .await?;
    release.requests(pod).await.map(drop)
}

async fn notes_the_machine_of_a_volume(cluster: &Cluster) -> Result<()> {
    let (release, pod) = run(cluster, &json!({"features": ["placement"]})).await?;
    let client = cluster.admin().await?;
    let node = json!({
        "metadata": {"name": "machine", "labels": {"kubernetes.io/hostname": "machine"}},
        "spec": {"providerID": "example://machine"},
    });
    create(&Api::<Node>::all(client.clone()), node).await?;
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let there =
        json!({"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["machine"]}]});
    let tied = json!({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [there]}}}});
    create(&volumes, volume("tied", &release.namespace, &tied)).await?;
    let mut claim = spec("tied");
    claim["volumeName"] = "tied".into();
    create(&within::<PersistentVolumeClaim>(&client, &release), json!({"metadata": {"name": "data"}, "spec": claim}))
        .await?;
    eventually("the machine to be noted", async || {
        let volume = volumes.get("tied").await?;
        ensure!(volume.annotations().contains_key("claimkeeper.dev/home-node"), "{:?}", volume.annotations());
        Ok(())
    })
    .await?;
    release.requests(pod).await.map(drop)
}

async fn publishes_an_address(cluster: &Cluster) -> Result<()> {
    let quick = json!({"storageos": {"pollInterval": "200ms"}});
    let (release, pod) = run(cluster, &json!({"features": ["shared-volumes"], "sharedVolumes": quick})).await?;
    let claims: Api<PersistentVolumeClaim> = within(&cluster.admin().await?, &release);
    create(&claims, json!({"metadata": {"name": "files"}, "spec": spec("by-hand")})).await?;
    let files = Volume::shared(&release.namespace, "files", "pv-files").at("10.77.3.4:25705");
    let id = release.storageos.add_volume(files);
    eventually("the address", async || release.storageos.published(&id)?.context("nothing is published")).await?;
    release.requests(pod).await.map(drop)
}

/// Their own account has fewer rights.
async fn answers_beside_those_that_act(cluster: &Cluster) -> Result<()> {
    let release = Release::on(cluster.clone(), &json!({"split": true})).await?;
    let controller = start(&release, "claimkeeper").await?;
    let observer = start(&release, "claimkeeper-webhook").await?;
    release.requests(observer).await?;
    release.requests(controller).await.map(drop)
}
