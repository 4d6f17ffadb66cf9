//! From our controller to the one in kube-controller-manager and back, while pods keep coming.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use k8s_openapi::api::{
    core::v1::{PersistentVolumeClaim, Pod},
    events::v1::Event,
};
use kube::{
    Api, ResourceExt,
    api::{ListParams, PostParams},
};
use serde_json::{Value, json};
use testbed::{Component, ControlPlane, Options, eventually, within};
use tokio_util::sync::CancellationToken;

use crate::{
    home::Home,
    ledger::{expect_made_once, owners},
};

const BUILT_IN_ON: &str = "*";
const BUILT_IN_OFF: &str = "*,-ephemeral-volume-controller";
const OURS: &str = "claimkeeper";
const BUILT_IN: &str = "kube-controller-manager";
const BUILT_IN_USER: &str = "system:serviceaccount:kube-system:ephemeral-volume-controller";
const VOLUMES: [&str; 2] = ["scratch", "cache"];
/// Claims that a controller has to make in its time before the next one gets its turn.
const A_FEW: usize = 100;
const PACE: Duration = Duration::from_millis(15);

#[tokio::test(flavor = "multi_thread")]
async fn switching_controllers_during_a_burst_loses_nothing_and_doubles_nothing() -> Result<()> {
    let options = Options::default().name("switching").without_scheduler().nodes(0).provisioner(false);
    let mut control_plane = ControlPlane::start(options.controllers(BUILT_IN_OFF)).await?;
    let home = Home::on(control_plane.cluster(), "switching").await?;
    let operator = home.prepare("solo", json!({}), json!({})).await?;
    let (start, enough) = (Instant::now(), CancellationToken::new());
    let burst = tokio::spawn(burst(home.pods.clone(), enough.clone()));

    let mut ours = operator.start().await?;
    until_a_few_more(&home, OURS).await?;

    // First one off, then the other on.
    ours.leash.terminate()?;
    ours.leash.ended(Duration::from_secs(30)).await?;
    switch_built_in(&mut control_plane, BUILT_IN_ON).await?;
    until_a_few_more(&home, BUILT_IN).await?;

    // Back with both at work for a while.
    let mut ours = operator.start().await?;
    until_a_few_more(&home, OURS).await?;
    switch_built_in(&mut control_plane, BUILT_IN_OFF).await?;
    until_a_few_more(&home, OURS).await?;

    // Nobody for a while.
    ours.leash.terminate()?;
    ours.leash.ended(Duration::from_secs(30)).await?;
    until_a_few_wait(&home).await?;
    let _ours = operator.start().await?;
    until_a_few_more(&home, OURS).await?;

    enough.cancel();
    let wanted = burst.await??;
    let claims = within(Duration::from_mins(1), "every claim", async || {
        let claims = home.claims.list(&ListParams::default()).await?.items;
        ensure!(claims.len() >= wanted.len(), "{} of {} claims", claims.len(), wanted.len());
        Ok(claims)
    })
    .await?;
    println!("{} claims in {:.1} s", claims.len(), start.elapsed().as_secs_f32());
    assert_eq!(owners(&claims), wanted);
    let makers = expect_made_once(&home, &claims).await?;
    println!("{makers:?}");
    assert_eq!(makers.keys().map(String::as_str).collect::<Vec<_>>(), [BUILT_IN_USER, &operator.user]);
    let events: Api<Event> = Api::namespaced(home.cluster.admin().await?, &home.namespace);
    // The built-in controller, on the other hand, takes it for a failure when a claim is there already.
    let ours = |event: &Event| event.reporting_controller.as_deref().is_some_and(|name| name.starts_with(OURS));
    let mut events = events.list(&ListParams::default()).await?.items;
    events.retain(|event| ours(event) && event.type_.as_deref() == Some("Warning"));
    assert!(events.is_empty(), "{:?}", events.first());
    Ok(())
}

/// Creates pods until there are enough, and returns who must own which claim.
async fn burst(pods: Api<Pod>, enough: CancellationToken) -> Result<BTreeMap<String, String>> {
    let mut wanted = BTreeMap::new();
    for number in 0.. {
        if enough.is_cancelled() {
            break;
        }
        let pod = pods.create(&PostParams::default(), &serde_json::from_value(pod(number))?).await?;
        for volume in VOLUMES {
            wanted.insert(format!("{}-{volume}", pod.name_any()), pod.uid().unwrap_or_default());
        }
        tokio::time::sleep(PACE).await;
    }
    Ok(wanted)
}

fn pod(number: usize) -> Value {
    let spec = json!({
        "accessModes": ["ReadWriteOnce"], "storageClassName": "testbed-wait", "resources": {"requests": {"storage": "1Gi"}},
    });
    let volume = |name| json!({"name": name, "ephemeral": {"volumeClaimTemplate": {"spec": spec}}});
    json!({
        "metadata": {"name": format!("pod-{number}")},
        "spec": {"containers": [{"name": "main", "image": "registry.example/main"}], "volumes": VOLUMES.map(volume)},
    })
}

async fn switch_built_in(control_plane: &mut ControlPlane, controllers: &str) -> Result<()> {
    control_plane.stop(Component::ControllerManager).await?;
    control_plane.set_controllers(controllers)?;
    control_plane.start_component(Component::ControllerManager).await
}

/// Waits until a controller has made a few claims from now on.
async fn until_a_few_more(home: &Home, maker: &str) -> Result<()> {
    let before = made_by(home, maker).await?;
    eventually(&format!("claims made by {maker}"), async || {
        let more = made_by(home, maker).await? - before;
        ensure!(more >= A_FEW, "{more}");
        Ok(())
    })
    .await
}

async fn made_by(home: &Home, maker: &str) -> Result<usize> {
    let is_made_by = |claim: &PersistentVolumeClaim| {
        let first = claim.managed_fields().iter().find(|entry| entry.subresource.is_none());
        first.is_some_and(|entry| entry.manager.as_deref() == Some(maker))
    };
    Ok(home.claims.list(&ListParams::default()).await?.iter().filter(|claim| is_made_by(claim)).count())
}

/// Waits until pods came whose claims nobody made.
async fn until_a_few_wait(home: &Home) -> Result<()> {
    eventually("pods without claims", async || {
        let claims = home.claims.list(&ListParams::default()).await?.items.len();
        let wanted = VOLUMES.len() * home.pods.list(&ListParams::default()).await?.items.len();
        ensure!(wanted >= claims + A_FEW, "{claims} claims of {wanted}");
        Ok(())
    })
    .await
}
