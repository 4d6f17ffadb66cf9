//! What must be true of all that was ever written.
//!
//! The criteria do not depend on how fast this machine is. What an operator can know is counted from the next list that it asks for:
//! by then it has taken in the one before.

use std::collections::{BTreeSet, HashMap};

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use testbed::{
    AuditedRequest, Revision,
    storageos::{Report, Request},
};

/// The label that says whose an object is.
pub(crate) const VOLUME_ID: &str = "storageos.com/volume-id";

/// What is known of one volume in the end.
pub(crate) struct Volume {
    pub(crate) id: String,
    pub(crate) namespace: String,
    pub(crate) claim: String,
    /// Where its server was, in this order.
    pub(crate) past: Vec<Option<String>>,
    /// What the API said about that.
    pub(crate) reports: Vec<Report>,
    /// The addresses that were published, and when.
    pub(crate) published: Vec<(Timestamp, String)>,
}

/// Everything that was written down.
pub(crate) struct Record {
    pub(crate) volumes: Vec<Volume>,
    pub(crate) slices: Vec<Revision>,
    pub(crate) services: Vec<Revision>,
    /// The lists of volumes that somebody asked for.
    pub(crate) lists: Vec<Request>,
    /// What the API server was asked about slices.
    pub(crate) audit: Vec<AuditedRequest>,
    /// When an operator began that knew nothing; none if several took turns, of which nobody can tell what each knew.
    pub(crate) starts: Option<Vec<Timestamp>>,
    /// How late an operator may be with what it knows.
    pub(crate) slack: SignedDuration,
}

/// All that is wrong.
pub(crate) fn judge(record: &Record) -> Vec<String> {
    let mut judge = Judge {
        record,
        index: record.volumes.iter().enumerate().map(|(index, volume)| (volume.id.as_str(), index)).collect(),
        leads: HashMap::new(),
        progress: vec![0; record.volumes.len()],
        wrong: Vec::new(),
    };
    for revision in &record.slices {
        judge.slice(revision);
    }
    judge.addresses();
    judge.publications();
    judge.wrong
}

struct Judge<'a> {
    record: &'a Record,
    index: HashMap<&'a str, usize>,
    /// Which slice leads where, and whose it is.
    leads: HashMap<&'a str, (usize, String)>,
    /// How far the slices of a volume have come in its past.
    progress: Vec<usize>,
    wrong: Vec<String>,
}

impl<'a> Judge<'a> {
    fn slice(&mut self, revision: &'a Revision) {
        let before = self.leads.remove(revision.key.as_str());
        let Some(object) = &revision.object else { return };
        let (number, key) = (revision.number, &revision.key);
        let to = leads_to(object);
        let Some(index) = self.volume_of(object) else {
            if !to.is_empty() {
                self.wrong.push(format!("{number}: slice {key} is nobody's and led to {to:?}"));
            }
            return;
        };
        let Volume { id, claim, .. } = &self.record.volumes[index];
        let [place] = to.as_slice() else {
            if !to.is_empty() {
                self.wrong.push(format!("{number}: slice {key} led to {to:?} at once"));
            }
            return;
        };
        let told = format!("{number}: the address of {claim} ({id}) was led to {place}");
        if let Some((other, _)) = self.leads.values().find(|(_, there)| there == place) {
            let other = &self.record.volumes[*other];
            self.wrong.push(format!("{told}, where the address of {} ({}) led", other.claim, other.id));
        }
        if before.as_ref().is_none_or(|(_, before)| before != place) {
            self.redirected(index, place, revision, &told);
        }
        self.leads.insert(key, (index, place.clone()));
    }

    fn redirected(&mut self, index: usize, place: &str, revision: &Revision, told: &str) {
        let volume = &self.record.volumes[index];
        let rest = &volume.past[self.progress[index]..];
        if let Some(further) = rest.iter().position(|at| at.as_deref() == Some(place)) {
            self.progress[index] += further;
        } else {
            let now = &volume.past[self.progress[index]];
            self.wrong.push(format!("{told}, but its server was never there after {now:?}: {:?}", volume.past));
        }
        let was_told = |report: &&Report| report.endpoint.as_deref() == Some(place) && report.first <= revision.heard;
        if volume.reports.iter().filter(was_told).count() == 0 {
            self.wrong.push(format!("{told}, of which nobody had been told: {:?}", volume.reports));
        }
        if let Some(start) = self.start(revision.heard) {
            self.old_news(volume, place, revision.heard, start, told);
        }
    }

    /// When the operator began that wrote at this time; none if that cannot be said.
    fn start(&self, at: Timestamp) -> Option<Timestamp> {
        self.record.starts.as_ref()?.iter().rev().find(|start| **start <= at).copied()
    }

    /// Whether the operator knew better: its server was elsewhere by then, or another server was there.
    fn old_news(&mut self, volume: &Volume, place: &str, at: Timestamp, start: Timestamp, told: &str) {
        let is_there = |report: &Report| report.endpoint.as_deref() == Some(place);
        let latest = volume.reports.iter().rposition(|report| is_there(report) && report.first <= at);
        let later = volume.reports.iter().skip(latest.map_or(0, |latest| latest + 1));
        for report in later.filter(|report| report.first <= at && report.last >= start) {
            if let Some(late) = self.too_late(&volume.namespace, report.first.max(start), at) {
                self.wrong.push(format!("{told}, {late} after {:?} was known: {report:?}", report.endpoint));
                return;
            }
        }
        for other in self.record.volumes.iter().filter(|other| other.id != volume.id) {
            let until = |index: usize| other.reports.get(index + 1).is_none_or(|next| at < next.first);
            let reports = other.reports.iter().enumerate().filter(|(index, report)| is_there(report) && until(*index));
            for (_, report) in reports.filter(|(_, report)| report.first <= at && report.last >= start) {
                if let Some(late) = self.too_late(&other.namespace, report.first.max(start), at) {
                    self.wrong.push(format!("{told}, {late} after {} was known to be there: {report:?}", other.claim));
                }
            }
        }
    }

    /// How long ago the operator must have taken in what was told of a namespace at a time, if that is too long.
    fn too_late(&self, namespace: &str, told: Timestamp, at: Timestamp) -> Option<SignedDuration> {
        let lists = || self.record.lists.iter().filter(|list| list.namespace.as_deref() == Some(namespace));
        let said = lists().find(|list| list.at >= told && list.told > 0)?;
        let ended = said.at.checked_add(SignedDuration::try_from(said.took?).ok()?).ok()?;
        let known = lists().find(|list| list.at >= ended)?.at;
        let late = at.duration_since(known);
        (late > self.record.slack).then_some(late)
    }

    fn volume_of(&mut self, object: &Value) -> Option<usize> {
        let id = object["metadata"]["labels"][VOLUME_ID].as_str()?;
        self.index.get(id).copied()
    }

    /// No address has ever changed.
    fn addresses(&mut self) {
        let mut addresses: Vec<BTreeSet<&str>> = vec![BTreeSet::new(); self.record.volumes.len()];
        for object in self.record.services.iter().filter_map(|revision| revision.object.as_ref()) {
            if let Some(index) = self.volume_of(object) {
                addresses[index].extend(object["spec"]["clusterIP"].as_str());
            }
        }
        for (volume, addresses) in self.record.volumes.iter().zip(addresses) {
            let published: BTreeSet<&str> = volume.published.iter().map(|(_, address)| address.as_str()).collect();
            let wanted: BTreeSet<String> = addresses.iter().map(|ip| format!("{ip}:2049")).collect();
            if addresses.len() != 1 || !published.iter().copied().eq(wanted.iter().map(String::as_str)) {
                self.wrong.push(format!("{} had the addresses {addresses:?}; published: {published:?}", volume.claim));
            }
        }
    }

    /// Nothing was published before it was read back.
    fn publications(&mut self) {
        let mut judged = 0;
        for volume in &self.record.volumes {
            let slice = format!("{}-nfs-ipv4", volume.claim);
            let of_service = format!("service-name%3D{}", volume.claim);
            let about = |request: &&AuditedRequest| {
                request.object_ref.as_ref().is_some_and(|object| object.namespace == volume.namespace)
            };
            let ours = || self.record.audit.iter().filter(about);
            let is_made = |request: &&AuditedRequest| {
                request.verb == "create" && request.object_ref.as_ref().is_some_and(|object| object.name == slice)
            };
            let made = ours().filter(is_made).map(|request| request.request_received_timestamp).min();
            let (Some(made), Some((published, _))) = (made, volume.published.first()) else { continue };
            judged += 1;
            let is_read = |request: &&AuditedRequest| {
                let at = request.request_received_timestamp;
                let is_list = request.verb == "list" && request.request_uri.ends_with(&of_service);
                is_list && at > made && at < *published
            };
            if ours().filter(is_read).count() == 0 {
                self.wrong.push(format!(
                    "{} was published at {published}; it was made at {made} and not read back",
                    volume.claim
                ));
            }
        }
        // What the API server was doing when it was killed is in no log.
        if judged * 10 < self.record.volumes.len() * 9 {
            self.wrong.push(format!("only {judged} publications could be judged"));
        }
    }
}

/// Where a slice leads.
pub(crate) fn leads_to(slice: &Value) -> Vec<String> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let ready = |endpoint: &Value| endpoint["conditions"]["ready"].as_bool().unwrap_or(true);
    let endpoints = list(&slice["endpoints"]).into_iter().filter(ready);
    let addresses = endpoints.flat_map(|endpoint| list(&endpoint["addresses"]));
    let ports = list(&slice["ports"]);
    let ports = ports.iter().map(|port| &port["port"]);
    let pairs = addresses.flat_map(|address| {
        let address = address.as_str().unwrap_or_default().to_owned();
        ports.clone().map(move |port| format!("{address}:{port}"))
    });
    pairs.collect()
}
