//! Elections on a real API server that stays up.

use std::{path::Path, time::Duration};

use crate::leader_support::{Candidate, Terms, client_for, holder, quick};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{ConfigMap, ServiceAccount},
    rbac::v1::{Role, RoleBinding},
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use platform::{
    client::{ClientOptions, RequestError},
    leader::LeaderConfig,
};
use serde_json::{Value, json};
use testbed::{Cluster, eventually};

struct Election {
    cluster: Cluster,
    namespace: String,
    leases: Api<Lease>,
    terms: Terms,
}

impl Election {
    async fn new() -> Self {
        let cluster = testbed::shared().await.unwrap();
        let namespace = cluster.create_namespace("leader").await.unwrap();
        let leases = Api::namespaced(cluster.admin().await.unwrap(), &namespace);
        Self { cluster, namespace, leases, terms: Terms::default() }
    }

    fn candidate(&self, identity: &str) -> Candidate {
        self.candidate_as(self.cluster.admin_kubeconfig(), quick(&self.namespace, identity))
    }

    fn candidate_as(&self, kubeconfig: &Path, config: LeaderConfig) -> Candidate {
        Candidate::start(kubeconfig, config, &self.terms)
    }

    async fn spec(&self) -> k8s_openapi::api::coordination::v1::LeaseSpec {
        self.leases.get("election").await.unwrap().spec.unwrap()
    }
}

#[tokio::test]
async fn a_released_lease_is_taken_over_within_two_seconds_with_the_default_durations() {
    let election = Election::new().await;
    let config = |identity| LeaderConfig::new("election", &election.namespace, identity);
    let kubeconfig = election.cluster.admin_kubeconfig();
    let first = election.candidate_as(kubeconfig, config("first"));
    first.begins().await;
    let spec = election.spec().await;
    assert_eq!((spec.lease_duration_seconds, spec.lease_transitions), (Some(15), Some(0)));

    let second = election.candidate_as(kubeconfig, config("second"));
    second.knows("first").await;
    let started = tokio::time::Instant::now();
    first.shut_down().await;
    second.begins().await;
    let took = started.elapsed();
    assert!(took <= Duration::from_secs(2), "the hand-over took {took:?}");
    let spec = election.spec().await;
    assert_eq!((spec.holder_identity.as_deref(), spec.lease_transitions), (Some("second"), Some(1)));
    assert_eq!(election.terms.most_at_once(), 1);

    second.shut_down().await;
    let spec = election.spec().await;
    assert_eq!((spec.holder_identity.as_deref(), spec.lease_duration_seconds), (Some(""), Some(1)));
}

#[tokio::test]
async fn a_dead_holder_is_replaced_when_its_lease_has_expired_and_not_before() {
    let election = Election::new().await;
    let first = election.candidate("first");
    first.begins().await;
    let second = election.candidate("second");
    second.knows("first").await;
    first.die().await;
    let took = second.begins().await;
    // The last renewal may be up to a retry period old, and what the dead one still had on its way takes no time.
    assert!(took >= Duration::from_secs(2), "the lease was taken after {took:?}, before it can have expired");
    assert!(took <= Duration::from_secs(5), "the take-over took {took:?}");
    assert_eq!(election.terms.most_at_once(), 1);
    second.shut_down().await;
}

#[tokio::test]
async fn a_foreign_holder_in_our_lease_ends_the_term_and_its_own_duration_is_respected() {
    let election = Election::new().await;
    let ours = election.candidate("ours");
    ours.begins().await;
    let foreign = json!({"spec": {"holderIdentity": "foreign", "leaseDurationSeconds": 4, "renewTime": null}});
    election.leases.patch("election", &PatchParams::default(), &Patch::Merge(&foreign)).await.unwrap();
    let ended = ours.ends().await;
    assert!(ended <= Duration::from_secs(2), "the term went on for {ended:?}");
    assert!(!ours.fence.is_open());
    ours.knows("foreign").await;
    let took = ours.begins().await;
    assert!(took >= Duration::from_secs(3), "a lease of 4 s was taken after {took:?}");
    let metrics = ours.registry.encode();
    assert!(metrics.contains(r#"leader_election_master_status{name="election"} 1"#), "{metrics}");
    assert!(metrics.contains("claimkeeper_leader_transitions_total 3"), "{metrics}");
    ours.shut_down().await;
}

#[tokio::test]
async fn a_deleted_lease_is_made_again_by_its_holder_and_left_alone_by_those_who_stand_by() {
    let election = Election::new().await;
    let first = election.candidate("first");
    first.begins().await;
    let second = election.candidate("second");
    second.knows("first").await;
    election.leases.delete("election", &DeleteParams::default()).await.unwrap();
    let made_again = async || match holder(&election.leases, "election").await {
        Some(holder) => Ok(holder),
        None => Err("there is no lease"),
    };
    assert_eq!(eventually("the lease to be made again", made_again).await.unwrap(), "first");
    assert!(first.leads() && !second.leads());
    assert_eq!(election.terms.most_at_once(), 1);
    first.shut_down().await;
    second.begins().await;
    second.shut_down().await;
}

#[tokio::test]
async fn of_many_candidates_that_start_together_exactly_one_leads_at_any_time() {
    let election = Election::new().await;
    let mut candidates: Vec<Candidate> =
        (0..5).map(|number| election.candidate(&format!("candidate-{number}"))).collect();
    while !candidates.is_empty() {
        let leads = async || candidates.iter().position(Candidate::leads).ok_or("nobody leads");
        let leader = eventually("a leader", leads).await.unwrap();
        candidates.swap_remove(leader).shut_down().await;
    }
    assert_eq!(election.terms.most_at_once(), 1);
    assert_eq!(election.spec().await.lease_transitions, Some(4), "one for each change of the holder");
}

#[tokio::test]
async fn writes_pass_the_fence_only_during_a_term_and_not_after_the_process_was_frozen() {
    let election = Election::new().await;
    let ours = election.candidate("ours");
    ours.begins().await;
    let options = ClientOptions { fence: Some(ours.fence.clone()), ..ClientOptions::new(&ours.registry) };
    let client = client_for(election.cluster.admin_kubeconfig(), options);
    let config_maps: Api<ConfigMap> = Api::namespaced(client, &election.namespace);
    let write = async |name: &str| {
        let config_map = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        config_maps.create(&PostParams::default(), &config_map).await
    };
    write("during").await.unwrap();
    // This is the freeze, not a wait: the only thread of the runtime stands still for longer than the renewal deadline.
    std::thread::sleep(Duration::from_millis(2_500));
    let error = write("after").await.unwrap_err();
    assert!(RequestError::is_not_leader(&error), "{error}");
    assert!(config_maps.get_opt("after").await.unwrap().is_none());
    ours.ends().await;
    ours.begins().await;
    write("again").await.unwrap();
    ours.shut_down().await;
    assert!(RequestError::is_not_leader(&write("late").await.unwrap_err()));
}

#[tokio::test]
async fn a_candidate_without_permissions_waits_for_them_and_does_not_need_to_watch() {
    let election = Election::new().await;
    let namespace = &election.namespace;
    let kubeconfig = election.cluster.user_kubeconfig(namespace, &[]).await.unwrap();
    let ours = election.candidate_as(&kubeconfig, quick(namespace, "ours"));
    let refused = async || {
        let forbidden = r#"{verb="get",resource="leases.coordination.k8s.io",code="403"}"#;
        if ours.registry.encode().contains(forbidden) { Ok(()) } else { Err("no request was refused yet") }
    };
    eventually("a refusal", refused).await.unwrap();
    assert!(!ours.leads());

    let user = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": namespace});
    let_elect(&election, &user).await;
    ours.begins().await;

    let second = election.candidate_as(&kubeconfig, quick(namespace, "second"));
    second.knows("ours").await;
    ours.shut_down().await;
    let took = second.begins().await;
    assert!(took <= Duration::from_secs(2), "a candidate that polls took over after {took:?}");
    second.shut_down().await;
}

#[tokio::test]
async fn a_lease_belongs_to_the_account_of_whoever_made_it_and_goes_with_it() {
    let election = Election::new().await;
    let namespace = &election.namespace;
    let accounts: Api<ServiceAccount> = Api::namespaced(election.cluster.admin().await.unwrap(), namespace);
    let account = serde_json::from_value(json!({"metadata": {"name": "elector"}})).unwrap();
    let account = accounts.create(&PostParams::default(), &account).await.unwrap();
    let_elect(&election, &json!({"kind": "ServiceAccount", "name": "elector", "namespace": namespace})).await;
    let kubeconfig = election.cluster.service_account_kubeconfig(namespace, "elector").await.unwrap();
    let ours = election.candidate_as(&kubeconfig, quick(namespace, "ours"));
    ours.begins().await;
    let owners = election.leases.get("election").await.unwrap().metadata.owner_references.unwrap_or_default();
    assert_eq!(owners.iter().map(|owner| &owner.uid).collect::<Vec<_>>(), [account.metadata.uid.as_ref().unwrap()]);
    ours.shut_down().await;

    accounts.delete("elector", &DeleteParams::default()).await.unwrap();
    let gone = async || match election.leases.get_opt("election").await.unwrap() {
        None => Ok(()),
        Some(_) => Err("it is still there"),
    };
    eventually("the lease to go", gone).await.unwrap();
}

/// Lets somebody do what an election takes.
async fn let_elect(election: &Election, subject: &Value) {
    let admin = election.cluster.admin().await.unwrap();
    let roles: Api<Role> = Api::namespaced(admin.clone(), &election.namespace);
    let role = json!({"metadata": {"name": "elector"}, "rules": [
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]}]});
    roles.create(&PostParams::default(), &serde_json::from_value(role).unwrap()).await.unwrap();
    let bindings: Api<RoleBinding> = Api::namespaced(admin, &election.namespace);
    let binding = json!({"metadata": {"name": "elector"}, "subjects": [subject],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "elector"}});
    bindings.create(&PostParams::default(), &serde_json::from_value(binding).unwrap()).await.unwrap();
}
