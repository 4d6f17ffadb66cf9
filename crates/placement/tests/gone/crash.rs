//! A crash after any write leaves what the next process ends.

use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{
    ResourceExt,
    api::{ListParams, WatchParams},
};
use placement::{Caches, gone::Gone};
use serde_json::json;
use testbed::within;
use tokio_util::sync::CancellationToken;

use crate::room::{PENDING, RECREATE, Room};

impl Room {
    /// Runs until one write is answered, or until this is so, and not an instruction longer. True if it was a write.
    async fn run_for_one_write(&mut self, done: impl AsyncFnMut() -> Result<()>) -> Result<bool> {
        let settings = self.defaults();
        let (context, watches) = self.build(settings).await?;
        let part = Gone::new(&context);
        let Caches { pods, claims, classes, volumes, nodes } = context.caches.clone();
        let feeds = async {
            tokio::join!(
                watches.feed(&pods),
                watches.feed(&claims),
                watches.feed_cluster_scoped(&classes),
                watches.feed_cluster_scoped(&volumes),
                watches.feed_cluster_scoped(&nodes),
            )
        };
        let run = async {
            tokio::join!(claims.synced(), classes.synced(), volumes.synced(), nodes.synced());
            part.run(CancellationToken::new()).await;
        };
        let killed = self.process.until_first_write(run, &["persistentvolumes", "persistentvolumeclaims"]);
        let result = tokio::select! {
            _ = feeds => anyhow::bail!("the watches have ended"),
            () = killed => Ok(true),
            done = within(Duration::from_mins(1), "a write, or the end", done) => done.map(|()| false),
        };
        self.process.kill();
        result
    }
}

#[tokio::test]
async fn a_claim_is_made_again_exactly_once_through_a_crash_after_every_write() -> Result<()> {
    let mut room = Room::prepare("crash").await?;
    let class = room.create_class("local", "delete", "nobody.example.dev").await?;
    let node = room.add_node("home", "a").await?;
    let claim = json!({
        "metadata": {"annotations": {RECREATE: "true", "example.dev/note": "kept"}, "labels": {"app": "x"}},
    });
    let volume = room.create_bound("data", &class, ("kubernetes.io/hostname", &node), claim, json!({})).await?;
    let version = room.claims.list(&ListParams::default()).await?.metadata.resource_version.unwrap_or_default();
    let old = room.uid_of_claim("data").await?;

    assert!(Box::pin(room.run_for_one_write(async || anyhow::bail!("not yet"))).await?, "its machine is noted");
    room.until_noted(&volume).await?;
    room.cluster.remove_node(&node).await?;
    let mut crashes = 0;
    let (volumes, claims) = (room.volumes.clone(), room.claims.clone());
    loop {
        let ended = async || {
            ensure!(volumes.get_opt(&volume).await?.is_none(), "the volume is there");
            ensure!(claims.get("data").await?.uid() != old, "the claim is the old one");
            Ok(())
        };
        if !Box::pin(room.run_for_one_write(ended)).await? {
            break;
        }
        crashes += 1;
        ensure!(crashes < 20, "it goes in circles");
    }
    // Since when, the note, the claim's end, the new claim, the note taken back, the volume's end and its finalizer.
    assert!(crashes >= 6, "only {crashes} writes");
    let made = room.claims.get("data").await?;
    assert_eq!(made.annotations().get("example.dev/note").map(String::as_str), Some("kept"));
    assert_eq!(made.labels().get("app").map(String::as_str), Some("x"));
    assert_eq!(made.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()), None);
    assert_eq!(times_made(&room, &version).await?, 1, "besides the first one");
    Ok(())
}

/// How many claims were made since then.
async fn times_made(room: &Room, version: &str) -> Result<usize> {
    use futures::{StreamExt, TryStreamExt};
    use kube::api::WatchEvent;
    let parameters = WatchParams::default().timeout(5);
    let events = room.claims.watch(&parameters, version).await?.boxed();
    let events: Vec<WatchEvent<PersistentVolumeClaim>> = events.try_collect().await?;
    Ok(events.iter().filter(|event| matches!(event, WatchEvent::Added(_))).count())
}

#[tokio::test]
async fn what_was_written_down_is_taken_back_if_the_node_is_there_again() -> Result<()> {
    let mut room = Room::prepare("takeback").await?;
    let class = room.create_class("local", "delete", "nobody.example.dev").await?;
    let node = room.add_node("home", "a").await?;
    let claim = json!({"metadata": {"annotations": {RECREATE: "true"}}});
    let volume = room.create_bound("data", &class, ("kubernetes.io/hostname", &node), claim, json!({})).await?;
    let old = room.uid_of_claim("data").await?;
    let never = || async || anyhow::bail!("not yet");
    Box::pin(room.run_for_one_write(never())).await?;
    room.cluster.remove_node(&node).await?;
    while !room.volumes.get(&volume).await?.annotations().contains_key(PENDING) {
        Box::pin(room.run_for_one_write(never())).await?;
    }
    assert!(room.volumes.get(&volume).await?.finalizers().iter().any(|finalizer| finalizer == PENDING));
    room.add_node("home", "a").await?;
    room.restart(room.defaults()).await?;
    within(Duration::from_mins(1), "the note to be taken back", async || {
        let volume = room.volumes.get(&volume).await?;
        ensure!(!volume.annotations().contains_key(PENDING), "it is there");
        ensure!(!volume.finalizers().iter().any(|finalizer| finalizer == PENDING), "it keeps the volume");
        Ok(())
    })
    .await?;
    assert_eq!(room.uid_of_claim("data").await?, old);
    assert!(room.claims.get("data").await?.metadata.deletion_timestamp.is_none());
    Ok(())
}
