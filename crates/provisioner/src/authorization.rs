//! Whether a pod's `ServiceAccount` may create claims: what it may not do itself, its pods do not get from us either.

use std::{collections::HashMap, time::Duration};

use cluster::Pod;
use k8s_openapi::api::authorization::v1::{LocalSubjectAccessReview, ResourceAttributes, SubjectAccessReviewSpec};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::decision::Authorization;

/// Long enough for the pods of many builds to be answered at once.
const REMEMBERED: Duration = Duration::from_secs(10);

/// The same for a denial: somebody may be waiting for the `RoleBinding` that they just made.
const DENIAL_REMEMBERED: Duration = Duration::from_secs(3);

/// How many accounts are remembered; beyond that the old ones are forgotten early.
const MOST_ACCOUNTS: usize = 10_000;

/// Asks, and remembers the answers for a moment.
#[derive(Default)]
pub(crate) struct Authorizer {
    answers: Mutex<HashMap<Account, Answer>>,
}

/// A `ServiceAccount`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Account {
    pub(crate) namespace: Box<str>,
    pub(crate) name: Box<str>,
}

/// As whom the pod runs.
pub(crate) fn account(pod: &Pod) -> Account {
    let name = pod.claim_requests.as_ref().map_or_else(|| "default".into(), |asked| asked.service_account.clone());
    Account { namespace: pod.key.namespace().into(), name }
}

#[derive(Clone, Copy)]
struct Answer {
    allowed: bool,
    until: Instant,
}

impl Authorizer {
    /// What is known without asking.
    pub(crate) fn known(&self, account: &Account) -> Authorization {
        let answer = self.answers.lock().get(account).copied();
        match answer.filter(|answer| Instant::now() < answer.until) {
            Some(Answer { allowed: true, .. }) => Authorization::Allowed,
            Some(Answer { allowed: false, .. }) => Authorization::Denied,
            None => Authorization::Unknown,
        }
    }

    /// Asks the API server. A review is no write: it changes nothing, whoever leads.
    pub(crate) async fn ask(&self, client: &Client, account: &Account) -> kube::Result<Authorization> {
        let reviews: Api<LocalSubjectAccessReview> = Api::namespaced(client.clone(), &account.namespace);
        let status = reviews.create(&PostParams::default(), &review(account)).await?.status;
        let allowed = status.is_some_and(|status| status.allowed);
        self.remember(account, allowed);
        Ok(if allowed { Authorization::Allowed } else { Authorization::Denied })
    }

    fn remember(&self, account: &Account, allowed: bool) {
        let mut answers = self.answers.lock();
        let now = Instant::now();
        if answers.len() >= MOST_ACCOUNTS {
            answers.retain(|_, answer| now < answer.until);
        }
        if answers.len() >= MOST_ACCOUNTS {
            answers.clear();
        }
        let until = now + if allowed { REMEMBERED } else { DENIAL_REMEMBERED };
        answers.insert(account.clone(), Answer { allowed, until });
    }
}

// The user and the groups that the API server gives to whoever shows a token of the account.
fn review(Account { namespace, name }: &Account) -> LocalSubjectAccessReview {
    LocalSubjectAccessReview {
        metadata: ObjectMeta { namespace: Some(namespace.to_string()), ..ObjectMeta::default() },
        spec: SubjectAccessReviewSpec {
            user: Some(format!("system:serviceaccount:{namespace}:{name}")),
            groups: Some(vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
                "system:authenticated".to_owned(),
            ]),
            resource_attributes: Some(ResourceAttributes {
                namespace: Some(namespace.to_string()),
                verb: Some("create".to_owned()),
                resource: Some("persistentvolumeclaims".to_owned()),
                version: Some("v1".to_owned()),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        status: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(number: usize) -> Account {
        Account { namespace: "ci".into(), name: number.to_string().into() }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_good_for_a_moment() {
        let authorizer = Authorizer::default();
        assert_eq!(authorizer.known(&account(1)), Authorization::Unknown);
        authorizer.remember(&account(1), true);
        authorizer.remember(&account(2), false);
        assert_eq!(authorizer.known(&account(1)), Authorization::Allowed);
        assert_eq!(authorizer.known(&account(2)), Authorization::Denied);
        tokio::time::advance(DENIAL_REMEMBERED).await;
        assert_eq!(authorizer.known(&account(1)), Authorization::Allowed);
        assert_eq!(authorizer.known(&account(2)), Authorization::Unknown);
        tokio::time::advance(REMEMBERED).await;
        assert_eq!(authorizer.known(&account(1)), Authorization::Unknown);
    }

    #[tokio::test(start_paused = true)]
    async fn it_never_remembers_more_than_it_may() {
        let authorizer = Authorizer::default();
        for number in 0..=MOST_ACCOUNTS {
            authorizer.remember(&account(number), true);
        }
        assert!(authorizer.answers.lock().len() <= MOST_ACCOUNTS);
        assert_eq!(authorizer.known(&account(MOST_ACCOUNTS)), Authorization::Allowed);
    }
}
