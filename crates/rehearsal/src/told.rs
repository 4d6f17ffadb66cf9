//! What is told on objects.

use anyhow::{Context, Result};
use k8s_openapi::api::events::v1::Event;
use kube::{Api, Client, api::ListParams};
use testbed::eventually;

/// Where Kubernetes keeps the events about objects that are in no namespace.
const OF_NO_NAMESPACE: &str = "default";

/// The events of a reporter about what is in one namespace, or in none.
pub struct Events {
    reporter: &'static str,
    places: [Api<Event>; 2],
}

/// An event as a person reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// `Normal` or `Warning`.
    pub kind: String,
    /// Why, in one word.
    pub reason: String,
    /// The sentence.
    pub note: String,
}

impl Events {
    /// Reads them with this client.
    #[must_use]
    pub fn of(reporter: &'static str, client: &Client, namespace: &str) -> Self {
        let places = [namespace, OF_NO_NAMESPACE].map(|place| Api::namespaced(client.clone(), place));
        Self { reporter, places }
    }

    /// Those about the object of this uid.
    pub async fn about(&self, uid: Option<&str>) -> Result<Vec<Told>> {
        let by_reporter = ListParams::default().fields(&format!("reportingController={}", self.reporter));
        let mut told = Vec::new();
        for place in &self.places {
            let events = place.list(&by_reporter).await?.items.into_iter();
            let about = |event: &Event| event.regarding.as_ref().is_some_and(|found| found.uid.as_deref() == uid);
            told.extend(events.filter(about).map(Told::from));
        }
        Ok(told)
    }

    /// Waits for one of this reason about the object of this uid.
    pub async fn until_told(&self, uid: Option<&str>, reason: &str) -> Result<Told> {
        eventually(&format!("an event {reason}"), async || {
            let told = self.about(uid).await?;
            told.iter().find(|told| told.reason == reason).cloned().with_context(|| format!("there are {told:?}"))
        })
        .await
    }
}

impl From<Event> for Told {
    fn from(event: Event) -> Self {
        let [kind, reason, note] = [event.type_, event.reason, event.note].map(Option::unwrap_or_default);
        Self { kind, reason, note }
    }
}
