//! The Service that gives a volume its address, and whether that address is published.
//!
//! | what is seen                                              | decision                              |
//! |-----------------------------------------------------------|---------------------------------------|
//! | the volume's id cannot be a label                         | refuse: `IdUnusable`                  |
//! | its Service is of another family than its server          | refuse: `FamilyMismatch`              |
//! | its Service is being deleted                              | wait: `ServiceBeingDeleted`           |
//! | its Service is there                                      | use: `ServiceThere`                   |
//! | both names that a Service could have are somebody else's  | refuse: `NameTaken`                   |
//! | the address that it had is of another family              | create: `AddressOfOtherFamily`        |
//! | the address that it had was refused for long enough       | create: `AddressTaken`                |
//! | otherwise                                                 | create: `ServiceMissing`              |
//!
//! The second chain, [`PUBLISH`], decides when clients are told:
//!
//! | what is seen                                              | decision                              |
//! |-----------------------------------------------------------|---------------------------------------|
//! | the address leads nowhere                                 | leave: `NotServed`                    |
//! | the Service was not read since it was written             | wait: `ServiceUnverified`             |
//! | it has no address, or cannot have one                     | wait: `NoAddress`                     |
//! | it answers on another port than NFS's, or on several      | wait: `WrongPort`                     |
//! | Kubernetes looks for its targets, or sends nobody there   | wait: `WrongKind`                     |
//! | its slice was not read since, or leads elsewhere          | wait: `TargetUnverified`              |
//! | the address is published already                          | leave: `AlreadyPublished`             |
//! | the server does not answer, where that is asked           | wait: `NotAnswering`                  |
//! | otherwise                                                 | publish: `Published`                  |

use std::net::{IpAddr, SocketAddr};

use cluster::{
    Service, Slice,
    decision::{Chain, Check, Decision},
    service::ClusterAddress,
};

use crate::{
    names::{NFS_PORT, PORT_NAME, is_label_value},
    source::SharedVolume,
};

/// The address that a volume had, where tenants can't write it.
#[must_use]
pub fn remembered(volume: &SharedVolume) -> Option<IpAddr> {
    let published = volume.published.as_deref()?;
    let socket = published.parse::<SocketAddr>().map(|socket| socket.ip());
    // The original writes IPv6 addresses without brackets.
    let bare =
        || published.rsplit_once(':').and_then(|(ip, port)| port.parse::<u16>().ok().and_then(|_| ip.parse().ok()));
    socket.ok().or_else(bare).filter(|ip: &IpAddr| !ip.is_unspecified())
}

/// `IPv4` or `IPv6`.
#[must_use]
pub fn family(ip: IpAddr) -> &'static str {
    if ip.is_ipv4() { "IPv4" } else { "IPv6" }
}

/// What decides about the Service.
#[derive(Debug, Clone)]
pub struct Observation {
    /// The volume's id.
    pub id: Box<str>,
    /// Where its server is.
    pub endpoint: SocketAddr,
    /// The volume's Service, if it has one.
    pub service: Option<Service>,
    /// What a new one is called: the first of these that nobody else has.
    pub free_name: Option<String>,
    /// The address that it had.
    pub remembered: Option<IpAddr>,
    /// Whether that address was refused, and for long enough.
    pub refused: bool,
}

/// What is done about the Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Nothing can be done until somebody does something.
    Refuse,
    /// Look again in a moment.
    Wait,
    /// It is there.
    Use,
    /// It is to be made.
    Create {
        /// Its name.
        name: String,
        /// The address that is asked for.
        address: Option<IpAddr>,
    },
}

impl Action {
    /// The action as a metric label.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Refuse => "refuse",
            Self::Wait => "wait",
            Self::Use => "use",
            Self::Create { .. } => "create",
        }
    }
}

/// The rules about the Service.
pub const ADDRESS: Chain<Observation, Action> = Chain {
    checks: &[
        Check { holds: "the volume's id can be a label", run: id_is_usable },
        Check { holds: "its Service is of its server's family", run: family_fits },
        Check { holds: "its Service is not being deleted", run: is_staying },
        Check { holds: "it has no Service yet", run: is_missing },
        Check { holds: "there is a name for its Service", run: has_name },
        Check { holds: "it had no address of another family", run: remembered_fits },
        Check { holds: "nobody else has its address", run: address_is_free },
    ],
    otherwise: |seen| {
        let message = match seen.remembered {
            Some(ip) => format!("the volume's Service is gone; it is made again with its address {ip}"),
            None => "the volume has no Service yet".to_owned(),
        };
        create(seen, seen.remembered, "ServiceMissing", message)
    },
};

fn create(seen: &Observation, address: Option<IpAddr>, reason: &'static str, message: String) -> Decision<Action> {
    let name = seen.free_name.clone().unwrap_or_default();
    Decision::new(Action::Create { name, address }, reason, message)
}

fn id_is_usable(seen: &Observation) -> Option<Decision<Action>> {
    (!is_label_value(&seen.id)).then(|| {
        let message = "the volume's id cannot be the value of a label, so that nothing of it could be found again";
        Decision::new(Action::Refuse, "IdUnusable", message)
    })
}

fn family_fits(seen: &Observation) -> Option<Decision<Action>> {
    let service = seen.service.as_ref()?;
    let ClusterAddress::Ip(ip) = service.address else { return None };
    let (ours, theirs) = (family(ip), family(seen.endpoint.ip()));
    (ours != theirs).then(|| {
        let message = format!(
            "the server at {} is {theirs}, but the address {ip} of Service {} is {ours} and clients hold on to it; let the server \
             use {ours}, or delete the Service once no pod uses the volume",
            seen.endpoint, service.key
        );
        Decision::new(Action::Refuse, "FamilyMismatch", message)
    })
}

fn is_staying(seen: &Observation) -> Option<Decision<Action>> {
    let service = seen.service.as_ref().filter(|service| service.being_deleted)?;
    let message = format!("Service {} is being deleted; another one is made when it is gone", service.key);
    Some(Decision::new(Action::Wait, "ServiceBeingDeleted", message))
}

fn is_missing(seen: &Observation) -> Option<Decision<Action>> {
    let service = seen.service.as_ref()?;
    Some(Decision::new(Action::Use, "ServiceThere", format!("the volume has the Service {}", service.key)))
}

fn has_name(seen: &Observation) -> Option<Decision<Action>> {
    seen.free_name.is_none().then(|| {
        let message = "every name that the volume's Service could have is taken by a Service that is not ours; delete or rename \
                       that one";
        Decision::new(Action::Refuse, "NameTaken", message)
    })
}

fn remembered_fits(seen: &Observation) -> Option<Decision<Action>> {
    let ip = seen.remembered.filter(|ip| family(*ip) != family(seen.endpoint.ip()))?;
    let message = format!(
        "the volume's address was {ip}, of another family than its server at {}, so that it gets a new one: clients that have it \
         mounted will see stale file handles until they mount it again",
        seen.endpoint
    );
    Some(create(seen, None, "AddressOfOtherFamily", message))
}

fn address_is_free(seen: &Observation) -> Option<Decision<Action>> {
    let ip = seen.remembered.filter(|_| seen.refused)?;
    let message = format!(
        "the volume's address {ip} is given to somebody else, so that it gets a new one: clients that have it mounted will see \
         stale file handles until they mount it again"
    );
    Some(create(seen, None, "AddressTaken", message))
}

/// What decides about the publication.
#[derive(Debug, Clone)]
pub struct Ready {
    /// Where the address is to lead; none if nowhere.
    pub endpoint: Option<SocketAddr>,
    /// The Service, as it was read after the last write.
    pub service: Option<Service>,
    /// All slices of the Service, as they were read after the last write.
    pub slices: Option<Vec<Slice>>,
    /// What is published.
    pub published: Option<Box<str>>,
    /// Whether the server answers; none if nobody asked.
    pub answers: Option<bool>,
}

/// What is done about the publication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Publication {
    /// Nothing.
    Leave,
    /// Not yet.
    Wait,
    /// This address is published.
    Publish(SocketAddr),
}

impl Publication {
    /// The action as a metric label.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Leave => "leave",
            Self::Wait => "wait",
            Self::Publish(_) => "publish",
        }
    }
}

/// The rules about the publication.
pub const PUBLISH: Chain<Ready, Publication> = Chain {
    checks: &[
        Check { holds: "the address leads to a server", run: is_served },
        Check { holds: "its Service was read back", run: service_is_verified },
        Check { holds: "its Service has an address", run: has_address },
        Check { holds: "its Service answers on NFS's port alone", run: port_is_right },
        Check { holds: "its Service leads only where its slice does", run: kind_is_right },
        Check { holds: "its slices were read back and lead to its server alone", run: target_is_verified },
        Check { holds: "the address is not published yet", run: is_news },
        Check { holds: "the server answers, where that is asked", run: answers },
    ],
    otherwise: |seen| match address(seen) {
        Some(address) => Decision::new(
            Publication::Publish(address),
            "Published",
            format!("the volume can be mounted from {address}"),
        ),
        // A rule above ends the chain in that case.
        None => Decision::new(Publication::Wait, "NoAddress", "the volume's Service has no address"),
    },
};

/// The address that clients use.
#[must_use]
pub fn address(seen: &Ready) -> Option<SocketAddr> {
    seen.service.as_ref().and_then(|service| service.socket(NFS_PORT))
}

/// Whether this text is that address. Texts are compared: clients get the text.
#[must_use]
pub fn is_text_of(text: Option<&str>, address: SocketAddr) -> bool {
    text.is_some_and(|text| text == address.to_string())
}

fn is_served(seen: &Ready) -> Option<Decision<Publication>> {
    seen.endpoint
        .is_none()
        .then(|| Decision::new(Publication::Leave, "NotServed", "the volume's address leads nowhere for now"))
}

fn service_is_verified(seen: &Ready) -> Option<Decision<Publication>> {
    let there = seen.service.as_ref().is_some_and(|service| !service.being_deleted);
    (!there)
        .then(|| Decision::new(Publication::Wait, "ServiceUnverified", "the volume's Service cannot be read back yet"))
}

fn has_address(seen: &Ready) -> Option<Decision<Publication>> {
    address(seen)
        .is_none()
        .then(|| Decision::new(Publication::Wait, "NoAddress", "the volume's Service has no address of its own"))
}

fn port_is_right(seen: &Ready) -> Option<Decision<Publication>> {
    let right = |service: &Service| match service.ports.as_slice() {
        [port] => port.port == i32::from(NFS_PORT) && &*port.name == PORT_NAME && &*port.protocol == "TCP",
        _ => false,
    };
    let wrong = seen.service.as_ref().is_some_and(|service| !right(service));
    wrong.then(|| {
        Decision::new(Publication::Wait, "WrongPort", "the volume's Service does not answer on TCP port 2049 alone")
    })
}

fn kind_is_right(seen: &Ready) -> Option<Decision<Publication>> {
    let wrong = |service: &Service| &*service.kind != "ClusterIP" || service.has_selector || service.node_local;
    seen.service.as_ref().is_some_and(wrong).then(|| {
        let message = "the volume's Service is not of type ClusterIP, has a selector, or is for one node's pods only";
        Decision::new(Publication::Wait, "WrongKind", message)
    })
}

fn target_is_verified(seen: &Ready) -> Option<Decision<Publication>> {
    let verified = seen.slices.as_ref().is_some_and(|slices| {
        let mut targets: Vec<SocketAddr> = slices.iter().flat_map(Slice::leads_to).collect();
        targets.sort_unstable();
        targets.dedup();
        matches!(targets[..], [only] if Some(only) == seen.endpoint)
    });
    (!verified).then(|| {
        let message = "the volume's Service does not lead to its server alone yet";
        Decision::new(Publication::Wait, "TargetUnverified", message)
    })
}

fn is_news(seen: &Ready) -> Option<Decision<Publication>> {
    let address = address(seen)?;
    is_text_of(seen.published.as_deref(), address).then(|| {
        Decision::new(Publication::Leave, "AlreadyPublished", format!("the volume can be mounted from {address}"))
    })
}

fn answers(seen: &Ready) -> Option<Decision<Publication>> {
    (seen.answers == Some(false)).then(|| {
        let message = "the volume's server does not answer yet; its address is published when it does";
        Decision::new(Publication::Wait, "NotAnswering", message)
    })
}

#[cfg(test)]
mod tests;
