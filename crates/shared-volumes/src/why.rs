//! What is decided about the volume of a claim, told to a person who asks. Everything is read live, with their rights.
//!
//! Who can ask the source, too, sees the whole chain. Others see what the operator noted on the claim last.

use std::{borrow::Cow, sync::Arc};

use cluster::{ObjectKey, Service, Slice, decision::Account, slice::SERVICE_NAME, store::Slim};
use kube::{Api, Client, api::ListParams};
use parking_lot::Mutex;

use crate::{
    address::{PUBLISH, Publication, Ready},
    decision::{Action, Observation, TARGET, target},
    endpoint::parse,
    live::{LiveClaim, look_at_claim},
    names::{self, VOLUME_ID},
    poll::service_ranges,
    settings::Settings,
    source::{SharedVolume, Source},
};

/// What is decided about the volumes that name this claim; nothing if none does.
pub async fn explain(
    client: &Client,
    settings: &Settings,
    source: Option<&dyn Source>,
    claim: &ObjectKey,
) -> kube::Result<Vec<Account>> {
    let volumes = match source {
        Some(source) => listed(source).await,
        None => Err("the source of the volumes was not asked".to_owned()),
    };
    match volumes {
        Ok(volumes) => {
            let mut accounts = Vec::new();
            for volume in volumes.iter().filter(|volume| volume.claim.as_ref() == Some(claim)) {
                accounts.extend(about(client, settings, volume, &volumes).await?);
            }
            Ok(accounts)
        }
        Err(why) => {
            let (_, live) = look_at_claim(client, claim, None).await?;
            Ok(live.and_then(|live| noted(claim, live, &why)).into_iter().collect())
        }
    }
}

/// All volumes, or why not all of them are known.
async fn listed(source: &dyn Source) -> Result<Vec<Arc<SharedVolume>>, String> {
    let homes = Mutex::new(Vec::new());
    source.list(&|home| homes.lock().push(home.volumes)).await.map_err(|error| error.message)?;
    let mut volumes = Vec::new();
    for home in homes.into_inner() {
        volumes.extend(home.map_err(|error| error.message)?.volumes.into_iter().map(Arc::new));
    }
    Ok(volumes)
}

async fn about(
    client: &Client,
    settings: &Settings,
    volume: &Arc<SharedVolume>,
    all: &[Arc<SharedVolume>],
) -> kube::Result<Vec<Account>> {
    let Some(key) = &volume.claim else { return Ok(Vec::new()) };
    let (claim, _) = look_at_claim(client, key, volume.volume.as_deref()).await?;
    let mut seen = Observation {
        volume: Arc::clone(volume),
        gone: false,
        looked_after: settings.namespace.clone(),
        allowed: Arc::clone(&settings.allowed_endpoints),
        // Who asks need not be allowed to read them.
        services: service_ranges(client).await.unwrap_or_default().into(),
        endpoint_gone: settings.endpoint_gone,
        rival: None,
        taken_by: None,
        holder: None,
        claim,
    };
    let at = |other: &&Arc<SharedVolume>| {
        other.id != volume.id && other.endpoint.as_deref().and_then(parse) == target(&seen)
    };
    seen.rival = target(&seen).and_then(|_| all.iter().find(at)).map(|other| Arc::clone(&other.id));
    let place = format!("volume {} of claim {key}", volume.id);
    let explanation = TARGET.explain(&seen);
    let action = explanation.decision.action;
    let mut accounts = vec![explanation.tell("shared-volumes", format!("target of {place}"), Action::name)];
    if let Action::Serve(endpoint) = action {
        let (service, slices) = objects(client, settings, volume, key).await?;
        let ready = Ready {
            endpoint: Some(endpoint),
            service,
            slices: Some(slices),
            published: volume.published.clone(),
            answers: None,
        };
        let about = format!("publication of {place}");
        accounts.push(PUBLISH.explain(&ready).tell("shared-volumes", about, Publication::name));
    }
    Ok(accounts)
}

async fn objects(
    client: &Client,
    settings: &Settings,
    volume: &SharedVolume,
    claim: &ObjectKey,
) -> kube::Result<(Option<Service>, Vec<Slice>)> {
    let services: Api<<Service as Slim>::Wire> = Api::namespaced(client.clone(), claim.namespace());
    let labelled = services.list(&ListParams::default().labels(VOLUME_ID)).await?.items;
    let labelled: Vec<Service> = labelled.into_iter().filter_map(Service::from_wire).collect();
    let Some(service) = names::choose(&labelled, volume, "", settings.service_name) else {
        return Ok((None, Vec::new()));
    };
    let slices: Api<<Slice as Slim>::Wire> = Api::namespaced(client.clone(), claim.namespace());
    let its = ListParams::default().labels(&format!("{SERVICE_NAME}={}", service.key.name()));
    let slices = slices.list(&its).await?.items.into_iter().filter_map(Slice::from_wire).collect();
    Ok((Some(service.clone()), slices))
}

/// What stands on the claim.
fn noted(claim: &ObjectKey, live: LiveClaim, why: &str) -> Option<Account> {
    let (reason, message) = read_note(&live.decision?);
    Some(Account {
        feature: "shared-volumes",
        about: format!("volume of claim {claim}, as it was noted there last ({why})"),
        decision: "noted",
        reason,
        message: Cow::Owned(message),
        held: Vec::new(),
        failed: None,
        not_reached: Vec::new(),
    })
}

/// The reason in front of the sentence, and the sentence. Anybody who may write the claim may have written something else.
pub(crate) fn read_note(note: &str) -> (&'static str, String) {
    let known = note.split_once(": ").and_then(|(reason, message)| {
        let reason = REASONS.iter().find(|known| **known == reason)?;
        Some((*reason, message))
    });
    let (reason, message) = known.unwrap_or(("Noted", note));
    (reason, message.to_owned())
}

/// All that is ever noted on a claim.
const REASONS: [&str; 23] = [
    "Served",
    "Refused",
    "SliceNameTaken",
    "VolumeGone",
    "EndpointGone",
    "EndpointInvalid",
    "EndpointForbidden",
    "EndpointClaimedTwice",
    "EndpointStillServed",
    "EndpointTaken",
    "IdUnusable",
    "FamilyMismatch",
    "ServiceBeingDeleted",
    "NameTaken",
    "AddressRefused",
    "ServiceUnverified",
    "NoAddress",
    "WrongPort",
    "WrongKind",
    "TargetUnverified",
    "NotAnswering",
    "AddressTaken",
    "AddressOfOtherFamily",
];
