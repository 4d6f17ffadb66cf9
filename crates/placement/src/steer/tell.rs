//! What is told about a decision besides the answer: an event where the pod is, or would have been.

use cluster::decision::Decision;
use platform::events::{Draft, EventKind, Recorder, Regarding};

use super::decision::Verdict;

/// Tells about a decision, unless all is well: then the pod's own spec tells. A pod that is yet to be made has no uid that anybody
/// could look for; if its name is made up later, then what that is made from stands for all of them.
pub(crate) fn tell(namespace: &str, pod: &str, decision: &Decision<Verdict>, recorder: &Recorder) {
    let is_error = matches!(decision.action, Verdict::SteerOnError(_) | Verdict::DenyOnError);
    if !is_error && decision.reason != "HomesContradict" {
        return;
    }
    let regarding = Regarding { api_version: "v1", kind: "Pod", namespace, name: pod, uid: None };
    let note = format_args!("{}", decision.message);
    let (kind, reason) = (EventKind::Warning, decision.reason);
    recorder.publish_draft(&Draft { regarding, kind, reason, action: "Steer", note });
}
