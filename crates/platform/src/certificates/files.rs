//! Certificates that somebody else makes: a directory with `tls.crt` and `tls.key`, such as a mounted Secret.

use std::{fs, io::Read, path::PathBuf, time::Duration};

use jiff::Timestamp;
use tokio::time::sleep;
use tracing::{info, warn};

use super::{Parts, metrics::Metrics, x509::Leaf};
use crate::trouble::Trouble;

/// The two files, and how often is looked whether they have changed.
///
/// The content is what counts: kubelet replaces a directory behind a symbolic link, others write in place. Whoever reads in
/// between gets a certificate and a key that do not fit; what is served stays, and is replaced at the next look. An expired
/// certificate is served nevertheless: callers then say what is wrong, and that is more than if nobody answered.
pub struct Files {
    directory: PathBuf,
    period: Duration,
    parts: Parts,
    metrics: Metrics,
}

/// No certificate with its chain is larger.
const MOST_BYTES: u64 = 1 << 20;

/// What the files hold.
#[derive(PartialEq, Eq)]
struct Content {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl Files {
    /// Files in a directory, looked at every `period`.
    #[must_use]
    pub fn new(directory: PathBuf, period: Duration, parts: Parts) -> Self {
        let metrics = Metrics::new(&parts.registry);
        Self { directory, period, parts, metrics }
    }

    /// Serves what the files hold; runs until it is dropped.
    pub async fn serve(&self) {
        let mut loaded: Option<Content> = None;
        let (mut trouble, mut expiry) = (Trouble::default(), Trouble::default());
        let mut until = Timestamp::MAX;
        loop {
            match self.load(loaded.as_ref()).await {
                Ok(news) => {
                    if trouble.ends() {
                        info!(directory = %self.directory.display(), "the webhook's certificate can be read again");
                    }
                    if let Some((content, leaf)) = news {
                        until = leaf.validity.until;
                        self.start_serving(&leaf);
                        loaded = Some(content);
                    }
                }
                Err(problem) => {
                    self.metrics.failed("load");
                    if trouble.begins(&problem) {
                        warn!(problem, "the webhook's certificate cannot be loaded; what was loaded before stays");
                    }
                }
            }
            self.tell_expiry(until, &mut expiry);
            sleep(self.period).await;
        }
    }

    fn start_serving(&self, leaf: &Leaf) {
        self.parts.served.replace(leaf.key.as_ref().clone(), leaf.validity.until);
        self.metrics.tell_expiry(leaf.validity.until, None);
        self.parts.ready.open();
        info!(until = %leaf.validity.until, names = ?leaf.names, "a new certificate of the webhook is served");
    }

    fn tell_expiry(&self, until: Timestamp, trouble: &mut Trouble) {
        if Timestamp::now() < until {
            trouble.ends();
        } else if trouble.begins("expired") {
            let directory = self.directory.display();
            warn!(%until, %directory, "the webhook's certificate has expired; replace tls.crt and tls.key");
        }
    }

    /// What is in the files if it is something else than before.
    async fn load(&self, before: Option<&Content>) -> Result<Option<(Content, Leaf)>, String> {
        let directory = self.directory.clone();
        let content = tokio::task::spawn_blocking(move || Content::read(&directory));
        let content = content.await.map_err(|error| error.to_string())??;
        if before == Some(&content) {
            return Ok(None);
        }
        let certificate = self.directory.join("tls.crt");
        let leaf = Leaf::load(&content.certificate, &content.key);
        let leaf = leaf.map_err(|error| format!("{} {error}", certificate.display()))?;
        Ok(Some((content, leaf)))
    }
}

impl Content {
    fn read(directory: &std::path::Path) -> Result<Self, String> {
        let read = |name: &str| {
            let path = directory.join(name);
            let mut bytes = Vec::new();
            let read = fs::File::open(&path).and_then(|file| file.take(MOST_BYTES).read_to_end(&mut bytes));
            read.map(|_| bytes).map_err(|error| format!("{} cannot be read: {error}", path.display()))
        };
        Ok(Self { certificate: read("tls.crt")?, key: read("tls.key")? })
    }
}
