//! Where volumes are scrubbed: the namespace, the class and the Jobs, and what becomes of a volume meanwhile.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, PodTemplate},
};
use kube::{
    Api, ResourceExt,
    api::{ListParams, PostParams, WatchEvent, WatchParams},
};
use serde_json::{Value, json};
use testbed::{eventually, within};
use tokio_util::sync::CancellationToken;

use crate::room::{RELEASE, Room, reference};

pub(crate) const RELEASE_SCRUB: &str = "claimkeeper.dev/release-scrub";
pub(crate) const SCRUB: &str = "claimkeeper.dev/scrub";

/// A class whose volumes are scrubbed, and the namespace where that happens.
pub(crate) struct Laundry {
    pub(crate) room: Room,
    pub(crate) class: String,
    pub(crate) jobs: Api<Job>,
    pub(crate) templates: Api<PodTemplate>,
    pods: Api<Pod>,
}

impl Laundry {
    pub(crate) async fn open(prefix: &str) -> Result<Self> {
        let laundry = Self::prepare(prefix).await?;
        laundry.create_template("wipe", json!({})).await?;
        laundry.start().await
    }

    /// Neither the feature nor a template.
    pub(crate) async fn prepare(prefix: &str) -> Result<Self> {
        let mut room = Room::prepare(prefix).await?;
        room.scrub = true;
        let class = room.create_class("cache", json!({RELEASE: "pool", RELEASE_SCRUB: "wipe"})).await?;
        let (client, namespace) = (&room.admin, &room.namespace);
        let jobs = Api::namespaced(client.clone(), namespace);
        let templates = Api::namespaced(client.clone(), namespace);
        let pods = Api::namespaced(client.clone(), namespace);
        Ok(Self { room, class, jobs, templates, pods })
    }

    pub(crate) async fn start(self) -> Result<Self> {
        let settings = self.room.defaults();
        Ok(Self { room: self.room.start(settings).await?, ..self })
    }

    pub(crate) async fn create_template(&self, name: &str, change: Value) -> Result<()> {
        let mut template = json!({
            "metadata": {"name": name, "annotations": {"claimkeeper.dev/scrub-retries": "0"}},
            "template": {"spec": {
                "containers": [{
                    "name": "wipe",
                    "image": "wipe",
                    "volumeMounts": [{"name": "volume", "mountPath": "/volume"}],
                }],
                "volumes": [{"name": "volume", "emptyDir": {}}],
            }},
        });
        json_patch::merge(&mut template, &change);
        self.templates.create(&PostParams::default(), &serde_json::from_value(template)?).await?;
        Ok(())
    }

    pub(crate) async fn create_released(&self, name: &str) -> Result<String> {
        self.room.create_released(name, &self.class, json!({}), json!({})).await
    }

    /// The name of the scrub claim of a volume, and of its Job.
    pub(crate) async fn scrub_name(&self, volume: &str) -> Result<String> {
        Ok(format!("scrub-{}", self.room.volumes.get(volume).await?.uid().context("it has no uid")?))
    }

    pub(crate) async fn until_job(&self, volume: &str) -> Result<Job> {
        let name = self.scrub_name(volume).await?;
        eventually(&format!("the Job {name}"), async || {
            self.jobs
                .get_opt(&name)
                .await?
                .filter(|job| job.metadata.deletion_timestamp.is_none())
                .context("there is none")
        })
        .await
    }

    /// The Job of a volume and its pod, once that runs.
    pub(crate) async fn until_job_runs(&self, volume: &str) -> Result<(Job, Pod)> {
        let job = self.until_job(volume).await?;
        let selector = format!("batch.kubernetes.io/controller-uid={}", job.uid().unwrap_or_default());
        let pod = within(Duration::from_mins(1), "the pod of the Job to run", async || {
            let pod = self.pods.list(&ListParams::default().labels(&selector)).await?.items.pop();
            let pod = pod.context("there is none")?;
            let found = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            ensure!(found == Some("Running"), "it is {found:?}");
            Ok(pod)
        });
        Ok((job, pod.await?))
    }

    /// Lets the pod of a volume's Job end like this.
    pub(crate) async fn end_job(&self, volume: &str, phase: &str) -> Result<()> {
        // Its node writes the phase too, until it runs.
        let (_, pod) = self.until_job_runs(volume).await?;
        self.room.cluster.set_pod_phase(&self.room.namespace, &pod.name_any(), phase).await
    }

    /// Ends the pods of all Jobs well until the volume is free: whatever was deleted is done again.
    pub(crate) async fn wash_until_free(&self, volume: &str) -> Result<PersistentVolume> {
        within(Duration::from_secs(90), &format!("volume {volume} to be free"), async || {
            let found = self.room.volumes.get(volume).await?;
            let phase = found.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
            if phase == "Available" && reference(&found).is_none() {
                return Ok(found);
            }
            for pod in self.pods.list(&ListParams::default().labels("batch.kubernetes.io/job-name")).await?.items {
                let ended = pod.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Succeeded"));
                if !ended && pod.metadata.deletion_timestamp.is_none() {
                    // It may be gone by now.
                    let _ = self.room.cluster.set_pod_phase(&self.room.namespace, &pod.name_any(), "Succeeded").await;
                }
            }
            anyhow::bail!("it is {phase}, {:?}", reference(&found))
        })
        .await
    }

    /// Waits until neither claims nor Jobs of scrubs are left.
    pub(crate) async fn until_swept(&self) -> Result<()> {
        within(Duration::from_mins(1), "the end of claims and Jobs", async || {
            let labelled = ListParams::default().labels(SCRUB);
            let claims: Vec<_> =
                self.room.claims.list(&labelled).await?.items.iter().map(ResourceExt::name_any).collect();
            let jobs: Vec<_> = self.jobs.list(&labelled).await?.items.iter().map(ResourceExt::name_any).collect();
            ensure!(claims.is_empty() && jobs.is_empty(), "there are claims {claims:?} and Jobs {jobs:?}");
            Ok(())
        })
        .await
    }

    /// A claim of the class in another namespace, which takes whatever is free.
    pub(crate) async fn be_greedy(&self) -> Result<(Api<PersistentVolumeClaim>, String)> {
        let elsewhere = self.room.cluster.create_namespace("greedy").await?;
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.room.admin.clone(), &elsewhere);
        let claim = json!({
            "metadata": {"name": "greedy"},
            "spec": {
                "storageClassName": self.class,
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
            },
        });
        claims.create(&PostParams::default(), &serde_json::from_value(claim)?).await?;
        Ok((claims, elsewhere))
    }
}

/// Every version of a volume.
pub(crate) struct History(Arc<Mutex<Vec<PersistentVolume>>>);

impl History {
    pub(crate) async fn of(room: &Room, volume: &str) -> Result<Self> {
        let seen: Arc<Mutex<Vec<_>>> = Arc::default();
        let now = room.volumes.get(volume).await?;
        let parameters = WatchParams::default().fields(&format!("metadata.name={volume}"));
        let version = now.resource_version().unwrap_or_default();
        let (volumes, versions) = (room.volumes.clone(), Arc::clone(&seen));
        tokio::spawn(async move {
            let mut events = volumes.watch(&parameters, &version).await?.boxed();
            while let Some(event) = events.try_next().await? {
                if let WatchEvent::Added(volume) | WatchEvent::Modified(volume) = event {
                    versions.lock().unwrap().push(volume);
                }
            }
            anyhow::Ok(())
        });
        Ok(Self(seen))
    }

    /// Nobody but the tenant that is gone and the scrub had the volume before it was clean.
    pub(crate) fn check(&self, room: &Room) -> Result<()> {
        let versions = self.0.lock().unwrap();
        let mut clean_for = None;
        for volume in &*versions {
            let note =
                volume.annotations().get(SCRUB).map_or_else(|| json!({}), |note| serde_json::from_str(note).unwrap());
            let refers = reference(volume);
            if note["done"] == true {
                clean_for = note["claim"].as_str().map(str::to_owned);
                ensure!(
                    refers.as_ref().map(|[_, _, uid]| uid) == clean_for.as_ref(),
                    "marked clean for another: {refers:?}"
                );
            }
            let in_house = refers.as_ref().is_some_and(|[namespace, ..]| *namespace == room.namespace);
            ensure!(in_house || clean_for.is_some(), "it went to {refers:?} before it was clean");
        }
        ensure!(clean_for.is_some(), "it was never clean in {} versions", versions.len());
        Ok(())
    }
}

impl Laundry {
    /// Runs the feature until one of its writes is answered, and not an instruction longer.
    pub(crate) async fn run_for_one_write(&mut self, volume: &str) -> Result<()> {
        let settings = self.room.defaults();
        let (feature, watches) = self.room.build(settings).await?;
        let releaser::Caches { volumes, claims, classes, namespaces } = feature.caches().clone();
        let scrub = feature.scrubs().context("it does not scrub")?;
        let jobs = watches.feed_labelled(scrub.namespace(), SCRUB, scrub.jobs());
        let feeds = async {
            tokio::join!(
                watches.feed_cluster_scoped(&volumes),
                watches.feed(&claims),
                watches.feed_cluster_scoped(&classes),
                watches.feed_namespaces(&namespaces),
                jobs
            )
        };
        let run = feature.run(CancellationToken::new());
        let resources = ["persistentvolumes", "persistentvolumeclaims", "jobs.batch"];
        let killed = self.room.process.until_first_write(run, &resources);
        let done = async { self.wash_until_free(volume).await };
        let result = tokio::select! {
            _ = feeds => anyhow::bail!("the watches have ended"),
            () = killed => Ok(()),
            done = done => done.map(drop),
        };
        self.room.process.kill();
        result
    }
}
