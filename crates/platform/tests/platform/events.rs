//! Events on a real API server.

use std::{collections::HashMap, path::Path};

use k8s_openapi::api::{
    core::v1::{Event as CoreEvent, ObjectReference},
    events::v1::Event as EventV1,
    rbac::v1::{Role, RoleBinding},
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, PostParams},
};
use platform::{
    client::{self, ClientOptions},
    events::{Event, EventKind, Recorder},
    metrics::Registry,
};
use serde_json::json;
use testbed::{Cluster, PATIENCE, eventually, within};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const CONTROLLER: &str = "claimkeeper.dev/test";

struct Speaker {
    recorder: Recorder,
    registry: Registry,
    shutdown: CancellationToken,
    worker: JoinHandle<()>,
}

impl Speaker {
    fn new(kubeconfig: &Path, instance: &str) -> Self {
        let registry = Registry::default();
        let config = client::load_config(Some(kubeconfig)).unwrap();
        let client = client::build(config, ClientOptions::new(&registry)).unwrap();
        let (recorder, worker) = Recorder::new(client, CONTROLLER, instance, &registry);
        let shutdown = CancellationToken::new();
        let worker = tokio::spawn(worker.run(shutdown.clone()));
        Self { recorder, registry, shutdown, worker }
    }

    /// Waits until something became of `expected` events.
    async fn has_written(&self, expected: usize) {
        let written = async || {
            let lines = outcomes(&self.registry);
            let counts = lines.lines().filter_map(|line| line.rsplit_once(' ')?.1.parse::<usize>().ok());
            if counts.sum::<usize>() == expected { Ok(()) } else { Err(lines) }
        };
        within(3 * PATIENCE, "the events", written).await.unwrap();
    }

    /// Waits until something became of `expected` events, because a worker that ends leaves a slow server behind, ends the worker,
    /// and returns what became of them.
    async fn finish(self, expected: usize) -> String {
        self.has_written(expected).await;
        self.shutdown.cancel();
        self.worker.await.unwrap();
        outcomes(&self.registry)
    }
}

fn outcomes(registry: &Registry) -> String {
    let metrics = registry.encode();
    metrics.lines().filter(|line| line.starts_with("claimkeeper_events_total")).collect::<Vec<_>>().join("\n")
}

struct Room {
    cluster: Cluster,
    namespace: String,
    admin: Client,
}

impl Room {
    async fn new() -> Self {
        let cluster = testbed::shared().await.unwrap();
        let namespace = cluster.create_namespace("events").await.unwrap();
        let admin = cluster.admin().await.unwrap();
        Self { cluster, namespace, admin }
    }

    fn speaker(&self) -> Speaker {
        Speaker::new(self.cluster.admin_kubeconfig(), "replica-1")
    }

    fn events(&self) -> Api<EventV1> {
        Api::namespaced(self.admin.clone(), &self.namespace)
    }

    /// The notes about each pod, with how often they were told, in the order in which they were last written.
    async fn told(&self) -> HashMap<String, Vec<(String, i32)>> {
        let mut events = self.events().list(&ListParams::default()).await.unwrap().items;
        events.sort_by_key(|event| event.metadata.resource_version.as_ref().unwrap().parse::<u64>().unwrap());
        let mut told = HashMap::<_, Vec<_>>::new();
        for event in events {
            let count = event.series.map_or(1, |series| series.count);
            let pod = event.regarding.unwrap().name.unwrap();
            told.entry(pod).or_default().push((event.note.unwrap(), count));
        }
        told
    }

    fn about(&self, name: &str, note: &str) -> Event {
        let regarding = ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Pod".into()),
            namespace: Some(self.namespace.clone()),
            name: Some(name.into()),
            uid: Some(format!("uid-of-{name}")),
            ..ObjectReference::default()
        };
        Event { regarding, kind: EventKind::Warning, reason: "Tested", action: "Test", note: note.into() }
    }

    /// The right to do `verbs` with the core/v1 events of this room, for a user who has no other.
    async fn user_of_core_events(&self, verbs: &[&str]) -> std::path::PathBuf {
        let roles: Api<Role> = Api::namespaced(self.admin.clone(), &self.namespace);
        let role = json!({"metadata": {"name": "speaker"}, "rules": [
            {"apiGroups": [""], "resources": ["events"], "verbs": verbs}]});
        roles.create(&PostParams::default(), &serde_json::from_value(role).unwrap()).await.unwrap();
        let bindings: Api<RoleBinding> = Api::namespaced(self.admin.clone(), &self.namespace);
        let binding = json!({"metadata": {"name": "speaker"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "speaker"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": self.namespace}]});
        bindings.create(&PostParams::default(), &serde_json::from_value(binding).unwrap()).await.unwrap();
        let kubeconfig = self.cluster.user_kubeconfig(&self.namespace, &[]).await.unwrap();
        // The authorizer reads its rules from a cache of its own.
        let user = self.cluster.client(&kubeconfig).await.unwrap();
        let allowed = async || {
            let mut probe = CoreEvent::default();
            probe.metadata.name = Some(format!("probe-{}", self.namespace));
            probe.involved_object.namespace = Some(self.namespace.clone());
            let dry_run = PostParams { dry_run: true, field_manager: None };
            Api::<CoreEvent>::namespaced(user.clone(), &self.namespace).create(&dry_run, &probe).await
        };
        eventually("the permission to create events", allowed).await.unwrap();
        kubeconfig
    }
}

#[tokio::test]
async fn an_event_says_who_what_why_and_repetitions_are_counted_in_it() {
    let room = Room::new().await;
    let speaker = room.speaker();
    for _ in 0..3 {
        speaker.recorder.publish(room.about("pod", "the disk is gone"));
    }
    speaker.recorder.publish(room.about("pod", "the disk is back"));
    let outcomes = speaker.finish(4).await;
    assert_eq!(
        outcomes,
        "claimkeeper_events_total{outcome=\"created\"} 2\nclaimkeeper_events_total{outcome=\"aggregated\"} 2"
    );
    let events = room.events().list(&ListParams::default()).await.unwrap().items;
    let gone = events.iter().find(|event| event.note.as_deref() == Some("the disk is gone")).unwrap();
    assert_eq!(gone.regarding.as_ref().unwrap().uid.as_deref(), Some("uid-of-pod"));
    assert_eq!((gone.type_.as_deref(), gone.reason.as_deref()), (Some("Warning"), Some("Tested")));
    assert_eq!(gone.action.as_deref(), Some("Test"));
    assert_eq!(gone.reporting_controller.as_deref(), Some(CONTROLLER));
    assert_eq!(gone.reporting_instance.as_deref(), Some("replica-1"));
    assert_eq!(gone.series.as_ref().map(|series| series.count), Some(3));
    let back = events.iter().find(|event| event.note.as_deref() == Some("the disk is back")).unwrap();
    assert!(back.series.is_none());
    assert_eq!(events.len(), 2);
}

#[tokio::test]
async fn who_may_only_create_core_events_still_tells_and_survives_that_counting_is_forbidden() {
    let room = Room::new().await;
    let speaker = Speaker::new(&room.user_of_core_events(&["create"]).await, "replica-1");
    speaker.recorder.publish(room.about("pod", "first"));
    speaker.recorder.publish(room.about("pod", "first"));
    speaker.recorder.publish(room.about("pod", "second"));
    let outcomes = speaker.finish(3).await;
    assert_eq!(
        outcomes,
        "claimkeeper_events_total{outcome=\"created\"} 2\nclaimkeeper_events_total{outcome=\"failed\"} 1"
    );
    let core: Api<CoreEvent> = Api::namespaced(room.admin.clone(), &room.namespace);
    let events = core.list(&ListParams::default()).await.unwrap().items;
    let first = events.iter().find(|event| event.message.as_deref() == Some("first")).unwrap();
    assert_eq!((first.count, first.event_time.is_none()), (Some(1), true));
    assert_eq!(first.source.as_ref().unwrap().component.as_deref(), Some(CONTROLLER));
    assert_eq!(events.len(), 2);
}

#[tokio::test]
async fn who_may_create_and_patch_core_events_counts_there() {
    let room = Room::new().await;
    let speaker = Speaker::new(&room.user_of_core_events(&["create", "patch"]).await, "replica-1");
    for _ in 0..3 {
        speaker.recorder.publish(room.about("pod", "again"));
    }
    speaker.finish(3).await;
    let core: Api<CoreEvent> = Api::namespaced(room.admin.clone(), &room.namespace);
    let events = core.list(&ListParams::default()).await.unwrap().items;
    assert_eq!(events.iter().map(|event| event.count).collect::<Vec<_>>(), [Some(3)]);
    assert!(events[0].last_timestamp >= events[0].first_timestamp);
}

#[tokio::test]
async fn an_event_about_a_cluster_scoped_object_is_found_in_default() {
    let room = Room::new().await;
    let speaker = room.speaker();
    let mut event = room.about(&room.namespace, "about a volume");
    event.regarding.kind = Some("PersistentVolume".into());
    event.regarding.namespace = None;
    speaker.recorder.publish(event);
    speaker.finish(1).await;
    let default: Api<EventV1> = Api::namespaced(room.admin.clone(), "default");
    let uid = format!("regarding.name={}", room.namespace);
    assert_eq!(default.list(&ListParams::default().fields(&uid)).await.unwrap().items.len(), 1);
}

#[tokio::test]
async fn the_api_server_accepts_events_with_endless_notes_names_and_instances() {
    let room = Room::new().await;
    let speaker = Speaker::new(room.cluster.admin_kubeconfig(), &"i".repeat(300));
    speaker.recorder.publish(room.about("pod", &"ß".repeat(5_000)));
    speaker.recorder.publish(room.about(&format!("{}-{}", "x".repeat(235), "y".repeat(17)), "long name"));
    speaker.recorder.publish(room.about("system:Odd_Name", "odd name"));
    assert_eq!(speaker.finish(3).await, "claimkeeper_events_total{outcome=\"created\"} 3");
}

#[tokio::test]
async fn a_deleted_event_is_told_anew() {
    let room = Room::new().await;
    let speaker = room.speaker();
    speaker.recorder.publish(room.about("pod", "note"));
    let events = room.events();
    let only = async || match events.list(&ListParams::default()).await.unwrap().items.as_slice() {
        [only] => Ok(only.metadata.name.clone().unwrap()),
        others => Err(format!("{} events", others.len())),
    };
    let name = eventually("the event", only).await.unwrap();
    events.delete(&name, &DeleteParams::default()).await.unwrap();
    speaker.recorder.publish(room.about("pod", "note"));
    assert_eq!(speaker.finish(2).await, "claimkeeper_events_total{outcome=\"created\"} 2");
    assert_ne!(only().await.unwrap(), name);
}

#[tokio::test]
async fn a_flood_about_one_object_is_limited_and_leaves_others_alone() {
    let room = Room::new().await;
    let speaker = room.speaker();
    for number in 0..30 {
        speaker.recorder.publish(room.about("noisy", &format!("note {number}")));
    }
    speaker.recorder.publish(room.about("quiet", "note"));
    assert_eq!(
        speaker.finish(31).await,
        "claimkeeper_events_total{outcome=\"limited\"} 5\nclaimkeeper_events_total{outcome=\"created\"} 26"
    );
}

#[tokio::test]
async fn a_burst_about_thousands_of_objects_arrives_completely_and_nothing_twice() {
    let room = Room::new().await;
    let speaker = room.speaker();
    for number in 0..3_000 {
        speaker.recorder.publish(room.about(&format!("pod-{number}"), "note"));
    }
    assert_eq!(speaker.finish(3_000).await, "claimkeeper_events_total{outcome=\"created\"} 3000");
    let told = room.told().await;
    assert_eq!(told.len(), 3_000);
    assert!(told.values().all(|notes| *notes == [("note".to_owned(), 1)]));
}

#[tokio::test]
async fn what_is_said_again_while_the_first_time_is_on_its_way_is_counted_in_it() {
    let room = Room::new().await;
    let speaker = room.speaker();
    for number in 0..300 {
        for _ in 0..2 {
            speaker.recorder.publish(room.about(&format!("pod-{number}"), "note"));
        }
    }
    speaker.finish(600).await;
    let told = room.told().await;
    assert_eq!(told.len(), 300);
    assert!(told.values().all(|notes| *notes == [("note".to_owned(), 2)]), "{told:?}");
}

#[tokio::test]
async fn what_is_said_about_an_object_is_written_in_the_order_in_which_it_was_said() {
    let room = Room::new().await;
    let speaker = room.speaker();
    let notes = ["the disk is gone", "the disk is back", "the disk is full"];
    for number in 0..300 {
        for note in notes {
            speaker.recorder.publish(room.about(&format!("pod-{number}"), note));
        }
    }
    speaker.finish(900).await;
    let told = room.told().await;
    assert_eq!(told.len(), 300);
    let expected = notes.map(|note| (note.to_owned(), 1));
    assert!(told.values().all(|told| *told == expected), "{told:?}");
}
