//! One object by its name, whether it is there or not.

use std::fmt::Debug;

use futures::{Stream, StreamExt, future};
use kube::{
    Api, Resource,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event},
    },
};
use serde::de::DeserializeOwned;

/// A connection that died without a word is noticed a few seconds later, and a replaced certificate after that.
const WATCH_SECONDS: u32 = 60;

/// The object each time it changes, nothing when it is not there, and errors while it cannot be watched. Never ends.
pub(super) fn watch<K>(
    api: Api<K>,
    name: &str,
) -> impl Stream<Item = Result<Option<K>, watcher::Error>> + Send + 'static
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let config = watcher::Config::default().fields(&format!("metadata.name={name}")).timeout(WATCH_SECONDS);
    let events = watcher::watcher(api, config).default_backoff();
    // A list that ends without having named it says that it is not there.
    let told = events.scan(false, |named, event| {
        let told = match event {
            Ok(Event::Init) => {
                *named = false;
                None
            }
            Ok(Event::InitDone) => (!*named).then_some(Ok(None)),
            Ok(Event::Apply(object) | Event::InitApply(object)) => {
                *named = true;
                Some(Ok(Some(object)))
            }
            Ok(Event::Delete(_)) => Some(Ok(None)),
            Err(error) => Some(Err(error)),
        };
        future::ready(Some(told))
    });
    told.filter_map(future::ready)
}
