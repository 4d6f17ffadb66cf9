//! One watch per kind: keeps a store like the API server's own, however often the connection breaks.

use std::{pin::pin, time::Duration};

use futures::StreamExt;
use kube::{
    Api, Client, Resource,
    core::{ClusterResourceScope, NamespaceResourceScope},
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, ExponentialBackoff},
    },
};
use platform::{
    metrics::{Counter, Family, Registry},
    readiness::Readiness,
    trouble::{Trouble, causes},
};

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
        let (store, mut mode) = (store.clone(), self.list_mode);
        async move {
            loop {
                metrics.list_modes.with(&[T::KIND, mode.name()]).increment();
                let config = configure(mode, &selection);
                let refused = watch_until_refused(api.clone(), mode, config, &store, &metrics, || gate.open()).await;
                tracing::warn!(
                    kind = T::KIND,
                    error = %refused,
                    "the API server does not stream lists after all (its WatchList feature is off); falling back to paged lists"
                );
                mode = ListMode::Paged;
            }
        }
    }
}

/// Which objects of a kind are looked at; all of them by default.
#[derive(Default)]
struct Selection {
    fields: Option<String>,
    labels: Option<String>,
}

fn configure(mode: ListMode, Selection { fields, labels }: &Selection) -> watcher::Config {
    let config = watcher::Config::default().timeout(WATCH_SECONDS).page_size(PAGE_SIZE);
    let config = fields.iter().fold(config, |config, fields| config.fields(fields));
    let config = labels.iter().fold(config, |config, labels| config.labels(labels));
    match mode {
        ListMode::Streamed => config.streaming_lists(),
        ListMode::Paged => config,
    }
}

/// Watches for ever; returns only if the server refuses to stream lists.
async fn watch_until_refused<T: Slim>(
    api: Api<T::Wire>,
    mode: ListMode,
    config: watcher::Config,
    store: &Store<T>,
    metrics: &WatchMetrics,
    synced: impl Fn(),
) -> watcher::Error {
    let pauses = backon::ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(200))
        // The jitter adds up to as much again.
        .with_max_delay(LONGEST_PAUSE / 2)
        .with_jitter()
        .without_max_times();
    let mut events = pin!(watcher::watcher(api, config).backoff(ExponentialBackoff::from(pauses)));
    let mut trouble = Trouble::default();
    loop {
        match events.next().await {
            Some(Ok(event)) => {
                if trouble.ends() {
                    tracing::info!(kind = T::KIND, "the watch is back");
                }
                if take_in(store, event, metrics) {
                    synced();
                }
            }
            Some(Err(error)) if mode == ListMode::Streamed && is_refusal(&error) => return error,
            Some(Err(error)) => {
                metrics.failures.increment();
                let error = causes(&error);
                if trouble.begins(&error) {
                    tracing::warn!(
                        kind = T::KIND,
                        error,
                        "the watch is interrupted; the cache may be out of date until it is back"
                    );
                }
            }
            // The watcher never ends by itself; if it did, asking again would be the right thing.
            None => tokio::task::yield_now().await,
        }
    }
}

/// Returns true when a list is complete.
fn take_in<T: Slim>(store: &Store<T>, event: Event<T::Wire>, metrics: &WatchMetrics) -> bool {
    match event {
        Event::Init => {
            metrics.lists.increment();
            store.begin_list();
        }
        Event::InitDone => {
            store.end_list();
            return true;
        }
        Event::InitApply(wire) | Event::Apply(wire) => {
            if let Some(object) = T::from_wire(wire) {
                store.apply(object);
            }
        }
        Event::Delete(wire) => {
            if let Some(object) = T::from_wire(wire) {
                store.delete(object.key());
            }
        }
    }
    false
}

// "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled", status 422.
fn is_refusal(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::WatchStartFailed(kube::Error::Api(status))
        if status.code == 422 || (status.code == 400 && status.message.contains("sendInitialEvents")))
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
