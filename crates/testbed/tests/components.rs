//! Control planes of one's own: stopped, killed, paused, side by side, and refusing to start.

use std::time::{Duration, Instant};

use anyhow::Result;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{Api, Client, api::ListParams};
use testbed::{Component, ControlPlane, Options, eventually};

/// Just an API server: what most of these tests need, and quick to start.
fn bare() -> Options {
    Options::default().without_controller_manager().without_scheduler().nodes(0).provisioner(false)
}

async fn answers(client: &Client) -> bool {
    client.apiserver_version().await.is_ok()
}

#[tokio::test]
async fn an_api_server_that_was_killed_or_stopped_comes_back_at_the_same_address_with_its_data() -> Result<()> {
    let control_plane = ControlPlane::start(bare()).await?;
    let namespace = control_plane.create_namespace("kept").await?;
    let client = control_plane.admin().await?;
    for round in ["killed", "stopped"] {
        if round == "killed" {
            control_plane.kill(Component::ApiServer)?;
        } else {
            control_plane.stop(Component::ApiServer).await?;
        }
        assert!(!answers(&client).await, "{round}");
        assert!(control_plane.kill(Component::ApiServer).is_err(), "{round} twice");
        control_plane.start_component(Component::ApiServer).await?;
        // The client still has the old address.
        Api::<Namespace>::all(client.clone()).get(&namespace).await?;
    }
    assert!(control_plane.start_component(Component::ApiServer).await.is_err(), "it runs already");
    assert!(control_plane.start_component(Component::Scheduler).await.is_err(), "it was never asked for");
    Ok(())
}

#[tokio::test]
async fn a_paused_api_server_keeps_its_connections_and_answers_nothing_until_it_is_resumed() -> Result<()> {
    let control_plane = ControlPlane::start(bare()).await?;
    let client = control_plane.admin().await?;
    assert!(answers(&client).await);
    control_plane.pause(Component::ApiServer)?;
    let silent = tokio::time::timeout(Duration::from_secs(2), answers(&client)).await;
    assert!(silent.is_err(), "a paused API server must neither answer nor refuse: {silent:?}");
    control_plane.resume(Component::ApiServer)?;
    eventually("it to answer again", async || client.apiserver_version().await).await?;
    Ok(())
}

#[tokio::test]
async fn two_control_planes_side_by_side_know_nothing_of_each_other() -> Result<()> {
    let (one, other) = tokio::try_join!(ControlPlane::start(bare()), ControlPlane::start(bare()))?;
    assert_ne!(one.url(), other.url());
    let namespace = one.create_namespace("only-here").await?;
    let elsewhere: Api<Namespace> = Api::all(other.admin().await?);
    assert!(elsewhere.get_opt(&namespace).await?.is_none());
    // Neither accepts the other's certificates.
    let foreign = std::fs::read_to_string(one.admin_kubeconfig())?.replace(one.url(), other.url());
    let kubeconfig = one.directory().join("foreign.kubeconfig");
    std::fs::write(&kubeconfig, foreign)?;
    assert!(!answers(&one.client(&kubeconfig).await?).await);
    Ok(())
}

#[tokio::test]
async fn a_wrong_flag_ends_in_an_error_with_the_components_own_words() -> Result<()> {
    let started = Instant::now();
    let error = ControlPlane::start(bare().apiserver_flag("--no-such-flag=1")).await.unwrap_err().to_string();
    assert!(error.starts_with("kube-apiserver ended while starting (exit status: 1)"), "{error}");
    assert!(error.contains("unknown flag: --no-such-flag"), "{error}");
    assert!(started.elapsed() < Duration::from_mins(1), "a component that is gone is not waited for");
    Ok(())
}

#[tokio::test]
async fn a_number_of_real_nodes_that_cannot_be_had_is_refused() {
    for nodes in [0, 4] {
        let refusal = ControlPlane::start(bare().real_nodes(nodes)).await.unwrap_err().to_string();
        assert_eq!(refusal, format!("a cluster can have 1 to 3 real nodes, and {nodes} were asked for"));
    }
}

#[tokio::test]
async fn a_directory_with_something_in_it_is_refused_and_left_alone() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("precious");
    std::fs::write(&file, "data")?;
    let error = ControlPlane::start(bare().directory(directory.path())).await.unwrap_err().to_string();
    assert!(error.contains("is not empty"), "{error}");
    assert!(file.exists());
    Ok(())
}

#[tokio::test]
async fn a_dropped_control_plane_takes_its_processes_and_its_directory_along() -> Result<()> {
    let parent = tempfile::tempdir()?;
    let directory = parent.path().join("run");
    let control_plane = ControlPlane::start(bare().directory(&directory)).await?;
    let client = control_plane.admin().await?;
    let pids = Component::ALL.into_iter().filter_map(|component| control_plane.pid(component)).collect::<Vec<_>>();
    assert_eq!(pids.len(), 2);
    assert!(Api::<ConfigMap>::all(client.clone()).list(&ListParams::default()).await.is_ok());
    drop(control_plane);
    assert!(!directory.exists());
    assert!(pids.iter().all(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists()));
    assert!(!answers(&client).await);
    Ok(())
}
