//! What is decided about the claims that a pod asks for, told to a person who asks. Everything is read live, with their rights.

use std::sync::Arc;

use cluster::{Claim, ObjectKey, Pod, decision::Account, store::Slim};
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client};

use crate::{
    Settings,
    authorization::{self, Authorizer},
    decision::{Action, Authorization, MAKE_CLAIM, Observation},
    request::{Request, Target, requests},
    template::Template,
};

/// One account for each claim that the pod asks for.
pub async fn explain(client: &Client, settings: &Settings, pod: &Arc<Pod>) -> kube::Result<Vec<Account>> {
    let asked = pod.claim_requests.as_ref().map(|asked| requests(asked, settings.enabling));
    let mut accounts = Vec::new();
    for request in asked.into_iter().flatten() {
        let seen = observe(client, settings, pod, request).await?;
        let about = match &seen.request.target {
            Target::Claim(name) => format!("claim {}", ObjectKey::new(pod.key.namespace(), name)),
            Target::NoClaim | Target::Missing => "a claim".to_owned(),
        };
        let about = format!("{about} of volume {} in pod {}", seen.request.volume, pod.key);
        accounts.push(MAKE_CLAIM.explain(&seen).tell("provisioner", about, |action: &Action| action.name()));
    }
    Ok(accounts)
}

async fn observe(client: &Client, settings: &Settings, pod: &Arc<Pod>, request: Request) -> kube::Result<Observation> {
    let claim = match &request.target {
        Target::Claim(name) => {
            let claims: Api<<Claim as Slim>::Wire> = Api::namespaced(client.clone(), pod.key.namespace());
            claims.get_opt(name).await?.and_then(Claim::from_wire).map(Arc::new)
        }
        Target::NoClaim | Target::Missing => None,
    };
    let owner_lives = match &claim {
        Some(claim) => claim.owner_lives(client).await?,
        None => false,
    };
    let parse = |text: &str| Template::parse(text, pod.key.namespace(), &settings.rules);
    Ok(Observation {
        pod: Arc::clone(pod),
        template: request.template.as_deref().map(parse),
        request,
        claim,
        owner_lives,
        authorization: if settings.authorize { authorization(client, pod).await? } else { Authorization::NotNeeded },
        now: Timestamp::now(),
    })
}

/// Who asks why need not be allowed to ask what others may; then that stays open.
async fn authorization(client: &Client, pod: &Pod) -> kube::Result<Authorization> {
    match Authorizer::default().ask(client, &authorization::account(pod)).await {
        Err(kube::Error::Api(status)) if status.is_forbidden() => Ok(Authorization::Unknown),
        answer => answer,
    }
}
