//! What a class, or the configuration, may ask for besides.

use anyhow::Result;
use kube::api::DeleteParams;
use releaser::Settings;
use serde_json::json;

use crate::room::{RELEASE, Room, reference};

#[tokio::test]
async fn a_volume_is_released_only_after_the_time_that_its_class_says() -> Result<()> {
    let room = Room::open("after").await?;
    let class = room.create_class("cache", json!({RELEASE: "pool", "claimkeeper.dev/release-after": "1h"})).await?;
    let volume = room.create_released("one", &class, json!({}), json!({})).await?;
    room.until_decided("wait", "TooYoung", 1).await?;
    room.until_phase(&volume, "Released").await?;
    room.annotate_class(&class, json!({"claimkeeper.dev/release-after": "2s"})).await?;
    room.until_phase(&volume, "Available").await?;
    Ok(())
}

#[tokio::test]
async fn no_more_volumes_are_free_than_the_class_says() -> Result<()> {
    let room = Room::prepare("most").await?;
    let class =
        room.create_class("cache", json!({RELEASE: "pool", "claimkeeper.dev/release-max-available": "2"})).await?;
    let mut volumes = Vec::new();
    for number in 0..6 {
        volumes.push(room.create_released(&format!("v{number}"), &class, json!({}), json!({})).await?);
    }
    for volume in &volumes {
        room.until_phase(volume, "Released").await?;
    }
    // All at once, which is where a careless count would give away too many.
    let settings = room.defaults();
    let room = room.start(settings).await?;
    room.until_decided("refuse", "PoolFull", 4).await?;
    room.until_decided("release", "Released", 2).await?;
    assert_eq!(room.decided("release", "Released"), 2);
    let count = async |phase: &str| -> Result<Vec<String>> {
        let mut found = Vec::new();
        for volume in &volumes {
            let status = room.volumes.get(volume).await?.status;
            if status.and_then(|status| status.phase).as_deref() == Some(phase) {
                found.push(volume.clone());
            }
        }
        Ok(found)
    };
    testbed::eventually("two to be free", async || {
        let free = count("Available").await?;
        anyhow::ensure!(free.len() == 2, "{free:?}");
        Ok(())
    })
    .await?;
    let stuck = count("Released").await?;
    assert_eq!(stuck.len(), 4);
    assert!(room.told(&stuck[0], "PoolFull").await?.contains("2 may be"));

    // One is taken, so there is room for another.
    room.create_claim("taker", &class, json!({})).await?;
    room.until_decided("release", "Released", 3).await?;
    // One is deleted: room for one more.
    let free = count("Available").await?;
    room.volumes.delete(&free[0], &DeleteParams::default()).await?;
    room.until_decided("release", "Released", 4).await?;
    Ok(())
}

#[tokio::test]
async fn a_dry_run_tells_once_and_touches_nothing() -> Result<()> {
    let room = Room::prepare("dry").await?;
    let settings = Settings { dry_run: true, ..room.defaults() };
    let room = room.start(settings).await?;
    let class = room.create_class("cache", json!({RELEASE: "pool"})).await?;
    let volume = room.create_released("one", &class, json!({}), json!({})).await?;
    let note = room.told(&volume, "WouldRelease").await?;
    assert!(note.starts_with("the volume would be released now, to any claim"), "{note}");
    assert!(reference(&room.until_phase(&volume, "Released").await?).is_some());
    room.annotate_class(&class, json!({"claimkeeper.dev/release-max-available": "7"})).await?;
    room.until_decided("report", "WouldRelease", 2).await?;
    assert_eq!(room.events(&volume).await?.len(), 1, "it is told once");
    Ok(())
}

#[tokio::test]
async fn a_word_that_means_nothing_is_told_and_releases_nothing() -> Result<()> {
    let room = Room::open("word").await?;
    let class = room.create_class("cache", json!({RELEASE: "everybody"})).await?;
    let volume = room.create_released("one", &class, json!({}), json!({})).await?;
    let note = room.told(&volume, "InvalidPolicy").await?;
    assert!(note.contains("is `everybody`, but must be soft, namespace, pool or never"), "{note}");
    room.until_phase(&volume, "Released").await?;
    room.annotate_class(&class, json!({RELEASE: "pool"})).await?;
    room.until_phase(&volume, "Available").await?;
    Ok(())
}

#[tokio::test]
async fn the_backlog_is_counted_by_class() -> Result<()> {
    let room = Room::open("backlog").await?;
    let class = room.create_class("cache", json!({RELEASE: "never"})).await?;
    let volume = room.create_released("one", &class, json!({}), json!({})).await?;
    room.until_decided("leave", "ClassSaysNever", 1).await?;
    let series = format!(r#"claimkeeper_releaser_released_volumes{{class="{class}"}}"#);
    assert_eq!(room.process.metric(&series), 1);
    room.annotate_class(&class, json!({RELEASE: "pool"})).await?;
    room.until_phase(&volume, "Available").await?;
    testbed::eventually("the backlog to be empty", async || {
        anyhow::ensure!(room.process.metric(&series) == 0, "it is {}", room.process.metric(&series));
        Ok(())
    })
    .await
}
