//! What the API server was asked, by whom, and what it answered, read from its audit log.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufRead, BufReader, Seek, SeekFrom},
    path::PathBuf,
};

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde::Deserialize;

/// The audit log, narrowed down step by step: `audit_log().user("…").verb("create").requests()`.
#[derive(Debug, Clone)]
pub struct AuditLog {
    file: PathBuf,
    /// How many bytes at the start of the file are skipped.
    skipped: u64,
    user: Option<String>,
    user_agent: Option<String>,
    verb: Option<String>,
    resource: Option<String>,
    namespace: Option<String>,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
}

/// One request that the API server has answered. A watch is answered when it ends.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditedRequest {
    /// `ResponseComplete`, or `ResponseStarted` for a watch that goes on, or `Panic`.
    pub stage: String,
    /// The path and query.
    #[serde(rename = "requestURI")]
    pub request_uri: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verb: String,
    /// Who asked.
    pub user: AuditedUser,
    /// The program that asked, as it named itself.
    #[serde(default)]
    pub user_agent: String,
    /// What it was about, if it was about an object or a list of objects.
    #[serde(default)]
    pub object_ref: Option<AuditedObject>,
    /// How it was answered.
    #[serde(default)]
    pub response_status: Option<AuditedResponse>,
    /// What admission had to say about it.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
    /// When it arrived.
    pub request_received_timestamp: Timestamp,
    /// When this stage was reached: for `ResponseComplete`, when the answer was out.
    pub stage_timestamp: Timestamp,
}

/// Who made a request.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct AuditedUser {
    /// The user name; `system:serviceaccount:<namespace>:<name>` for service accounts.
    #[serde(default)]
    pub username: String,
    /// The groups.
    #[serde(default)]
    pub groups: Vec<String>,
}

/// What a request was about.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AuditedObject {
    /// The plural, `persistentvolumeclaims`.
    pub resource: String,
    /// `status`, `binding` and so on; empty for the object itself.
    pub subresource: String,
    /// Empty for cluster-scoped objects and lists over all namespaces.
    pub namespace: String,
    /// Empty for lists, and for objects whose name the server makes up.
    pub name: String,
    /// Empty for the core group.
    pub api_group: String,
}

/// How a request was answered.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct AuditedResponse {
    /// The HTTP status.
    #[serde(default)]
    pub code: u16,
    /// What was said about a failure.
    #[serde(default)]
    pub message: String,
}

impl AuditedRequest {
    /// The HTTP status of the answer.
    #[must_use]
    pub fn code(&self) -> Option<u16> {
        self.response_status.as_ref().map(|response| response.code)
    }
}

impl AuditLog {
    pub(crate) fn read_from(file: PathBuf) -> Self {
        Self {
            file,
            skipped: 0,
            user: None,
            user_agent: None,
            verb: None,
            resource: None,
            namespace: None,
            since: None,
            until: None,
        }
    }

    /// Only requests that are answered from now on. Unlike [`Self::since`] this also spares reading the others, which counts when
    /// there are many.
    pub fn from_now(mut self) -> Result<Self> {
        let file = self.file.metadata().with_context(|| format!("cannot read {}", self.file.display()))?;
        self.skipped = file.len();
        Ok(self)
    }

    /// Only requests of this user.
    #[must_use]
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Only requests of programs whose user agent starts like this.
    #[must_use]
    pub fn user_agent(mut self, prefix: impl Into<String>) -> Self {
        self.user_agent = Some(prefix.into());
        self
    }

    /// Only requests with this verb.
    #[must_use]
    pub fn verb(mut self, verb: impl Into<String>) -> Self {
        self.verb = Some(verb.into());
        self
    }

    /// Only requests about this resource, named in the plural.
    #[must_use]
    pub fn resource(mut self, resource: impl Into<String>) -> Self {
        self.resource = Some(resource.into());
        self
    }

    /// Only requests in this namespace.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// Only requests that arrived at this time or later.
    #[must_use]
    pub fn since(mut self, time: Timestamp) -> Self {
        self.since = Some(time);
        self
    }

    /// Only requests that arrived before this time.
    #[must_use]
    pub fn until(mut self, time: Timestamp) -> Self {
        self.until = Some(time);
        self
    }

    /// The requests that were answered so far and match, in the order in which they were answered.
    ///
    /// The log is written when the answer is out, so a request may show up a moment after its caller has the answer.
    pub fn requests(&self) -> Result<Vec<AuditedRequest>> {
        let mut file = File::open(&self.file).with_context(|| format!("cannot read {}", self.file.display()))?;
        file.seek(SeekFrom::Start(self.skipped))?;
        let mut lines = BufReader::new(file);
        let (mut line, mut requests) = (String::new(), Vec::new());
        // A line without its end is one that the API server is writing just now.
        while lines.read_line(&mut line)? > 0 && line.ends_with('\n') {
            let request = serde_json::from_str::<AuditedRequest>(&line)
                .with_context(|| format!("{} holds a line that is no audit event: {line}", self.file.display()))?;
            if request.stage == "ResponseComplete" && self.matches(&request) {
                requests.push(request);
            }
            line.clear();
        }
        Ok(requests)
    }

    fn matches(&self, request: &AuditedRequest) -> bool {
        let object = request.object_ref.as_ref();
        let is = |wanted: &Option<String>, found: Option<&str>| wanted.is_none() || wanted.as_deref() == found;
        let time = request.request_received_timestamp;
        is(&self.user, Some(&request.user.username))
            && is(&self.verb, Some(&request.verb))
            && is(&self.resource, object.map(|object| object.resource.as_str()))
            && is(&self.namespace, object.map(|object| object.namespace.as_str()))
            && self.user_agent.as_deref().is_none_or(|prefix| request.user_agent.starts_with(prefix))
            && self.since.is_none_or(|since| time >= since)
            && self.until.is_none_or(|until| time < until)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const CREATE: &str = r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"1","stage":"ResponseComplete","requestURI":"/api/v1/namespaces/a/pods","verb":"create","user":{"username":"system:serviceaccount:a:b","groups":["system:authenticated"]},"sourceIPs":["127.0.0.1"],"userAgent":"claimkeeper/0.1.0","objectRef":{"resource":"pods","namespace":"a","name":"p","apiVersion":"v1"},"responseStatus":{"metadata":{},"status":"Failure","code":403},"requestReceivedTimestamp":"2026-11-15T10:00:01.5Z","stageTimestamp":"2026-11-15T10:00:02Z"}"#;
    const LIST: &str = r#"{"stage":"ResponseComplete","requestURI":"/version","verb":"get","user":{"username":"admin"},"responseStatus":{"code":200},"requestReceivedTimestamp":"2026-11-15T10:00:03Z","stageTimestamp":"2026-11-15T10:00:03Z"}"#;

    fn log(content: &str) -> (tempfile::TempDir, AuditLog) {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("audit.log");
        fs::write(&file, content).unwrap();
        (directory, AuditLog::read_from(file))
    }

    #[test]
    fn each_filter_keeps_what_it_names_and_drops_the_rest() {
        let (_directory, log) = log(&format!("{CREATE}\n{LIST}\n"));
        let time = |text: &str| text.parse::<Timestamp>().unwrap();
        let count = |log: AuditLog| log.requests().unwrap().len();
        assert_eq!(count(log.clone()), 2);
        assert_eq!(count(log.clone().user("system:serviceaccount:a:b")), 1);
        assert_eq!(count(log.clone().verb("create")), 1);
        assert_eq!(count(log.clone().resource("pods")), 1);
        assert_eq!(count(log.clone().resource("nodes")), 0);
        assert_eq!(count(log.clone().namespace("a")), 1);
        assert_eq!(count(log.clone().user_agent("claimkeeper/")), 1);
        assert_eq!(count(log.clone().since(time("2026-11-15T10:00:03Z"))), 1);
        assert_eq!(count(log.clone().until(time("2026-11-15T10:00:01.5Z"))), 0);
        assert_eq!(log.verb("create").requests().unwrap()[0].code(), Some(403));
    }

    #[test]
    fn what_was_answered_before_now_is_not_read() {
        let (directory, log) = log(&format!("{CREATE}\n"));
        let log = log.from_now().unwrap();
        assert_eq!(log.requests().unwrap(), []);
        fs::write(directory.path().join("audit.log"), format!("{CREATE}\n{LIST}\n")).unwrap();
        assert_eq!(log.requests().unwrap()[0].verb, "get");
    }

    #[test]
    fn a_line_that_is_being_written_is_left_for_the_next_reader() {
        let (_directory, log) = log(&format!("{CREATE}\n{}", &LIST[..40]));
        assert_eq!(log.requests().unwrap().len(), 1);
    }
}
