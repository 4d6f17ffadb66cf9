//! Where a Service leads: to one server, or nowhere, and never to two.
//!
//! | what is seen                                                              | decision                     |
//! |---------------------------------------------------------------------------|------------------------------|
//! | slices lead elsewhere that Kubernetes makes of an Endpoints object        | stop it: `MirroredElsewhere` |
//! | slices that are not ours lead elsewhere                                   | remove: `LeadsElsewhere`     |
//! | our slice is missing                                                      | write: `SliceMissing`        |
//! | our slice is not as it should be                                          | write: `SliceWrong`          |
//! | Kubernetes makes slices of an Endpoints object, to the same end           | stop it: `Mirrored`          |
//! | there are other slices                                                    | remove: `NotAlone`           |
//! | otherwise                                                                 | settled: `LeadsThere`, `LeadsNowhere` |
//!
//! Each step is followed by another look. What leads elsewhere is removed before our own slice is written, so that a Service that
//! the original left behind never leads to two servers; what leads to the same server is removed after it, so that it never
//! leads to none.

use std::{net::SocketAddr, sync::Arc};

use cluster::{
    Service, Slice,
    decision::{Chain, Check, Decision},
    slice::MANAGED_BY,
};

use crate::{
    address::family,
    names::{self, MANAGER, MIRRORING},
    objects,
    source::SharedVolume,
};

/// What the rules look at.
#[derive(Debug, Clone)]
pub struct Observation {
    /// The volume.
    pub volume: Arc<SharedVolume>,
    /// Its Service.
    pub service: Arc<Service>,
    /// All slices of that Service.
    pub slices: Vec<Slice>,
    /// Whether Kubernetes makes slices of an Endpoints object.
    pub mirrored: bool,
    /// Where the Service is to lead; nowhere if absent.
    pub endpoint: Option<SocketAddr>,
}

/// What is done.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Nothing: it leads where it should.
    Settled,
    /// Our slice is written: changed if it is there.
    Write(Option<Box<Slice>>),
    /// The Endpoints object gets the label by which it is not mirrored.
    StopMirroring,
    /// These slices are removed.
    Remove(Vec<Slice>),
}

impl Action {
    /// The action as a metric label.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Settled => "settled",
            Self::Write(_) => "write",
            Self::StopMirroring => "stop-mirroring",
            Self::Remove(_) => "remove",
        }
    }
}

/// The rules.
pub const WAY: Chain<Observation, Action> = Chain {
    checks: &[
        Check { holds: "no other slice leads elsewhere", run: others_lead_there },
        Check { holds: "our slice is there and as it should be", run: ours_is_right },
        Check { holds: "there is no other slice", run: is_alone },
    ],
    otherwise: |seen| match seen.endpoint {
        Some(endpoint) => {
            Decision::new(Action::Settled, "LeadsThere", format!("its Service leads to {endpoint} alone"))
        }
        None => Decision::new(Action::Settled, "LeadsNowhere", "its Service leads nowhere"),
    },
};

/// Our slice among those of the Service.
fn ours(seen: &Observation) -> Option<&Slice> {
    let families = seen.endpoint.map_or_else(|| vec!["IPv4", "IPv6"], |endpoint| vec![family(endpoint.ip())]);
    let names = families.iter().map(|family| names::slice(seen.service.key.name(), family));
    names.into_iter().find_map(|name| seen.slices.iter().find(|slice| slice.key.name() == name))
}

/// Whether we look after a slice: it says so, or it is called as ours is.
#[must_use]
pub fn is_ours(slice: &Slice) -> bool {
    let named = |service: cluster::ObjectKey| slice.key.name() == names::slice(service.name(), &slice.family);
    is_managed_by(slice, MANAGER) || slice.service().is_some_and(named)
}

fn is_managed_by(slice: &Slice, manager: &str) -> bool {
    slice.labels.get(MANAGED_BY).is_some_and(|found| found == manager)
}

fn others(seen: &Observation) -> impl Iterator<Item = &Slice> {
    let ours = ours(seen).map(|slice| &slice.key);
    seen.slices.iter().filter(move |slice| Some(&slice.key) != ours)
}

fn others_lead_there(seen: &Observation) -> Option<Decision<Action>> {
    let elsewhere = |slice: &&Slice| slice.leads_to().iter().any(|target| Some(*target) != seen.endpoint);
    let wrong: Vec<&Slice> = others(seen).filter(elsewhere).collect();
    remove(seen, wrong, ["MirroredElsewhere", "LeadsElsewhere"])
}

fn ours_is_right(seen: &Observation) -> Option<Decision<Action>> {
    match (ours(seen), seen.endpoint) {
        (Some(slice), endpoint) => {
            objects::repair_slice(slice, &seen.volume, &seen.service, endpoint)?;
            let action = Action::Write(Some(Box::new(slice.clone())));
            Some(Decision::new(action, "SliceWrong", format!("slice {} is not as it should be", slice.key)))
        }
        (None, Some(endpoint)) => {
            let message = format!("Service {} has no slice of ours that leads to {endpoint}", seen.service.key);
            Some(Decision::new(Action::Write(None), "SliceMissing", message))
        }
        (None, None) => None,
    }
}

fn is_alone(seen: &Observation) -> Option<Decision<Action>> {
    remove(seen, others(seen).collect(), ["Mirrored", "NotAlone"])
}

/// Gets rid of slices; of those that Kubernetes would make anew, by letting it.
fn remove(seen: &Observation, slices: Vec<&Slice>, [mirrored, foreign]: [&'static str; 2]) -> Option<Decision<Action>> {
    let first = slices.first()?;
    let key = &first.key;
    if seen.mirrored && slices.iter().any(|slice| is_managed_by(slice, MIRRORING)) {
        let message = format!("slice {key} is made of an Endpoints object, which is no longer to be mirrored");
        return Some(Decision::new(Action::StopMirroring, mirrored, message));
    }
    let message = format!("slice {key} is not ours, but belongs to our Service; it is removed");
    Some(Decision::new(Action::Remove(slices.into_iter().cloned().collect()), foreign, message))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

    use super::*;
    use crate::{names::VOLUME_ID, sample};

    const HERE: &str = "10.1.0.4";

    fn ours_at(ip: &str) -> Slice {
        let owner = OwnerReference { kind: "Service".into(), uid: "uid-of-files".into(), ..OwnerReference::default() };
        Slice { owners: vec![owner], ..sample::slice("files", ip, 25_705) }
    }

    fn other_at(ip: &str, manager: &str) -> Slice {
        let mut slice = sample::slice("files", ip, 25_705);
        slice.key = cluster::ObjectKey::new("ci", &format!("files-{manager}"));
        slice.labels.insert(MANAGED_BY.into(), manager.into());
        slice
    }

    fn decided(slices: &[Slice], mirrored: bool, endpoint: Option<&str>) -> (&'static str, &'static str) {
        let seen = Observation {
            volume: Arc::new(sample::volume("v1")),
            service: Arc::new(sample::service("files", "10.0.0.7", &[(VOLUME_ID, "v1")])),
            slices: slices.to_vec(),
            mirrored,
            endpoint: endpoint.map(|ip| format!("{ip}:25705").parse().unwrap()),
        };
        let decision = WAY.decide(&seen);
        (decision.action.name(), decision.reason)
    }

    #[test]
    fn each_row_of_the_table_decides_as_it_says() {
        let here = Some(HERE);
        let (mirror, stranger) = (other_at("10.1.0.9", MIRRORING), other_at("10.1.0.9", "tenant"));
        let (same, same_stranger) = (other_at(HERE, MIRRORING), other_at(HERE, "tenant"));
        let ours = ours_at(HERE);
        let both = |other: &Slice| vec![ours.clone(), other.clone()];
        for (slices, mirrored, endpoint, expected) in [
            (vec![mirror.clone()], true, here, ("stop-mirroring", "MirroredElsewhere")),
            (vec![mirror.clone()], false, here, ("remove", "LeadsElsewhere")),
            (both(&mirror), true, here, ("stop-mirroring", "MirroredElsewhere")),
            (both(&stranger), true, here, ("remove", "LeadsElsewhere")),
            (vec![], false, here, ("write", "SliceMissing")),
            (vec![same.clone()], true, here, ("write", "SliceMissing")),
            (vec![ours_at("10.1.0.5")], false, here, ("write", "SliceWrong")),
            (both(&same), true, here, ("stop-mirroring", "Mirrored")),
            (both(&same), false, here, ("remove", "NotAlone")),
            (both(&same_stranger), false, here, ("remove", "NotAlone")),
            (vec![ours.clone()], false, here, ("settled", "LeadsThere")),
            (vec![ours.clone()], false, None, ("write", "SliceWrong")),
            (vec![same.clone()], true, None, ("stop-mirroring", "MirroredElsewhere")),
            (vec![], false, None, ("settled", "LeadsNowhere")),
        ] {
            assert_eq!(decided(&slices, mirrored, endpoint), expected, "{slices:?} {mirrored} {endpoint:?}");
        }
    }

    #[test]
    fn a_slice_of_our_name_is_ours_whoever_says_otherwise() {
        let mut renamed = ours_at(HERE);
        renamed.labels.insert(MANAGED_BY.into(), "tenant".into());
        assert!(is_ours(&renamed));
        assert_eq!(decided(&[renamed], false, Some(HERE)), ("write", "SliceWrong"));
        assert!(!is_ours(&other_at(HERE, "tenant")));
    }
}
