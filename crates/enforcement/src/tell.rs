//! What is told about a decision besides the answer: an event where the claim is, or would have been.

use cluster::decision::Decision;
use k8s_openapi::api::core::v1::ObjectReference;
use platform::events::{Event, EventKind};

use crate::{
    decision::{Scope, Verdict, scope},
    observation::{Asked, Observation, Write},
    settings::Told,
};

/// The event about a decision; none if nobody is to be told.
pub(crate) fn event(seen: &Observation, decision: &Decision<Verdict>) -> Option<Event> {
    let told = match (seen.settings.events, scope(decision)) {
        (Told::Governed, Scope::Governed) | (Told::All, Scope::Governed | Scope::Exempt) => true,
        (Told::None, _) | (_, Scope::NotJudged) | (Told::Governed, Scope::Exempt) => false,
    };
    let regarding = match &seen.asked {
        Asked::Claim(write) if told => reference(write, decision.action.allows()),
        Asked::Unreadable { key, .. } if told => named(key.namespace(), key.name()),
        _ => return None,
    };
    let (kind, reason) = match decision.action {
        Verdict::Allow => (EventKind::Normal, "ClaimAllowed"),
        Verdict::Audit if decision.reason == "Orphaned" => (EventKind::Warning, "ClaimOrphaned"),
        Verdict::Warn | Verdict::Audit => (EventKind::Warning, "ClaimAllowed"),
        Verdict::Deny => (EventKind::Warning, "ClaimDenied"),
        Verdict::AllowOnError | Verdict::DenyOnError => (EventKind::Warning, "ClaimErrored"),
        Verdict::Read(_) => return None,
    };
    let note = match decision.action {
        Verdict::Warn | Verdict::Audit if decision.reason != "Orphaned" => {
            format!("{} (allowed here, but told): {}", decision.reason, decision.message)
        }
        _ => format!("{}: {}", decision.reason, decision.message),
    };
    Some(Event { regarding, kind, reason, action: "Admit", note })
}

/// A claim that is not made has no uid that anybody could look for. If its name was made up for this one try, then what it
/// was made from stands for all of them: who tries for ever is told once.
fn reference(write: &Write, allowed: bool) -> ObjectReference {
    let claim = &write.claim;
    let exists = allowed || write.old.is_some();
    let name = if exists || claim.generate_name.is_empty() { claim.key.name() } else { &claim.generate_name };
    ObjectReference { uid: exists.then(|| claim.uid.to_string()), ..named(claim.key.namespace(), name) }
}

fn named(namespace: &str, name: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("PersistentVolumeClaim".into()),
        namespace: Some(namespace.to_owned()),
        name: Some(name.to_owned()),
        ..ObjectReference::default()
    }
}
