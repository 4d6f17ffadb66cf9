//! What is read live where volumes are scrubbed.

use std::sync::Arc;

use cluster::{Class, Job, ObjectKey, Volume, store::Slim};
use kube::{Api, Client};

use super::{
    Progress,
    decision::{Live, Observation, TemplateSeen},
    objects::{ClaimWire, ScrubClaim},
    template::{Template, TemplateWire},
};
use crate::policy::terms;

/// The name of the template for a volume that is being scrubbed. What was begun is finished, whatever the class says now.
pub(crate) fn template_of(volume: &Volume, class: Option<&Class>, controller_id: &str) -> Option<Box<str>> {
    let wanted = terms(volume, class, controller_id).ok().and_then(|terms| terms.scrub);
    wanted.or_else(|| Progress::of(volume).map(|progress| progress.template.into()))
}

/// Reads the scrub claim and the template, and tells what Jobs are made of if they can be.
pub(super) async fn look(
    client: &Client,
    claim: &ObjectKey,
    template: &str,
    volume: &Volume,
) -> kube::Result<(Live, Option<Template>)> {
    let claims: Api<ClaimWire> = Api::namespaced(client.clone(), claim.namespace());
    let templates: Api<TemplateWire> = Api::namespaced(client.clone(), claim.namespace());
    let (claim, template) = tokio::try_join!(claims.get_opt(claim.name()), templates.get_opt(template))?;
    let (template, usable) = match template.map(|template| Template::check(template, volume)) {
        None => (TemplateSeen::Missing, None),
        Some(Err(why)) => (TemplateSeen::Invalid(why.into()), None),
        Some(Ok(template)) => (TemplateSeen::Usable, Some(template)),
    };
    Ok((Live { claim: ScrubClaim::seen(claim, volume), template }, usable))
}

/// All that the rules look at, about a volume that refers to this scrub claim, for a person who asks.
pub(crate) async fn observe(
    client: &Client,
    volume: Arc<Volume>,
    claim: &ObjectKey,
    template: Option<Box<str>>,
    dry_run: bool,
) -> kube::Result<Observation> {
    let jobs: Api<<Job as Slim>::Wire> = Api::namespaced(client.clone(), claim.namespace());
    let job = jobs.get_opt(claim.name()).await?.and_then(Job::from_wire).map(Arc::new);
    let (live, _) = look(client, claim, template.as_deref().unwrap_or_default(), &volume).await?;
    // Somebody scrubs it, whatever the person's own configuration says.
    Ok(Observation { volume, template, on: true, dry_run, job, live: Some(live) })
}
