//! Jobs, as far as a decision reads them.

use k8s_openapi::{api::batch::v1::Job as KubernetesJob, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::Resource;
use serde::Deserialize;

use crate::{ObjectKey, meta, store::Slim};

/// A Job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Where it is found.
    pub key: ObjectKey,
    /// Which Job it is.
    pub uid: Box<str>,
    /// The uid of its controlling owner.
    pub owner: Option<Box<str>>,
    /// Whether somebody asked for its end.
    pub being_deleted: bool,
    /// How far it got.
    pub state: JobState,
}

/// How far a Job got. The last two are for ever.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobState {
    /// It is under way, or will be.
    Running,
    /// Its pod did what it should.
    Complete,
    /// It is given up; these are Kubernetes' words about why.
    Failed(Box<str>),
}

impl Slim for Job {
    type Wire = Wire;
    const KIND: &'static str = "jobs";

    fn from_wire(Wire { mut metadata, status }: Wire) -> Option<Self> {
        let owner = meta::controller(&mut metadata);
        Some(Self {
            key: ObjectKey::new(&metadata.namespace?, &metadata.name?),
            uid: metadata.uid?.into_boxed_str(),
            owner: owner.map(|owner| owner.uid.into_boxed_str()),
            being_deleted: metadata.deletion_timestamp.is_some(),
            state: status.state(),
        })
    }

    fn key(&self) -> &ObjectKey {
        &self.key
    }
}

/// A Job on its way from the API server.
#[derive(Debug, Clone, Deserialize, Resource)]
#[resource(inherit = KubernetesJob)]
pub struct Wire {
    #[serde(deserialize_with = "meta::slim")]
    metadata: ObjectMeta,
    #[serde(default)]
    status: WireStatus,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct WireStatus {
    #[serde(default)]
    conditions: Vec<WireCondition>,
}

#[derive(Debug, Clone, Deserialize)]
struct WireCondition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    message: String,
}

impl WireStatus {
    fn state(&self) -> JobState {
        let holds = |kind: &str| self.conditions.iter().find(|found| found.kind == kind && found.status == "True");
        // Should both ever stand there, nobody knows what was done.
        match (holds("Failed"), holds("Complete")) {
            (Some(failed), _) => JobState::Failed(format!("{}: {}", failed.reason, failed.message).into()),
            (None, Some(_)) => JobState::Complete,
            (None, None) => JobState::Running,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_job_has_ended_only_when_kubernetes_says_so() {
        let state = |conditions: Value| {
            let json = json!({"metadata": {"namespace": "ops", "name": "scrub-1", "uid": "j1"}, "status": {"conditions": conditions}});
            Job::from_wire(serde_json::from_value(json).unwrap()).unwrap().state
        };
        let failed =
            json!({"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "no luck"});
        assert_eq!(state(json!([])), JobState::Running);
        assert_eq!(state(json!([{"type": "SuccessCriteriaMet", "status": "True"}])), JobState::Running);
        assert_eq!(state(json!([{"type": "Complete", "status": "False"}])), JobState::Running);
        assert_eq!(state(json!([{"type": "Complete", "status": "True"}])), JobState::Complete);
        assert_eq!(state(json!([failed])), JobState::Failed("BackoffLimitExceeded: no luck".into()));
        assert!(matches!(state(json!([{"type": "Complete", "status": "True"}, failed])), JobState::Failed(_)));
    }
}
