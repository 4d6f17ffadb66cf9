//! A control plane of its own, whose API server may go, with replicas behind the chart's webhook configurations.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    ByteString,
    api::{
        admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
        core::v1::{PersistentVolume, Secret},
    },
};
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams},
};
use serde_json::json;
use testbed::{ControlPlane, Options, eventually, within};

use crate::{
    calls::Caller,
    home::{Home, Prepared, Replica},
    scene::{HOST, Scene},
};

/// Where the local volume is.
pub(crate) const NODE: &str = "node-1";

/// As they are by default.
pub(crate) const LEASE: SignedDuration = SignedDuration::from_secs(15);
pub(crate) const RETRY: SignedDuration = SignedDuration::from_secs(2);

/// How long a Service takes to hear of a replica's end, and how long the replica waits for that: on a busy machine both drag.
const LAG: Duration = Duration::from_secs(1);
const DRAIN_DELAY: &str = "6s";

const FEATURES: [&str; 5] = ["ephemeral", "enforcement", "placement", "provisioner", "releaser"];

pub(crate) struct Stage {
    pub(crate) control_plane: ControlPlane,
    pub(crate) client: Client,
    pub(crate) scene: Scene,
    prepared: Vec<(&'static str, Prepared)>,
}

/// When a lease passed on.
pub(crate) struct Taken {
    /// The last time that the old holder renewed it.
    pub(crate) renewed: Timestamp,
    pub(crate) acquired: Timestamp,
}

impl Stage {
    pub(crate) async fn open() -> Result<Self> {
        // Pods stay Pending, in which they may ask for claims.
        let options = Options::default().name("availability").nodes(1).without_scheduler().provisioner(false);
        let control_plane = ControlPlane::start(options).await?;
        let scene = Scene::on(control_plane.cluster(), "availability", LAG).await?;
        let client = control_plane.admin().await?;
        // Before there is a webhook: nobody would answer yet.
        bind(&scene.shop, &client).await?;
        let mut stage = Self { control_plane, client, scene, prepared: Vec::new() };
        for replica in ["first", "second", "third", "fourth"] {
            let prepared = stage.install(replica).await?;
            stage.prepared.push((replica, prepared));
        }
        Ok(stage)
    }

    async fn install(&self, replica: &str) -> Result<Prepared> {
        let (release, judged) = (&self.scene.home.namespace, &self.scene.shop.namespace);
        // A busy machine is no failure.
        let patient = json!({"configuration": release, "failurePolicy": "Fail", "timeoutSeconds": 30});
        let values = json!({
            "features": FEATURES,
            "namespace": judged,
            "leaderElection": {"name": "shared"},
            "webhook": {
                "url": format!("https://{HOST}:{}", self.scene.service.address().port()),
                "enforceEphemeral": patient,
                "hyperconverged": patient,
                "certificates": {"secret": "shared"},
            },
        });
        let config = json!({
            "features": FEATURES,
            "namespace": judged,
            "webhook": {
                "listen": "127.0.0.1:0",
                "requestTimeout": "25s",
                "drainDelay": DRAIN_DELAY,
                "certificates": {
                    "secret": "shared", "names": [HOST], "configurations": [release, format!("mutating/{release}")],
                    // How long an API server and a replica may be behind, on a machine that is busy with other things.
                    "settle": "4s", "grace": "10s",
                },
            },
        });
        self.scene.home.install(replica, &values, config).await
    }

    /// Starts a replica, each of which can be started once: a lease tells them apart by their names.
    pub(crate) async fn start(&mut self, replica: &str) -> Result<Replica> {
        let place = self.prepared.iter().position(|(name, _)| *name == replica).context("it was started before")?;
        let (_, prepared) = self.prepared.remove(place);
        self.scene.start(&prepared).await
    }

    /// Both are ready, and the API server asks them about claims and pods.
    pub(crate) async fn until_both_answer(&self) -> Result<()> {
        self.scene.until_ready(2).await?;
        let caller = Caller::new(self);
        eventually("the API server to ask", async || {
            caller.make_claim().await.map_err(|(_, said)| anyhow::anyhow!(said))?;
            caller.make_pod().await.map_err(|(_, said)| anyhow::anyhow!(said))
        })
        .await
    }

    /// Takes the replica that leads from among these.
    pub(crate) async fn take_leader(&self, replicas: &mut Vec<Replica>) -> Result<Replica> {
        let leader = eventually("somebody to lead", async || self.scene.home.leader().await).await?;
        let place = replicas.iter().position(|replica| replica.user.ends_with(&format!(":{leader}")));
        Ok(replicas.remove(place.with_context(|| format!("{leader} leads, but does not run"))?))
    }

    pub(crate) async fn until_taken_from(&self, old: &Replica) -> Result<Taken> {
        let mut last_renewal = None;
        within(Duration::from_mins(2), "another replica to lead", async || {
            let lease = self.scene.home.leases.get("shared").await?.spec.unwrap_or_default();
            let holder = lease.holder_identity.unwrap_or_default();
            if holder.is_empty() || old.user.ends_with(&format!(":{holder}")) {
                last_renewal = lease.renew_time.map(|time| time.0);
                anyhow::bail!("{holder:?} leads");
            }
            let acquired = lease.acquire_time.context("it does not say when it was taken")?.0;
            // Quicker than we could look: then it was renewed a moment ago.
            Ok(Taken { renewed: last_renewal.unwrap_or(acquired), acquired })
        })
        .await
    }

    /// When whoever leads now began to.
    pub(crate) async fn led_since(&self) -> Result<Timestamp> {
        let lease = self.scene.home.leases.get("shared").await?.spec.unwrap_or_default();
        Ok(lease.acquire_time.context("nobody leads")?.0)
    }

    /// How often the lease has passed on.
    pub(crate) async fn transitions(&self) -> Result<usize> {
        let lease = self.scene.home.leases.get("shared").await?.spec.unwrap_or_default();
        Ok(lease.lease_transitions.unwrap_or_default().try_into()?)
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.scene.home.namespace)
    }

    pub(crate) async fn authority(&self) -> Result<ByteString> {
        let secret = self.secrets().get("shared").await?;
        secret.data.unwrap_or_default().remove("ca.crt").context("the Secret has no authority")
    }

    pub(crate) async fn delete_certificate(&self) -> Result<()> {
        self.secrets().delete("shared", &DeleteParams::default()).await?;
        Ok(())
    }

    /// Until there is one authority, another than this one, and no other is trusted any more.
    pub(crate) async fn until_changed_over(&self, old: &ByteString) -> Result<()> {
        let release = &self.scene.home.namespace;
        let validating: Api<ValidatingWebhookConfiguration> = Api::all(self.client.clone());
        let mutating: Api<MutatingWebhookConfiguration> = Api::all(self.client.clone());
        within(Duration::from_mins(2), "the old authority to go", async || {
            let authority = self.authority().await?;
            ensure!(authority != *old, "it is the old one");
            let count = String::from_utf8_lossy(&authority.0).matches("BEGIN CERTIFICATE").count();
            ensure!(count == 1, "there are {count}");
            let asked = validating.get(release).await?.webhooks.unwrap_or_default();
            ensure!(asked[0].client_config.ca_bundle.as_ref() == Some(&authority), "about claims others are trusted");
            let asked = mutating.get(release).await?.webhooks.unwrap_or_default();
            ensure!(asked[0].client_config.ca_bundle.as_ref() == Some(&authority), "about pods others are trusted");
            Ok(())
        })
        .await
    }
}

/// A claim whose volume must not be left, and is on the node.
async fn bind(shop: &Home, client: &Client) -> Result<()> {
    let (volume, storage) = (format!("volume-{}", shop.namespace), json!({"storage": "1Gi"}));
    let local = json!({
        "metadata": {"name": volume},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": storage, "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"namespace": shop.namespace, "name": "data"},
            "csi": {"driver": "localdisk.csi.acstor.io", "volumeHandle": "containerstorage#data", "volumeAttributes": {
                "localdisk.csi.acstor.io/selected-initial-node": NODE, "localdisk.csi.acstor.io/failover-mode": "durability",
            }},
        },
    });
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    volumes.create(&PostParams::default(), &serde_json::from_value(local)?).await?;
    let claim = json!({"metadata": {"name": "data"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": storage}, "storageClassName": "", "volumeName": volume,
    }});
    shop.claims.create(&PostParams::default(), &serde_json::from_value(claim)?).await?;
    Ok(())
}
