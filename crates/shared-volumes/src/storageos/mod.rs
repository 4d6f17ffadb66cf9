//! StorageOS, also known as Ondat: the first source.
//!
//! ```text
//! poll ── GET namespaces ──> GET volumes, of several namespaces at once ──> what each tells, or why it tells nothing
//! publish ── GET volume ── (published already?) ── PUT mount-endpoint {address, version} ── 412: again, at once
//!
//!    each request:  circuit ──> token (logs in, refreshes) ──> time limit ──> metrics ──> HTTP
//!                                  └── 401: one login for all who were refused, and once more
//! ```
//!
//! Its API knows no watch, no paging and no filter. It is asked as seldom as that allows, and whatever it says about one
//! namespace or one volume hides nothing about the others.

mod circuit;
mod client;
mod endpoint;
mod metrics;
mod session;
mod wire;

use std::{collections::HashSet, sync::Arc};

use futures::{
    StreamExt,
    future::{BoxFuture, FutureExt},
    stream,
};
use http::Method;
use parking_lot::Mutex;
use platform::metrics::Registry;
use serde_json::json;
use tokio::time::Instant;

use self::{
    client::{Answer, Http},
    metrics::Metrics,
    session::Session,
    wire::{NamespaceWire, VolumeWire},
};
use crate::{
    settings::StorageOsSettings,
    source::{ErrorClass, Home, Listed, SharedVolume, Source, SourceError},
};

pub use endpoint::base_url;

/// How many namespaces are listed at once. More would only queue up in the store behind the API.
const NAMESPACES_AT_ONCE: usize = 8;

/// How often a volume is read and written again because somebody else wrote in between. Each time somebody got something done.
const MOST_WRITES: usize = 8;

/// How often a read is repeated after an outage, within one poll.
const MOST_READS: u32 = 3;

/// The API.
pub struct StorageOs {
    session: Session,
    metrics: Metrics,
    reading: Mutex<HashSet<Arc<str>>>,
}

impl StorageOs {
    /// The API behind an endpoint. Nobody asks it anything yet.
    pub fn new(settings: StorageOsSettings, registry: &Registry) -> Result<Self, String> {
        let metrics = Metrics::register(registry);
        let http = Http::new(&settings, metrics.clone())?;
        Ok(Self { session: Session::new(http, settings, metrics.clone()), metrics, reading: Mutex::default() })
    }

    async fn list_namespaces(&self) -> Result<Vec<NamespaceWire>, SourceError> {
        self.metrics.helper("list_namespaces", async { self.read("/namespaces").await?.json() }).await
    }

    async fn list_volumes(&self, namespace: &str) -> Result<Listed, SourceError> {
        let path = format!("/namespaces/{}/volumes", escaped(namespace));
        self.metrics.helper("list_volumes", async { wire::volumes(&self.read(&path).await?, namespace) }).await
    }

    async fn get_volume(&self, namespace: &str, id: &str) -> Result<VolumeWire, SourceError> {
        let path = format!("/namespaces/{}/volumes/{}", escaped(namespace), escaped(id));
        self.metrics.helper("get_volume", async { self.read(&path).await?.json() }).await
    }

    async fn set_address(&self, volume: &SharedVolume, address: &str) -> Result<(), SourceError> {
        let SharedVolume { id, home, .. } = volume;
        let path = format!("/namespaces/{}/volumes/{}/nfs/mount-endpoint", escaped(home), escaped(id));
        let mut last = None;
        for _ in 0..MOST_WRITES {
            let now = self.get_volume(home, id).await?;
            if now.published() == Some(address) {
                return Ok(());
            }
            let body = json!({"mountEndpoint": address, "version": now.version()});
            match self.session.send(Method::PUT, &path, Some(&body)).await {
                Ok(_) => return Ok(()),
                Err(error) if error.class == ErrorClass::StaleWrite => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(last.unwrap_or_else(|| SourceError::new(ErrorClass::StaleWrite, "the volume changes all the time")))
    }

    /// Reads, and reads again if the API has a bad moment.
    async fn read(&self, path: &str) -> Result<Answer, SourceError> {
        let mut tries = 1;
        loop {
            match self.session.send(Method::GET, path, None).await {
                Err(error) if is_passing(error.class) && tries < MOST_READS => {
                    tokio::time::sleep(circuit::pause(tries)).await;
                    tries += 1;
                }
                answer => return answer,
            }
        }
    }
}

/// Whether it may be over in a moment. Who had no answer in time has waited long enough.
fn is_passing(class: ErrorClass) -> bool {
    class.is_outage() && class != ErrorClass::Timeout
}

impl Source for StorageOs {
    fn list<'a>(&'a self, tell: &'a (dyn Fn(Home) + Send + Sync)) -> BoxFuture<'a, Result<Vec<Arc<str>>, SourceError>> {
        let listing = async move {
            let namespaces = self.list_namespaces().await?;
            let names: Vec<Arc<str>> = namespaces.into_iter().map(|namespace| Arc::from(namespace.id)).collect();
            let unread = names.iter().filter_map(|name| Reading::begin(&self.reading, name));
            let reading = unread.map(|reading| async move {
                let asked = Instant::now();
                let volumes = self.list_volumes(&reading.name).await;
                tell(Home { name: Arc::clone(&reading.name), asked, volumes });
            });
            stream::iter(reading.collect::<Vec<_>>()).buffer_unordered(NAMESPACES_AT_ONCE).collect::<()>().await;
            Ok(names)
        };
        self.metrics.helper("list_shared_volumes", listing).boxed()
    }

    fn look<'a>(&'a self, volume: &'a SharedVolume) -> BoxFuture<'a, Result<Option<SharedVolume>, SourceError>> {
        async {
            match self.get_volume(&volume.home, &volume.id).await {
                Ok(found) => Ok(Some(found.shared(&volume.home))),
                Err(error) if error.class == ErrorClass::NotFound => Ok(None),
                Err(error) => Err(error),
            }
        }
        .boxed()
    }

    fn publish<'a>(&'a self, volume: &'a SharedVolume, address: &'a str) -> BoxFuture<'a, Result<(), SourceError>> {
        self.metrics.helper("set_external_endpoint", self.set_address(volume, address)).boxed()
    }
}

/// A namespace that is being read: by one at a time, so that no answer is overtaken by an older one.
struct Reading<'a> {
    all: &'a Mutex<HashSet<Arc<str>>>,
    name: Arc<str>,
}

impl<'a> Reading<'a> {
    fn begin(all: &'a Mutex<HashSet<Arc<str>>>, name: &Arc<str>) -> Option<Self> {
        all.lock().insert(Arc::clone(name)).then(|| Self { all, name: Arc::clone(name) })
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.all.lock().remove(&self.name);
    }
}

/// One part of a path: ids are somebody else's text.
fn escaped(text: &str) -> String {
    text.bytes().fold(String::with_capacity(text.len()), |path, byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'~' => {
            path + char::from(byte).encode_utf8(&mut [0; 4])
        }
        // A dot too: `..` is no id.
        byte => path + &format!("%{byte:02X}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_cannot_leave_its_place_in_the_path() {
        assert_eq!(escaped("aad1e4ab-23d2"), "aad1e4ab-23d2");
        assert_eq!(escaped("../nodes?x#y"), "%2E%2E%2Fnodes%3Fx%23y");
    }
}
