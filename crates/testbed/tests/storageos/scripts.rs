//! What happens on its own.

use std::time::Duration;

use anyhow::{Result, ensure};
use http::StatusCode;
use testbed::{
    eventually,
    storageos::{Endpoint, Route, Script, StorageOs},
};

use crate::{Client, ENDPOINT, paths, volume};

#[tokio::test]
async fn a_namespace_can_go_between_the_two_lists_of_a_poll() -> Result<()> {
    let server = StorageOs::start().await?;
    let id = server.add_volume(volume());
    let client = Client::login(&server).await?;
    let volumes = paths(&server, "team", &id).0;
    server.run(Script::default().answered(Route::Namespaces, 2, |store| store.remove_namespace("team")));
    for expected in [StatusCode::OK, StatusCode::NOT_FOUND] {
        let namespaces = client.get("/namespaces").await?.json()?;
        assert_eq!(namespaces.as_array().map(Vec::len), Some(1), "the list was made before");
        assert_eq!(client.get(&volumes).await?.status, expected);
    }
    Ok(())
}

#[tokio::test]
async fn a_failover_goes_through_its_stages_one_poll_each() -> Result<()> {
    let server = StorageOs::start().await?;
    let id = server.add_volume(volume());
    let client = Client::login(&server).await?;
    let volumes = paths(&server, "team", &id).0;
    let (down, up) = (id.clone(), id.clone());
    server.run(
        Script::default()
            .answered(Route::Volumes, 2, move |store| drop(store.failover(&down, Endpoint::Null)))
            .answered(Route::Volumes, 1, move |store| drop(store.failover(&up, "10.0.0.2:25705"))),
    );
    for _ in 0..5 {
        client.get(&volumes).await?;
    }
    let told = server.reports(&id).into_iter().map(|report| report.endpoint).collect::<Vec<_>>();
    assert_eq!(told, [Some(ENDPOINT.to_owned()), None, Some("10.0.0.2:25705".to_owned())]);
    Ok(())
}

#[tokio::test]
async fn timed_steps_come_in_order_and_each_after_its_pause() -> Result<()> {
    let server = StorageOs::start().await?;
    let id = server.add_volume(volume());
    let (one, two) = (id.clone(), id.clone());
    let pause = Duration::from_millis(100);
    let started = tokio::time::Instant::now();
    server.run(
        Script::default()
            .after(pause, move |store| drop(store.failover(&one, "10.0.0.2:25705")))
            .after(pause, move |store| drop(store.failover(&two, "10.0.0.3:25705"))),
    );
    eventually("the last step", async || {
        let volume = server.volume(&id)?;
        ensure!(volume.endpoint.text() == Some("10.0.0.3:25705"), "{:?}", volume.endpoint);
        Ok(())
    })
    .await?;
    assert!(started.elapsed() >= pause * 2);
    // Two changes since the first version, so none was left out.
    assert_eq!(server.version(&id)?, "Mw");
    Ok(())
}
