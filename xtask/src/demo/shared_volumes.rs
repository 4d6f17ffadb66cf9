//! A volume that many pods share keeps its address while its server moves, and leads nowhere while there is none.

use std::{
    env, fs,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testbed::{
    BUSYBOX, Leash,
    storageos::{PASSWORD, USERNAME},
    within,
};

use super::{HOME, PATIENCE, Stage, answer, done, path, step, title};

const NAMESPACE: &str = "studio";
const CLAIM: &str = "footage";
const VOLUME: &str = "pvc-footage";
const CLIENT: &str = "editor";
/// The Secret with the credentials of StorageOS, as the chart calls it.
const SECRET: &str = "storageos-api";

/// The part that matters, as a user would write it.
const ASKED_FOR: &str = "  $ kubectl --namespace studio apply -f footage.yaml
    kind: PersistentVolumeClaim
    metadata: {name: footage}
    spec: {storageClassName: storageos, accessModes: [ReadWriteMany], …, storage: 1Gi}
";

/// The storage system that has shared volumes, played by a process of this machine. It ends with its owner.
pub(super) struct StorageOs {
    /// None until it is started.
    process: Option<Leash>,
    address: SocketAddr,
    directory: PathBuf,
}

impl StorageOs {
    /// On the node's own address if there is a node, whose pods reach nothing else.
    pub(super) async fn start(stage: &Stage) -> Result<Self> {
        step("Starting a StorageOS control plane, which has the shared volumes");
        let directory = stage.cluster.directory().join("storageos");
        fs::create_dir_all(&directory)?;
        for (name, content) in [("username", USERNAME), ("password", PASSWORD)] {
            fs::write(directory.join(name), content)?;
        }
        let address = match stage.cluster.keeper() {
            Some(_) => SocketAddr::new(stage.address_of_the_node().await?.parse()?, 5705),
            None => TcpListener::bind("127.0.0.1:0")?.local_addr()?,
        };
        let mut storageos = Self { process: None, address, directory };
        storageos.tell(None)?;
        let (file, listen) = (storageos.volumes(), address.to_string());
        let mut command = stage.in_the_network(&env::current_exe()?)?;
        command.extend(["storageos", "--listen", &listen, "--volumes", path(&file)?].map(str::to_owned));
        let command: Vec<&str> = command.iter().map(String::as_str).collect();
        let (program, arguments) = command.split_first().context("there is no program")?;
        storageos.process = Some(Leash::start(&storageos.directory, "log", Path::new(program), arguments).await?);
        storageos.until_said("listens on").await?;
        done(&format!("it listens on {address}"));
        Ok(storageos)
    }

    /// The block of the operator's configuration, outside of pods.
    pub(super) fn config(&self) -> Value {
        let mut block = self.values();
        block["storageos"]["secretPath"] = json!(self.directory);
        block
    }

    /// The block of the chart's values. It mounts the Secret where the operator looks.
    pub(super) fn values(&self) -> Value {
        json!({"storageos": {"endpoint": format!("http://{}", self.address), "pollInterval": "1s"}})
    }

    fn volumes(&self) -> PathBuf {
        self.directory.join("volumes.yaml")
    }

    /// Where the server of the volume is from now on.
    fn tell(&self, endpoint: Option<&str>) -> Result<()> {
        let mut volume = json!({"namespace": NAMESPACE, "claim": CLAIM, "volume": VOLUME});
        if let Some(endpoint) = endpoint {
            volume["endpoint"] = endpoint.into();
        }
        // In one step, because it is being read.
        let unfinished = self.volumes().with_extension("unfinished");
        fs::write(&unfinished, json!({"volumes": [volume]}).to_string())?;
        Ok(fs::rename(unfinished, self.volumes())?)
    }

    /// Waits until it has printed this, and returns the line.
    async fn until_said(&self, what: &str) -> Result<String> {
        within(PATIENCE, &format!("StorageOS to say that it {what}"), async || {
            let said = self.process.as_ref().map(Leash::output).unwrap_or_default();
            let line = said.lines().rev().find(|line| line.contains(what)).map(str::to_owned);
            line.with_context(|| format!("it said {said:?}"))
        })
        .await
    }
}

/// What the operator's pods log in with.
pub(super) fn credentials() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET, "namespace": HOME},
        "stringData": {"username": USERNAME, "password": PASSWORD},
    })
}

impl Stage {
    pub(super) async fn a_shared_volume_has_an_address(&self, storageos: &StorageOs) -> Result<()> {
        title("shared-volumes: many pods share a volume by NFS; its server may move, but its address must not");
        self.kubectl(&["create", "namespace", NAMESPACE]).await?;
        println!("{ASKED_FOR}");
        for object in bound_claim() {
            self.apply(&object).await?;
        }
        self.until("the claim", &of_the_claim("jsonpath={.status.phase}"), "Bound").await?;
        self.serve(storageos, "nfs-1", 25_705).await?;
        let line = storageos.until_said("is mounted from").await?;
        done(&format!("StorageOS was told: {line}\n"));
        self.show_the_address().await?;
        if self.has_real_node {
            self.run_for_the_volume(CLIENT, "sleep 1000000", false).await?;
        }
        self.connect("nfs-1").await
    }

    pub(super) async fn a_server_that_is_gone(&self, storageos: &StorageOs, operator: &Path) -> Result<()> {
        title(
            "shared-volumes: the server is gone. Another volume's may take its port, so nobody is led there any more",
        );
        if self.has_real_node {
            self.present(&["--namespace", NAMESPACE, "delete", "pod", "nfs-1", "--now"]).await?;
        }
        step("StorageOS tells that there is no server");
        storageos.tell(None)?;
        self.until_noted("EndpointGone").await?;
        self.show_the_address().await?;
        self.connect("refused").await?;
        self.ask_why_with_storageos(storageos, operator).await
    }

    pub(super) async fn a_server_that_is_back_elsewhere(&self, storageos: &StorageOs) -> Result<()> {
        title("shared-volumes: the server is back elsewhere, behind the same address");
        self.serve(storageos, "nfs-2", 25_799).await?;
        self.show_the_address().await?;
        self.connect("nfs-2").await?;
        let ours = "involvedObject.kind=PersistentVolumeClaim,reportingComponent=claimkeeper.dev/claimkeeper";
        let events = ["--namespace", NAMESPACE, "get", "events", "--field-selector", ours, "-o"];
        let with = |output| [&events[..], &[output]].concat();
        self.until("the event", &with("jsonpath={.items[*].message}"), "25799").await?;
        self.present(&with("custom-columns=TYPE:.type,REASON:.reason,MESSAGE:.message")).await
    }

    /// Who has the credentials of StorageOS is told the whole chain.
    async fn ask_why_with_storageos(&self, storageos: &StorageOs, operator: &Path) -> Result<()> {
        let file = "shared-volumes.yaml";
        let config = json!({"features": ["shared-volumes"], "sharedVolumes": storageos.config()});
        fs::write(self.cluster.directory().join(file), config.to_string())?;
        let question = ["why", &format!("pvc/{CLAIM}"), "--namespace", NAMESPACE, "--config", file];
        let command = self.in_the_network(operator)?;
        let (program, arguments) = command.split_first().context("there is no program")?;
        let mut command = tokio::process::Command::new(program);
        command.args(arguments).args(question).current_dir(self.cluster.directory());
        let output = command.env("KUBECONFIG", self.cluster.admin_kubeconfig()).kill_on_drop(true).output().await?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
        answer(&format!("claimkeeper {}", question.join(" ")), &output.stdout);
        Ok(())
    }

    /// A program where StorageOS and the API server are reached: in the network of the node, if there is one.
    fn in_the_network(&self, program: &Path) -> Result<Vec<String>> {
        let keeper = self.cluster.keeper().map(|keeper| keeper.to_string());
        let enter = keeper.iter().flat_map(|keeper| ["nsenter", "--target", keeper, "--net", "--"]);
        Ok(enter.chain([path(program)?]).map(str::to_owned).collect())
    }

    /// Starts the server of the volume and lets StorageOS tell of it.
    async fn serve(&self, storageos: &StorageOs, server: &str, port: u16) -> Result<()> {
        let endpoint = if self.has_real_node {
            step(&format!("Starting {server}, which says its name to everybody, in the place of an NFS server"));
            let script = format!("nc -ll -p {port} -e echo this is {CLAIM}, served by {server}");
            self.run_for_the_volume(server, &script, true).await?;
            format!("{}:{port}", self.address_of_the_node().await?)
        } else {
            format!("10.1.0.1:{port}")
        };
        step(&format!("StorageOS tells that the server is at {endpoint}"));
        storageos.tell(Some(&endpoint))?;
        self.until_noted("Served").await
    }

    async fn until_noted(&self, reason: &str) -> Result<()> {
        let note = of_the_claim(r"jsonpath={.metadata.annotations.claimkeeper\.dev/shared-volume}");
        self.until("the note on the claim", &note, &format!("{reason}: ")).await
    }

    async fn show_the_address(&self) -> Result<()> {
        let service = "custom-columns=SERVICE:.metadata.name,ADDRESS:.spec.clusterIP,PORT:.spec.ports[0].port,\
                       OWNER:.metadata.ownerReferences[0].kind,OF:.metadata.ownerReferences[0].name";
        self.present(&["--namespace", NAMESPACE, "get", "service", CLAIM, "-o", service]).await?;
        let slice = "custom-columns=SLICE:.metadata.name,SERVER:.endpoints[0].addresses[0],PORT:.ports[0].port,\
                     READY:.endpoints[0].conditions.ready";
        self.present(&["--namespace", NAMESPACE, "get", "endpointslices", "-o", slice]).await
    }

    /// Connects from a pod until this is the answer, and shows it; a moment passes until kube-proxy knows.
    async fn connect(&self, expected: &str) -> Result<()> {
        if !self.has_real_node {
            return Ok(());
        }
        let ip = ["--namespace", NAMESPACE, "get", "service", CLAIM, "-o", "jsonpath={.spec.clusterIP}"];
        let ip = String::from_utf8(self.kubectl(&ip).await?.stdout)?;
        let connect = format!("nc {ip} 2049 < /dev/null 2>&1 || true");
        let said = within(PATIENCE, &format!("{expected} behind the address"), async || {
            let inside = ["--namespace", NAMESPACE, "exec", CLIENT, "--", "sh", "-c", &connect];
            let said = String::from_utf8(self.kubectl(&inside).await?.stdout)?;
            ensure!(said.contains(expected), "{said:?}");
            Ok(said)
        })
        .await?;
        answer(&format!("kubectl --namespace {NAMESPACE} exec {CLIENT} -- nc {ip} 2049"), said.as_bytes());
        Ok(())
    }

    async fn run_for_the_volume(&self, name: &str, script: &str, on_the_node_itself: bool) -> Result<()> {
        self.apply(&json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {
                "hostNetwork": on_the_node_itself,
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "main", "image": BUSYBOX, "command": ["sh", "-c", script]}],
            },
        }))
        .await?;
        let phase = ["--namespace", NAMESPACE, "get", "pod", name, "-o", "jsonpath={.status.phase}"];
        self.until(&format!("{name} to run"), &phase, "Running").await
    }

    async fn address_of_the_node(&self) -> Result<String> {
        let real = self.cluster.real_nodes();
        let node = real.first().context("there is no real node")?;
        let address = r"jsonpath={.status.addresses[?(@.type=='InternalIP')].address}";
        Ok(String::from_utf8(self.kubectl(&["get", "node", node, "-o", address]).await?.stdout)?)
    }
}

fn of_the_claim(output: &str) -> [&str; 7] {
    ["--namespace", NAMESPACE, "get", "pvc", CLAIM, "-o", output]
}

/// What the CSI driver of StorageOS would make.
fn bound_claim() -> [Value; 2] {
    let (modes, storage) = (json!(["ReadWriteMany"]), json!({"storage": "1Gi"}));
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": VOLUME},
        "spec": {
            "storageClassName": "storageos", "accessModes": modes, "capacity": storage,
            "claimRef": {"namespace": NAMESPACE, "name": CLAIM},
            "csi": {"driver": "csi.storageos.com", "volumeHandle": VOLUME},
        },
    });
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": CLAIM, "namespace": NAMESPACE},
        "spec": {
            "storageClassName": "storageos", "accessModes": modes, "resources": {"requests": storage},
            "volumeName": VOLUME,
        },
    });
    [volume, claim]
}
