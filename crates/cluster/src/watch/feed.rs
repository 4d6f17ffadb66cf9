//! The life of one watch: a list, what happens from then on, and what is done when it is interrupted.
//!
//! ```text
//!          ┌────────────── told that too much was missed: at once ──────────────┐
//!          v                                                                    │
//!        list ── complete ──> watch from its version ── over ──> watch from the last version seen ── ...
//!          └─── interrupted: after a pause that grows ───┴──────────────────────┘
//! ```

use std::time::Duration;

use kube::{
    Api, Client, Resource,
    api::{ListParams, WatchParams},
    core::WatchEvent,
};
use platform::trouble::{Trouble, causes};
use tokio::time::{Instant, sleep};

use super::{
    LONGEST_PAUSE, PAGE_SIZE, Selection, WATCH_SECONDS, WatchMetrics,
    stream::{Events, Interruption},
};
use crate::{
    server::ListMode,
    store::{Slim, Store},
};

/// What marks the end of the present objects in a watch that began with them.
const END_OF_LIST: &str = "k8s.io/initial-events-end";

/// How long after the time at which the server ends a watch it is believed to be dead.
const GRACE: Duration = Duration::from_secs(5);

/// A watch that is over sooner and has brought nothing was no watch, as one that is over before its list is complete: asking again
/// at once could go on for ever.
const SHORTEST_WATCH: Duration = Duration::from_secs(1);

/// What feeds one store.
pub(super) struct Feed<T: Slim, S> {
    pub(super) client: Client,
    pub(super) api: Api<T::Wire>,
    pub(super) selection: Selection,
    pub(super) store: Store<T>,
    pub(super) metrics: WatchMetrics,
    /// Told when a list is complete.
    pub(super) synced: S,
}

/// Where a watch goes on.
#[derive(Default)]
struct Progress {
    /// The version of the newest change that was seen, once a list is complete.
    version: Option<String>,
    /// Whether something was heard since the last pause.
    heard: bool,
    /// Whether to ask for JSON only. Anybody may write into an object what is no text, and nobody may keep us from knowing the others:
    /// in JSON the API server itself replaces it.
    as_text: bool,
    /// When a list was last asked for without a pause.
    listed_at_once: Option<Instant>,
    trouble: Trouble,
}

impl Progress {
    fn is_back(&mut self, kind: &str) {
        if self.trouble.ends() {
            tracing::info!(kind, "the watch is back");
        }
    }
}

impl<T: Slim, S: Fn() + Send + Sync + 'static> Feed<T, S> {
    /// Feeds the store until the future is dropped.
    pub(super) async fn keep_on(self, mut mode: ListMode) {
        loop {
            self.metrics.list_modes.with(&[T::KIND, mode.name()]).increment();
            let refused = self.feed_until_refused(mode).await;
            tracing::warn!(
                kind = T::KIND,
                error = %refused,
                "the API server does not stream lists after all (its WatchList feature is off); falling back to paged lists"
            );
            mode = ListMode::Paged;
        }
    }

    /// Returns only if the server refuses to stream lists.
    async fn feed_until_refused(&self, mode: ListMode) -> Interruption {
        let mut progress = Progress::default();
        let mut pauses = pauses();
        loop {
            let begun = Instant::now();
            let result = match progress.version {
                None if mode == ListMode::Paged => self.list(&mut progress).await,
                _ => self.watch(&mut progress).await,
            };
            let must_pause = match result {
                Ok(()) => progress.version.is_none() || (!progress.heard && begun.elapsed() < SHORTEST_WATCH),
                Err(refused) if mode == ListMode::Streamed && refused.is_about_streaming() => return refused,
                Err(interruption) => self.is_in_trouble(&interruption, &mut progress),
            };
            if std::mem::take(&mut progress.heard) {
                pauses = self::pauses();
            }
            if must_pause {
                // There is always a next one.
                sleep(pauses.next().unwrap_or(LONGEST_PAUSE)).await;
            }
        }
    }

    /// Tells of it once. Whether to wait before the next try.
    fn is_in_trouble(&self, interruption: &Interruption, progress: &mut Progress) -> bool {
        if interruption.has_missed_too_much() {
            let was_watching = progress.version.take().is_some();
            let again = progress.listed_at_once.is_some_and(|last| last.elapsed() < LONGEST_PAUSE);
            if was_watching && !again {
                // Nothing is wrong with the server, and until the list is there we know less than we could.
                tracing::info!(kind = T::KIND, reason = %interruption, "the watch has missed too much; listing again");
                progress.listed_at_once = Some(Instant::now());
                return false;
            }
        }
        if matches!(interruption, Interruption::Unreadable(_)) {
            // Whatever it was, the list has it too, or has it no more.
            progress.version = None;
            if T::FROM_BINARY.is_some() && !std::mem::replace(&mut progress.as_text, true) {
                self.metrics.failures.increment();
                tracing::warn!(
                    kind = T::KIND,
                    error = %interruption,
                    "something cannot be read in the binary format; asking for JSON from now on"
                );
                return false;
            }
        }
        self.metrics.failures.increment();
        let error = causes(interruption);
        if progress.trouble.begins(&error) {
            tracing::warn!(
                kind = T::KIND,
                error,
                "the watch is interrupted; the cache may be out of date until it is back"
            );
        }
        true
    }

    /// Lists in pages.
    async fn list(&self, progress: &mut Progress) -> Result<(), Interruption> {
        let Selection { fields, labels } = &self.selection;
        let mut parameters = ListParams {
            field_selector: fields.clone(),
            label_selector: labels.clone(),
            ..ListParams::default().limit(PAGE_SIZE)
        };
        self.begin_list();
        loop {
            let page = self.api.list(&parameters).await.map_err(Interruption::Refused)?;
            progress.is_back(T::KIND);
            for wire in page.items {
                self.apply(wire);
            }
            parameters.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            progress.heard = true;
            if parameters.continue_token.is_none() {
                let version = page.metadata.resource_version.filter(|version| !version.is_empty());
                progress.version = Some(version.ok_or_else(|| unversioned("a list"))?);
                self.end_list();
                return Ok(());
            }
        }
    }

    /// Watches from where the last one stopped, or with a list in front, until the watch is over.
    async fn watch(&self, progress: &mut Progress) -> Result<(), Interruption> {
        let Selection { fields, labels } = &self.selection;
        let parameters = WatchParams {
            field_selector: fields.clone(),
            label_selector: labels.clone(),
            timeout: Some(WATCH_SECONDS),
            bookmarks: true,
            send_initial_events: progress.version.is_none(),
        };
        let since = progress.version.as_deref().unwrap_or("0");
        let patience = Duration::from_secs(WATCH_SECONDS.into()) + GRACE;
        let (path, binary) = (self.api.resource_url(), T::FROM_BINARY.is_some() && !progress.as_text);
        let mut events = Events::ask(&self.client, path, &parameters, since, binary, patience).await?;
        progress.is_back(T::KIND);
        if progress.version.is_none() {
            self.begin_list();
        }
        while let Some(event) = events.next::<T>().await? {
            let version = match event {
                WatchEvent::Added(wire) | WatchEvent::Modified(wire) => {
                    let version = version_of::<T>(&wire);
                    self.apply(wire);
                    version
                }
                WatchEvent::Deleted(wire) => {
                    let version = version_of::<T>(&wire);
                    if let Some(object) = T::from_wire(wire) {
                        self.store.delete(object.key());
                    }
                    version
                }
                WatchEvent::Bookmark(mark) => {
                    let version = Some(mark.metadata.resource_version).filter(|version| !version.is_empty());
                    if progress.version.is_none() && mark.metadata.annotations.contains_key(END_OF_LIST) {
                        progress.version.clone_from(&version);
                        self.end_list();
                    }
                    version
                }
                WatchEvent::Error(status) => return Err(Interruption::Ended(status)),
            };
            progress.heard = true;
            let version = version.ok_or_else(|| unversioned("an event"))?;
            // Until the list is complete there is nothing to go on from.
            if let Some(known) = &mut progress.version {
                *known = version;
            }
        }
        Ok(())
    }

    fn begin_list(&self) {
        self.metrics.lists.increment();
        self.store.begin_list();
    }

    fn end_list(&self) {
        self.store.end_list();
        (self.synced)();
    }

    fn apply(&self, wire: T::Wire) {
        if let Some(object) = T::from_wire(wire) {
            self.store.apply(object);
        }
    }
}

fn version_of<T: Slim>(wire: &T::Wire) -> Option<String> {
    wire.meta().resource_version.clone().filter(|version| !version.is_empty())
}

fn unversioned(what: &str) -> Interruption {
    Interruption::Unreadable(format!("{what} without a resourceVersion"))
}

fn pauses() -> impl Iterator<Item = Duration> + Send {
    use backon::BackoffBuilder;
    backon::ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(200))
        // The jitter adds up to as much again.
        .with_max_delay(LONGEST_PAUSE / 2)
        .with_jitter()
        .without_max_times()
        .build()
}
