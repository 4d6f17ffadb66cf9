//! What is decided about what is tied to a node, told to a person who asks. Everything is read live, with their rights.

use std::sync::Arc;

use cluster::{Node, Volume, decision::Account, live, store::Slim};
use kube::{Api, Client};
use parking_lot::Mutex;

use super::{
    brake::Losses,
    decision::{Action, CLEAN_UP},
    identity::{Note, tie},
    live::{Reader, Survey},
    recreate::{self, MAKE_AGAIN, has_pending},
    wake::remember,
};
use crate::{home::Home, settings::Settings};

/// What is decided about the volume of this name; none if there is none, or if it is tied to no node.
pub async fn explain(client: &Client, settings: &Settings, name: &str) -> kube::Result<Option<Account>> {
    let volumes: Api<<Volume as Slim>::Wire> = Api::all(client.clone());
    let Some(volume) = volumes.get_opt(name).await?.and_then(Volume::from_wire) else { return Ok(None) };
    if Home::tied(&volume, settings).is_none() && !has_pending(&volume) {
        return Ok(None);
    }
    Eyes::open(client, settings).await?.explain(&Arc::new(volume)).await
}

/// What is decided about each volume that is tied to this node.
pub async fn explain_node(client: &Client, settings: &Settings, name: &str) -> kube::Result<Vec<Account>> {
    let nodes: Api<<Node as Slim>::Wire> = Api::all(client.clone());
    let node = nodes.get_opt(name).await?.and_then(Node::from_wire);
    let eyes = Eyes::open(client, settings).await?;
    let mut accounts = Vec::new();
    for volume in eyes.volumes.iter().filter(|volume| is_tied(volume, name, node.as_ref(), settings)) {
        accounts.extend(eyes.explain(volume).await?);
    }
    Ok(accounts)
}

/// By the node's own labels, by the name that was noted, or by a value that is the name: a node that is gone has no labels any more.
fn is_tied(volume: &Volume, name: &str, node: Option<&Node>, settings: &Settings) -> bool {
    let Some(home) = Home::tied(volume, settings) else { return false };
    let by_label =
        node.is_some_and(|node| node.labels.iter().any(|(key, value)| format!("{key}={value}") == tie(&home)));
    by_label || home.name() == name || Note::of(volume, &home).is_some_and(|note| note.name == name)
}

/// All that there is, for whoever only looks.
pub(super) struct Eyes {
    pub(super) volumes: Vec<Arc<Volume>>,
    reader: Reader,
    losses: Mutex<Losses>,
}

impl Eyes {
    pub(super) async fn open(client: &Client, settings: &Settings) -> kube::Result<Self> {
        let losses = Mutex::default();
        let volumes = live::list::<Volume>(&Api::all(client.clone())).await?;
        for volume in &volumes {
            remember(&losses, volume, settings);
        }
        let reader = Reader::new(client.clone(), Arc::new(settings.clone()));
        Ok(Self { volumes: volumes.into_iter().map(Arc::new).collect(), reader, losses })
    }

    /// None if the volume is gone meanwhile.
    pub(super) async fn survey(&self, volume: &Volume) -> kube::Result<Option<Survey>> {
        self.reader.survey(volume.key.name(), &self.losses).await
    }

    async fn explain(&self, volume: &Arc<Volume>) -> kube::Result<Option<Account>> {
        let key = &volume.key;
        if has_pending(volume) {
            let seen = self.reader.pending(volume).await?;
            if MAKE_AGAIN.decide(&seen).action != recreate::Action::DecideAnew {
                let about = format!("making the claim of volume {key} again");
                return Ok(Some(MAKE_AGAIN.explain(&seen).tell("placement", about, recreate::Action::name)));
            }
        }
        let Some(Survey { seen, .. }) = self.survey(volume).await? else { return Ok(None) };
        let about = format!("volume {key} and its node");
        Ok(Some(CLEAN_UP.explain(&seen).tell("placement", about, Action::name)))
    }
}
