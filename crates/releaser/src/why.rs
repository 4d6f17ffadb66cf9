//! What is decided about a volume, told to a person who asks. Everything is read live, with their rights.

use std::sync::Arc;

use cluster::{Claim, Class, Volume, decision::Account, store::Slim, volume::VolumePhase};
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client};

use crate::{
    Rights, Settings,
    association::{self, ASSOCIATE},
    decision::{Action, Observation, RELEASE_VOLUME},
    live::{self, Reader},
    policy::{Mode, mode, terms},
    reservation::{self, KEEP, reserved_for},
    scrub::{self, decision::SCRUB_VOLUME},
};

/// What is decided about the volume of this name; none if there is none.
pub async fn explain(client: &Client, settings: &Settings, name: &str) -> kube::Result<Option<Account>> {
    let volumes: Api<<Volume as Slim>::Wire> = Api::all(client.clone());
    let Some(volume) = volumes.get_opt(name).await?.and_then(Volume::from_wire).map(Arc::new) else { return Ok(None) };
    // Who asks need not be allowed to see attachments; the operator must be.
    let reader = Reader::new(client.clone(), Rights::Originals);
    let scrub_claim =
        volume.claim.as_ref().filter(|_| scrub::is_being_scrubbed(&volume)).map(|claim| claim.key.clone());
    let account = if let Some(claim) = scrub_claim {
        let about = format!("scrub of volume {name}");
        let class = reader.class(&volume.class).await?;
        let template = scrub::look::template_of(&volume, class.as_deref(), &settings.controller_id);
        let seen = scrub::look::observe(client, volume, &claim, template, settings.dry_run).await?;
        SCRUB_VOLUME.explain(&seen).tell("releaser", about, scrub::decision::Action::name)
    } else if volume.phase == VolumePhase::Released {
        release(client, &reader, settings, volume).await?
    } else if let Some(previous) = reserved_for(&volume) {
        let about = format!("reservation of volume {name} for claim {}", previous.key());
        let served_elsewhere = Some(reader.is_served_elsewhere(&volume, &previous).await?);
        let namespace = reader.namespace(&previous.namespace).await?;
        let looked_after = settings.namespace.clone();
        let seen = reservation::Observation { volume, namespace, served_elsewhere, looked_after };
        KEEP.explain(&seen).tell("releaser", about, |action: &reservation::Action| action.name())
    } else {
        associate(client, &reader, settings, volume).await?
    };
    Ok(Some(account))
}

async fn release(client: &Client, reader: &Reader, settings: &Settings, volume: Arc<Volume>) -> kube::Result<Account> {
    let mode = |class: Option<&Class>| mode(&volume, class, &settings.controller_id);
    let mut class = reader.class(&volume.class).await?;
    let mut live = None;
    // Who is told that nobody releases it need not be allowed to read the rest.
    if mode(class.as_deref()) != Mode::Never {
        let (now, looked) = reader.look(&volume, mode, |_| false).await?;
        (class, live) = (now, Some(looked));
    }
    let terms = terms(&volume, class.as_deref(), &settings.controller_id);
    let limited = terms.is_ok_and(|terms| terms.max_available.is_some());
    let available = if limited { free_volumes(client, &volume.class).await? } else { 0 };
    let about = format!("release of volume {}", volume.key);
    let seen = Observation {
        scrubbed: scrub::is_scrubbed(&volume),
        volume,
        class,
        controller_id: Arc::clone(&settings.controller_id),
        namespace: settings.namespace.clone(),
        dry_run: settings.dry_run,
        available,
        live,
        now: Timestamp::now(),
    };
    Ok(RELEASE_VOLUME.explain(&seen).tell("releaser", about, Action::name))
}

async fn associate(
    client: &Client,
    reader: &Reader,
    settings: &Settings,
    volume: Arc<Volume>,
) -> kube::Result<Account> {
    let claim = match &volume.claim {
        Some(claim) => {
            let claims: Api<<Claim as Slim>::Wire> = Api::namespaced(client.clone(), claim.key.namespace());
            claims.get_opt(claim.key.name()).await?.and_then(Claim::from_wire).map(Arc::new)
        }
        None => None,
    };
    let about = format!("association of volume {}", volume.key);
    let seen = association::Observation {
        class: reader.class(&volume.class).await?,
        volume,
        claim,
        controller_id: Arc::clone(&settings.controller_id),
        automatic: settings.automatic_association,
    };
    Ok(ASSOCIATE.explain(&seen).tell("releaser", about, |action: &association::Action| action.name()))
}

async fn free_volumes(client: &Client, class: &str) -> kube::Result<usize> {
    let volumes = live::list::<Volume>(client).await?;
    Ok(volumes.iter().filter(|volume| volume.is_free() && &*volume.class == class).count())
}
