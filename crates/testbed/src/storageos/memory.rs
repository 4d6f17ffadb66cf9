//! What the server remembers of what it was asked and of what it said.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use jiff::Timestamp;

use super::Request;

/// More than any test asks for; a demo that runs for days must not grow for ever.
const KEPT_REQUESTS: usize = 200_000;

/// For how long the API has said the same of a volume's endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// `nfs.serviceEndpoint` as it was told, or none if none was.
    pub endpoint: Option<String>,
    /// When it was told first: when the answer was handed to the connection.
    pub first: Timestamp,
    /// When it was told last before something else was.
    pub last: Timestamp,
}

#[derive(Debug, Default)]
pub(super) struct Memory {
    requests: VecDeque<Request>,
    forgotten: u64,
    reports: HashMap<String, Vec<Report>>,
}

impl Memory {
    /// Notes a request and returns the number that its answer is noted under.
    pub(super) fn arrived(&mut self, request: Request) -> u64 {
        if self.requests.len() == KEPT_REQUESTS {
            self.requests.pop_front();
            self.forgotten += 1;
        }
        self.requests.push_back(request);
        self.forgotten + self.requests.len() as u64 - 1
    }

    pub(super) fn answered(&mut self, number: u64, status: Option<u16>, told: usize) {
        let index = number.checked_sub(self.forgotten).and_then(|index| usize::try_from(index).ok());
        if let Some(request) = index.and_then(|index| self.requests.get_mut(index)) {
            (request.status, request.told) = (status, told);
            request.took = Duration::try_from(Timestamp::now().duration_since(request.at)).ok();
        }
    }

    pub(super) fn requests(&self) -> impl Iterator<Item = &Request> {
        self.requests.iter()
    }

    /// Notes what an answer said of a volume.
    pub(super) fn told(&mut self, volume: &str, endpoint: Option<&str>) {
        let now = Timestamp::now();
        match self.reports.get_mut(volume).and_then(|reports| reports.last_mut()) {
            Some(report) if report.endpoint.as_deref() == endpoint => report.last = now,
            _ => {
                let report = Report { endpoint: endpoint.map(Into::into), first: now, last: now };
                self.reports.entry(volume.to_owned()).or_default().push(report);
            }
        }
    }

    pub(super) fn reports(&self, volume: &str) -> Vec<Report> {
        self.reports.get(volume).cloned().unwrap_or_default()
    }
}
