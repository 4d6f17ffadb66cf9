//! The original's whole story on a real node: what one pod leaves on its volume, the next one finds there.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{PersistentVolume, Pod, PodTemplate},
    storage::v1::StorageClass,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use testbed::{BUSYBOX, ControlPlane, Options, real_node_turn, within};

use crate::{
    home::{Home, Replica},
    real_node::{PATIENCE, sh, until_running},
    recipes,
};

const CLASS: &str = "reclaimable-storage-class";
const MANAGED_BY: &str = "reclaimable-pv-releaser.kubernetes.io/managed-by";

#[tokio::test(flavor = "multi_thread")]
async fn the_next_pod_reads_the_file_that_the_first_one_wrote() -> Result<()> {
    let Some(_turn) = real_node_turn().await? else { return Ok(()) };
    let control_plane = ControlPlane::start(Options::default().name("real-release").real_node()).await?;
    let home = Home::on(control_plane.cluster(), "builds").await?;
    let story = Story::begin(&home).await?;

    let volume = story.run("first", "first-cache").await?;
    story.until_associated(&volume).await?;
    assert_eq!(sh(&home, "first", "ls /data").await?, "", "the volume is a new one");
    sh(&home, "first", "echo 'written by the first' > /data/file && sync").await?;
    let mounts = sh(&home, "first", "grep -c ' /data ' /proc/mounts").await?;
    assert_eq!(mounts, "1\n", "a file in the container would be no proof");

    story.end("first", "first-cache").await?;
    let free = story.until_phase(&volume, "Available").await?;
    assert_eq!(free.spec.and_then(|spec| spec.claim_ref), None);
    assert_eq!(free.metadata.labels.unwrap_or_default().get(MANAGED_BY), None);

    assert_eq!(story.run("next", "next-cache").await?, volume);
    assert_eq!(sh(&home, "next", "cat /data/file").await?, "written by the first\n");
    story.assert_who_did_what().await?;

    // From now on the pool is a clean one: a Job that really runs empties the volume before anybody gets it.
    story.clean_from_now_on().await?;
    story.end("next", "next-cache").await?;
    story.until_phase(&volume, "Available").await?;
    assert_eq!(story.run("clean", "clean-cache").await?, volume);
    assert_eq!(sh(&home, "clean", "ls -A /data").await?, "");
    story.until_nothing_is_left_of_the_scrub().await
}

struct Story<'a> {
    home: &'a Home,
    volumes: Api<PersistentVolume>,
    operator: Replica,
}

impl<'a> Story<'a> {
    /// A class that keeps its volumes and says nothing else, and the operator with both features.
    async fn begin(home: &'a Home) -> Result<Self> {
        let admin = home.cluster.admin().await?;
        let class = json!({
            "metadata": {"name": CLASS}, "provisioner": testbed::PROVISIONER, "reclaimPolicy": "Retain",
            "volumeBindingMode": "WaitForFirstConsumer",
        });
        let classes: Api<StorageClass> = Api::all(admin.clone());
        classes.create(&PostParams::default(), &serde_json::from_value(class)?).await?;
        let features = json!(["provisioner", "releaser"]);
        let (provisioner, releaser) = (json!({"authorize": "none"}), json!({"scrub": true}));
        let values = json!({
            "features": features, "namespace": home.namespace, "provisioner": provisioner, "releaser": releaser,
            "leaderElection": {"name": "shared"},
        });
        let config = json!({"features": features, "provisioner": provisioner, "releaser": releaser});
        let operator = home.install("solo", &values, config).await?.start().await?;
        Ok(Self { home, volumes: Api::all(admin), operator })
    }

    /// Creates a pod that asks for this claim, waits until it runs, and tells which volume it has.
    async fn run(&self, name: &str, claim: &str) -> Result<String> {
        let pod = self.home.pods.create(&PostParams::default(), &serde_json::from_value(pod(name, claim))?).await?;
        until_running(self.home, name).await?;
        let claim = self.home.claims.get(claim).await?;
        let owners: Vec<_> = claim.owner_references().iter().map(|owner| owner.uid.clone()).collect();
        assert_eq!(owners, Vec::from_iter(pod.uid()), "the pod owns its claim");
        claim.spec.and_then(|spec| spec.volume_name).context("the claim is not bound")
    }

    /// The recipe of the page, for the class and in the place of this story, with an image that the node has.
    async fn clean_from_now_on(&self) -> Result<()> {
        let [_, objects] = recipes::yaml("Recipe: a pool of clean volumes")?;
        let mut objects: Vec<Value> = serde_saphyr::from_multiple(objects)?;
        let [class, template] = &mut objects[..] else { anyhow::bail!("the recipe has {} objects", objects.len()) };
        let admin = self.home.cluster.admin().await?;
        template["metadata"]["namespace"] = json!(self.home.namespace);
        template["template"]["spec"]["containers"][0]["image"] = json!(BUSYBOX);
        let templates: Api<PodTemplate> = Api::namespaced(admin.clone(), &self.home.namespace);
        templates.create(&PostParams::default(), &serde_json::from_value(template.clone())?).await?;
        let classes: Api<StorageClass> = Api::all(admin);
        let patch = Patch::Merge(json!({"metadata": {"annotations": class["metadata"]["annotations"]}}));
        classes.patch(CLASS, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    async fn until_nothing_is_left_of_the_scrub(&self) -> Result<()> {
        let jobs: Api<Job> = Api::namespaced(self.home.cluster.admin().await?, &self.home.namespace);
        within(PATIENCE, "the end of the scrub", async || {
            let jobs: Vec<_> =
                jobs.list(&ListParams::default()).await?.items.iter().map(ResourceExt::name_any).collect();
            let claims = self.home.claims.list(&ListParams::default()).await?.items;
            let claims: Vec<_> =
                claims.iter().map(ResourceExt::name_any).filter(|name| name.starts_with("scrub-")).collect();
            ensure!(jobs.is_empty() && claims.is_empty(), "{jobs:?} {claims:?}");
            Ok(())
        })
        .await?;
        let scrubbed = r#"claimkeeper_releaser_decisions_total{decision="finish",reason="Scrubbed"}"#;
        ensure!(self.operator.metric(scrubbed).await? == 1, "it was not scrubbed once");
        Ok(())
    }

    async fn until_associated(&self, volume: &str) -> Result<()> {
        within(PATIENCE, "the association", async || {
            let labels = self.volumes.get(volume).await?.metadata.labels.unwrap_or_default();
            ensure!(labels.get(MANAGED_BY).is_some_and(|id| id == "claimkeeper"), "{labels:?}");
            Ok(())
        })
        .await
    }

    /// Deletes the pod; its claim is left to the garbage collector.
    async fn end(&self, pod: &str, claim: &str) -> Result<()> {
        self.home.pods.delete(pod, &DeleteParams::default()).await?;
        within(PATIENCE, "pod and claim to go", async || {
            let found: (Option<Pod>, _) = (self.home.pods.get_opt(pod).await?, self.home.claims.get_opt(claim).await?);
            ensure!(found.0.is_none() && found.1.is_none(), "the claim is {:?}", found.1.map(|claim| claim.metadata));
            Ok(())
        })
        .await
    }

    async fn until_phase(&self, name: &str, wanted: &str) -> Result<PersistentVolume> {
        within(PATIENCE, &format!("volume {name} to be {wanted}"), async || {
            let volume = self.volumes.get(name).await?;
            let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
            ensure!(phase == Some(wanted), "{phase:?}");
            Ok(volume)
        })
        .await
    }

    /// That the volume was Released lasts a moment only; whoever decided about it has counted it.
    async fn assert_who_did_what(&self) -> Result<()> {
        let released = r#"claimkeeper_releaser_decisions_total{decision="release",reason="Released"}"#;
        assert!(self.operator.metric(released).await? >= 1);
        let collector = "system:serviceaccount:kube-system:generic-garbage-collector";
        let log = self.home.cluster.audit_log().user(collector).resource("persistentvolumeclaims").verb("delete");
        let collected = log.namespace(&self.home.namespace).requests()?;
        ensure!(!collected.is_empty(), "somebody else deleted the claim");
        Ok(())
    }
}

fn pod(name: &str, claim: &str) -> Value {
    let template = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "spec": {
            "storageClassName": CLASS, "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
        },
    });
    json!({
        "metadata": {
            "name": name,
            "annotations": {
                "dynamic-pvc-provisioner.kubernetes.io/cache.enabled": "true",
                "dynamic-pvc-provisioner.kubernetes.io/cache.pvc": template.to_string(),
            },
        },
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "main", "image": BUSYBOX, "command": ["sleep", "1000000"],
                "volumeMounts": [{"name": "cache", "mountPath": "/data"}],
            }],
            "volumes": [{"name": "cache", "persistentVolumeClaim": {"claimName": claim}}],
        },
    })
}
