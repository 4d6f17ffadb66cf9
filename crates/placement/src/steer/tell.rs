//! What is told about a decision besides the answer: an event where the pod is, or would have been.

use cluster::decision::Decision;
use k8s_openapi::api::core::v1::ObjectReference;
use platform::events::{Event, EventKind};

use super::decision::Verdict;

/// The event about a decision; none if all is well, because then the pod's own spec tells. A pod that is yet to be made has no uid that
/// anybody could look for; if its name is made up later, then what that is made from stands for all of them.
pub(crate) fn event(namespace: &str, pod: &str, decision: &Decision<Verdict>) -> Option<Event> {
    let is_error = matches!(decision.action, Verdict::SteerOnError(_) | Verdict::DenyOnError);
    if !is_error && decision.reason != "HomesContradict" {
        return None;
    }
    let regarding = ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Pod".into()),
        namespace: Some(namespace.to_owned()),
        name: Some(pod.to_owned()),
        ..ObjectReference::default()
    };
    let note = decision.message.to_string();
    Some(Event { regarding, kind: EventKind::Warning, reason: decision.reason, action: "Steer", note })
}
