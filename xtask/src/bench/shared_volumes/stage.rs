//! A cluster with claims, and a StorageOS that will have their volumes.

use std::path::PathBuf;

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{Api, Client, api::PostParams};
use serde_json::json;
use testbed::{
    AuditLog, Leash, Options,
    original::ApiManager,
    storageos::{StorageOs, Volume},
};

use super::contestant::{Contestant, Running};
use crate::bench::{
    ephemeral::{contestant::Programs, scene::Scene},
    operator, pods,
};

/// How many namespaces the volumes are in.
pub(super) const NAMESPACES: usize = 10;
/// How many hosts their servers run on.
const HOSTS: usize = 5;
/// The first port of a server.
const FIRST_PORT: usize = 20_000;

/// Makes the slices of those who write only Endpoints, without which these lead nowhere.
const CONTROLLERS: &str = "endpointslice-mirroring-controller";

/// One run's world.
pub(super) struct Stage {
    pub(super) scene: Scene,
    pub(super) storageos: StorageOs,
    pub(super) client: Client,
    pub(super) volumes: usize,
    /// Of the volumes, once they are there.
    pub(super) ids: Vec<String>,
    /// How many endpoints were given out; none is given out twice.
    endpoints: usize,
    operator: PathBuf,
}

impl Stage {
    pub(super) async fn open(programs: &Programs, volumes: usize) -> Result<Self> {
        let options = Options::default().nodes(0).provisioner(false).without_scheduler().controllers(CONTROLLERS);
        let scene = Scene::open_with(programs, options).await?;
        let (client, storageos) = (scene.client().await?, StorageOs::start().await?);
        let operator = programs.operator.clone();
        let stage = Self { scene, storageos, client, volumes, ids: Vec::new(), endpoints: 0, operator };
        stage.create_claims().await?;
        Ok(stage)
    }

    async fn create_claims(&self) -> Result<()> {
        for number in 0..NAMESPACES {
            pods::create_namespace(&self.client, &namespace(number)).await?;
        }
        let one = async |number: usize| -> Result<()> {
            let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &namespace(number));
            let claim = serde_json::from_value(json!({
                "metadata": {"name": name(number)},
                "spec": {
                    "accessModes": ["ReadWriteMany"],
                    "storageClassName": "storageos",
                    "volumeName": name(number),
                    "resources": {"requests": {"storage": "5Gi"}},
                },
            }))?;
            claims.create(&PostParams::default(), &claim).await.context("cannot create a claim")?;
            Ok(())
        };
        stream::iter(0..self.volumes).map(one).buffer_unordered(16).try_collect::<()>().await
    }

    /// The volumes come to be, with their servers.
    fn add_volumes(&mut self) {
        for number in 0..self.volumes {
            let volume = Volume::shared(namespace(number), name(number), name(number)).at(self.next_endpoint());
            self.ids.push(self.storageos.add_volume(volume));
        }
    }

    /// Starts a contestant and tells when its work began.
    ///
    /// The operator starts when the volumes are there. The original would miss those that it mirrors before it follows its own mirror,
    /// so they come when it is ready, and its work begins when it first hears of them.
    pub(super) async fn start(&mut self, contestant: Contestant) -> Result<(Running, Begin)> {
        if contestant == Contestant::Claimkeeper {
            self.add_volumes();
            let settings = format!(
                "sharedVolumes: {{storageos: {{endpoint: '{}', secretPath: '{}'}}}}\n",
                self.storageos.url(),
                self.storageos.secret_path().display()
            );
            let cluster = &self.scene.control_plane;
            let arguments = operator::install_with(cluster, "shared-volumes", &settings).await?.arguments;
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            self.scene.calm().await?;
            let begin = Timestamp::now();
            let leash = Leash::start(cluster.directory(), "contestant", &self.operator, &arguments).await?;
            return Ok((Running::Ours(leash), Begin::At(begin)));
        }
        let mut original = ApiManager::start(&self.scene.control_plane, &self.storageos, contestant.flags()).await?;
        original.ready().await?;
        self.scene.calm().await?;
        self.add_volumes();
        Ok((Running::Original(original), Begin::WhenTold))
    }

    /// Lets the server of a volume run elsewhere.
    pub(super) fn move_server(&mut self, number: usize) -> Result<Move> {
        let (id, endpoint) = (self.ids.get(number).context("there is no such volume")?.clone(), self.next_endpoint());
        let at = self.storageos.failover(&id, endpoint.as_str())?;
        Ok(Move { id, service: format!("{}/{}", namespace(number), name(number)), endpoint, at })
    }

    /// The requests of a contestant from now on.
    pub(super) fn audit(&self, contestant: Contestant) -> Result<AuditLog> {
        Ok(self.scene.audit()?.user(contestant.user()))
    }

    fn next_endpoint(&mut self) -> String {
        let number = self.endpoints;
        self.endpoints += 1;
        format!("10.1.0.{}:{}", 1 + number % HOSTS, FIRST_PORT + number / HOSTS)
    }
}

/// When a contestant's work began.
#[derive(Clone, Copy)]
pub(super) enum Begin {
    At(Timestamp),
    /// When StorageOS first told it of a volume.
    WhenTold,
}

/// A server that has moved.
pub(super) struct Move {
    pub(super) id: String,
    /// The Service that is to follow it.
    pub(super) service: String,
    /// Where it is now.
    pub(super) endpoint: String,
    /// When it moved.
    pub(super) at: Timestamp,
}

fn namespace(number: usize) -> String {
    format!("team-{}", number % NAMESPACES)
}

/// Of the claim and of the volume, so that the Service is called like that whoever makes it.
fn name(number: usize) -> String {
    format!("files-{number:04}")
}
