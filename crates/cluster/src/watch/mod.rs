//! One watch per kind: keeps a store like the API server's own, however often the connection breaks.
//!
//! kube has such a watch too, for JSON. Here pods and claims come in the binary format, of which we have to look only at what we
//! keep, and a watch that has missed too much lists again at once.

mod feed;
mod stream;

use std::time::Duration;

use kube::{
    Api, Client, Resource,
    core::{ClusterResourceScope, NamespaceResourceScope},
};
use platform::{
    metrics::{Counter, Family, Registry},
    readiness::Readiness,
};

use self::feed::Feed;
use crate::{
    Namespace,
    server::ListMode,
    store::{Slim, Store},
};

/// Load balancers drop connections that are silent for four minutes or so, some without telling: the watch ends earlier by
/// itself and is resumed where it stopped.
const WATCH_SECONDS: u32 = 200;

/// How many objects a page of a list has: at several KB each, a page is a few MB on its way through memory.
const PAGE_SIZE: u32 = 250;

/// After an outage every watch is back within this time, and a server that just came up is not stormed.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Where and how the watches of a process look.
#[derive(Clone)]
pub struct Watches {
    /// The client; it needs neither retries nor the right to write.
    pub client: Client,
    /// The one namespace to look at, or all of them.
    pub namespace: Option<String>,
    /// How lists are asked for.
    pub list_mode: ListMode,
    /// Readiness waits for every first list.
    pub readiness: Readiness,
    /// Where the metrics of the caches go.
    pub registry: Registry,
}

impl Watches {
    /// Feeds a store of what lives in namespaces, until the returned future is dropped.
    pub fn feed<T>(&self, store: &Store<T>) -> impl Future<Output = ()> + Send + 'static
    where
        T: Slim,
        T::Wire: Resource<Scope = NamespaceResourceScope>,
    {
        self.keep_feeding(self.namespaced(), Selection::default(), store)
    }

    /// Feeds a store of what lives in no namespace, until the returned future is dropped.
    pub fn feed_cluster_scoped<T>(&self, store: &Store<T>) -> impl Future<Output = ()> + Send + 'static
    where
        T: Slim,
        T::Wire: Resource<Scope = ClusterResourceScope>,
    {
        self.keep_feeding(Api::all(self.client.clone()), Selection::default(), store)
    }

    /// Feeds the store of the namespaces that are looked at, until the returned future is dropped.
    pub fn feed_namespaces(&self, store: &Store<Namespace>) -> impl Future<Output = ()> + Send + 'static {
        let only = self.namespace.as_ref().map(|name| format!("metadata.name={name}"));
        let selection = Selection { fields: only, ..Selection::default() };
        self.keep_feeding(Api::all(self.client.clone()), selection, store)
    }

    /// Feeds a store of what carries a label in one namespace, whichever is looked at otherwise, until the returned future is
    /// dropped.
    pub fn feed_labelled<T>(
        &self,
        namespace: &str,
        label: &str,
        store: &Store<T>,
    ) -> impl Future<Output = ()> + Send + 'static
    where
        T: Slim,
        T::Wire: Resource<Scope = NamespaceResourceScope>,
    {
        let selection = Selection { labels: Some(label.to_owned()), ..Selection::default() };
        self.keep_feeding(Api::namespaced(self.client.clone(), namespace), selection, store)
    }

    /// Feeds a store of what a selector of labels matches in the namespaces that are looked at, until the returned future is
    /// dropped.
    pub fn feed_selected<T>(&self, labels: &str, store: &Store<T>) -> impl Future<Output = ()> + Send + 'static
    where
        T: Slim,
        T::Wire: Resource<Scope = NamespaceResourceScope>,
    {
        let selection = Selection { labels: Some(labels.to_owned()), ..Selection::default() };
        self.keep_feeding(self.namespaced(), selection, store)
    }

    fn namespaced<K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>>(&self) -> Api<K> {
        match &self.namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        }
    }

    fn keep_feeding<T: Slim>(
        &self,
        api: Api<T::Wire>,
        selection: Selection,
        store: &Store<T>,
    ) -> impl Future<Output = ()> + Send + 'static {
        let gate = self.readiness.gate(format!("the cache of {}", T::KIND));
        let metrics = WatchMetrics::register(&self.registry, T::KIND, store);
        let (client, store, mode) = (self.client.clone(), store.clone(), self.list_mode);
        let feed = Feed { client, api, selection, store, metrics, synced: move || gate.open() };
        feed.keep_on(mode)
    }
}

/// Which objects of a kind are looked at; all of them by default.
#[derive(Default)]
struct Selection {
    fields: Option<String>,
    labels: Option<String>,
}

struct WatchMetrics {
    lists: Counter,
    failures: Counter,
    list_modes: Family<Counter>,
}

impl WatchMetrics {
    fn register<T: Slim>(registry: &Registry, kind: &'static str, store: &Store<T>) -> Self {
        let objects =
            registry.gauges("claimkeeper_cache_objects", "Objects kept in the cache.", &["kind"]).with(&[kind]);
        let counted = store.clone();
        registry.before_scrape(move || objects.set(counted.len() as f64));
        let lists = "Lists begun, the first one included; every other one followed a gap in the watch.";
        let modes = "Times a way of listing was chosen; a second one for a kind means that the first was refused.";
        Self {
            lists: registry.counters("claimkeeper_cache_lists_total", lists, &["kind"]).with(&[kind]),
            failures: registry
                .counters("claimkeeper_cache_watch_failures_total", "Failures of the watch or its list.", &["kind"])
                .with(&[kind]),
            list_modes: registry.counters("claimkeeper_cache_list_mode_total", modes, &["kind", "mode"]),
        }
    }
}
