//! Every revision of an object, from the store itself.
//!
//! A watch through the API server misses what is written between two restarts of that one, and may start over with what there is
//! then. The store remembers all of it, in one order for the whole cluster.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    task::JoinHandle,
    time::sleep,
};

use crate::{Cluster, Options};

/// How long the store may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

impl Options {
    /// Lets [`Cluster::history`] read what is stored: in a form that everybody can read, and nothing of it is forgotten.
    #[must_use]
    pub fn history(self) -> Self {
        self.apiserver_flag("--storage-media-type=application/json").apiserver_flag("--etcd-compaction-interval=0")
    }
}

/// One revision of one object.
#[derive(Debug, Clone)]
pub struct Revision {
    /// Its place in the order of all writes to the cluster.
    pub number: u64,
    /// When it was heard of, which is a moment after it was written.
    pub heard: Timestamp,
    /// `<namespace>/<name>`.
    pub key: String,
    /// The object; none if it was deleted.
    pub object: Option<Value>,
}

/// What is known of the objects of one kind, from the beginning on. It goes on listening as long as it lives.
pub struct History {
    revisions: Arc<Mutex<Vec<Revision>>>,
    listener: JoinHandle<Result<()>>,
}

impl Cluster {
    /// Listens to the store. It takes a control plane that was made with [`Options::history`]; the kind is called as in the
    /// store: `endpointslices`, `services/specs`.
    pub async fn history(&self, kind: &str) -> Result<History> {
        let stream = TcpStream::connect(self.store()).await?;
        let mut stream = BufReader::new(stream);
        let prefix = format!("/registry/{kind}/");
        // The first key that does not start like that: `0` follows `/`.
        let end = format!("/registry/{kind}0");
        let [key, range_end] = [&prefix, &end].map(|key| STANDARD.encode(key));
        let body = json!({"create_request": {"key": key, "range_end": range_end, "start_revision": "1"}}).to_string();
        // In this version of HTTP the answer is a line for each message until the connection ends.
        let head = format!("POST /v3/watch HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        stream.write_all(head.as_bytes()).await?;
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            ensure!(stream.read_line(&mut line).await? > 0, "the store does not answer");
        }
        let revisions = Arc::<Mutex<Vec<Revision>>>::default();
        let listener = tokio::spawn(listen(stream, prefix, Arc::clone(&revisions)));
        Ok(History { revisions, listener })
    }
}

impl History {
    /// All that was heard so far, in the order in which it was written.
    #[must_use]
    pub fn so_far(&self) -> Vec<Revision> {
        self.revisions.lock().clone()
    }

    /// All until something was written that is known to be the last.
    pub async fn until(&self, is_last: impl Fn(&Revision) -> bool) -> Result<Vec<Revision>> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if self.revisions.lock().iter().any(&is_last) {
                return Ok(self.so_far());
            }
            ensure!(!self.listener.is_finished(), "the store has stopped telling its history");
            if Instant::now() > deadline {
                bail!("the store does not tell of the last revision");
            }
            sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for History {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

#[derive(Deserialize)]
struct Message {
    result: Events,
}

#[derive(Deserialize)]
struct Events {
    #[serde(default)]
    events: Vec<Event>,
}

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type", default)]
    kind: String,
    kv: Entry,
}

#[derive(Deserialize)]
struct Entry {
    key: String,
    mod_revision: String,
    #[serde(default)]
    value: String,
}

async fn listen(mut stream: BufReader<TcpStream>, prefix: String, revisions: Arc<Mutex<Vec<Revision>>>) -> Result<()> {
    let mut line = String::new();
    while stream.read_line(&mut line).await? > 0 {
        let message: Message =
            serde_json::from_str(&line).with_context(|| format!("the store says what nobody understands: {line}"))?;
        let heard = Timestamp::now();
        for event in message.result.events {
            let revision = revision(&event, &prefix, heard)?;
            revisions.lock().push(revision);
        }
        line.clear();
    }
    Ok(())
}

fn revision(Event { kind, kv }: &Event, prefix: &str, heard: Timestamp) -> Result<Revision> {
    let key = String::from_utf8(STANDARD.decode(&kv.key)?)?;
    let object = match kind.as_str() {
        "DELETE" => None,
        _ => Some(serde_json::from_slice(&STANDARD.decode(&kv.value)?).context("the store holds no JSON")?),
    };
    let key = key.strip_prefix(prefix).unwrap_or(&key).to_owned();
    Ok(Revision { number: kv.mod_revision.parse()?, heard, key, object })
}
