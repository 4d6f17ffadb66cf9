//! Claims, a StorageOS with their volumes, operators, and all that is written down about them.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    core::v1::{Endpoints, PersistentVolumeClaim, Service},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use testbed::{
    ControlPlane, History, Leash, Options, eventually,
    storageos::{Endpoint, Route, StorageOs, Volume},
    within,
};

use crate::{
    home::{Home, Prepared},
    script::{Move, Script},
    side::endpoints_lead_to,
    verdict::{self, Record, VOLUME_ID, leads_to},
};

/// What a Service needs that is owned and has Endpoints; the others would only take time.
const CONTROLLERS: &str = "garbage-collector-controller,endpoints-controller,endpointslice-mirroring-controller";

/// How often StorageOS is asked.
const POLL: Duration = Duration::from_millis(200);

/// How long a step may take to be heard of before the next one comes.
const HEARD: Duration = Duration::from_millis(1500);

/// Everything may have failed at once, on a machine that is busy: pauses between two tries add up.
const SETTLED: Duration = Duration::from_mins(5);

/// How late an operator may be with what it knows.
const SLACK: SignedDuration = SignedDuration::from_millis(1200);

const NAMESPACES: usize = 4;

pub(crate) struct Stage {
    // Declared in the order in which they must end: operators before what they talk to.
    operators: Vec<Option<Leash>>,
    prepared: Vec<Prepared>,
    pub(crate) server: StorageOs,
    slices: History,
    services: History,
    starts: Vec<Timestamp>,
    volumes: Vec<Shared>,
    namespaces: Vec<String>,
    pub(crate) home: Home,
    client: Client,
    pub(crate) cluster: ControlPlane,
}

/// A claim, and its volume once there is one.
struct Shared {
    namespace: String,
    claim: String,
    id: Option<String>,
}

impl Stage {
    /// So many claims, whose volumes nobody has heard of, and so many operators, which do not run yet.
    pub(crate) async fn open(name: &str, claims: usize, operators: usize) -> Result<Self> {
        let options = Options::default().name(name).controllers(CONTROLLERS).without_scheduler().nodes(0);
        let cluster = ControlPlane::start(options.provisioner(false).history()).await?;
        let client = cluster.admin().await?;
        let (slices, services) = (cluster.history("endpointslices").await?, cluster.history("services/specs").await?);
        let server = StorageOs::start().await?;
        // So that it is refreshed every now and then.
        server.sessions(|sessions| sessions.lifetime = Duration::from_secs(10));
        let mut namespaces = Vec::new();
        for _ in 0..NAMESPACES {
            let namespace = cluster.create_namespace("team").await?;
            server.add_namespace(&namespace);
            namespaces.push(namespace);
        }
        let volume = |number: usize| Shared {
            namespace: namespaces[number % NAMESPACES].clone(),
            claim: format!("data-{number}"),
            id: None,
        };
        let volumes: Vec<Shared> = (0..claims).map(volume).collect();
        let made = volumes.iter().map(|Shared { namespace, claim, .. }| create_claim(&client, namespace, claim));
        stream::iter(made.collect::<Vec<_>>()).buffer_unordered(20).try_collect::<()>().await?;
        let home = Home::on(cluster.cluster(), "storage").await?;
        let mut prepared = Vec::new();
        for number in 0..operators {
            prepared.push(prepare(&home, &server, &format!("replica-{number}"), operators > 1).await?);
        }
        Ok(Self {
            operators: prepared.iter().map(|_| None).collect(),
            prepared,
            server,
            slices,
            services,
            starts: Vec::new(),
            volumes,
            namespaces,
            home,
            client,
            cluster,
        })
    }

    pub(crate) fn namespace(&self, number: usize) -> &str {
        &self.namespaces[number % NAMESPACES]
    }

    pub(crate) fn operator(&self, number: usize) -> Result<&Leash> {
        self.operators[number].as_ref().context("it does not run")
    }

    pub(crate) async fn start_operator(&mut self, number: usize) -> Result<()> {
        self.starts.push(Timestamp::now());
        self.operators[number] = Some(self.prepared[number].launch().await?);
        Ok(())
    }

    pub(crate) async fn kill_operator(&mut self, number: usize) -> Result<()> {
        let mut operator = self.operators[number].take().context("it does not run")?;
        ensure!(!operator.has_ended()?, "the operator has ended by itself: {}", operator.output());
        operator.kill()?;
        operator.ended(Duration::from_secs(10)).await?;
        Ok(())
    }

    /// Which operator leads.
    pub(crate) async fn leader(&self) -> Result<usize> {
        if self.prepared.len() == 1 {
            return Ok(0);
        }
        eventually("somebody to lead", async || {
            let leader = self.home.leader().await?;
            let number = leader.strip_prefix("replica-").and_then(|number| number.parse().ok());
            number.with_context(|| format!("{leader} leads"))
        })
        .await
    }

    pub(crate) async fn until_leader_is_not(&self, number: usize) -> Result<()> {
        eventually("another one to lead", async || {
            let leader = self.leader().await?;
            ensure!(leader != number, "it still leads");
            Ok(())
        })
        .await
    }

    /// Volumes appear for the first so many claims that have none.
    pub(crate) fn add_volumes(&mut self, script: &Script, count: usize) {
        for (number, shared) in
            self.volumes.iter_mut().enumerate().filter(|(_, shared)| shared.id.is_none()).take(count)
        {
            let volume = Volume::shared(&shared.namespace, &shared.claim, format!("pv-{number}"));
            let volume = match script.place(number) {
                Some(place) => volume.at(place),
                None => volume,
            };
            shared.id = Some(self.server.add_volume(volume));
        }
    }

    /// How many volumes there are.
    pub(crate) fn count(&self) -> usize {
        self.volumes.iter().filter(|shared| shared.id.is_some()).count()
    }

    pub(crate) fn apply(&self, moves: &[Move]) -> Result<()> {
        for step in moves {
            let (number, endpoint) = match step {
                Move::Down(number) => (*number, Endpoint::Null),
                Move::To(number, place) => (*number, Endpoint::from(place)),
            };
            self.server.failover(self.id(number)?, endpoint)?;
        }
        Ok(())
    }

    fn id(&self, number: usize) -> Result<&str> {
        self.volumes[number].id.as_deref().context("there is no such volume yet")
    }

    /// Waits until somebody was told of every namespace, but not for ever.
    pub(crate) async fn until_heard(&self) {
        let since = Timestamp::now();
        let heard = within(HEARD, "a list of every namespace", async || {
            let lists = self.server.requests_to(Route::Volumes);
            let told = |namespace: &&String| {
                let of_it = lists.iter().filter(|list| list.namespace.as_ref() == Some(namespace));
                of_it.filter(|list| list.at >= since && list.told > 0).count() > 0
            };
            let count = self.namespaces.iter().filter(told).count();
            ensure!(count == NAMESPACES, "{count} namespaces");
            Ok(())
        });
        // Whoever is in trouble hears of it later.
        let _ = heard.await;
    }

    /// Somebody takes away what is published for a volume.
    pub(crate) fn unpublish(&self, number: usize) -> Result<()> {
        self.server.change(self.id(number)?, |volume| {
            volume.labels.remove(testbed::storageos::MOUNT_ENDPOINT);
        })?;
        Ok(())
    }

    /// Somebody deletes the Service of a volume, if its address is written down; waits until there is another one. (An API server that
    /// is killed meanwhile may take the address for given.)
    pub(crate) async fn replace_service(&self, number: usize) -> Result<()> {
        let Shared { namespace, claim, .. } = &self.volumes[number];
        if self.server.published(self.id(number)?)?.is_none() {
            return Ok(());
        }
        let services: Api<Service> = Api::namespaced(self.client.clone(), namespace);
        let Some(before) = services.get_opt(claim).await? else { return Ok(()) };
        services.delete(claim, &DeleteParams::default()).await?;
        within(SETTLED, "another Service", async || {
            let after = services.get(claim).await?;
            ensure!(after.uid() != before.uid(), "it is still there");
            Ok(())
        })
        .await
    }

    /// Waits until every volume is as it should be.
    pub(crate) async fn until_settled(&self, script: &Script) -> Result<()> {
        let settled = within(SETTLED, "every address to lead to its server", async || {
            let wrong = self.unsettled(script).await?;
            ensure!(wrong.is_empty(), "{} are wrong, such as {}", wrong.len(), wrong[0]);
            Ok(())
        });
        settled.await.with_context(|| {
            let logs = self.operators.iter().flatten().map(|operator| last_lines(&operator.output()));
            logs.collect::<Vec<_>>().join("\n--\n")
        })
    }

    async fn unsettled(&self, script: &Script) -> Result<Vec<String>> {
        let slices = by_volume::<EndpointSlice>(&self.client).await?;
        let services = by_volume::<Service>(&self.client).await?;
        let endpoints = by_volume::<Endpoints>(&self.client).await?;
        let none = Vec::new();
        let mut wrong = Vec::new();
        for (number, Shared { claim, id, .. }) in self.volumes.iter().enumerate() {
            let Some(id) = id else { continue };
            let of = |objects: &BTreeMap<String, Vec<Value>>| objects.get(id).unwrap_or(&none).clone();
            let place: Vec<String> = script.place(number).into_iter().map(str::to_owned).collect();
            let led: Vec<String> = of(&slices).iter().flat_map(leads_to).collect();
            let addresses: Vec<String> = of(&services)
                .iter()
                .map(|service| format!("{}:2049", service["spec"]["clusterIP"].as_str().unwrap_or_default()))
                .collect();
            let written: Vec<String> = of(&endpoints).iter().flat_map(endpoints_lead_to).collect();
            let published: Vec<String> = self.server.published(id)?.into_iter().collect();
            // Of a volume whose server was never seen there is nothing, and nothing is published that leads nowhere.
            let is_waiting = place.is_empty() && published.is_empty();
            let is_published = addresses.len() == 1 && addresses == published;
            if led != place || written != place || !(is_published || is_waiting) {
                wrong.push(format!(
                    "{claim} ({id}): its server is at {place:?}; slices lead to {led:?}, Endpoints to {written:?}; its address is \
                     {addresses:?}, published is {published:?}"
                ));
            }
        }
        Ok(wrong)
    }

    /// All that was ever written, when nothing is written any more.
    pub(crate) async fn record(&self, script: &Script, freshness: bool) -> Result<Record> {
        let numbers =
            [self.mark::<EndpointSlice>(slice_marker()).await?, self.mark::<Service>(service_marker()).await?];
        let slices = self.slices.until(|revision| revision.number >= numbers[0]).await?;
        let services = self.services.until(|revision| revision.number >= numbers[1]).await?;
        let publications = self.server.requests_to(Route::MountEndpoint);
        let volume = |(number, Shared { namespace, claim, id }): (usize, &Shared)| {
            let id = id.clone().unwrap_or_default();
            let published = publications.iter().filter(|request| request.volume.as_ref() == Some(&id));
            let address = |body: &Value| body["mountEndpoint"].as_str().unwrap_or_default().to_owned();
            verdict::Volume {
                past: script.past(number).to_vec(),
                reports: self.server.reports(&id),
                published: published
                    .map(|request| (request.at, request.body.as_ref().map(address).unwrap_or_default()))
                    .collect(),
                namespace: namespace.clone(),
                claim: claim.clone(),
                id,
            }
        };
        let audit = self.cluster.audit_log().resource("endpointslices").requests()?;
        let is_ours = |request: &testbed::AuditedRequest| {
            request.user.username.starts_with("system:serviceaccount:storage-")
                && request.code().is_some_and(|code| code < 300)
        };
        Ok(Record {
            volumes: self.volumes.iter().enumerate().map(volume).collect(),
            slices,
            services,
            lists: self.server.requests_to(Route::Volumes),
            audit: audit.into_iter().filter(is_ours).collect(),
            starts: freshness.then(|| self.starts.clone()),
            slack: SLACK,
        })
    }

    /// Writes something that comes after everything else, and returns its place in the order of all writes.
    async fn mark<K>(&self, marker: Value) -> Result<u64>
    where
        K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Serialize
            + std::fmt::Debug,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), &self.home.namespace);
        let made = api.create(&PostParams::default(), &serde_json::from_value(marker)?).await?;
        Ok(made.resource_version().unwrap_or_default().parse()?)
    }
}

async fn prepare(home: &Home, server: &StorageOs, name: &str, elects: bool) -> Result<Prepared> {
    let values = json!({"features": ["shared-volumes"], "leaderElection": {"name": "shared"}});
    let election = if elects {
        json!({"leaseDuration": "3s", "renewDeadline": "2s", "retryPeriod": "500ms"})
    } else {
        json!({"enabled": false})
    };
    let config = json!({
        "features": ["shared-volumes"],
        "namespace": null,
        "leaderElection": election,
        "sharedVolumes": {
            "createPollInterval": "200ms",
            "storageos": {
                "endpoint": server.url(),
                "secretPath": server.secret_path(),
                "pollInterval": format!("{}ms", POLL.as_millis()),
                "cacheExpiry": "10s",
                "requestTimeout": "2s",
                "retryInterval": "500ms",
            },
        },
    });
    home.install(name, &values, config).await
}

async fn create_claim(client: &Client, namespace: &str, name: &str) -> Result<()> {
    let claim = json!({
        "metadata": {"name": name},
        "spec": {
            "storageClassName": "storageos",
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    });
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    claims.create(&PostParams::default(), &serde_json::from_value(claim)?).await?;
    Ok(())
}

/// All objects of a kind by the volume that they are labelled with.
async fn by_volume<K>(client: &Client) -> Result<BTreeMap<String, Vec<Value>>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Serialize + std::fmt::Debug,
{
    let labelled = ListParams::default().labels(VOLUME_ID);
    let mut found: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for object in Api::<K>::all(client.clone()).list(&labelled).await? {
        let id = object.labels()[VOLUME_ID].clone();
        found.entry(id).or_default().push(serde_json::to_value(object)?);
    }
    Ok(found)
}

fn slice_marker() -> Value {
    json!({"metadata": {"name": "the-end"}, "addressType": "IPv4", "endpoints": [], "ports": []})
}

fn service_marker() -> Value {
    json!({"metadata": {"name": "the-end"}, "spec": {"ports": [{"port": 1}]}})
}

fn last_lines(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}
