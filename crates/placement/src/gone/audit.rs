//! The volumes whose node is gone, as rows.

use cluster::{Finding, Node, decision::Decision, live};
use kube::{Api, Client};

use super::{
    decision::{Action, CLEAN_UP},
    identity::Presence,
    live::Survey,
    why::Eyes,
};
use crate::{home::Home, settings::Settings};

/// What would be done now about volumes whose node is gone. Everything is read live, with the rights of who asks.
pub async fn find(client: &Client, settings: &Settings, namespace: Option<&str>) -> kube::Result<Vec<Finding>> {
    let eyes = Eyes::open(client, settings).await?;
    let nodes: Vec<Node> = live::list(&Api::all(client.clone())).await?;
    let mut findings = Vec::new();
    for volume in &eyes.volumes {
        let Some(home) = Home::tied(volume, settings) else { continue };
        let claim = volume.claim.as_ref().map(|claim| &claim.key);
        if namespace.is_some_and(|namespace| claim.is_none_or(|claim| claim.namespace() != namespace)) {
            continue;
        }
        // Most nodes are there, and cost nothing more.
        let found = home.among(volume, &nodes);
        if matches!(Presence::of(volume, &home, &found), Presence::There { .. }) {
            continue;
        }
        let Some(Survey { seen, .. }) = eyes.survey(volume).await? else { continue };
        let Decision { action, reason, message } = CLEAN_UP.decide(&seen);
        if action == Action::Leave || matches!(action, Action::Note(_)) {
            continue;
        }
        findings.push(Finding {
            feature: "placement",
            namespace: String::new(),
            kind: "PersistentVolume",
            name: volume.key.name().to_owned(),
            decision: action.name(),
            reason,
            message,
        });
    }
    Ok(findings)
}
