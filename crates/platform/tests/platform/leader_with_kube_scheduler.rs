//! An election in which the other candidate is Kubernetes' own, with client-go's elector.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use crate::leader_support::{Candidate, Terms, holder, quick};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use platform::leader::LeaderConfig;
use testbed::{Component, ControlPlane, Options, eventually};

const LEASE: &str = "contended";
const NAMESPACE: &str = "kube-system";

async fn control_plane() -> ControlPlane {
    let options = Options::default()
        .name("leader-with-kube-scheduler")
        .without_controller_manager()
        .nodes(0)
        .provisioner(false)
        .scheduler_flag("--leader-elect=true")
        .scheduler_flag(format!("--leader-elect-resource-name={LEASE}"))
        .scheduler_flag(format!("--leader-elect-resource-namespace={NAMESPACE}"))
        .scheduler_flag("--leader-elect-lease-duration=3s")
        .scheduler_flag("--leader-elect-renew-deadline=2s")
        .scheduler_flag("--leader-elect-retry-period=500ms");
    ControlPlane::start(options).await.unwrap()
}

fn ours() -> LeaderConfig {
    LeaderConfig { name: LEASE.into(), ..quick(NAMESPACE, "ours") }
}

/// Looks at the lease all the time; counts the moments at which we led while somebody else held it.
fn observe(leases: Api<Lease>, candidate: &Arc<Candidate>) -> (Arc<AtomicU32>, tokio::task::JoinHandle<()>) {
    let overlaps = Arc::new(AtomicU32::new(0));
    let (counter, candidate) = (Arc::clone(&overlaps), Arc::clone(candidate));
    let task = tokio::spawn(async move {
        loop {
            let before = candidate.leads();
            let holder = holder(&leases, LEASE).await.unwrap_or_default();
            if before && candidate.leads() && !holder.is_empty() && holder != "ours" {
                counter.fetch_add(1, Ordering::SeqCst);
            }
        }
    });
    (overlaps, task)
}

#[tokio::test]
async fn the_lease_goes_back_and_forth_between_kube_scheduler_and_us_and_never_has_two_holders() {
    let control_plane = control_plane().await;
    let leases: Api<Lease> = Api::namespaced(control_plane.admin().await.unwrap(), NAMESPACE);
    let scheduler_holds = async || match holder(&leases, LEASE).await {
        Some(holder) if !holder.is_empty() && holder != "ours" => Ok(()),
        other => Err(format!("{other:?} holds the lease")),
    };
    eventually("kube-scheduler to lead", scheduler_holds).await.unwrap();

    let terms = Terms::default();
    let candidate = Arc::new(Candidate::start(control_plane.admin_kubeconfig(), ours(), &terms));
    let (overlaps, observer) = observe(leases.clone(), &candidate);
    let mut leadership = candidate.leadership.clone();
    leadership.wait_for(|leadership| leadership.holder.is_some()).await.unwrap();
    assert!(!candidate.leads(), "we lead beside a living holder");

    control_plane.stop(Component::Scheduler).await.unwrap();
    let took = candidate.begins().await;
    assert!(took <= Duration::from_secs(5), "we took over {took:?} after kube-scheduler had stopped");

    control_plane.start_component(Component::Scheduler).await.unwrap();
    let rounds = leases.get(LEASE).await.unwrap().spec.unwrap().renew_time;
    let renewed_beside_it = async || {
        let spec = leases.get(LEASE).await.unwrap().spec.unwrap();
        let age = spec.renew_time.as_ref().unwrap().0.duration_since(rounds.as_ref().unwrap().0);
        if age.as_secs() >= 4 { Ok(spec.holder_identity) } else { Err(format!("renewed for {age:#}")) }
    };
    let holder = eventually("us to outlast a whole lease duration", renewed_beside_it).await.unwrap();
    assert_eq!(holder.as_deref(), Some("ours"), "kube-scheduler took a living lease");

    observer.abort();
    assert!(observer.await.unwrap_err().is_cancelled());
    Arc::into_inner(candidate).unwrap().shut_down().await;
    eventually("kube-scheduler to lead again", scheduler_holds).await.unwrap();
    assert_eq!(overlaps.load(Ordering::SeqCst), 0);
}
