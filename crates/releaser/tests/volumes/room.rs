//! The feature on a real control plane, with the chart's rights, looking at one namespace of its own.

use anyhow::{Context, Result, ensure};
use cluster::{Claim, Class, Namespace, Store, Volume, watch::Watches};
use json_patch::merge;
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use rehearsal::{Events, Means, Process, Told};
use releaser::{Caches, Releaser, Rights, Scrub, Settings, scrub::SCRUB};
use serde_json::{Value, json};
use testbed::{Cluster, eventually};
use tokio_util::sync::CancellationToken;

const REPORTER: &str = "claimkeeper.dev/releaser";

/// The label of claims that the provisioner made.
pub(crate) const PROVISIONED_BY: &str = "dynamic-pvc-provisioner.kubernetes.io/managed-by";
/// The label of volumes that the releaser releases.
pub(crate) const MANAGED_BY: &str = "reclaimable-pv-releaser.kubernetes.io/managed-by";
/// The class's word.
pub(crate) const RELEASE: &str = "claimkeeper.dev/release";

/// A running feature and the namespace it looks after.
pub(crate) struct Room {
    pub(crate) cluster: Cluster,
    pub(crate) namespace: String,
    pub(crate) admin: Client,
    pub(crate) volumes: Api<PersistentVolume>,
    pub(crate) claims: Api<PersistentVolumeClaim>,
    pub(crate) classes: Api<StorageClass>,
    pub(crate) process: Process,
    events: Events,
    /// Whether volumes may be scrubbed.
    pub(crate) scrub: bool,
}

impl Room {
    /// The feature with its defaults.
    pub(crate) async fn open(prefix: &str) -> Result<Self> {
        let room = Self::prepare(prefix).await?;
        let settings = room.defaults();
        room.start(settings).await
    }

    /// The namespace without the feature, for what must be there before it.
    pub(crate) async fn prepare(prefix: &str) -> Result<Self> {
        let cluster = testbed::shared().await?;
        let namespace = cluster.create_namespace(prefix).await?;
        let admin = cluster.admin().await?;
        let room = Self {
            volumes: Api::all(admin.clone()),
            claims: Api::namespaced(admin.clone(), &namespace),
            classes: Api::all(admin.clone()),
            process: Process::default(),
            events: Events::of(REPORTER, &admin, &namespace),
            scrub: false,
            admin,
            cluster,
            namespace,
        };
        room.age_namespace().await?;
        Ok(room)
    }

    /// A namespace that is made in the second in which a volume is Released may be another tenant's, as far as anybody can
    /// tell; no tenant is that quick, but a test is.
    pub(crate) async fn age_namespace(&self) -> Result<()> {
        let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(self.admin.clone());
        let created = namespaces.get(&self.namespace).await?.creation_timestamp().context("it has no age")?.0;
        eventually("the second after the namespace was made", async || {
            let now = k8s_openapi::jiff::Timestamp::now();
            ensure!(now.duration_since(created).as_secs() >= 1, "it is still the same second");
            Ok(())
        })
        .await
    }

    /// As the configuration has it by default, but for this namespace only: volumes belong to none, and others test too.
    pub(crate) fn defaults(&self) -> Settings {
        Settings {
            controller_id: "claimkeeper".into(),
            namespace: Some(self.namespace.as_str().into()),
            automatic_association: true,
            dry_run: false,
            association_label: MANAGED_BY,
            rights: Rights::Ours,
            concurrency: 8,
        }
    }

    pub(crate) async fn start(mut self, settings: Settings) -> Result<Self> {
        let (feature, watches) = self.build(settings).await?;
        let Caches { volumes, claims, classes, namespaces } = feature.caches().clone();
        if let Some(scrub) = feature.scrubs() {
            self.process.spawn(watches.feed_labelled(scrub.namespace(), SCRUB, scrub.jobs()));
        }
        self.process.spawn(watches.feed_cluster_scoped(&volumes));
        self.process.spawn(watches.feed(&claims));
        self.process.spawn(watches.feed_cluster_scoped(&classes));
        self.process.spawn(watches.feed_namespaces(&namespaces));
        self.process.spawn(async move { feature.run(CancellationToken::new()).await });
        Ok(self)
    }

    /// The feature, with stores that nobody feeds yet.
    pub(crate) async fn build(&mut self, settings: Settings) -> Result<(Releaser, Watches)> {
        let scrub = json!({"scrub": self.scrub});
        let values = json!({"features": ["releaser"], "namespace": self.namespace, "releaser": scrub});
        let Means { client, watches, recorder, .. } =
            self.process.start(&self.cluster, &self.namespace, &values, REPORTER).await?;
        let caches = Caches {
            volumes: Store::<Volume>::new(vec![|_| true], releaser::INDEXES_OF_VOLUMES.into()),
            claims: Store::<Claim>::new(vec![|_| true], vec![]),
            classes: Store::<Class>::new(vec![|_| true], vec![]),
            namespaces: Store::<Namespace>::new(vec![|_| true], vec![]),
        };
        let feature = Releaser::new(caches, client, recorder, &self.process.registry, settings);
        let feature = if self.scrub { feature.with_scrub(Scrub::new(&self.namespace)) } else { feature };
        Ok((feature, watches))
    }

    /// A name that no other test uses for what lives in no namespace.
    pub(crate) fn own(&self, name: &str) -> String {
        format!("{}-{name}", self.namespace)
    }

    /// A class whose volumes are made by hand.
    pub(crate) async fn create_class(&self, name: &str, annotations: Value) -> Result<String> {
        let class = json!({
            "metadata": {"name": self.own(name), "annotations": annotations},
            "provisioner": "kubernetes.io/no-provisioner",
            "reclaimPolicy": "Retain",
        });
        Ok(self.classes.create(&PostParams::default(), &serde_json::from_value(class)?).await?.name_any())
    }

    /// A retained volume of 1 GiB.
    pub(crate) async fn create_volume(&self, name: &str, class: &str, change: Value) -> Result<PersistentVolume> {
        let mut volume = json!({
            "metadata": {"name": self.own(name)},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": class,
                "hostPath": {"path": "/nonexistent"},
            },
        });
        merge(&mut volume, &change);
        Ok(self.volumes.create(&PostParams::default(), &serde_json::from_value(volume)?).await?)
    }

    /// A claim of 1 GiB.
    pub(crate) async fn create_claim(&self, name: &str, class: &str, change: Value) -> Result<PersistentVolumeClaim> {
        let mut claim = json!({
            "metadata": {"name": name},
            "spec": {
                "storageClassName": class,
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
            },
        });
        merge(&mut claim, &change);
        Ok(self.claims.create(&PostParams::default(), &serde_json::from_value(claim)?).await?)
    }

    /// A volume that a claim (`<name>`, of these labels) has used and left.
    pub(crate) async fn create_released(
        &self,
        name: &str,
        class: &str,
        labels: Value,
        change: Value,
    ) -> Result<String> {
        let volume = self.create_volume(name, class, change).await?.name_any();
        let claim = json!({"metadata": {"labels": labels}, "spec": {"volumeName": volume}});
        self.create_claim(name, class, claim).await?;
        self.until_phase(&volume, "Bound").await?;
        self.delete_claim(name).await?;
        Ok(volume)
    }

    /// Deletes a claim and waits until it is gone.
    pub(crate) async fn delete_claim(&self, name: &str) -> Result<()> {
        self.claims.delete(name, &DeleteParams::default()).await?;
        eventually(&format!("the end of claim {name}"), async || {
            ensure!(self.claims.get_opt(name).await?.is_none(), "it is there");
            Ok(())
        })
        .await
    }

    pub(crate) async fn until_phase(&self, volume: &str, phase: &str) -> Result<PersistentVolume> {
        eventually(&format!("volume {volume} to be {phase}"), async || {
            let volume = self.volumes.get(volume).await?;
            let found = volume.status.as_ref().and_then(|status| status.phase.as_deref());
            ensure!(found == Some(phase), "it is {found:?}, {:?}", volume.spec.as_ref().map(|spec| &spec.claim_ref));
            Ok(volume)
        })
        .await
    }

    /// Waits until the claim uses this volume.
    pub(crate) async fn until_bound(&self, claim: &str, volume: &str) -> Result<()> {
        eventually(&format!("claim {claim} to have volume {volume}"), async || {
            let claim = self.claims.get(claim).await?;
            let found = claim.spec.and_then(|spec| spec.volume_name);
            ensure!(found.as_deref() == Some(volume), "it has {found:?}");
            Ok(())
        })
        .await?;
        self.until_phase(volume, "Bound").await?;
        Ok(())
    }

    pub(crate) async fn patch_volume(&self, volume: &str, patch: Value) -> Result<PersistentVolume> {
        Ok(self.volumes.patch(volume, &PatchParams::default(), &Patch::Merge(patch)).await?)
    }

    pub(crate) async fn annotate_class(&self, class: &str, annotations: Value) -> Result<()> {
        let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
        self.classes.patch(class, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Our events about a volume.
    pub(crate) async fn events(&self, volume: &str) -> Result<Vec<Told>> {
        self.events.about(self.volumes.get(volume).await?.uid().as_deref()).await
    }

    /// Waits for an event of this reason and returns its note.
    pub(crate) async fn told(&self, volume: &str, reason: &str) -> Result<String> {
        let uid = self.volumes.get(volume).await?.uid();
        Ok(self.events.until_told(uid.as_deref(), reason).await?.note)
    }

    /// Waits until this was decided at least so often.
    pub(crate) async fn until_decided(&self, decision: &str, reason: &str, times: u64) -> Result<()> {
        eventually(&format!("the decision {decision}, {reason}"), async || {
            let found = self.decided(decision, reason);
            ensure!(found >= times, "decided {found} times");
            Ok(())
        })
        .await
    }

    /// How often this was decided.
    pub(crate) fn decided(&self, decision: &str, reason: &str) -> u64 {
        self.process.decided("releaser", decision, reason)
    }
}

/// The claim that a volume refers to: namespace, name and uid.
pub(crate) fn reference(volume: &PersistentVolume) -> Option<[String; 3]> {
    let claim = volume.spec.as_ref()?.claim_ref.clone()?;
    Some([claim.namespace, claim.name, claim.uid].map(Option::unwrap_or_default))
}
