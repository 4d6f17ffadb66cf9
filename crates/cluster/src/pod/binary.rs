//! Pods in the binary format.

use bytes::Bytes;
use prost::{DecodeError, Message};

use super::{Wire, WireEphemeral, WireGate, WireSpec, WireStatus, WireUsedClaim, WireVolume};
use crate::{
    Template,
    binary::{Meta, not_empty},
};

/// Reads a pod.
pub(super) fn read(pod: Bytes) -> Result<Wire, DecodeError> {
    let Pod { metadata, spec, status } = Pod::decode(pod)?;
    let (spec, status) = (spec.unwrap_or_default(), status.unwrap_or_default());
    Ok(Wire {
        metadata: metadata.unwrap_or_default().slim(),
        spec: WireSpec {
            volumes: spec.volumes.into_iter().map(WireVolume::from).collect(),
            node_name: not_empty(spec.node_name),
            service_account_name: not_empty(spec.service_account_name),
            scheduling_gates: spec.scheduling_gates.into_iter().map(|gate| WireGate { name: gate.name }).collect(),
        },
        status: WireStatus { phase: not_empty(status.phase) },
    })
}

impl From<Volume> for WireVolume {
    fn from(Volume { name, source }: Volume) -> Self {
        let Source { claim, ephemeral } = source.unwrap_or_default();
        let template = |ephemeral: Ephemeral| ephemeral.template.map(|template| Template::Binary(template.into()));
        Self {
            name,
            ephemeral: ephemeral.map(|ephemeral| WireEphemeral { volume_claim_template: template(ephemeral) }),
            persistent_volume_claim: claim.map(|claim| WireUsedClaim { claim_name: claim.name }),
        }
    }
}

/// `k8s.io/api/core/v1.Pod`, as far as some decision reads it; so are those that follow.
#[derive(Clone, PartialEq, Message)]
struct Pod {
    #[prost(message, tag = "1")]
    metadata: Option<Meta>,
    #[prost(message, tag = "2")]
    spec: Option<Spec>,
    #[prost(message, tag = "3")]
    status: Option<Status>,
}

#[derive(Clone, PartialEq, Message)]
struct Spec {
    #[prost(message, repeated, tag = "1")]
    volumes: Vec<Volume>,
    #[prost(string, tag = "8")]
    service_account_name: String,
    #[prost(string, tag = "10")]
    node_name: String,
    #[prost(message, repeated, tag = "38")]
    scheduling_gates: Vec<Gate>,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(string, tag = "1")]
    phase: String,
}

#[derive(Clone, PartialEq, Message)]
struct Gate {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct Volume {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, tag = "2")]
    source: Option<Source>,
}

/// `VolumeSource`, whose fields are those of the volume itself in JSON.
#[derive(Clone, PartialEq, Message)]
struct Source {
    #[prost(message, tag = "10")]
    claim: Option<UsedClaim>,
    #[prost(message, tag = "29")]
    ephemeral: Option<Ephemeral>,
}

#[derive(Clone, PartialEq, Message)]
struct UsedClaim {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct Ephemeral {
    /// A message that nobody takes apart here.
    #[prost(bytes = "vec", optional, tag = "1")]
    template: Option<Vec<u8>>,
}
