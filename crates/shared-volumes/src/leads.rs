//! Where addresses lead, or may, by what we wrote. The store of slices, which is older, says the rest.

use std::{
    collections::{BTreeSet, HashMap},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use crate::source::VolumeId;

/// A write that had no answer is carried out by then, or never: API servers give up after a minute.
const LATEST: Duration = Duration::from_secs(90);

/// Which volume's address leads where.
#[derive(Debug, Default)]
pub(crate) struct Leads {
    to: HashMap<VolumeId, BTreeSet<SocketAddr>>,
    by_endpoint: HashMap<SocketAddr, BTreeSet<VolumeId>>,
    /// Writes that had no answer and may still be carried out, until something else was written or nobody can be that late.
    unanswered: HashMap<VolumeId, (SocketAddr, Instant)>,
}

impl Leads {
    /// Another volume whose address leads there, or may.
    pub(crate) fn other(&self, endpoint: SocketAddr, except: &str, now: Instant) -> Option<VolumeId> {
        let known = self.by_endpoint.get(&endpoint).into_iter().flatten().find(|id| ***id != *except);
        let may = |(id, (to, until)): &(&VolumeId, &(SocketAddr, Instant))| {
            ***id != *except && *to == endpoint && now < *until
        };
        known.cloned().or_else(|| self.unanswered.iter().find(may).map(|(id, _)| Arc::clone(id)))
    }

    /// The address of a volume is about to lead there. Whether that is news.
    pub(crate) fn will(&mut self, id: &VolumeId, endpoint: SocketAddr) -> bool {
        self.by_endpoint.entry(endpoint).or_default().insert(Arc::clone(id));
        self.to.entry(Arc::clone(id)).or_default().insert(endpoint)
    }

    /// It does not lead there after all: the write was refused.
    pub(crate) fn does_not(&mut self, id: &str, endpoint: SocketAddr) {
        if let Some(to) = self.to.get_mut(id) {
            to.remove(&endpoint);
            if to.is_empty() {
                self.to.remove(id);
            }
        }
        self.unlist(id, endpoint);
    }

    /// It leads there alone, or nowhere. Returns the endpoints that it has left.
    pub(crate) fn settle(&mut self, id: &str, endpoint: Option<SocketAddr>) -> Vec<SocketAddr> {
        let before = self.to.remove(id).unwrap_or_default();
        let left: Vec<SocketAddr> = before.into_iter().filter(|before| Some(*before) != endpoint).collect();
        for endpoint in &left {
            self.unlist(id, *endpoint);
        }
        if let Some(endpoint) = endpoint {
            self.will(&id.into(), endpoint);
        }
        left
    }

    /// Where it leads, or may.
    pub(crate) fn of(&self, id: &str) -> Vec<SocketAddr> {
        self.to.get(id).into_iter().flatten().copied().collect()
    }

    /// A write that lets it lead there had no answer.
    pub(crate) fn unanswered(&mut self, id: &VolumeId, endpoint: SocketAddr, now: Instant) {
        self.unanswered.insert(Arc::clone(id), (endpoint, now + LATEST));
    }

    /// Something was written, so that whatever had no answer is refused by now.
    pub(crate) fn answered(&mut self, id: &str) {
        self.unanswered.remove(id);
    }

    /// What had no answer for so long is not carried out any more.
    pub(crate) fn too_late(&mut self, now: Instant) {
        self.unanswered.retain(|_, (_, until)| now < *until);
    }

    fn unlist(&mut self, id: &str, endpoint: SocketAddr) {
        if let Some(ids) = self.by_endpoint.get_mut(&endpoint) {
            ids.remove(id);
            if ids.is_empty() {
                self.by_endpoint.remove(&endpoint);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 1, 0, 4], port))
    }

    fn other(leads: &Leads, port: u16, except: &str) -> Option<String> {
        leads.other(at(port), except, Instant::now()).map(|id| id.to_string())
    }

    #[test]
    fn who_leads_to_an_endpoint_is_found_until_it_has_left() {
        let (mut leads, one) = (Leads::default(), VolumeId::from("v1"));
        assert!(leads.will(&one, at(1)) && !leads.will(&one, at(1)) && leads.will(&one, at(2)));
        assert_eq!((other(&leads, 1, "v2").as_deref(), other(&leads, 1, "v1")), (Some("v1"), None));
        assert_eq!(leads.of("v1"), [at(1), at(2)]);
        assert_eq!(leads.settle("v1", Some(at(2))), [at(1)]);
        assert_eq!((other(&leads, 1, "v2"), other(&leads, 2, "v2").as_deref()), (None, Some("v1")));
        assert_eq!(leads.settle("v1", None), [at(2)]);
        assert!(leads.of("v1").is_empty() && other(&leads, 2, "v2").is_none());
        assert!(leads.to.is_empty() && leads.by_endpoint.is_empty(), "nothing is left of what is gone");
    }

    #[test]
    fn a_refused_write_leads_nowhere() {
        let (mut leads, one) = (Leads::default(), VolumeId::from("v1"));
        leads.will(&one, at(1));
        leads.will(&one, at(2));
        leads.does_not("v1", at(2));
        assert_eq!((leads.of("v1"), other(&leads, 2, "v2")), (vec![at(1)], None));
        leads.does_not("v1", at(1));
        assert!(leads.to.is_empty() && leads.by_endpoint.is_empty());
    }

    #[test]
    fn a_write_without_an_answer_counts_until_it_is_too_late() {
        let (mut leads, one, now) = (Leads::default(), VolumeId::from("v1"), Instant::now());
        leads.unanswered(&one, at(1), now);
        let found = |leads: &Leads, after: Duration| leads.other(at(1), "v2", now + after).is_some();
        assert!(found(&leads, Duration::from_secs(89)) && !found(&leads, LATEST));
        assert!(leads.other(at(1), "v1", now).is_none() && leads.other(at(2), "v2", now).is_none());
        leads.too_late(now + Duration::from_secs(89));
        assert!(found(&leads, Duration::ZERO));
        leads.too_late(now + LATEST);
        assert!(leads.unanswered.is_empty());
        leads.unanswered(&one, at(1), now);
        leads.answered("v1");
        assert!(leads.unanswered.is_empty());
    }
}
