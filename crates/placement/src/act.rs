//! What all parts have in common when they write and tell.

use std::collections::HashMap;

use cluster::ObjectKey;
use http::header;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Resource,
    api::{Patch, PatchParams},
    core::Request,
};
use parking_lot::Mutex;
use platform::{
    client::{self, RequestError},
    events::{Event, EventKind},
    queue::Outcome,
    trouble::causes,
};
use serde_json::{Value, json};

use crate::Context;

impl Context {
    /// Changes an object. The change says of which object, and of which version of it.
    pub(crate) async fn patch<K: Resource<DynamicType = ()>>(
        &self,
        key: &ObjectKey,
        change: Value,
    ) -> kube::Result<()> {
        let path = K::url_path(&(), Some(key.namespace()).filter(|namespace| !namespace.is_empty()));
        let request = Request::new(path).patch(key.name(), &PatchParams::default(), &Patch::Merge(change));
        client::send_unread(&self.client, request.map_err(kube::Error::BuildRequest)?).await
    }

    /// Changes an object by a JSON patch, which says so too.
    pub(crate) async fn apply<K: Resource<DynamicType = ()>>(
        &self,
        key: &ObjectKey,
        patch: Vec<u8>,
    ) -> kube::Result<()> {
        let objects = K::url_path(&(), Some(key.namespace()).filter(|namespace| !namespace.is_empty()));
        let request = http::Request::patch(format!("{objects}/{}", key.name()));
        let request = request.header(header::CONTENT_TYPE, "application/json-patch+json").body(patch);
        client::send_unread(&self.client, request.map_err(kube::Error::HttpError)?).await
    }

    pub(crate) fn tell(
        &self,
        regarding: ObjectReference,
        kind: EventKind,
        action: &'static str,
        reason: &'static str,
        note: &str,
    ) {
        self.recorder.publish(Event { regarding, kind, reason, action, note: note.to_owned() });
    }

    /// What becomes of work that failed.
    pub(crate) fn failed(key: &ObjectKey, doing: &'static str, error: &kube::Error) -> Outcome {
        match error {
            // Whoever leads now does it.
            error if RequestError::is_not_leader(error) => return Outcome::Done,
            kube::Error::Api(status) if matches!(status.code, 404 | 409) => {
                tracing::debug!(feature = "placement", %key, "it has changed; decided again");
            }
            error => tracing::warn!(feature = "placement", %key, "error {doing}: {}", causes(error)),
        }
        Outcome::Retry
    }
}

/// The change, for this very version of this very object.
pub(crate) fn preconditioned(uid: &str, version: Option<&str>, mut change: Value) -> Value {
    change["metadata"]["uid"] = uid.into();
    if let Some(version) = version {
        change["metadata"]["resourceVersion"] = version.into();
    }
    change
}

/// A claim as what an event is about.
pub(crate) fn claim_reference(key: &ObjectKey, uid: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("PersistentVolumeClaim".into()),
        namespace: Some(key.namespace().to_owned()),
        name: Some(key.name().to_owned()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    }
}

/// What was told about each object last, so that it is told once. It shrinks with the objects.
#[derive(Default)]
pub(crate) struct Told(Mutex<HashMap<ObjectKey, Telling>>);

#[derive(PartialEq, Eq)]
struct Telling {
    uid: Box<str>,
    reason: &'static str,
    message: Box<str>,
}

impl Told {
    /// Whether this is news. From now on it is not.
    pub(crate) fn is_news(&self, key: &ObjectKey, uid: &str, reason: &'static str, message: &str) -> bool {
        let telling = Telling { uid: uid.into(), reason, message: message.into() };
        let mut told = self.0.lock();
        if told.get(key) == Some(&telling) {
            return false;
        }
        told.insert(key.clone(), telling);
        true
    }

    /// There is nothing to tell any more.
    pub(crate) fn forget(&self, key: &ObjectKey) {
        self.0.lock().remove(key);
    }
}

/// A patch of an annotation or two.
pub(crate) fn annotations<'a>(entries: impl IntoIterator<Item = (&'a str, String)>) -> Value {
    let entries: serde_json::Map<_, _> =
        entries.into_iter().map(|(key, value)| (key.to_owned(), Value::String(value))).collect();
    json!({"metadata": {"annotations": entries}})
}
