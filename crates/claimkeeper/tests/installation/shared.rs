//! Volumes that many pods share, and the storage system that they are of.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testbed::{
    BUSYBOX, Cluster,
    storageos::{PASSWORD, StorageOs, USERNAME, Volume},
    within,
};

use crate::place::{EVERYTHING, PATIENCE, Place, SHOP, STORAGEOS};

/// An address of the nodes, by which their pods reach what is not a pod.
const NODE: [u8; 4] = [10, 1, 0, 1];
const API_PORT: u16 = 5705;
/// Servers in the place of NFS, which say their names to everybody: these, and where they are.
pub(crate) const HERE: (&str, u16) = ("here", 25_701);
pub(crate) const ELSEWHERE: (&str, u16) = ("elsewhere", 25_702);

/// A shared volume with its claim, and the address that its clients were told.
pub(crate) struct SharedVolume {
    id: String,
    claim: &'static str,
    address: String,
}

impl Place {
    pub(crate) async fn start_storageos(cluster: &Cluster) -> Result<StorageOs> {
        StorageOs::start_on_nodes(cluster, (NODE, API_PORT).into()).await
    }

    /// What `StorageOS` has in a cluster: the Service of its API, the Secret with its password, and servers. And a pod that connects to
    /// them.
    pub(crate) async fn prepare_storageos(&self) -> Result<()> {
        let address = NODE.map(|part| part.to_string()).join(".");
        let metadata = json!({
            "name": STORAGEOS, "namespace": STORAGEOS, "labels": {"kubernetes.io/service-name": STORAGEOS},
        });
        let ports = json!([{"name": "api", "port": API_PORT}]);
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": ports}});
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata,
            "addressType": "IPv4", "ports": ports, "endpoints": [{"addresses": [address]}],
        });
        let secret = |namespace: &str| {
            json!({
                "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "storageos-api", "namespace": namespace},
                "stringData": {"username": USERNAME, "password": PASSWORD},
            })
        };
        let serve = |(name, port): (&str, u16)| format!("nc -ll -p {port} -e echo {name}");
        let servers = pod("servers", &format!("{} & {}", serve(HERE), serve(ELSEWHERE)), true);
        let client = pod("client", "sleep 1000000", false);
        for object in [service, slice, secret(STORAGEOS), secret(EVERYTHING), servers, client] {
            self.apply(&object).await?;
        }
        Ok(())
    }

    /// The value that says where the API is: its Service, by address, because nobody in this cluster knows names.
    pub(crate) async fn storageos_endpoint(&self) -> Result<String> {
        let address = ["-n", STORAGEOS, "get", "service", STORAGEOS, "-o", "jsonpath={.spec.clusterIP}"];
        Ok(format!("sharedVolumes.storageos.endpoint={}", self.kubectl(&address).await?))
    }

    /// A claim with a volume of `StorageOS` whose server is here; whose Service has this name as soon as it has an address.
    pub(crate) async fn share(&self, claim: &'static str, service: &str) -> Result<SharedVolume> {
        for object in bound_claim(claim) {
            self.apply(&object).await?;
        }
        let volume = Volume::shared(SHOP, claim, volume_of(claim)).at(at(HERE));
        let id = self.storageos.add_volume(volume);
        let published = within(PATIENCE, "the address of the volume", async || {
            self.storageos.published(&id)?.context("StorageOS was told none")
        });
        let address = self.explained(published.await).await?;
        let shared = SharedVolume { id, claim, address };
        let (ip, _) = shared.address.rsplit_once(':').context("the address has no port")?;
        self.until(&format!("service/{service}"), "{.spec.clusterIP}", ip).await?;
        self.reaches(&shared, HERE).await?;
        Ok(shared)
    }

    /// Moves the server of a volume. Whoever has its address finds it there.
    pub(crate) async fn is_moved(&self, shared: &SharedVolume, server: (&str, u16)) -> Result<()> {
        self.storageos.failover(&shared.id, at(server))?;
        self.reaches(shared, server).await?;
        let published = self.storageos.published(&shared.id)?;
        ensure!(published.as_deref() == Some(&shared.address), "the address is {published:?} now");
        Ok(())
    }

    /// Connects from a pod to the address that a volume has, through kube-proxy, until this server answers.
    pub(crate) async fn reaches(&self, shared: &SharedVolume, (server, _): (&str, u16)) -> Result<()> {
        let (ip, port) = shared.address.rsplit_once(':').context("the address has no port")?;
        let connect = format!("nc {ip} {port} < /dev/null");
        self.until_said(&["exec", "client", "--", "sh", "-c", &connect], &format!("{server}\n")).await
    }

    /// Removes the claim and the volume.
    pub(crate) async fn unshare(&self, SharedVolume { id, claim, .. }: SharedVolume) -> Result<()> {
        self.storageos.remove_volume(&id);
        let (claim, volume) = (format!("pvc/{claim}"), format!("pv/{}", volume_of(claim)));
        self.kubectl(&["-n", SHOP, "delete", &claim, &volume]).await.map(drop)
    }
}

pub(crate) fn volume_of(claim: &str) -> String {
    format!("pvc-{claim}")
}

fn at((_, port): (&str, u16)) -> String {
    std::net::SocketAddr::from((NODE, port)).to_string()
}

/// What the CSI driver of `StorageOS` would make.
fn bound_claim(claim: &str) -> [Value; 2] {
    let (modes, storage, volume) = (json!(["ReadWriteMany"]), json!({"storage": "1Gi"}), volume_of(claim));
    let object = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume},
        "spec": {
            "storageClassName": STORAGEOS, "accessModes": modes, "capacity": storage,
            "claimRef": {"namespace": SHOP, "name": claim},
            "csi": {"driver": "csi.storageos.com", "volumeHandle": volume},
        },
    });
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": claim, "namespace": SHOP},
        "spec": {
            "storageClassName": STORAGEOS, "accessModes": modes, "resources": {"requests": storage}, "volumeName": volume,
        },
    });
    [object, claim]
}

fn pod(name: &str, script: &str, on_the_node_itself: bool) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": SHOP},
        "spec": {
            "hostNetwork": on_the_node_itself,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": BUSYBOX, "command": ["sh", "-c", script]}],
        },
    })
}
