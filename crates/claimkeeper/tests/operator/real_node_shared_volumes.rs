//! The way of real packets: a pod reaches the server of its volume through kube-proxy, wherever that server goes, and never another's.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::{Value, json};
use testbed::{
    BUSYBOX, ControlPlane, Options, real_node_turn,
    storageos::{Endpoint, StorageOs, Volume},
    within,
};

use crate::{
    home::{Home, Replica},
    real_node::{PATIENCE, sh, until_running},
};

/// Where the servers are: on the node itself, as those of StorageOS, so that one can take another's port.
const NODE: &str = "10.1.0.1";
/// A port that the server of `files` leaves, and that of `other` takes.
const CONTESTED: u16 = 25_705;

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_reaches_the_server_of_its_volume_wherever_it_is_and_never_another() -> Result<()> {
    let Some(_turn) = real_node_turn().await? else { return Ok(()) };
    let options = Options::default().name("real-path").real_node().provisioner(false);
    let control_plane = ControlPlane::start(options).await?;
    let home = Home::on(control_plane.cluster(), "path").await?;
    let storageos = StorageOs::start().await?;
    let path = Path { home: &home, storageos: &storageos };
    let _operator = path.start_operator().await?;

    path.start_server("files-1", CONTESTED).await?;
    path.start_server("other-1", 25_706).await?;
    let (files, address) = path.share("files", CONTESTED).await?;
    let (other, address_of_other) = path.share("other", 25_706).await?;
    path.start_client(&address).await?;
    path.until_answered_by("files-1").await?;
    path.until_connected(&address_of_other, "other-1").await?;

    // The port is taken in the moment in which it is free. Nobody has told of it, so the packets go there: this is the danger.
    path.start_waiting_server("other-2", CONTESTED).await?;
    home.pods.delete("files-1", &DeleteParams::default().grace_period(0)).await?;
    path.until_answered_by("other-2").await?;

    // Now both are told. Whoever may reach the server by its own address, nobody does by that of `files` any more.
    storageos.failover(&files, Endpoint::Null)?;
    storageos.failover(&other, at(CONTESTED))?;
    path.until_connected(&address_of_other, "other-2").await?;
    assert_eq!(path.connect(&address).await?, REFUSED);
    path.until_answered_by(REFUSED).await?;
    path.assert_objects_stay("files", &address).await?;

    // It comes back elsewhere, and then moves from one place to another that is there already.
    path.start_server("files-3", 25_707).await?;
    storageos.failover(&files, at(25_707))?;
    path.until_answered_by("files-3").await?;
    path.start_server("files-4", 25_708).await?;
    storageos.failover(&files, at(25_708))?;
    path.until_answered_by("files-4").await?;

    assert_eq!(storageos.published(&files)?.as_deref(), Some(address.as_str()), "the address never changed");
    path.assert_objects_stay("files", &address).await?;
    assert_eq!(path.connect(&address_of_other).await?, "other-2");
    // Without the beginning, in which the port may have been free for a moment.
    let answers = path.answers().await?;
    let told = answers.iter().position(|answer| answer == "other-2").context("the danger was not seen")?;
    assert_eq!(answers[told..], ["other-2", REFUSED, "files-3", "files-4"], "{answers:?}");
    Ok(())
}

/// What a client says of a connection that was refused.
const REFUSED: &str = "refused";

fn at(port: u16) -> Endpoint {
    Endpoint::At(format!("{NODE}:{port}"))
}

/// Connects once and prints who answers.
fn connect(address: &str) -> String {
    let (ip, port) = address.rsplit_once(':').unwrap();
    format!(
        "answer=$(nc {ip} {port} < /dev/null 2>&1); \
         case \"$answer\" in *refused*) echo {REFUSED};; *) echo \"${{answer:-nobody}}\";; esac"
    )
}

struct Path<'a> {
    home: &'a Home,
    storageos: &'a StorageOs,
}

impl Path<'_> {
    async fn start_operator(&self) -> Result<Replica> {
        let values = json!({
            "features": ["shared-volumes"], "namespace": self.home.namespace, "leaderElection": {"name": "shared"},
        });
        let storageos = json!({
            "endpoint": self.storageos.url(), "secretPath": self.storageos.secret_path(), "pollInterval": "200ms",
        });
        let config = json!({"features": ["shared-volumes"], "sharedVolumes": {"storageos": storageos}});
        self.home.install("solo", &values, config).await?.start().await
    }

    /// A claim whose volume has its server there: the volume's id and the published address.
    async fn share(&self, claim: &str, port: u16) -> Result<(String, String)> {
        self.home.create_claim(claim).await?;
        let volume = Volume::shared(&self.home.namespace, claim, format!("pv-{claim}"));
        let id = self.storageos.add_volume(volume.at(at(port)));
        let address = within(PATIENCE, &format!("the address of {claim}"), async || {
            self.storageos.published(&id)?.context("nothing is published")
        })
        .await?;
        Ok((id, address))
    }

    /// A server that says its name to everybody, as soon as it can have its port.
    async fn start_waiting_server(&self, name: &str, port: u16) -> Result<()> {
        let script = format!("while :; do nc -ll -p {port} -e echo {name}; usleep 10000; done");
        self.run(name, &script, true).await
    }

    /// The same, and waits until it answers.
    async fn start_server(&self, name: &str, port: u16) -> Result<()> {
        self.start_waiting_server(name, port).await?;
        within(PATIENCE, &format!("{name} to listen"), async || {
            let answer = sh(self.home, name, &connect(&format!("{NODE}:{port}"))).await?;
            ensure!(answer.trim() == name, "{answer}");
            Ok(())
        })
        .await
    }

    /// A pod that connects again and again, to the address that it has mounted, so to speak.
    async fn start_client(&self, address: &str) -> Result<()> {
        self.run("client", &format!("while :; do {}; usleep 200000; done", connect(address)), false).await
    }

    async fn run(&self, name: &str, script: &str, on_the_node_itself: bool) -> Result<()> {
        let pod = pod(name, script, on_the_node_itself);
        self.home.pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        until_running(self.home, name).await
    }

    /// Who answers to a new connection from the client's pod.
    async fn connect(&self, address: &str) -> Result<String> {
        Ok(sh(self.home, "client", &connect(address)).await?.trim().to_owned())
    }

    async fn until_connected(&self, address: &str, server: &str) -> Result<()> {
        within(PATIENCE, &format!("{address} to lead to {server}"), async || {
            let answer = self.connect(address).await?;
            ensure!(answer == server, "it leads to {answer}");
            Ok(())
        })
        .await
    }

    /// All that the client's connections found, without repetitions.
    async fn answers(&self) -> Result<Vec<String>> {
        let mut command = self.home.cluster.kubectl();
        command.args(["--namespace", &self.home.namespace, "logs", "client"]);
        let output = tokio::process::Command::from(command).kill_on_drop(true).output().await?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
        let mut answers: Vec<String> = String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect();
        answers.dedup();
        Ok(answers)
    }

    async fn until_answered_by(&self, server: &str) -> Result<()> {
        within(PATIENCE, &format!("the client to find {server}"), async || {
            let answers = self.answers().await?;
            ensure!(answers.last().is_some_and(|answer| answer == server), "it found {answers:?}");
            Ok(())
        })
        .await
    }

    /// The Service with its address, and one slice.
    async fn assert_objects_stay(&self, claim: &str, address: &str) -> Result<()> {
        let client = self.home.cluster.admin().await?;
        let services: Api<Service> = Api::namespaced(client.clone(), &self.home.namespace);
        let ip = services.get(claim).await?.spec.and_then(|spec| spec.cluster_ip).unwrap_or_default();
        assert_eq!(format!("{ip}:2049"), address);
        let slices: Api<EndpointSlice> = Api::namespaced(client, &self.home.namespace);
        let its = ListParams::default().labels(&format!("kubernetes.io/service-name={claim}"));
        assert_eq!(slices.list(&its).await?.items.len(), 1);
        Ok(())
    }
}

fn pod(name: &str, script: &str, on_the_node_itself: bool) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "hostNetwork": on_the_node_itself,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": BUSYBOX, "command": ["sh", "-c", script]}],
        },
    })
}
