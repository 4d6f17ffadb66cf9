//! The feature on a real control plane, with the chart's rights and a StorageOS of its own, looking at one namespace of its own.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use cluster::{Claim, Store, server::ListMode, slice::WITHOUT_SELECTOR, watch::Watches};
use k8s_openapi::api::{
    core::v1::{Endpoints, PersistentVolumeClaim, Service},
    discovery::v1::EndpointSlice,
    events::v1::Event,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use platform::{
    client::{self, ClientOptions, Fence, FencedClient},
    events::Recorder,
    metrics::Registry,
    readiness::Readiness,
};
use serde_json::{Value, json};
use shared_volumes::{
    Caches, EndpointGone, Probe, ServiceName, Settings, SharedVolumes, StorageOs, StorageOsSettings,
    names::{DECISION, VOLUME_ID},
};
use testbed::{
    Cluster, eventually,
    storageos::{StorageOs as Server, Volume},
};
use tokio::{task::AbortHandle, time::Instant};
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
    pub(crate) registry: Registry,
    tasks: Vec<AbortHandle>,
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
            registry: Registry::default(),
            tasks: Vec::new(),
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
        let kubeconfig = self.cluster.install_chart("claimkeeper", &self.namespace, &values).await?;
        self.registry = Registry::default();
        // This one always leads.
        let fence = Fence::new();
        fence.open_until(Instant::now() + Duration::from_hours(1));
        let config = client::load_config(Some(&kubeconfig))?;
        let options = ClientOptions::new(&self.registry);
        let reader = client::build(config.clone(), options.clone())?;
        let client = FencedClient::build(config, options, &fence)?;
        let watches = Watches {
            client: reader.clone(),
            namespace: Some(self.namespace.clone()),
            list_mode: ListMode::Streamed,
            readiness: Readiness::default(),
            registry: self.registry.clone(),
        };
        let (recorder, worker) = Recorder::new(reader, REPORTER, "test", &self.registry);
        let claims = Store::<Claim>::new(vec![|_| true], vec![]);
        let caches = Caches::beside(&claims);
        let source = StorageOs::new(source, &self.registry).map_err(anyhow::Error::msg)?;
        let feature = SharedVolumes::new(caches.clone(), Arc::new(source), client, recorder, &self.registry, settings);
        self.tasks.extend([
            tokio::spawn(worker.run(CancellationToken::new())).abort_handle(),
            tokio::spawn(watches.feed(&claims)).abort_handle(),
            tokio::spawn(watches.feed_selected(VOLUME_ID, &caches.services)).abort_handle(),
            tokio::spawn(watches.feed_selected(WITHOUT_SELECTOR, &caches.slices)).abort_handle(),
            tokio::spawn(watches.feed_selected(VOLUME_ID, &caches.endpoints)).abort_handle(),
            tokio::spawn(async move { feature.run(CancellationToken::new()).await }).abort_handle(),
        ]);
        Ok(())
    }

    /// The feature ends at once, as if its process were killed.
    pub(crate) fn kill(&mut self) {
        self.tasks.drain(..).for_each(|task| task.abort());
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
        merge(&mut claim, change);
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

    /// Our events about an object of this uid: type, reason and note.
    pub(crate) async fn events(&self, uid: Option<String>) -> Result<Vec<(String, String, String)>> {
        let events: Api<Event> = Api::namespaced(self.admin.clone(), &self.namespace);
        let fields = format!("reportingController={REPORTER}");
        let events = events.list(&ListParams::default().fields(&fields)).await?.items;
        let about = events.into_iter().filter(|event| event.regarding.as_ref().is_some_and(|found| found.uid == uid));
        let tell = |event: Event| [event.type_, event.reason, event.note].map(Option::unwrap_or_default).into();
        Ok(about.map(tell).collect())
    }

    /// Waits for an event of this type and reason and returns its note.
    pub(crate) async fn told(&self, uid: Option<String>, kind: &str, reason: &str) -> Result<String> {
        eventually(&format!("an event {reason}"), async || {
            let events = self.events(uid.clone()).await?;
            let found = events.iter().find(|(is, why, _)| is == kind && why == reason);
            found.map(|(_, _, note)| note.clone()).with_context(|| format!("there are {events:?}"))
        })
        .await
    }

    /// Waits until so many volumes are as they are for this reason.
    pub(crate) async fn until_counted(&self, reason: &str, volumes: u64) -> Result<()> {
        let series = format!(r#"claimkeeper_shared_volumes{{reason="{reason}"}}"#);
        eventually(&format!("{volumes} volumes that are {reason}"), async || {
            let found = self.metric(&series);
            ensure!(found == volumes, "there are {found}: {:?}", self.metrics("claimkeeper_shared_volumes"));
            Ok(())
        })
        .await
    }

    /// Waits until the source was asked so often more, and what it said has been taken in.
    pub(crate) async fn after_polls(&self, polls: u64) -> Result<()> {
        let count = || self.metric("storageos_shared_volume_reconcile_duration_seconds_count");
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
        let count = |series: &str, queue: &str| self.metric(&format!(r#"workqueue_{series}{{name="{queue}"}}"#));
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
        self.metric(r#"claimkeeper_shared_volumes_decisions_total{decision="leave",reason="AlreadyPublished"}"#)
    }

    /// The value of the series whose line starts like this.
    pub(crate) fn metric(&self, series: &str) -> u64 {
        let text = self.registry.encode();
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.map_or(0, |value| value.parse().unwrap())
    }

    /// All series whose lines start like this.
    pub(crate) fn metrics(&self, start: &str) -> Vec<String> {
        self.registry.encode().lines().filter(|line| line.starts_with(start)).map(str::to_owned).collect()
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.kill();
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

pub(crate) fn merge(into: &mut Value, change: Value) {
    match change {
        Value::Object(change) => change.into_iter().for_each(|(key, value)| merge(&mut into[&key], value)),
        change => *into = change,
    }
}
