//! What is read live, right before a pod is let go or told about: caches lie.

use cluster::{ObjectKey, Pod, node::HOSTNAME, store::Slim};
use k8s_openapi::{api::core::v1::Pod as FullPod, jiff::Timestamp};
use kube::{Client, Resource, api::GetParams, core::Request};
use serde_json::Value;

use super::{controller::is_unscheduled, decision, stranded};
use crate::{
    followed::{self, Followed, node},
    home::Home,
    settings::Settings,
    terms::{self, Requirement},
};

/// A pod as the server has it: what decisions read, and all of it.
pub(super) struct LivePod {
    pub(super) slim: Pod,
    pub(super) whole: Value,
}

/// The pod under this key, if there is one.
pub(super) async fn read(client: &Client, key: &ObjectKey) -> kube::Result<Option<LivePod>> {
    let path = FullPod::url_path(&(), Some(key.namespace()));
    let request = Request::new(path).get(key.name(), &GetParams::default()).map_err(kube::Error::BuildRequest)?;
    let text = match client.request_text(request).await {
        Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(None),
        text => text?,
    };
    let slim = serde_json::from_str(&text).map_err(kube::Error::SerdeError)?;
    let whole = serde_json::from_str(&text).map_err(kube::Error::SerdeError)?;
    Ok(Pod::from_wire(slim).map(|slim| LivePod { slim, whole }))
}

/// What is seen of a pod behind the gate.
pub(super) fn observation(pod: &Pod, volumes: Vec<Followed>, live: bool) -> decision::Observation {
    let is_ending = pod.being_deleted || pod.has_ended();
    decision::Observation { is_ending, since: pod.created, volumes, live, now: Timestamp::now() }
}

/// The same, live.
pub(super) async fn observe(client: &Client, settings: &Settings, pod: &Pod) -> kube::Result<decision::Observation> {
    Ok(observation(pod, followed::live(client, settings, pod).await?, true))
}

/// What is seen of a pod without the gate.
pub(super) fn first_sight(pod: &Pod, volumes: Vec<Followed>) -> stranded::Observation {
    stranded::Observation { pod: pod.key.clone(), is_waiting: is_unscheduled(pod), volumes, live: None }
}

/// What it takes to tell it something.
pub(super) async fn look(
    client: &Client,
    settings: &Settings,
    pod: &LivePod,
) -> kube::Result<(Vec<Followed>, Option<stranded::Live>)> {
    let volumes = followed::live(client, settings, &pod.slim).await?;
    let owners = pod.whole["metadata"]["ownerReferences"].as_array();
    let live = stranded::Live {
        is_gated: pod.slim.waits_for_home,
        is_tied: insists_on_gone(client, &pod.whole["spec"]["affinity"]).await?,
        has_controller: owners.into_iter().flatten().any(|owner| owner["controller"] == true),
    };
    Ok((volumes, Some(live)))
}

/// Whether each term insists on a node that is gone. What the hostname of that node was nobody knows any more, so it is the
/// other way round: no node that is there meets it.
async fn insists_on_gone(client: &Client, affinity: &Value) -> kube::Result<bool> {
    let terms = terms::required(affinity);
    for term in &terms {
        let mut gone = false;
        for requirement in term {
            gone = gone || node(client, &home(requirement)).await?.is_none();
        }
        if !gone {
            return Ok(false);
        }
    }
    Ok(!terms.is_empty())
}

fn home(requirement: &Requirement) -> Home {
    match requirement {
        Requirement::Hostname(hostname) => Home::Label(HOSTNAME.into(), hostname.clone()),
        Requirement::Name(name) => Home::Name(name.clone()),
    }
}
