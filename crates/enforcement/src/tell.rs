//! What is told about a decision besides the answer: an event where the claim is, or would have been.

use cluster::decision::Decision;
use platform::events::{Draft, EventKind, Recorder, Regarding};

use crate::{
    decision::{Scope, Verdict, scope},
    observation::{Asked, Observation, Write},
    settings::Told,
};

/// Tells about a decision, if anybody is to be told.
pub(crate) fn tell(seen: &Observation, decision: &Decision<Verdict>, recorder: &Recorder) {
    let told = match (seen.settings.events, scope(decision)) {
        (Told::Governed, Scope::Governed) | (Told::All, Scope::Governed | Scope::Exempt) => true,
        (Told::None, _) | (_, Scope::NotJudged) | (Told::Governed, Scope::Exempt) => false,
    };
    let regarding = match &seen.asked {
        Asked::Claim(write) if told => regarding(write, decision.action.allows()),
        Asked::Unreadable { key, .. } if told => named(key.namespace(), key.name()),
        _ => return,
    };
    let (kind, reason) = match decision.action {
        Verdict::Allow => (EventKind::Normal, "ClaimAllowed"),
        Verdict::Audit if decision.reason == "Orphaned" => (EventKind::Warning, "ClaimOrphaned"),
        Verdict::Warn | Verdict::Audit => (EventKind::Warning, "ClaimAllowed"),
        Verdict::Deny => (EventKind::Warning, "ClaimDenied"),
        Verdict::AllowOnError | Verdict::DenyOnError => (EventKind::Warning, "ClaimErrored"),
        Verdict::Read(_) => return,
    };
    let but_told = match decision.action {
        Verdict::Warn | Verdict::Audit if decision.reason != "Orphaned" => " (allowed here, but told)",
        _ => "",
    };
    let note = format_args!("{}{but_told}: {}", decision.reason, decision.message);
    recorder.publish_draft(&Draft { regarding, kind, reason, action: "Admit", note });
}

/// A claim that is not made has no uid that anybody could look for. If its name was made up for this one try, then what it
/// was made from stands for all of them: who tries for ever is told once.
fn regarding(write: &Write, allowed: bool) -> Regarding<'_> {
    let claim = &write.claim;
    let exists = allowed || write.old.is_some();
    let name = if exists || claim.generate_name.is_empty() { claim.key.name() } else { &claim.generate_name };
    Regarding { uid: exists.then_some(&*claim.uid), ..named(claim.key.namespace(), name) }
}

fn named<'a>(namespace: &'a str, name: &'a str) -> Regarding<'a> {
    Regarding { api_version: "v1", kind: "PersistentVolumeClaim", namespace, name, uid: None }
}
