//! One cluster with its StorageOS, the program that looks after both, and what clients find there.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{
    core::v1::{Endpoints, PersistentVolumeClaim, Service},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
    core::NamespaceResourceScope,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use testbed::{
    ControlPlane, Leash, Options, eventually,
    original::ApiManager,
    storageos::{Endpoint, PVC_NAME, PVC_NAMESPACE, StorageOs, Volume},
};

use crate::{
    home::{BINARY, Home},
    verdict::{VOLUME_ID, leads_to},
};

const NAMESPACES: [&str; 2] = ["team-a", "team-b"];

/// The commands for who goes back to the original are there.
const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/shared-volumes.md");

pub(crate) struct Side {
    // Declared in the order in which they must end: the program before what it talks to.
    program: Option<Program>,
    pub(crate) server: StorageOs,
    home: Home,
    client: Client,
    cluster: ControlPlane,
}

enum Program {
    Original(Box<ApiManager>),
    Ours(Leash),
}

/// What clients find of one volume; names that are made up are left out.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Seen {
    service: Value,
    /// What the slices of the Service say, which is what nodes look at.
    pub(crate) leads: Vec<String>,
    /// What the Endpoints object says.
    endpoints: Vec<String>,
    /// Whether the Service's address is what is published.
    published: bool,
}

impl Seen {
    /// Whether nobody is about to do something.
    pub(crate) fn is_settled(&self) -> bool {
        let port = self.service["ports"][0]["targetPort"].to_string();
        self.published && self.leads == self.endpoints && self.leads.iter().all(|place| place.ends_with(&port))
    }
}

impl Side {
    pub(crate) async fn open(name: &str) -> Result<Self> {
        let options = Options::default().name(name).without_scheduler().nodes(0).provisioner(false);
        let cluster = ControlPlane::start(options).await?;
        let client = cluster.admin().await?;
        let server = StorageOs::start().await?;
        for namespace in NAMESPACES {
            let object = serde_json::from_value(json!({"metadata": {"name": namespace}}))?;
            let all: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(client.clone());
            all.create(&PostParams::default(), &object).await?;
            server.add_namespace(namespace);
        }
        let home = Home::on(cluster.cluster(), "storage").await?;
        Ok(Self { program: None, server, home, client, cluster })
    }

    pub(crate) async fn start_original(&mut self) -> Result<()> {
        let mut original = ApiManager::start(&self.cluster, &self.server, &["-k8s-create-poll-interval=200ms"]).await?;
        original.ready().await?;
        self.program = Some(Program::Original(Box::new(original)));
        Ok(())
    }

    /// Under the name of the original, with its flags.
    pub(crate) async fn start_ours(&mut self) -> Result<()> {
        let values =
            json!({"features": ["shared-volumes"], "leaderElection": {"name": "storageos-api-manager-leader"}});
        let kubeconfig = self.cluster.install_chart("api-manager", &self.home.namespace, &values).await?;
        let line = [
            "storageos-api-manager".to_owned(),
            "-metrics-addr=127.0.0.1:0".to_owned(),
            format!("-namespace={}", self.home.namespace),
            format!("-kubeconfig={}", kubeconfig.display()),
            format!("-api-endpoint={}", self.server.address()),
            format!("-api-secret-path={}", self.server.secret_path().display()),
            "-api-poll-interval=200ms".to_owned(),
        ];
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        let ours = Leash::start(self.cluster.directory(), "api-manager", Path::new(BINARY), &line).await?;
        self.program = Some(Program::Ours(ours));
        Ok(())
    }

    pub(crate) async fn stop(&mut self) -> Result<()> {
        match self.program.take().context("nothing runs")? {
            // It waits for nothing when it is asked to end, and it need not end well.
            Program::Original(original) => drop(original),
            Program::Ours(mut ours) => {
                ours.terminate()?;
                let ended = ours.ended(testbed::PATIENCE).await?;
                ensure!(ended.success(), "it ended badly: {}", ours.output());
            }
        }
        Ok(())
    }

    /// A claim and its volume.
    pub(crate) async fn share(&self, claim: &str, volume: Volume) -> Result<()> {
        let claim = json!({
            "metadata": {"name": name(claim)},
            "spec": {
                "storageClassName": "storageos",
                "accessModes": ["ReadWriteMany"],
                "resources": {"requests": {"storage": "1Gi"}},
            },
        });
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &volume.namespace);
        claims.create(&PostParams::default(), &serde_json::from_value(claim)?).await?;
        self.server.add_volume(volume);
        Ok(())
    }

    pub(crate) fn fail_over(&self, claim: &str, endpoint: impl Into<Endpoint>) -> Result<()> {
        self.server.failover(&self.id(claim)?, endpoint)?;
        Ok(())
    }

    /// A claim is deleted, and with it its volume, as the driver does it.
    pub(crate) async fn delete_claim(&self, claim: &str) -> Result<()> {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace(claim));
        claims.delete(name(claim), &DeleteParams::default()).await?;
        eventually("the end of the claim", async || {
            ensure!(claims.get_opt(name(claim)).await?.is_none(), "it is there");
            Ok(())
        })
        .await?;
        self.server.remove_volume(&self.id(claim)?);
        Ok(())
    }

    /// What the document says is to be done before the original can go on.
    pub(crate) async fn go_back(&self) -> Result<()> {
        let document = fs::read_to_string(DOCUMENT)?;
        let (_, section) = document.split_once("### Going back").context("nothing is said about going back")?;
        let commands = section.split("```").nth(1).and_then(|block| block.strip_prefix("bash\n"));
        self.home.run_as_administrator(commands.context("it has no commands")?).await
    }

    /// The address of each claim.
    pub(crate) async fn addresses(&self) -> Result<BTreeMap<String, String>> {
        let services = self.list::<Service>().await?;
        let address = |service: &Value| service["spec"]["clusterIP"].as_str().unwrap_or_default().to_owned();
        Ok(services.iter().filter_map(|service| Some((self.claim_of(service)?, address(service)))).collect())
    }

    /// Fails if any of these addresses is not what it was.
    pub(crate) async fn kept(&self, before: &BTreeMap<String, String>) -> Result<()> {
        let now = self.addresses().await?;
        let changed: Vec<&String> =
            before.iter().filter(|(claim, ip)| now.get(*claim) != Some(ip)).map(|(c, _)| c).collect();
        ensure!(changed.is_empty(), "the addresses of {changed:?} have changed: {before:?}, {now:?}");
        Ok(())
    }

    /// What clients find, by claim.
    pub(crate) async fn look(&self) -> Result<BTreeMap<String, Seen>> {
        let (slices, endpoints) = (self.list::<EndpointSlice>().await?, self.list::<Endpoints>().await?);
        let mut seen = BTreeMap::new();
        for service in self.list::<Service>().await? {
            let Some(claim) = self.claim_of(&service) else { continue };
            let (namespace, name) = (&service["metadata"]["namespace"], &service["metadata"]["name"]);
            let is_here = |object: &&Value| object["metadata"]["namespace"] == *namespace;
            let of_it = |slice: &&Value| slice["metadata"]["labels"]["kubernetes.io/service-name"] == *name;
            let mut leads: Vec<String> = slices.iter().filter(is_here).filter(of_it).flat_map(leads_to).collect();
            leads.sort();
            leads.dedup();
            let called = |object: &&Value| object["metadata"]["name"] == *name;
            let address = format!("{}:2049", service["spec"]["clusterIP"].as_str().unwrap_or_default());
            let published = self.server.published(&self.id(&claim)?)?;
            let found = Seen {
                leads,
                endpoints: endpoints.iter().filter(is_here).filter(called).flat_map(endpoints_lead_to).collect(),
                published: published == Some(address),
                service: self.plain(&service, &claim).await?,
            };
            seen.insert(claim, found);
        }
        Ok(seen)
    }

    /// A Service without what differs from cluster to cluster.
    async fn plain(&self, service: &Value, claim: &str) -> Result<Value> {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace(claim));
        let uid = claims.get_opt(name(claim)).await?.and_then(|claim| claim.uid());
        let mut owners = service["metadata"]["ownerReferences"].clone();
        for owner in owners.as_array_mut().into_iter().flatten() {
            owner["uid"] = (owner["uid"].as_str() == uid.as_deref()).into();
        }
        let (meta, spec) = (&service["metadata"], &service["spec"]);
        Ok(json!({
            "name": meta["name"],
            "labels": meta["labels"].as_object().map(|labels| labels.keys().collect::<Vec<_>>()),
            "owners": owners,
            "type": spec["type"],
            "ports": spec["ports"],
            "selector": spec["selector"],
            "families": spec["ipFamilies"],
            "familyPolicy": spec["ipFamilyPolicy"],
            "trafficPolicy": spec["internalTrafficPolicy"],
            "affinity": spec["sessionAffinity"],
        }))
    }

    /// Which claim's an object is, by its volume.
    fn claim_of(&self, object: &Value) -> Option<String> {
        let id = object["metadata"]["labels"][VOLUME_ID].as_str()?;
        self.server.volumes().into_iter().find(|(other, _)| other == id).map(|(_, volume)| claim_of(&volume))
    }

    fn id(&self, claim: &str) -> Result<String> {
        let mut volumes = self.server.volumes().into_iter();
        let found = volumes.find(|(_, volume)| claim_of(volume) == claim);
        found.map(|(id, _)| id).with_context(|| format!("{claim} has no volume"))
    }

    async fn list<K>(&self) -> Result<Vec<Value>>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Serialize
            + std::fmt::Debug,
    {
        let found = Api::<K>::all(self.client.clone()).list(&ListParams::default()).await?;
        found.items.iter().map(|object| Ok(serde_json::to_value(object)?)).collect()
    }
}

fn namespace(claim: &str) -> &str {
    claim.split_once('/').unwrap_or_default().0
}

fn name(claim: &str) -> &str {
    claim.split_once('/').unwrap_or_default().1
}

fn claim_of(volume: &Volume) -> String {
    format!("{}/{}", volume.labels[PVC_NAMESPACE], volume.labels[PVC_NAME])
}

/// Where an Endpoints object leads.
pub(crate) fn endpoints_lead_to(endpoints: &Value) -> Vec<String> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let subsets = list(&endpoints["subsets"]);
    let places = subsets.iter().flat_map(|subset| {
        let ports = list(&subset["ports"]);
        let pair = move |address: Value| {
            let ip = address["ip"].as_str().unwrap_or_default().to_owned();
            ports.clone().into_iter().map(move |port| format!("{ip}:{}", port["port"]))
        };
        list(&subset["addresses"]).into_iter().flat_map(pair).collect::<Vec<_>>()
    });
    places.collect()
}
