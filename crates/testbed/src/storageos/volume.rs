//! A volume as a test describes it, and as the API tells of it.

use std::collections::BTreeMap;

use base64::{Engine, engine::general_purpose::STANDARD_NO_PAD};
use jiff::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Where the address that clients mount is published.
pub const MOUNT_ENDPOINT: &str = "storageos.com/nfs/mount-endpoint";
/// The labels that tell which volume and claim of Kubernetes a StorageOS volume is.
pub const PV_NAME: &str = "csi.storage.k8s.io/pv/name";
/// The claim's name.
pub const PVC_NAME: &str = "csi.storage.k8s.io/pvc/name";
/// The claim's namespace.
pub const PVC_NAMESPACE: &str = "csi.storage.k8s.io/pvc/namespace";

/// Which release of the API the server speaks. What a client of shared volumes reads is in both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Spec {
    /// 2.4.0, from 2021.
    V2_4,
    /// 2.8.0, the last: hosts have names, and there are snapshots and topology.
    #[default]
    V2_8,
}

/// Where a volume's NFS server answers, and the ways in which the API says that it does not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// `nfs.serviceEndpoint` is this text, whatever it is.
    At(String),
    /// `nfs.serviceEndpoint` is null.
    Null,
    /// `nfs.serviceEndpoint` is the empty string.
    Empty,
    /// `nfs` has no `serviceEndpoint`.
    Absent,
    /// `nfs` is null.
    NoNfs,
}

impl Endpoint {
    /// The text, if there is any.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::At(endpoint) => Some(endpoint),
            _ => None,
        }
    }

    fn nfs(&self) -> Value {
        let exports = json!([{
            "exportID": 1, "path": "/", "pseudoPath": "/",
            "acls": [{
                "identity": { "identityType": "hostname", "matcher": "*" },
                "squashConfig": { "uid": 0, "gid": 0, "squash": "all" },
                "accessLevel": "rw",
            }],
        }]);
        match self {
            Self::At(endpoint) => json!({ "exports": exports, "serviceEndpoint": endpoint }),
            Self::Null => json!({ "exports": exports, "serviceEndpoint": null }),
            Self::Empty => json!({ "exports": exports, "serviceEndpoint": "" }),
            Self::Absent => json!({ "exports": exports }),
            Self::NoNfs => Value::Null,
        }
    }
}

impl<T: Into<String>> From<T> for Endpoint {
    fn from(endpoint: T) -> Self {
        Self::At(endpoint.into())
    }
}

/// A volume as a test wants it. [`Volume::shared`] is one that counts as soon as it has an endpoint; the other methods make
/// it differ from that.
#[derive(Debug, Clone)]
pub struct Volume {
    /// The name of the StorageOS namespace, which is the claim's namespace for a volume that Kubernetes asked for.
    pub namespace: String,
    /// The name of the Kubernetes volume, for a volume that Kubernetes asked for.
    pub name: String,
    /// Its labels, the published address among them.
    pub labels: BTreeMap<String, String>,
    /// Where its NFS server answers.
    pub endpoint: Endpoint,
    /// What is not as it should be: the value to put at a JSON pointer, or none to remove what is there.
    oddities: Vec<(String, Option<Value>)>,
}

impl Volume {
    /// The volume of a claim, as it is before a pod has asked for it: without NFS server.
    pub fn shared(namespace: impl Into<String>, claim: impl Into<String>, name: impl Into<String>) -> Self {
        let (namespace, name) = (namespace.into(), name.into());
        let labels = [(PV_NAME, name.clone()), (PVC_NAME, claim.into()), (PVC_NAMESPACE, namespace.clone())];
        let mut labels = labels.map(|(key, value)| (key.to_owned(), value)).into_iter().collect::<BTreeMap<_, _>>();
        labels.insert("storageos.com/nocompress".into(), "true".into());
        Self { namespace, name, labels, endpoint: Endpoint::NoNfs, oddities: Vec::new() }
    }

    /// The same with an NFS server, or with one of the shapes that say that it has none.
    #[must_use]
    pub fn at(mut self, endpoint: impl Into<Endpoint>) -> Self {
        self.endpoint = endpoint.into();
        self
    }

    /// The same with another label, or another value of one.
    #[must_use]
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(key.into(), value.into());
        self
    }

    /// The same without a label.
    #[must_use]
    pub fn without_label(mut self, key: &str) -> Self {
        self.labels.remove(key);
        self
    }

    /// The same, but the API tells this value at a JSON pointer (`/nfs/exports`, `/labels`, `/aNewField`): null shapes, wrong
    /// types, fields that no client knows.
    #[must_use]
    pub fn with(mut self, pointer: impl Into<String>, value: Value) -> Self {
        self.oddities.push((pointer.into(), Some(value)));
        self
    }

    /// The same, but the API leaves out what is at a JSON pointer.
    #[must_use]
    pub fn without(mut self, pointer: impl Into<String>) -> Self {
        self.oddities.push((pointer.into(), None));
        self
    }
}

/// A volume that the server has.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    pub(super) id: String,
    pub(super) namespace_id: String,
    pub(super) volume: Volume,
    /// Counts the changes: what `version` stands for.
    pub(super) revision: u64,
    pub(super) created: Timestamp,
    pub(super) updated: Timestamp,
    spec: Spec,
    /// Made when the volume changes and not when it is asked for, because thousands are listed every few seconds.
    pub(super) told: Told,
}

/// What the API tells of a volume.
#[derive(Debug, Clone, Default)]
pub(super) struct Told {
    pub(super) json: String,
    pub(super) endpoint: Option<String>,
}

impl Stored {
    pub(super) fn new(namespace_id: String, volume: Volume, spec: Spec) -> Self {
        let (id, now, told) = (random_id(), Timestamp::now(), Told::default());
        let mut stored = Self { id, namespace_id, volume, revision: 1, created: now, updated: now, spec, told };
        stored.speak(spec);
        stored
    }

    /// Notes that something has changed.
    pub(super) fn touch(&mut self) {
        self.revision += 1;
        self.updated = Timestamp::now();
        self.speak(self.spec);
    }

    /// Is told as this release of the API tells it.
    pub(super) fn speak(&mut self, spec: Spec) {
        self.spec = spec;
        let json = self.json();
        let endpoint = json.pointer("/nfs/serviceEndpoint").and_then(Value::as_str);
        let endpoint = endpoint.filter(|text| !text.is_empty()).map(Into::into);
        self.told = Told { json: json.to_string(), endpoint };
    }

    pub(super) fn version(&self) -> String {
        version(self.revision)
    }

    fn json(&self) -> Value {
        let Self { id, namespace_id, volume, .. } = self;
        // A volume is attached where its NFS server runs, so each host is a node of its own.
        let host = volume.endpoint.text().map(|endpoint| endpoint.rsplit_once(':').map_or(endpoint, |(host, _)| host));
        let node = id_of(host.unwrap_or("nowhere"));
        let is_attached = volume.endpoint != Endpoint::NoNfs;
        let mut json = json!({
            "id": id,
            "name": volume.name,
            "description": "",
            "attachedOn": if is_attached { node.as_str() } else { "" },
            "attachmentType": if is_attached { "nfs" } else { "detached" },
            "nfs": volume.endpoint.nfs(),
            "namespaceID": namespace_id,
            "labels": volume.labels,
            "fsType": "ext4",
            "master": { "id": id_of(id), "nodeID": node, "health": "online", "promotable": true },
            "replicas": [],
            "sizeBytes": 5_368_709_120_u64,
            "createdAt": self.created,
            "updatedAt": self.updated,
            "version": self.version(),
        });
        if self.spec == Spec::V2_8 {
            let hostname = host.unwrap_or_default();
            json["attachedOnHost"] = json!(hostname);
            json["master"]["hostname"] = json!(hostname);
            json["topologyLabels"] = json!({ "requisiteZones": null, "preferredZones": null });
            json["snapshotConfig"] = json!({});
            json["snapshotVolumes"] = json!({});
            json["parentInfo"] = Value::Null;
        }
        for (pointer, value) in &volume.oddities {
            put(&mut json, pointer, value.as_ref());
        }
        json
    }
}

/// Puts a value where a JSON pointer leads, or removes what is there. Where there is nothing to put it into, nothing happens.
fn put(json: &mut Value, pointer: &str, value: Option<&Value>) {
    let Some((parent, key)) = pointer.rsplit_once('/') else { return };
    // Keys of labels contain slashes, which a pointer writes like this.
    let key = key.replace("~1", "/").replace("~0", "~");
    let Some(parent) = json.pointer_mut(parent).and_then(Value::as_object_mut) else { return };
    match value {
        Some(value) => drop(parent.insert(key, value.clone())),
        None => drop(parent.remove(&key)),
    }
}

/// As the control plane writes them: opaque for clients.
pub(super) fn version(revision: u64) -> String {
    STANDARD_NO_PAD.encode(revision.to_string())
}

pub(super) fn random_id() -> String {
    uuid(rand::random())
}

/// The same for the same text, always.
fn id_of(text: &str) -> String {
    let hash: [u8; 32] = Sha256::digest(text).into();
    uuid(u128::from_be_bytes(std::array::from_fn(|index| hash[index])))
}

fn uuid(number: u128) -> String {
    let digits = format!("{number:032x}");
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}
