//! The binary format of Kubernetes, as far as claims are made from pods in it.

use anyhow::{Context, Result};
use bytes::Bytes;
use prost::Message;

/// The format's name in requests and answers.
pub(super) const BINARY: &str = "application/vnd.kubernetes.protobuf";
pub(super) const WATCH_IN_BINARY: &str = "application/vnd.kubernetes.protobuf;stream=watch";

const MAGIC: &[u8] = b"k8s\0";

/// The pods of a list, and its version.
pub(super) fn pods(list: &Bytes) -> Result<(Vec<Pod>, String)> {
    let list = list.strip_prefix(MAGIC).context("the list is in another format")?;
    let PodList { metadata, items } = PodList::decode(Envelope::decode(list)?.raw.as_slice())?;
    Ok((items, metadata.context("the list has no version")?.version))
}

/// The namespace of a pod and the claim of its ephemeral volume.
pub(super) fn claim(pod: Pod) -> Result<(String, Vec<u8>)> {
    let Meta { name, namespace, uid, .. } = pod.metadata.context("a pod without metadata")?;
    let volumes = pod.spec.context("a pod without a spec")?.volumes.into_iter();
    let mut ephemeral = volumes.filter_map(|volume| Some((volume.name, volume.source?.ephemeral?.template?)));
    let (volume, template) = ephemeral.next().context("a pod without an ephemeral volume")?;
    let owner =
        Owner { kind: "Pod".into(), name: name.clone(), uid, version: "v1".into(), controls: true, blocks: true };
    let metadata = Meta {
        name: format!("{name}-{volume}"),
        namespace: namespace.clone(),
        labels: template.metadata.unwrap_or_default().labels,
        owners: vec![owner],
        ..Meta::default()
    };
    let raw = Claim { metadata: Some(metadata), spec: template.spec }.encode_to_vec();
    let of = TypeMeta { version: "v1".into(), kind: "PersistentVolumeClaim".into() };
    Ok((namespace, [MAGIC, &Envelope { of: Some(of), raw }.encode_to_vec()].concat()))
}

#[derive(Clone, PartialEq, Message)]
struct Envelope {
    #[prost(message, tag = "1")]
    of: Option<TypeMeta>,
    #[prost(bytes = "vec", tag = "2")]
    raw: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct TypeMeta {
    #[prost(string, tag = "1")]
    version: String,
    #[prost(string, tag = "2")]
    kind: String,
}

#[derive(Clone, PartialEq, Message)]
struct PodList {
    #[prost(message, tag = "1")]
    metadata: Option<ListMeta>,
    #[prost(message, repeated, tag = "2")]
    items: Vec<Pod>,
}

#[derive(Clone, PartialEq, Message)]
struct ListMeta {
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Pod {
    #[prost(message, tag = "1")]
    metadata: Option<Meta>,
    #[prost(message, tag = "2")]
    spec: Option<Spec>,
}

#[derive(Clone, PartialEq, Message)]
struct Meta {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "3")]
    namespace: String,
    #[prost(string, tag = "5")]
    uid: String,
    #[prost(btree_map = "string, string", tag = "11")]
    labels: std::collections::BTreeMap<String, String>,
    #[prost(message, repeated, tag = "13")]
    owners: Vec<Owner>,
}

#[derive(Clone, PartialEq, Message)]
struct Owner {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(string, tag = "3")]
    name: String,
    #[prost(string, tag = "4")]
    uid: String,
    #[prost(string, tag = "5")]
    version: String,
    #[prost(bool, tag = "6")]
    controls: bool,
    #[prost(bool, tag = "7")]
    blocks: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Spec {
    #[prost(message, repeated, tag = "1")]
    volumes: Vec<Volume>,
}

#[derive(Clone, PartialEq, Message)]
struct Volume {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, tag = "2")]
    source: Option<Source>,
}

#[derive(Clone, PartialEq, Message)]
struct Source {
    #[prost(message, tag = "29")]
    ephemeral: Option<Ephemeral>,
}

#[derive(Clone, PartialEq, Message)]
struct Ephemeral {
    #[prost(message, tag = "1")]
    template: Option<Claim>,
}

/// A claim, or the template of one.
#[derive(Clone, PartialEq, Message)]
struct Claim {
    #[prost(message, tag = "1")]
    metadata: Option<Meta>,
    #[prost(bytes = "vec", tag = "2")]
    spec: Vec<u8>,
}
