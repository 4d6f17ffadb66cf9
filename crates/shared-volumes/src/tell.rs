//! Tells people: events, the note on the claim, the log.

use cluster::{Service, decision::Decision};
use k8s_openapi::api::core::v1::ObjectReference;
use platform::events::{Event, EventKind};
use serde_json::json;

use crate::{controller::SharedVolumes, live::LiveClaim, names::DECISION, state::View, trouble::Failure};

impl SharedVolumes {
    /// Remembers what was decided, for the metric.
    pub(crate) fn note<A>(&self, view: &View, decision: &Decision<A>) {
        let Decision { reason, message, .. } = decision;
        if let Some(entry) = self.state.lock().entry(&view.volume.id) {
            entry.told = Some(reason);
        }
        tracing::debug!(feature = "shared-volumes", volume = %view.volume.id, reason, "{message}");
    }

    /// Writes the decision onto the claim and tells it, if it is another one than stands there.
    pub(crate) async fn conclude(
        &self,
        view: &View,
        claim: &LiveClaim,
        decision: &Decision<()>,
        kind: EventKind,
    ) -> Result<(), Failure> {
        self.conclude_quietly(view, claim, decision, Some(kind)).await
    }

    /// The same, with an event only if there is a kind of it.
    pub(crate) async fn conclude_quietly(
        &self,
        view: &View,
        claim: &LiveClaim,
        decision: &Decision<()>,
        kind: Option<EventKind>,
    ) -> Result<(), Failure> {
        self.note(view, decision);
        let Decision { reason, message, .. } = decision;
        let text = format!("{reason}: {message}");
        if claim.decision.as_deref() == Some(text.as_str()) {
            return Ok(());
        }
        let (uid, version) = (&claim.owner.uid, &claim.version);
        let change = json!({"metadata": {"uid": uid, "resourceVersion": version, "annotations": {DECISION: text}}});
        match self.patch_claim(&claim.owner.key, &change).await {
            // The rights of the original's deployment end here, and webhooks may object. Then it is remembered that it was told.
            Err(kube::Error::Api(status)) if matches!(status.code, 400 | 403 | 413 | 422) => {
                if self
                    .state
                    .lock()
                    .entry(&view.volume.id)
                    .is_some_and(|entry| entry.noted.replace(text.clone()) == Some(text))
                {
                    return Ok(());
                }
                tracing::debug!(feature = "shared-volumes", claim = %claim.owner.key, "nothing may be noted on claims: {}", status.message);
            }
            noted => noted?,
        }
        let Some(kind) = kind else { return Ok(()) };
        self.tell_claim(claim, kind, reason, message.clone().into_owned());
        if kind == EventKind::Warning {
            tracing::warn!(feature = "shared-volumes", volume = %view.volume.id, claim = %claim.owner.key, reason, "{message}");
        } else {
            tracing::info!(feature = "shared-volumes", volume = %view.volume.id, claim = %claim.owner.key, reason, "{message}");
        }
        Ok(())
    }

    pub(crate) fn tell_claim(&self, claim: &LiveClaim, kind: EventKind, reason: &'static str, note: String) {
        let regarding = ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("PersistentVolumeClaim".into()),
            namespace: Some(claim.owner.key.namespace().into()),
            name: Some(claim.owner.key.name().into()),
            uid: Some(claim.owner.uid.to_string()),
            ..ObjectReference::default()
        };
        self.events.publish(Event { regarding, kind, reason, action: "Share", note });
    }

    pub(crate) fn tell_service(&self, service: &Service, kind: EventKind, reason: &'static str, note: String) {
        let regarding = ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Service".into()),
            namespace: Some(service.key.namespace().into()),
            name: Some(service.key.name().into()),
            uid: Some(service.uid.to_string()),
            ..ObjectReference::default()
        };
        tracing::info!(feature = "shared-volumes", service = %service.key, reason, "{note}");
        self.events.publish(Event { regarding, kind, reason, action: "Share", note });
    }
}
