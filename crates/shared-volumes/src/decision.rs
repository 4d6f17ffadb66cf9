//! Where the address of a volume leads.
//!
//! | what is seen                                                  | decision                                     |
//! |---------------------------------------------------------------|----------------------------------------------|
//! | it has no volume or claim in Kubernetes                       | withdraw: `NotOfKubernetes`                  |
//! | its claim is in a namespace that we do not look after         | leave: `OtherNamespace`                      |
//! | the source does not have it any more                          | withdraw or leave: `VolumeGone`              |
//! | it has no endpoint                                            | withdraw or leave: `NotShared`, `EndpointGone` |
//! | its endpoint is not an address with a port                    | withdraw or leave: `EndpointInvalid`         |
//! | no server may be there                                        | withdraw or leave: `EndpointForbidden`       |
//! | another volume has the same endpoint                          | withdraw: `EndpointClaimedTwice`             |
//! | its claim does not exist                                      | withdraw: `ClaimMissing`                     |
//! | its claim has another volume                                  | withdraw: `ClaimHasOtherVolume`              |
//! | the address of another volume still leads there               | wait: `EndpointStillServed`                  |
//! | otherwise                                                     | serve: `Served`                              |
//!
//! Where it says "withdraw or leave", `endpointGone` decides; but what another volume's server has taken is never left
//! (`EndpointTaken`). To withdraw what leads nowhere is to do nothing: most volumes are not shared, and nobody is told of them.

use std::{net::SocketAddr, sync::Arc};

use cluster::decision::{Chain, Check, Decision};

use crate::{
    endpoint::{self, Range},
    settings::EndpointGone,
    source::{SharedVolume, VolumeId},
};

/// All that the rules look at.
#[derive(Debug, Clone)]
pub struct Observation {
    /// The volume, as its source told of it last.
    pub volume: Arc<SharedVolume>,
    /// Whether the source has said that it is gone.
    pub gone: bool,
    /// The only namespace that is looked after; none if it is all of them.
    pub looked_after: Option<Arc<str>>,
    /// Where servers may be; anywhere if it is empty.
    pub allowed: Arc<[Range]>,
    /// Where Services are.
    pub services: Arc<[Range]>,
    /// What becomes of the way to a server that is gone.
    pub endpoint_gone: EndpointGone,
    /// Another volume of the same endpoint, as its source told of it last, however long ago.
    pub rival: Option<VolumeId>,
    /// Another volume whose endpoint is where this one's address leads now.
    pub taken_by: Option<VolumeId>,
    /// Another volume whose address leads to this one's endpoint now, or may.
    pub holder: Option<VolumeId>,
    /// What is known of its claim.
    pub claim: ClaimSeen,
}

/// What is known of the claim that a volume names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimSeen {
    /// It is there, and it may be this volume's.
    There,
    /// It is not.
    Missing,
    /// It has a volume of this other name.
    HasOtherVolume(Box<str>),
}

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    Leave,
    /// The address leads nowhere.
    Withdraw,
    /// The address leads nowhere until the other volume's has left.
    Wait,
    /// The address leads there.
    Serve(SocketAddr),
}

impl Action {
    /// The action as a metric label.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Leave => "leave",
            Self::Withdraw => "withdraw",
            Self::Wait => "wait",
            Self::Serve(_) => "serve",
        }
    }
}

/// The rules.
pub const TARGET: Chain<Observation, Action> = Chain {
    checks: &[
        Check { holds: "it has a volume and a claim in Kubernetes", run: is_of_kubernetes },
        Check { holds: "its claim is in a namespace that is looked after", run: is_looked_after },
        Check { holds: "its source has it", run: is_there },
        Check { holds: "it has an endpoint", run: has_endpoint },
        Check { holds: "its endpoint is an address with a port", run: is_endpoint },
        Check { holds: "a server may be there", run: is_allowed },
        Check { holds: "no other volume has the same endpoint", run: is_alone },
        Check { holds: "its claim exists", run: has_claim },
        Check { holds: "its claim has no other volume", run: is_its_claim },
        Check { holds: "no other volume's address leads there", run: is_free },
    ],
    otherwise: |seen| match target(seen) {
        Some(endpoint) => Decision::new(
            Action::Serve(endpoint),
            "Served",
            format!("the address of the volume leads to its server at {endpoint}"),
        ),
        // A rule above ends the chain in that case.
        None => without_server(seen, "EndpointGone", String::new()),
    },
};

/// The endpoint that was told, if it is one.
#[must_use]
pub fn target(seen: &Observation) -> Option<SocketAddr> {
    seen.volume.endpoint.as_deref().and_then(endpoint::parse)
}

fn is_of_kubernetes(seen: &Observation) -> Option<Decision<Action>> {
    let SharedVolume { volume, claim, .. } = &*seen.volume;
    (volume.is_none() || claim.is_none()).then(|| {
        let message = "the volume was not made for Kubernetes: it lacks the label csi.storage.k8s.io/pv/name, pvc/name or \
                       pvc/namespace";
        Decision::new(Action::Withdraw, "NotOfKubernetes", message)
    })
}

fn is_looked_after(seen: &Observation) -> Option<Decision<Action>> {
    let namespace = seen.volume.claim.as_ref()?.namespace();
    let only = seen.looked_after.as_deref()?;
    (namespace != only).then(|| {
        let message = format!("its claim is in namespace {namespace}, and only {only} is looked after");
        Decision::new(Action::Leave, "OtherNamespace", message)
    })
}

fn is_there(seen: &Observation) -> Option<Decision<Action>> {
    seen.gone.then(|| without_server(seen, "VolumeGone", "its source does not have the volume any more".to_owned()))
}

fn has_endpoint(seen: &Observation) -> Option<Decision<Action>> {
    let SharedVolume { endpoint, published, .. } = &*seen.volume;
    endpoint.is_none().then(|| match published {
        None => without_server(seen, "NotShared", "the volume is not shared: it has no NFS server".to_owned()),
        Some(address) => {
            let message =
                format!("the NFS server behind {address} is gone; it is restarting, or nobody uses the volume");
            without_server(seen, "EndpointGone", message)
        }
    })
}

fn is_endpoint(seen: &Observation) -> Option<Decision<Action>> {
    let told = seen.volume.endpoint.as_deref()?;
    target(seen).is_none().then(|| {
        let told: String = told.chars().take(64).collect();
        without_server(seen, "EndpointInvalid", format!("its endpoint {told:?} is not an IP address with a port"))
    })
}

fn is_allowed(seen: &Observation) -> Option<Decision<Action>> {
    let endpoint = target(seen)?;
    let why = endpoint::forbidden(endpoint.ip(), &seen.allowed, &seen.services)?;
    Some(without_server(seen, "EndpointForbidden", format!("its endpoint {endpoint} is {why}")))
}

fn is_alone(seen: &Observation) -> Option<Decision<Action>> {
    let (rival, endpoint) = (seen.rival.as_deref()?, target(seen)?);
    let message = format!(
        "volume {rival} has the same endpoint {endpoint}, and nobody can tell whose server answers there; neither is served \
         until one of them is told to be elsewhere"
    );
    Some(Decision::new(Action::Withdraw, "EndpointClaimedTwice", message))
}

fn has_claim(seen: &Observation) -> Option<Decision<Action>> {
    let claim = seen.volume.claim.as_ref()?;
    (seen.claim == ClaimSeen::Missing)
        .then(|| Decision::new(Action::Withdraw, "ClaimMissing", format!("there is no claim {claim}")))
}

fn is_its_claim(seen: &Observation) -> Option<Decision<Action>> {
    let SharedVolume { claim: Some(claim), volume: Some(volume), .. } = &*seen.volume else { return None };
    let ClaimSeen::HasOtherVolume(other) = &seen.claim else { return None };
    let message = format!("claim {claim} has the volume {other}, not {volume}");
    Some(Decision::new(Action::Withdraw, "ClaimHasOtherVolume", message))
}

fn is_free(seen: &Observation) -> Option<Decision<Action>> {
    let (holder, endpoint) = (seen.holder.as_deref()?, target(seen)?);
    let message = format!("the address of volume {holder} still leads to {endpoint}; that is ended first");
    Some(Decision::new(Action::Wait, "EndpointStillServed", message))
}

/// There is no server that the address could lead to.
fn without_server(seen: &Observation, reason: &'static str, why: String) -> Decision<Action> {
    match (seen.endpoint_gone, &seen.taken_by) {
        (EndpointGone::Withdraw, _) => Decision::new(Action::Withdraw, reason, why),
        (EndpointGone::Keep, None) => Decision::new(Action::Leave, reason, why),
        (EndpointGone::Keep, Some(other)) => {
            let message = format!("{why}, and volume {other} has the endpoint now to which its address led");
            Decision::new(Action::Withdraw, "EndpointTaken", message)
        }
    }
}

#[cfg(test)]
mod tests;
