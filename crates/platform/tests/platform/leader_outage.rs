//! Elections while the API server is away.

use std::time::Duration;

use crate::leader_support::{Candidate, Terms, quick};
use testbed::{Component, ControlPlane, Options};

/// Before another candidate may start: the lease lasts 3 s.
const SAFE: Duration = Duration::from_millis(2_900);

#[tokio::test]
async fn a_leader_that_cannot_renew_stops_before_its_lease_ends_and_leads_again_when_it_can() {
    let options = Options::default().name("leader-outage").without_controller_manager().without_scheduler().nodes(0);
    let control_plane = ControlPlane::start(options.provisioner(false)).await.unwrap();
    let namespace = control_plane.create_namespace("leader").await.unwrap();
    let terms = Terms::default();
    let candidate = Candidate::start(control_plane.admin_kubeconfig(), quick(&namespace, "ours"), &terms);
    candidate.begins().await;

    // A server that accepts connections and says nothing.
    control_plane.pause(Component::ApiServer).unwrap();
    let ended = candidate.ends().await;
    assert!(ended <= SAFE, "the term went on for {ended:?} without an answer from the API server");
    assert!(!candidate.fence.is_open());
    control_plane.resume(Component::ApiServer).unwrap();
    candidate.begins().await;

    // A server that refuses connections.
    control_plane.kill(Component::ApiServer).unwrap();
    let ended = candidate.ends().await;
    assert!(ended <= SAFE, "the term went on for {ended:?} without an API server");
    control_plane.start_component(Component::ApiServer).await.unwrap();
    candidate.begins().await;

    assert_eq!(terms.most_at_once(), 1);
    candidate.shut_down().await;
}
