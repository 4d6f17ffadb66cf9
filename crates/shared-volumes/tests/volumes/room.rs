//! The feature on a real control plane, with the chart's rights and a StorageOS of its own, looking at one namespace of its own.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use cluster::{Claim, Store, slice::WITHOUT_SELECTOR};
use json_patch::merge;
use k8s_openapi::api::{
    core::v1::{Endpoints, PersistentVolumeClaim, Service},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use rehearsal::{Events, Means, Process, Told};
use serde_json::{Value, json};
use shared_volumes::{
    Caches, EndpointGone, Probe, ServiceName, Settings, SharedVolumes, StorageOs, StorageOsSettings,
    names::{DECISION, VOLUME_ID},
};
use testbed::{
    Cluster, eventually,
    storageos::{StorageOs as Server, Volume},
};
use tokio_util::sync::CancellationToken;

const REPORTER: &str = "claimkeeper.dev/shared-volumes";

/// A running feature and the namespace it looks after.
pub(crate) struct Room {
    pub(crate) cluster: Cluster,
    pub(crate) namespace: String,
    pub(crate) admin: Client,
    pub(crate) claims: Api<PersistentVolumeClaim>,
    pub(crate) services: Api<Service>,
    pub(crate) slices: Api<EndpointSlice>,
    pub(crate) endpoints: Api<Endpoints>,
    pub(crate) server: Server,
    pub(crate) process: Process,
    events: Events,
}

impl Room {
    /// The feature with its defaults, but quicker.
    pub(crate) async fn open(prefix: &str) -> Result<Self> {
        let room = Self::prepare(prefix).await?;
        let settings = room.defaults();
        room.start(settings).await
    }

    /// Namespace and StorageOS without the feature, for what must be there before it.
    pub(crate) async fn prepare(prefix: &str) -> Result<Self> {
        Self::prepare_on(testbed::shared().await?, prefix).await
    }

    /// The same on a cluster that is not everybody's.
    pub(crate) async fn prepare_on(cluster: Cluster, prefix: &str) -> Result<Self> {
        let namespace = cluster.create_namespace(prefix).await?;
        let admin = cluster.admin().await?;
        let server = Server::start().await?;
        server.add_namespace(&namespace);
        Ok(Self {
            claims: Api::namespaced(admin.clone(), &namespace),
            services: Api::namespaced(admin.clone(), &namespace),
            slices: Api::namespaced(admin.clone(), &namespace),
            endpoints: Api::namespaced(admin.clone(), &namespace),
            process: Process::default(),
            events: Events::of(REPORTER, &admin, &namespace),
            server,
            admin,
            cluster,
            namespace,
        })
    }

    pub(crate) fn defaults(&self) -> Settings {
        Settings {
            namespace: Some(self.namespace.as_str().into()),
            poll_interval: Duration::from_millis(100),
            cache_expiry: Duration::from_mins(10),
            create_poll_interval: Duration::from_millis(50),
            create_wait_duration: Duration::from_secs(20),
            service_name: ServiceName::Claim,
            endpoints: true,
            endpoint_gone: EndpointGone::Withdraw,
            allowed_endpoints: Arc::new([]),
            probe: Probe::None,
            concurrency: 8,
        }
    }

    /// How the source is reached.
    pub(crate) fn source(&self) -> StorageOsSettings {
        StorageOsSettings {
            endpoint: self.server.url(),
            secret_path: self.server.secret_path().to_owned(),
            ca: None,
            refresh_interval: Duration::from_mins(1),
            retry_interval: Duration::from_millis(200),
            request_timeout: Duration::from_secs(10),
        }
    }

    pub(crate) async fn start(self, settings: Settings) -> Result<Self> {
        let source = self.source();
        self.start_with(settings, source).await
    }

    pub(crate) async fn start_with(mut self, settings: Settings, source: StorageOsSettings) -> Result<Self> {
        self.enter(settings, source).await?;
        Ok(self)
    }

    /// Starts a process, so to speak: with new caches, a new memory and new metrics.
    pub(crate) async fn enter(&mut self, settings: Settings, source: StorageOsSettings) -> Result<()> {
        // Tests look at all Services of the namespace, of which only ours are to be there.
        let metrics = json!({"service": false});
        let values = json!({"features": ["shared-volumes"], "namespace": self.namespace, "metrics": metrics});
        let Means { client, watches, recorder, .. } =
            self.process.start(&self.cluster, &self.namespace, &values, REPORTER).await?;
        let claims = Store::<Claim>::new(vec![|_| true], vec![]);
        let caches = Caches::beside(&claims);
        let registry = &self.process.registry;
        let source = StorageOs::new(source, registry).map_err(anyhow::Error::msg)?;
        let feature = SharedVolumes::new(caches.clone(), Arc::new(source), client, recorder, registry, settings);
        self.process.spawn(watches.feed(&claims));
        self.process.spawn(watches.feed_selected(VOLUME_ID, &caches.services));
        self.process.spawn(watches.feed_selected(WITHOUT_SELECTOR, &caches.slices));
        self.process.spawn(watches.feed_selected(VOLUME_ID, &caches.endpoints));
        self.process.spawn(async move { feature.run(CancellationToken::new()).await });
        Ok(())
    }

    /// A claim of 1 GiB that many pods may use.
    pub(crate) async fn create_claim(&self, name: &str, change: Value) -> Result<PersistentVolumeClaim> {
        let mut claim = json!({
            "metadata": {"name": name},
            "spec": {
                "storageClassName": "storageos",
                "accessModes": ["ReadWriteMany"],
                "resources": {"requests": {"storage": "1Gi"}},
            },
        });
        merge(&mut claim, &change);
        Ok(self.claims.create(&PostParams::default(), &serde_json::from_value(claim)?).await?)
    }

    /// A volume for the claim of this name, whose volume is called `pv-<claim>`.
    pub(crate) fn volume(&self, claim: &str) -> Volume {
        Volume::shared(&self.namespace, claim, format!("pv-{claim}"))
    }

    /// A claim and its volume with a server; returns the volume's id.
    pub(crate) async fn share(&self, claim: &str, endpoint: &str) -> Result<String> {
        self.create_claim(claim, json!({})).await?;
        Ok(self.server.add_volume(self.volume(claim).at(endpoint)))
    }

    /// The same, and waits until its address is published.
    pub(crate) async fn published(&self, claim: &str, endpoint: &str) -> Result<(String, String)> {
        let id = self.share(claim, endpoint).await?;
        let address = self.until_published(&id).await?;
        self.until_noted(claim, "Served").await?;
        Ok((id, address))
    }

    /// Waits for a published address.
    pub(crate) async fn until_published(&self, id: &str) -> Result<String> {
        eventually(&format!("the address of volume {id}"), async || {
            self.server.published(id)?.context("nothing is published")
        })
        .await
    }

    /// Waits until all slices of a Service together lead to this endpoint alone, or nowhere.
    pub(crate) async fn until_leads(&self, service: &str, endpoint: Option<&str>) -> Result<()> {
        eventually(&format!("Service {service} to lead to {endpoint:?}"), async || {
            let found = self.leads(service).await?;
            ensure!(found == endpoint.into_iter().collect::<Vec<_>>(), "it leads to {found:?}");
            Ok(())
        })
        .await
    }

    /// Where the slices of a Service lead.
    pub(crate) async fn leads(&self, service: &str) -> Result<Vec<String>> {
        let slices = self.slices_of(service).await?;
        let mut targets: Vec<String> = slices.iter().flat_map(targets).collect();
        targets.sort();
        targets.dedup();
        Ok(targets)
    }

    pub(crate) async fn slices_of(&self, service: &str) -> Result<Vec<EndpointSlice>> {
        let of_service = ListParams::default().labels(&format!("kubernetes.io/service-name={service}"));
        Ok(self.slices.list(&of_service).await?.items)
    }

    /// Waits until this was decided about the claim's volume last, and returns the sentence.
    pub(crate) async fn until_noted(&self, claim: &str, reason: &str) -> Result<String> {
        eventually(&format!("{reason} on claim {claim}"), async || {
            let noted = self.claims.get(claim).await?.annotations().get(DECISION).cloned().unwrap_or_default();
            let (found, message) = noted.split_once(": ").unwrap_or_default();
            ensure!(found == reason, "it says {noted:?}");
            Ok(message.to_owned())
        })
        .await
    }

    pub(crate) async fn cluster_ip(&self, service: &str) -> Result<String> {
        let service = self.services.get(service).await?;
        service.spec.and_then(|spec| spec.cluster_ip).context("it has no address")
    }

    pub(crate) async fn patch_service(&self, name: &str, patch: Value) -> Result<Service> {
        Ok(self.services.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?)
    }

    pub(crate) async fn delete_claim(&self, name: &str) -> Result<()> {
        self.claims.delete(name, &DeleteParams::default()).await?;
        eventually(&format!("the end of claim {name}"), async || {
            ensure!(self.claims.get_opt(name).await?.is_none(), "it is there");
            Ok(())
        })
        .await
    }

    /// Our events about the object of this uid.
    pub(crate) async fn events(&self, uid: Option<String>) -> Result<Vec<Told>> {
        self.events.about(uid.as_deref()).await
    }

    /// Waits for an event of this type and reason and returns its note.
    pub(crate) async fn told(&self, uid: Option<String>, kind: &str, reason: &str) -> Result<String> {
        eventually(&format!("an event {reason}"), async || {
            let told = self.events(uid.clone()).await?;
            let found = told.iter().find(|told| told.kind == kind && told.reason == reason);
            found.map(|told| told.note.clone()).with_context(|| format!("there are {told:?}"))
        })
        .await
    }

    /// Waits until so many volumes are as they are for this reason.
    pub(crate) async fn until_counted(&self, reason: &str, volumes: u64) -> Result<()> {
        let series = format!(r#"claimkeeper_shared_volumes{{reason="{reason}"}}"#);
        eventually(&format!("{volumes} volumes that are {reason}"), async || {
            let found = self.process.metric(&series);
            ensure!(found == volumes, "there are {found}: {:?}", self.process.metrics("claimkeeper_shared_volumes"));
            Ok(())
        })
        .await
    }

    /// Waits until the source was asked so often more, and what it said has been taken in.
    pub(crate) async fn after_polls(&self, polls: u64) -> Result<()> {
        let count = || self.process.metric("storageos_shared_volume_reconcile_duration_seconds_count");
        let before = count();
        eventually("more polls", async || {
            let found = count();
            ensure!(found >= before + polls, "only {}", found - before);
            Ok(())
        })
        .await
    }

    /// Waits until all that was to be looked at has been.
    pub(crate) async fn until_idle(&self) -> Result<()> {
        let count =
            |series: &str, queue: &str| self.process.metric(&format!(r#"workqueue_{series}{{name="{queue}"}}"#));
        eventually("the end of all work", async || {
            for queue in ["shared-volumes", "shared-volumes-others"] {
                let (added, done) = (count("adds_total", queue), count("work_duration_seconds_count", queue));
                ensure!(added == done, "{done} of {added} done in {queue}");
            }
            Ok(())
        })
        .await
    }

    /// How often all was read and found right.
    pub(crate) fn verifications(&self) -> u64 {
        self.process.metric(r#"claimkeeper_shared_volumes_decisions_total{decision="leave",reason="AlreadyPublished"}"#)
    }
}

/// Where a slice leads.
pub(crate) fn targets(slice: &EndpointSlice) -> Vec<String> {
    let ready = slice
        .endpoints
        .iter()
        .filter(|endpoint| endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true));
    let ports = || slice.ports.iter().flatten().filter_map(|port| port.port);
    ready
        .flat_map(|endpoint| endpoint.addresses.iter())
        .flat_map(|address| ports().map(move |port| format!("{address}:{port}")))
        .collect()
}
