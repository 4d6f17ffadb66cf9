//! Volumes that were left behind.

use anyhow::{Result, ensure};
use kube::ResourceExt;
use rehearsal::Told;
use serde_json::{Value, json};
use testbed::eventually;

use crate::room::{NOTE, Room, SELECTED, node_of, note_of};

/// Waits until volume and claim tell of this many moves, the last of them between these nodes.
async fn until_noted(room: &Room, name: &str, count: u64, from: &str, to: &str) -> Result<()> {
    eventually(&format!("move {count} of volume {name} to be noted"), async || {
        let (volume, claim) = (room.volumes.get(&room.own(name)).await?, room.claims.get(name).await?);
        let expected = (json!(count), json!(room.own(from)), json!(room.own(to)));
        for note in [note_of(&volume), note_of(&claim)] {
            let note = note.unwrap_or_default();
            let found = (note["count"].clone(), note["from"].clone(), note["to"].clone());
            ensure!(found == expected, "it says {note}");
            ensure!(note["last"].as_str().is_some_and(|last| last.ends_with('Z')), "it says {note}");
        }
        Ok(())
    })
    .await
}

/// The count on the volume, after the feature has looked at it at least once more.
async fn count_after_a_look(room: &Room, name: &str, look: (&str, &str)) -> Result<Value> {
    let before = room.decided(look.0, look.1);
    room.annotate_volume(name, &json!({"example.dev/look": before.to_string()})).await?;
    room.until_decided(look.0, look.1, before + 1).await?;
    Ok(note_of(&room.volumes.get(&room.own(name)).await?).unwrap_or_default()["count"].clone())
}

async fn selected(room: &Room, name: &str) -> Result<Option<String>> {
    Ok(room.volumes.get(&room.own(name)).await?.annotations().get(SELECTED).cloned())
}

#[tokio::test]
async fn a_volume_that_follows_its_pod_is_noted_counted_once_and_told() -> Result<()> {
    let mut room = Room::prepare("moves", &["a", "b"]).await?;
    let volume = room.create_volume("data", &json!({})).await?;
    let settings = room.settings(&json!({"recordFailover": true}))?;
    room.start(settings.clone()).await?;
    room.run_pod("first", "data", "a").await?;
    // Where it is at first is noted, but nothing was lost.
    eventually("the first home to be noted", async || {
        ensure!(selected(&room, "data").await? == Some(room.own("a")), "it is not");
        Ok(())
    })
    .await?;
    assert_eq!(note_of(&room.volumes.get(&room.own("data")).await?), None);

    room.delete_pod("first").await?;
    let pod = room.run_pod("second", "data", "b").await?;
    until_noted(&room, "data", 1, "a", "b").await?;
    assert_eq!(selected(&room, "data").await?, Some(room.own("b")));
    let claim = room.claims.get("data").await?;
    for uid in [claim.uid(), pod.uid()] {
        let Told { kind, note, .. } = room.events.until_told(uid.as_deref(), "VolumeRecreatedBlank").await?;
        assert!(kind == "Warning" && note.contains(&room.own("a")) && note.contains(&room.own("b")), "{kind}: {note}");
    }
    assert_eq!(note_of(&claim).unwrap()["claim"], Value::Null, "whose data it was is clear there");
    assert_eq!(note_of(&room.volumes.get(&room.own("data")).await?).unwrap()["claim"], json!(claim.uid()));

    // Whoever comes next finds nothing new, and counts on from there.
    room.process.kill();
    room.start(settings.clone()).await?;
    let why = placement::explain::volume(&room.admin, &settings, &room.own("data")).await?;
    assert_eq!(why.iter().map(|account| account.reason).collect::<Vec<_>>(), ["AtHome"]);
    assert_eq!(count_after_a_look(&room, "data", ("leave", "AtHome")).await?, json!(1));
    room.delete_pod("second").await?;
    room.run_pod("third", "data", "a").await?;
    until_noted(&room, "data", 2, "b", "a").await?;
    assert_eq!(volume.uid(), room.volumes.get(&room.own("data")).await?.uid());
    let (volume, claim) = (format!("persistentvolumes/{}", room.own("data")), "persistentvolumeclaims/data");
    room.until_written(&[claim, &volume]).await
}

#[tokio::test]
async fn a_move_that_the_driver_notes_counts_once_in_every_order() -> Result<()> {
    let mut room = Room::prepare("orders", &["a", "b"]).await?;
    for name in ["driver-first", "pod-first", "while-away"] {
        room.create_volume(name, &room.made_on("a")).await?;
    }
    let settings = room.settings(&json!({"recordFailover": false}))?;
    room.start(settings.clone()).await?;
    let moved = json!({SELECTED: room.own("b")});

    room.annotate_volume("driver-first", &moved).await?;
    until_noted(&room, "driver-first", 1, "a", "b").await?;
    room.run_pod("driver-first", "driver-first", "b").await?;

    let pod = room.run_pod("pod-first", "pod-first", "b").await?;
    assert_eq!(count_after_a_look(&room, "pod-first", ("leave", "NothingSeen")).await?, Value::Null);
    room.annotate_volume("pod-first", &moved).await?;
    until_noted(&room, "pod-first", 1, "a", "b").await?;
    room.events.until_told(pod.uid().as_deref(), "VolumeRecreatedBlank").await?;

    room.process.kill();
    room.run_pod("while-away", "while-away", "b").await?;
    room.annotate_volume("while-away", &moved).await?;
    room.start(settings).await?;
    until_noted(&room, "while-away", 1, "a", "b").await?;

    for name in ["driver-first", "pod-first", "while-away"] {
        assert_eq!(count_after_a_look(&room, name, ("leave", "AtHome")).await?, json!(1), "{name}");
        assert_eq!(selected(&room, name).await?, Some(room.own("b")), "it is the driver's to write");
    }
    room.annotate_volume("pod-first", &json!({SELECTED: room.own("a")})).await?;
    until_noted(&room, "pod-first", 2, "b", "a").await
}

#[tokio::test]
async fn whoever_comes_after_a_crash_finishes_the_note_and_counts_nothing_twice() -> Result<()> {
    let mut room = Room::prepare("crash", &["a", "b"]).await?;
    let volume = room.create_volume("data", &room.made_on("a")).await?;
    room.create_volume("old", &room.made_on("a")).await?;
    let claim = volume.spec.and_then(|spec| spec.claim_ref).and_then(|claim| claim.uid);
    let note = |claim: Value| {
        let note = json!({"count": 3, "last": "2026-01-01T00:00:00Z", "from": room.own("a"), "to": room.own("b"), "claim": claim});
        json!({SELECTED: room.own("b"), NOTE: note.to_string()})
    };
    // The volume was written, and then the process ended.
    room.annotate_volume("data", &note(json!(claim))).await?;
    // This one lost the data of a claim that is gone.
    room.annotate_volume("old", &note(json!("another"))).await?;
    room.run_pod("app", "data", "b").await?;
    let settings = room.settings(&json!({"recordFailover": true}))?;
    room.start(settings).await?;
    until_noted(&room, "data", 3, "a", "b").await?;
    count_after_a_look(&room, "old", ("leave", "NothingSeen")).await?;
    assert_eq!(note_of(&room.claims.get("old").await?), None);
    room.until_written(&["persistentvolumeclaims/data"]).await
}

#[tokio::test]
async fn a_pod_that_never_ran_has_moved_nothing() -> Result<()> {
    let mut room = Room::prepare("never-ran", &["a"]).await?;
    room.create_volume("data", &room.made_on("a")).await?;
    room.start(room.settings(&json!({"recordFailover": true}))?).await?;
    // Nobody runs pods there.
    let stuck = json!({"spec": {"nodeName": room.own("nowhere")}});
    let pod = room.create_pod("stuck", "data", &stuck).await?;
    assert_eq!(node_of(&pod), Some(room.own("nowhere")));
    assert_eq!(count_after_a_look(&room, "data", ("leave", "NothingSeen")).await?, Value::Null);
    room.delete_pod("stuck").await?;
    assert_eq!(count_after_a_look(&room, "data", ("leave", "NothingSeen")).await?, Value::Null);
    room.until_written(&[]).await
}

#[tokio::test]
async fn a_volume_that_pods_on_two_nodes_use_stays_where_it_is_as_long_as_one_is_there() -> Result<()> {
    let mut room = Room::prepare("shared", &["a", "b"]).await?;
    let mut shared = room.made_on("a");
    shared["spec"]["accessModes"] = json!(["ReadWriteMany"]);
    room.create_volume("data", &shared).await?;
    room.start(room.settings(&json!({"recordFailover": true}))?).await?;
    room.run_pod("stays", "data", "a").await?;
    room.run_pod("other", "data", "b").await?;
    assert_eq!(count_after_a_look(&room, "data", ("leave", "AtHome")).await?, Value::Null);
    room.delete_pod("stays").await?;
    until_noted(&room, "data", 1, "a", "b").await?;
    room.run_pod("again", "data", "a").await?;
    assert_eq!(count_after_a_look(&room, "data", ("leave", "AtHome")).await?, json!(1));
    Ok(())
}

#[tokio::test]
async fn volumes_of_other_drivers_are_nobodys_business_here() -> Result<()> {
    let mut room = Room::prepare("foreign", &["a", "b"]).await?;
    let mut foreign = room.made_on("a");
    foreign["spec"]["csi"]["driver"] = "other.example.dev".into();
    room.create_volume("theirs", &foreign).await?;
    room.create_volume("ours", &room.made_on("a")).await?;
    room.start(room.settings(&json!({"recordFailover": true}))?).await?;
    room.run_pod("theirs", "theirs", "b").await?;
    room.run_pod("ours", "ours", "b").await?;
    until_noted(&room, "ours", 1, "a", "b").await?;
    let ours = format!("persistentvolumes/{}", room.own("ours"));
    room.until_written(&["persistentvolumeclaims/ours", &ours]).await
}
