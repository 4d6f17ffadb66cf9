//! What is read live, right before a pod is let go or told about: caches lie.

use cluster::{ObjectKey, Pod, store::Slim};
use k8s_openapi::{api::core::v1::Pod as FullPod, jiff::Timestamp};
use kube::{Client, Resource, api::GetParams, core::Request};

use super::{controller::is_unscheduled, decision, stranded};
use crate::{
    followed::{self, Followed, node},
    pod::AskedPod,
    settings::Settings,
    terms,
};

/// A pod as the server has it: what decisions read, and all of it.
pub(super) struct LivePod {
    pub(super) slim: Pod,
    whole: String,
}

impl LivePod {
    /// What is read of it to change it.
    pub(super) fn asked(&self) -> kube::Result<AskedPod<'_>> {
        AskedPod::read(&self.whole).map_err(kube::Error::SerdeError)
    }
}

/// The pod under this key, if there is one.
pub(super) async fn read(client: &Client, key: &ObjectKey) -> kube::Result<Option<LivePod>> {
    let path = FullPod::url_path(&(), Some(key.namespace()));
    let request = Request::new(path).get(key.name(), &GetParams::default()).map_err(kube::Error::BuildRequest)?;
    let whole = match client.request_text(request).await {
        Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(None),
        text => text?,
    };
    let slim = serde_json::from_str(&whole).map_err(kube::Error::SerdeError)?;
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
    let asked = pod.asked()?;
    let live = stranded::Live {
        is_gated: pod.slim.waits_for_home,
        is_tied: insists_on_gone(client, &asked).await?,
        has_controller: asked.has_controller(),
    };
    Ok((volumes, Some(live)))
}

/// Whether each term insists on a node that is gone. What the hostname of that node was nobody knows any more, so it is the
/// other way round: no node that is there meets it.
async fn insists_on_gone(client: &Client, pod: &AskedPod<'_>) -> kube::Result<bool> {
    let terms = terms::required(pod);
    for term in &terms {
        let mut gone = false;
        for home in term {
            gone = gone || node(client, home).await?.is_none();
        }
        if !gone {
            return Ok(false);
        }
    }
    Ok(!terms.is_empty())
}
