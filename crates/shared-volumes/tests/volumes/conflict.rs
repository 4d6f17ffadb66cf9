//! No address ever leads to another volume's server.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Result, ensure};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{
    ResourceExt,
    runtime::watcher::{self, Event},
};
use shared_volumes::{EndpointGone, Settings};
use testbed::{
    eventually,
    storageos::{Endpoint, Fault, Route, Volume},
};
use tokio::task::JoinHandle;

use crate::room::{Room, targets};

const HERE: &str = "10.1.0.4:25705";
const THERE: &str = "10.1.0.5:25705";

/// Which slice leads where.
pub(crate) type Slices = HashMap<String, Vec<String>>;

/// Everything that slices ever led to, in the order of the writes: after each, which slice leads where.
pub(crate) struct Witness {
    seen: Arc<Mutex<Vec<Slices>>>,
    task: JoinHandle<()>,
}

impl Witness {
    pub(crate) fn watch(room: &Room) -> Self {
        let seen = Arc::<Mutex<Vec<Slices>>>::default();
        let (noted, slices) = (Arc::clone(&seen), room.slices.clone());
        let task = tokio::spawn(async move {
            let mut now = HashMap::new();
            let mut events = watcher::watcher(slices, watcher::Config::default()).boxed();
            while let Ok(Some(event)) = events.try_next().await {
                match event {
                    Event::Apply(slice) | Event::InitApply(slice) => now.insert(slice.name_any(), targets(&slice)),
                    Event::Delete(slice) => now.remove(&EndpointSlice::name_any(&slice)),
                    Event::Init | Event::InitDone => None,
                };
                noted.lock().unwrap().push(now.clone());
            }
        });
        Self { seen, task }
    }

    /// All that was seen, once this is the last of it.
    pub(crate) async fn until(&self, what: &str, last: impl Fn(&Slices) -> bool) -> Result<Vec<Slices>> {
        eventually(what, async || {
            let seen = self.seen.lock().unwrap().clone();
            ensure!(seen.last().is_some_and(&last), "last seen: {:?}", seen.last());
            Ok(seen)
        })
        .await
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Whether two slices led to one endpoint at any time.
fn shared(seen: &[Slices]) -> Option<&Slices> {
    seen.iter().find(|slices| {
        let mut all: Vec<&String> = slices.values().flatten().collect();
        let count = all.len();
        all.sort();
        all.dedup();
        all.len() < count
    })
}

#[tokio::test]
async fn two_volumes_of_one_endpoint_are_both_withdrawn_until_one_moves() -> Result<()> {
    let room = Room::open("twice").await?;
    let (files, _) = room.published("files", HERE).await?;
    let (home, _) = room.published("home", THERE).await?;
    room.server.failover(&home, HERE)?;
    for claim in ["files", "home"] {
        room.until_leads(claim, None).await?;
        let message = room.until_noted(claim, "EndpointClaimedTwice").await?;
        assert!(message.contains(if claim == "files" { &home } else { &files }), "{message}");
        room.told(room.claims.get(claim).await?.uid(), "Warning", "EndpointClaimedTwice").await?;
    }
    room.server.failover(&files, THERE)?;
    room.until_leads("files", Some(THERE)).await?;
    room.until_leads("home", Some(HERE)).await
}

#[tokio::test]
async fn a_port_that_another_server_has_taken_is_left_before_that_one_is_served() -> Result<()> {
    let room = Room::open("reused").await?;
    let (files, _) = room.published("files", HERE).await?;
    let (home, _) = room.published("home", THERE).await?;
    let witness = Witness::watch(&room);
    room.server.failover(&files, Endpoint::Null)?;
    room.server.failover(&home, HERE)?;
    room.until_leads("home", Some(HERE)).await?;
    room.until_leads("files", None).await?;
    let seen = witness.until("the last write", |slices| slices["home-nfs-ipv4"] == [HERE]).await?;
    assert_eq!(shared(&seen), None, "two addresses led to one server");
    Ok(())
}

#[tokio::test]
async fn two_servers_that_change_places_are_never_mistaken_for_each_other() -> Result<()> {
    let room = Room::prepare("swapped").await?;
    // Both are told in one answer, so that each finds the other where it is to go.
    let settings = Settings { concurrency: 2, ..room.defaults() };
    let room = room.start(settings).await?;
    let (files, _) = room.published("files", HERE).await?;
    let (home, _) = room.published("home", THERE).await?;
    let witness = Witness::watch(&room);
    let (mut at_files, mut at_home) = (HERE, THERE);
    for _ in 0..5 {
        (at_files, at_home) = (at_home, at_files);
        // Nobody is told of one without the other.
        let fault = room.server.fault(Fault::status(503).on(Route::Volumes));
        room.server.failover(&files, at_files)?;
        room.server.failover(&home, at_home)?;
        room.server.clear_fault(fault);
        room.until_leads("files", Some(at_files)).await?;
        room.until_leads("home", Some(at_home)).await?;
    }
    let seen = witness.until("the last write", |slices| slices["home-nfs-ipv4"] == [at_home]).await?;
    assert_eq!(shared(&seen), None, "two addresses led to one server");
    Ok(())
}

#[tokio::test]
async fn where_the_way_to_a_server_that_is_gone_is_kept_it_is_until_somebody_else_is_there() -> Result<()> {
    let room = Room::prepare("keep").await?;
    let settings = Settings { endpoint_gone: EndpointGone::Keep, ..room.defaults() };
    let room = room.start(settings).await?;
    let (files, _) = room.published("files", HERE).await?;
    let (home, _) = room.published("home", THERE).await?;
    room.server.failover(&files, Endpoint::Null)?;
    room.until_counted("EndpointGone", 1).await?;
    room.until_noted("files", "EndpointGone").await?;
    assert_eq!(room.leads("files").await?, [HERE]);
    room.server.failover(&home, HERE)?;
    room.until_leads("files", None).await?;
    room.until_leads("home", Some(HERE)).await?;
    room.until_noted("files", "EndpointTaken").await?;
    room.until_idle().await?;
    room.until_noted("files", "EndpointTaken").await?;
    Ok(())
}

#[tokio::test]
async fn what_is_left_of_a_volume_that_nobody_tells_of_makes_room() -> Result<()> {
    let mut room = Room::open("orphan").await?;
    let (files, _) = room.published("files", HERE).await?;
    room.process.kill();
    room.server.remove_volume(&files);
    let (settings, source) = (room.defaults(), room.source());
    room.enter(settings, source).await?;
    room.published("home", HERE).await?;
    room.until_leads("files", None).await?;
    room.until_leads("home", Some(HERE)).await
}

#[tokio::test]
async fn an_old_answer_does_not_overtake_a_newer_one() -> Result<()> {
    let room = Room::open("overtaken").await?;
    let (files, _) = room.published("files", HERE).await?;
    let witness = Witness::watch(&room);
    // The list does not show the volume. So it is asked for, and what is said of it comes late.
    let held = room.server.fault(Fault::hold(Duration::from_secs(2)).on(Route::Volume).times(1));
    let asked = room.server.requests_to(Route::Volume).len();
    let empty = room.server.fault(Fault::body("[]").on(Route::Volumes));
    let answers = || room.server.requests_to(Route::Volume).split_off(asked);
    eventually("somebody to ask for the volume", async || {
        ensure!(!answers().is_empty(), "nobody does");
        Ok(())
    })
    .await?;
    room.server.failover(&files, THERE)?;
    room.server.clear_fault(empty);
    room.until_leads("files", Some(THERE)).await?;
    eventually("the late answer", async || {
        ensure!(answers()[0].status.is_some(), "it is not there yet");
        Ok(())
    })
    .await?;
    room.after_polls(2).await?;
    room.until_idle().await?;
    room.server.clear_fault(held);
    let seen = witness.until("the last write", |slices| slices["files-nfs-ipv4"] == [THERE]).await?;
    let there = |slices: &&Slices| slices.get("files-nfs-ipv4").is_some_and(|to| to == &[THERE]);
    let since: Vec<&Slices> = seen.iter().skip_while(|slices| !there(slices)).collect();
    assert!(since.iter().all(there), "{since:?}");
    Ok(())
}

#[tokio::test]
async fn nothing_is_remembered_of_a_volume_that_is_gone_with_all_its_objects() -> Result<()> {
    let room = Room::prepare("forgotten").await?;
    let settings = Settings { endpoint_gone: EndpointGone::Keep, ..room.defaults() };
    let room = room.start(settings).await?;
    let (files, _) = room.published("files", HERE).await?;
    let other = room.server.add_volume(Volume::shared("elsewhere", "files", "pv-elsewhere").at(THERE));
    room.until_counted("OtherNamespace", 1).await?;
    for id in [&files, &other] {
        room.server.remove_volume(id);
    }
    room.until_counted("VolumeGone", 1).await?;
    room.until_counted("OtherNamespace", 0).await?;
    room.delete_claim("files").await?;
    room.until_counted("VolumeGone", 0).await
}
