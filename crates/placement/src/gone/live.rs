//! What is read live, right before something is written that cannot be taken back: caches lie.
//!
//! Nodes are read last: if the machine is not there then, it was not there either when the rest was read, but for a machine
//! that came and went meanwhile.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use cluster::{
    Attachment, Class, Node, ObjectKey, Volume, live,
    store::Slim,
    volume::{ClaimReference, VolumePhase},
};
use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        core::v1::{PersistentVolume, PersistentVolumeClaim, Pod},
        storage::v1::StorageClass,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
    jiff::Timestamp,
};
use kube::{
    Api, Client, Resource,
    api::{GetParams, ListParams},
    core::Request,
};
use parking_lot::Mutex;
use serde::{
    Deserialize,
    de::{DeserializeOwned, IgnoredAny},
};
use serde_json::Value;

use super::{
    brake::Losses,
    decision::{ClaimSeen, Live, LiveClaim, Maker, Observation, StuckPod},
    identity::{Note, Presence},
    policy::Terms,
    recreate::{self, Pending, RECREATE, Stands},
};
use crate::{home::Home, settings::Settings};

/// How many names of nodes a page has.
const PAGE_SIZE: u32 = 500;

/// Reads.
#[derive(Clone)]
pub(crate) struct Reader {
    client: Client,
    settings: Arc<Settings>,
}

/// What was read, with what the writes need of it.
pub(crate) struct Survey {
    pub(crate) seen: Observation,
    /// The claim, whole.
    pub(crate) claim: Option<Value>,
}

impl Reader {
    pub(crate) fn new(client: Client, settings: Arc<Settings>) -> Self {
        Self { client, settings }
    }

    /// A volume, and what keeps it from ending.
    pub(crate) async fn volume(&self, name: &str) -> kube::Result<Option<(Volume, Vec<String>)>> {
        let Some(json) = self.get::<PersistentVolume, Value>("", name).await? else { return Ok(None) };
        let finalizers = serde_json::from_value(json["metadata"]["finalizers"].clone()).unwrap_or_default();
        let wire = serde_json::from_value(json).map_err(kube::Error::SerdeError)?;
        Ok(Volume::from_wire(wire).map(|volume| (volume, finalizers)))
    }

    /// Everything that speaks for or against a deletion. `losses` is what is known of other nodes that are gone.
    pub(crate) async fn survey(&self, name: &str, losses: &Mutex<Losses>) -> kube::Result<Option<Survey>> {
        let Some((volume, finalizers)) = self.volume(name).await? else { return Ok(None) };
        let class = self.get::<StorageClass, _>("", &volume.class).await;
        let class = if volume.class.is_empty() { None } else { class?.and_then(Class::from_wire) };
        let terms = Terms::of(class.as_ref(), &self.settings);
        let bound = volume.phase == VolumePhase::Bound;
        let raw = match &volume.claim {
            Some(claim) => self.claim(&claim.key).await?.filter(|found| is_claim(found, claim)),
            None => None,
        };
        let maker = match &raw {
            Some(claim) if bound => self.maker(claim).await?,
            _ => None,
        };
        let users = match (&volume.claim, &raw) {
            (Some(claim), Some(_)) => self.users(&claim.key).await?,
            _ => Vec::new(),
        };
        let attached = if bound { Vec::new() } else { self.attachments(name).await? };
        let names = self.node_names().await?;
        let there: HashSet<&str> = names.iter().map(|name| &**name).collect();
        let home = Home::tied(&volume, &self.settings);
        let candidates = match &home {
            Some(home) => self.nodes(&volume, home, None).await?,
            None => Vec::new(),
        };
        let home = home.map(|home| {
            let presence = Presence::of(&volume, &home, &candidates.iter().collect::<Vec<_>>());
            (home, presence)
        });
        let replaced = matches!(home, Some((_, Presence::Replaced { .. })));
        let is_replacement = |node: &str| replaced && candidates.iter().any(|found| found.key.name() == node);
        let here = users.into_iter().filter(|user| there.contains(&*user.node));
        let (stuck, using): (Vec<User>, _) = here.partition(|user| is_replacement(&user.node) && user.is_stuck());
        let live = Live {
            claim: raw.as_ref().map_or(ClaimSeen::Gone, |claim| ClaimSeen::There(live_claim(claim, name, maker))),
            users: using.iter().map(|User { name, node, .. }| format!("pod {name} on node {node}")).collect(),
            stuck: stuck.into_iter().map(|User { name, uid, .. }| StuckPod { name, uid }).collect(),
            attached: attached.into_iter().find(|node| there.contains(&**node)),
            finalizers,
        };
        let now = Timestamp::now();
        let since = super::decision::since(&volume).unwrap_or(now);
        let seen = Observation {
            home,
            looked: true,
            looked_after: self.settings.looks_after(&volume),
            fleet: losses.lock().around(since, terms.after, &there, now),
            terms,
            brake: self.settings.node_gone_brake,
            turn: None,
            live: Some(live),
            now,
            volume: Arc::new(volume),
        };
        Ok(Some(Survey { seen, claim: raw }))
    }

    /// The nodes that have the name that was noted, or what the volume is tied to. `known` is one that the caches know: where none
    /// was noted it spares the search.
    pub(crate) async fn nodes(&self, volume: &Volume, home: &Home, known: Option<&str>) -> kube::Result<Vec<Node>> {
        let noted = Note::of(volume, home).map(|note| note.name);
        let is_tied = |node: &Node| match home {
            Home::Name(name) => node.key.name() == &**name,
            Home::Label(key, value) => node.labels.get(&**key).is_some_and(|found| **found == **value),
        };
        if noted.is_none()
            && let Some(known) = known
            && let Some(node) = self.node(known).await?.filter(is_tied)
        {
            return Ok(vec![node]);
        }
        let mut nodes: BTreeMap<ObjectKey, Node> = BTreeMap::new();
        match home {
            Home::Name(name) => nodes.extend(self.node(name).await?.map(|node| (node.key.clone(), node))),
            Home::Label(key, value) => {
                let api: Api<<Node as Slim>::Wire> = Api::all(self.client.clone());
                let found = api.list(&ListParams::default().labels(&format!("{key}={value}"))).await?;
                let found = found.items.into_iter().filter_map(Node::from_wire);
                nodes.extend(found.map(|node| (node.key.clone(), node)));
            }
        }
        if let Some(name) = noted.filter(|name| !nodes.contains_key(&ObjectKey::new("", name))) {
            nodes.extend(self.node(&name).await?.map(|node| (node.key.clone(), node)));
        }
        Ok(nodes.into_values().collect())
    }

    /// What stands at the place of a claim that is to be made again. Whether it still is to be made is read after that: whoever
    /// took it back has done so before a user could delete the claim.
    pub(crate) async fn pending(&self, volume: &Arc<Volume>) -> kube::Result<recreate::Observation> {
        let pending = Pending::of(volume);
        let found = match pending.as_ref().and_then(Pending::key) {
            Some(key) => self.claim(&key).await?,
            None => None,
        };
        let old = |claim: &Value| pending.as_ref().is_some_and(|pending| claim["metadata"]["uid"] == *pending.claim);
        let stands = match &found {
            None => Stands::Nothing,
            Some(claim) if old(claim) => {
                Stands::Old { being_deleted: !claim["metadata"]["deletionTimestamp"].is_null() }
            }
            Some(_) => Stands::Another,
        };
        let still = self.volume(volume.key.name()).await?.is_some_and(|(now, _)| Pending::of(&now) == pending);
        Ok(recreate::Observation { volume: Arc::clone(volume), pending, still, stands })
    }

    async fn node(&self, name: &str) -> kube::Result<Option<Node>> {
        let api: Api<<Node as Slim>::Wire> = Api::all(self.client.clone());
        Ok(api.get_opt(name).await?.and_then(Node::from_wire))
    }

    async fn claim(&self, key: &ObjectKey) -> kube::Result<Option<Value>> {
        self.get::<PersistentVolumeClaim, Value>(key.namespace(), key.name()).await
    }

    /// Who makes a claim again: the `StatefulSet` whose pod has it, or else we, if it asks for that.
    async fn maker(&self, claim: &Value) -> kube::Result<Option<Maker>> {
        let metadata = &claim["metadata"];
        let (namespace, name) = (text(&metadata["namespace"]), text(&metadata["name"]));
        let sets: Api<StatefulSet> = Api::namespaced(self.client.clone(), namespace);
        for (template, set, ordinal) in parts(name) {
            let Some(found) = sets.get_opt(set).await? else { continue };
            if makes(&found, template, ordinal, &metadata["labels"]) {
                return Ok(Some(Maker::StatefulSet(set.into())));
            }
        }
        Ok((metadata["annotations"][RECREATE] == "true").then_some(Maker::Us))
    }

    /// The pods that use a claim and are to run somewhere. Those that have ended use nothing.
    async fn users(&self, claim: &ObjectKey) -> kube::Result<Vec<User>> {
        let pods: Api<PodWire> = Api::namespaced(self.client.clone(), claim.namespace());
        let mut users = Vec::new();
        live::visit(&pods, |pod| users.extend(pod.user_of(claim.name()))).await?;
        Ok(users)
    }

    /// The nodes that a volume is attached to, whether they are there or not.
    async fn attachments(&self, volume: &str) -> kube::Result<Vec<Box<str>>> {
        let attachments = live::list::<Attachment>(&Api::all(self.client.clone())).await?.into_iter();
        let attachments = attachments.filter(|attachment| attachment.volume.as_deref() == Some(volume));
        Ok(attachments.filter_map(|attachment| attachment.node).collect())
    }

    /// All nodes: only their names, because the rest is big.
    async fn node_names(&self) -> kube::Result<Vec<Box<str>>> {
        let api: Api<k8s_openapi::api::core::v1::Node> = Api::all(self.client.clone());
        let mut names = Vec::new();
        let mut page = ListParams::default().limit(PAGE_SIZE);
        loop {
            let list = api.list_metadata(&page).await?;
            names.extend(list.items.into_iter().filter_map(|node| node.metadata.name).map(String::into_boxed_str));
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page.continue_token = Some(token),
                None => return Ok(names),
            }
        }
    }

    /// An object, as whatever wants to be read of it.
    async fn get<K, T>(&self, namespace: &str, name: &str) -> kube::Result<Option<T>>
    where
        K: Resource<DynamicType = ()>,
        T: DeserializeOwned,
    {
        if name.is_empty() {
            return Ok(None);
        }
        let path = K::url_path(&(), Some(namespace).filter(|namespace| !namespace.is_empty()));
        let request = Request::new(path).get(name, &GetParams::default()).map_err(kube::Error::BuildRequest)?;
        match self.client.request(request).await {
            Ok(found) => Ok(Some(found)),
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// A pod that uses a claim.
struct User {
    name: String,
    uid: String,
    node: String,
    started: bool,
    controlled: bool,
}

impl User {
    /// Whether it has not started, and whoever made it would make it again.
    fn is_stuck(&self) -> bool {
        !self.started && self.controlled
    }
}

/// A pod on its way from the API server.
#[derive(Debug, Clone, Deserialize, Resource)]
#[resource(inherit = Pod)]
struct PodWire {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: PodSpecWire,
    #[serde(default)]
    status: PodStatusWire,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodSpecWire {
    #[serde(default)]
    node_name: String,
    #[serde(default)]
    volumes: Vec<PodVolumeWire>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodVolumeWire {
    name: String,
    persistent_volume_claim: Option<UsedClaimWire>,
    ephemeral: Option<IgnoredAny>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct UsedClaimWire {
    claim_name: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct PodStatusWire {
    #[serde(default)]
    phase: String,
}

impl PodWire {
    fn user_of(self, claim: &str) -> Option<User> {
        let Self { metadata, spec, status } = self;
        let name = metadata.name?;
        let ended = matches!(status.phase.as_str(), "Succeeded" | "Failed");
        let uses = spec.volumes.iter().any(|volume| {
            let used = volume.persistent_volume_claim.as_ref().map(|used| used.claim_name.as_str());
            used == Some(claim) || (volume.ephemeral.is_some() && format!("{name}-{}", volume.name) == claim)
        });
        let controlled = metadata.owner_references.iter().flatten().any(|owner| owner.controller == Some(true));
        (uses && !ended && !spec.node_name.is_empty()).then(|| User {
            name,
            uid: metadata.uid.unwrap_or_default(),
            node: spec.node_name,
            started: status.phase != "Pending",
            controlled,
        })
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn is_claim(found: &Value, reference: &ClaimReference) -> bool {
    reference.uid.as_deref().is_some_and(|uid| found["metadata"]["uid"] == uid)
}

fn live_claim(claim: &Value, volume: &str, maker: Option<Maker>) -> LiveClaim {
    let owners = claim["metadata"]["ownerReferences"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_pod = |owner: &Value| owner["kind"] == "Pod" && owner["apiVersion"] == "v1";
    // A StatefulSet may let a claim go with its pod when it is scaled down; that is not why the pod goes now.
    let of_pod = maker.as_ref().is_none_or(|maker| *maker == Maker::Us) && owners.iter().any(is_pod);
    LiveClaim {
        being_deleted: !claim["metadata"]["deletionTimestamp"].is_null(),
        has_volume: claim["spec"]["volumeName"] == volume,
        of_pod,
        maker,
    }
}

/// How the name of a claim may be made of those of a template, a `StatefulSet` and an ordinal: all three may have dashes in them
/// but the last.
fn parts(name: &str) -> impl Iterator<Item = (&str, &str, i32)> {
    let parsed = name.rsplit_once('-').and_then(|(rest, ordinal)| {
        let number: i32 = ordinal.parse().ok()?;
        // Nobody writes ordinals as `+1` or `01`.
        (number.to_string() == ordinal).then_some((rest, number))
    });
    parsed.into_iter().flat_map(|(rest, number)| {
        let dashes = rest.match_indices('-');
        dashes.map(move |(dash, _)| (&rest[..dash], &rest[dash + 1..], number))
    })
}

/// Whether the controller of a `StatefulSet` makes such a claim if it is missing.
fn makes(set: &StatefulSet, template: &str, ordinal: i32, labels: &Value) -> bool {
    let Some(spec) = set.spec.as_ref().filter(|_| set.metadata.deletion_timestamp.is_none()) else { return false };
    let start = spec.ordinals.as_ref().and_then(|ordinals| ordinals.start).unwrap_or(0);
    let replicas = spec.replicas.unwrap_or(1);
    let runs = (start..start.saturating_add(replicas)).contains(&ordinal);
    let mut templates = spec.volume_claim_templates.iter().flatten();
    let made = templates.any(|known| known.metadata.name.as_deref() == Some(template));
    let selected = spec.selector.match_labels.iter().flatten().all(|(key, value)| labels[key] == **value);
    runs && made && selected
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_name_of_a_claim_is_taken_apart_in_every_possible_way() {
        let all = |name| parts(name).collect::<Vec<_>>();
        assert_eq!(all("data-web-0"), [("data", "web", 0)]);
        assert_eq!(all("my-data-web-12"), [("my", "data-web", 12), ("my-data", "web", 12)]);
        for none in ["data-web-a", "data-web-01", "data-0", "data", "", "data-web-+1", "data-web-", "-0"] {
            assert_eq!(all(none), [], "{none}");
        }
    }

    #[test]
    fn a_stateful_set_makes_the_claims_of_the_pods_that_it_runs_and_no_others() {
        let set = |change: Value| -> StatefulSet {
            let mut json = json!({
                "metadata": {"name": "web"},
                "spec": {
                    "replicas": 3, "serviceName": "web", "selector": {"matchLabels": {"app": "web"}}, "template": {},
                    "volumeClaimTemplates": [{"metadata": {"name": "data"}}],
                },
            });
            json_patch::merge(&mut json, &change);
            serde_json::from_value(json).unwrap()
        };
        let labels = json!({"app": "web", "more": "x"});
        let plain = set(json!({}));
        assert!(makes(&plain, "data", 0, &labels) && makes(&plain, "data", 2, &labels));
        assert!(!makes(&plain, "data", 3, &labels), "scaled down");
        assert!(!makes(&plain, "data", -1, &labels));
        assert!(!makes(&plain, "logs", 0, &labels), "no such template");
        assert!(!makes(&plain, "data", 0, &json!({"app": "other"})), "another one's");
        assert!(!makes(&plain, "data", 0, &Value::Null));
        let from_five = set(json!({"spec": {"ordinals": {"start": 5}}}));
        assert!(makes(&from_five, "data", 7, &labels) && !makes(&from_five, "data", 4, &labels));
        assert!(makes(&set(json!({"spec": {"replicas": null}})), "data", 0, &labels), "one by default");
        assert!(!makes(&set(json!({"spec": {"replicas": 0}})), "data", 0, &labels));
        assert!(!makes(&set(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})), "data", 0, &labels));
    }
}
