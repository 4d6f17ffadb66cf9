//! What is asked, and the answers that are right.
//!
//! The reviews are as large as those that the API server sends, and are written before the first one is sent.

mod claims;
mod pods;

use std::{fmt, sync::OnceLock};

use anyhow::{Context, Result, ensure};
use base64::{Engine, prelude::BASE64_STANDARD};
use clap::ValueEnum;
use serde::Deserialize;
use serde_json::{Value, json};

pub(crate) use self::{
    claims::claim,
    pods::{FOREIGN_CLAIMS, LEAST_CLAIMS, NODES},
};
use crate::bench::local::NAMESPACE;

/// Enough that no two of them follow each other on a connection; a third of each kind.
const COUNT: usize = 300;

/// What is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Webhook {
    /// Whether claims may be made
    Claims,
    /// Where new pods are to run
    Pods,
}

impl Webhook {
    /// Where it answers, as the original's.
    fn path(self) -> &'static str {
        match self {
            Self::Claims => "/validate-pvc",
            Self::Pods => "/mutate-pod",
        }
    }

    /// The operator's part that answers.
    pub(crate) fn feature(self) -> &'static str {
        match self {
            Self::Claims => "enforcement",
            Self::Pods => "placement",
        }
    }
}

impl fmt::Display for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_possible_value().map_or(Ok(()), |value| f.write_str(value.get_name()))
    }
}

/// By whose rules an answer is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Rules {
    /// The operator's
    Ours,
    /// The original's, mistakes included
    Originals,
    /// Anything goes
    Any,
}

impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_possible_value().map_or(Ok(()), |value| f.write_str(value.get_name()))
    }
}

/// One question and the answer that is right.
pub(crate) struct Review {
    pub path: &'static str,
    pub body: Vec<u8>,
    uid: String,
    allowed: bool,
    /// What the object is after the answer's patch. Without it there must be no patch.
    becomes: Option<Value>,
    /// The answer that was found right. Those to the same question are nearly always the same, and are read only once.
    right: OnceLock<Vec<u8>>,
}

/// All of them, in the order in which they are asked. There are this many claims in the cluster.
pub(crate) fn all(webhook: Webhook, rules: Rules, claims: usize) -> Result<Vec<Review>> {
    let one = |number| match webhook {
        Webhook::Claims => claims::review(number),
        Webhook::Pods => pods::review(number, rules, claims),
    };
    (0..COUNT).map(one).collect()
}

/// How many bytes a review has in the mean.
pub(crate) fn mean_size(webhook: Webhook) -> Result<usize> {
    let reviews = all(webhook, Rules::Any, LEAST_CLAIMS)?;
    Ok(reviews.iter().map(|review| review.body.len()).sum::<usize>() / COUNT)
}

/// The creation of an object of a kind, and who wants it.
struct Asked {
    webhook: Webhook,
    number: usize,
    kind: &'static str,
    resource: &'static str,
    user: Value,
    options: Value,
    object: Value,
}

impl Asked {
    fn review(self, allowed: bool, becomes: Option<Value>) -> Result<Review> {
        let uid = format!("6f2c1d8e-0000-4000-8000-{:012}", self.number);
        let kind = json!({"group": "", "version": "v1", "kind": self.kind});
        let resource = json!({"group": "", "version": "v1", "resource": self.resource});
        let body = serde_json::to_vec(&json!({
            "kind": "AdmissionReview",
            "apiVersion": "admission.k8s.io/v1",
            "request": {
                "uid": uid,
                "kind": kind,
                "resource": resource,
                "requestKind": kind,
                "requestResource": resource,
                "name": self.object["metadata"]["name"],
                "namespace": NAMESPACE,
                "operation": "CREATE",
                "userInfo": self.user,
                "object": self.object,
                "oldObject": null,
                "dryRun": false,
                "options": self.options,
            },
        }))?;
        Ok(Review { path: self.webhook.path(), body, uid, allowed, becomes, right: OnceLock::new() })
    }
}

#[derive(Deserialize)]
struct Answered {
    response: Response,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Response {
    uid: String,
    allowed: bool,
    patch: Option<String>,
    patch_type: Option<String>,
}

impl Review {
    /// Whether this is the right answer.
    pub(crate) fn check(&self, answer: &[u8]) -> Result<()> {
        if self.right.get().is_none_or(|right| right != answer) {
            self.read(answer).with_context(|| format!("a wrong answer: {}", String::from_utf8_lossy(answer)))?;
            // If another connection was first, its answer will do.
            drop(self.right.set(answer.to_vec()));
        }
        Ok(())
    }

    fn read(&self, answer: &[u8]) -> Result<()> {
        let Answered { response } = serde_json::from_slice(answer)?;
        ensure!(response.uid == self.uid, "it is to another question");
        ensure!(response.allowed == self.allowed, "allowed must be {}", self.allowed);
        let (Some(patch), Some(becomes)) = (&response.patch, &self.becomes) else {
            ensure!(response.patch.is_none(), "nothing is to be changed");
            ensure!(self.becomes.is_none(), "something is to be changed");
            return Ok(());
        };
        ensure!(response.patch_type.as_deref() == Some("JSONPatch"), "nobody knows how to read the patch");
        let patch: json_patch::Patch = serde_json::from_slice(&BASE64_STANDARD.decode(patch)?)?;
        let mut asked: Value = serde_json::from_slice(&self.body)?;
        let object = &mut asked["request"]["object"];
        json_patch::patch(object, &patch.0)?;
        ensure!(object == becomes, "the object becomes {object} and must become {becomes}");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(uid: &str, allowed: bool, patch: Option<&Value>) -> Vec<u8> {
        let mut response = json!({"uid": uid, "allowed": allowed});
        if let Some(patch) = patch {
            response["patch"] = BASE64_STANDARD.encode(patch.to_string()).into();
            response["patchType"] = "JSONPatch".into();
        }
        serde_json::to_vec(&json!({"response": response})).unwrap()
    }

    fn asked() -> Asked {
        let (user, options, object) = (json!({}), json!({}), json!({"metadata": {"name": "a"}, "spec": {"x": 1}}));
        Asked { webhook: Webhook::Pods, number: 1, kind: "Pod", resource: "pods", user, options, object }
    }

    #[test]
    fn a_wrong_verdict_is_seen_and_so_is_the_answer_to_another_question() {
        let review = asked().review(false, None).unwrap();
        let own = review.uid.clone();
        for _ in 0..2 {
            review.check(&answer(&own, false, None)).unwrap();
            assert!(review.check(&answer(&own, true, None)).is_err());
            assert!(review.check(&answer("another", false, None)).is_err());
        }
    }

    #[test]
    fn a_patch_is_seen_where_there_must_be_none_or_another_or_where_one_is_missing() {
        let add = |value: u8| json!([{"op": "add", "path": "/spec/y", "value": value}]);
        let review = asked().review(true, None).unwrap();
        assert!(review.check(&answer(&review.uid, true, Some(&add(2)))).is_err());
        let becomes = json!({"metadata": {"name": "a"}, "spec": {"x": 1, "y": 2}});
        let review = asked().review(true, Some(becomes)).unwrap();
        for _ in 0..2 {
            review.check(&answer(&review.uid, true, Some(&add(2)))).unwrap();
            assert!(review.check(&answer(&review.uid, true, Some(&add(3)))).is_err());
            assert!(review.check(&answer(&review.uid, true, None)).is_err());
        }
    }

    #[test]
    fn every_review_says_its_own_name_and_where_it_is_asked() {
        for webhook in Webhook::value_variants() {
            let reviews = all(*webhook, Rules::Ours, LEAST_CLAIMS).unwrap();
            assert_eq!(reviews.len(), COUNT);
            for review in &reviews {
                let body: Value = serde_json::from_slice(&review.body).unwrap();
                assert_eq!(body["request"]["uid"], review.uid.as_str());
                assert_eq!(review.path, webhook.path());
            }
        }
    }
}
