//! The volumes that a pod follows: those of its claims whose driver is ours to steer by.

use std::{sync::Arc, time::Duration};

use cluster::{Claim, Class, Node, ObjectKey, Pod, Volume, store::Slim};
use kube::{Api, Client, api::ListParams};

use crate::{
    Caches,
    home::{FailoverMode, Home, node_recovery_timeout},
    settings::{Mode, Settings},
};

/// A volume with a home.
#[derive(Debug, Clone)]
pub struct Followed {
    /// The claim by which the pod has it.
    pub claim: ObjectKey,
    /// Its name.
    pub volume: Box<str>,
    /// Where it is.
    pub home: Home,
    /// The node behind that; none if it is gone.
    pub node: Option<Arc<Node>>,
    /// Whether it may be left behind.
    pub mode: FailoverMode,
    /// How long its node is waited for; none if it is for ever.
    pub timeout: Option<Duration>,
}

impl Followed {
    /// None if pods do not follow the volume, or if it is not this claim's.
    fn new(claim: &Claim, volume: &Volume, class: Option<&Class>, settings: &Settings) -> Option<Self> {
        let driver = settings.driver(&volume.driver).filter(|driver| settings.mode(driver) == Mode::Webhook)?;
        if !have_each_other(claim, volume) {
            return None;
        }
        Some(Self {
            claim: claim.key.clone(),
            volume: volume.key.name().into(),
            home: Home::of(volume, driver, settings)?,
            node: None,
            mode: FailoverMode::of(volume, driver, class),
            timeout: node_recovery_timeout(class),
        })
    }

    /// Whether a pod must not run without it, and nobody knows where else it could be.
    #[must_use]
    pub fn is_missed(&self) -> bool {
        self.mode == FailoverMode::Durability && self.node.is_none()
    }
}

/// Whether the claim has this volume, and the volume this claim.
pub(crate) fn have_each_other(claim: &Claim, volume: &Volume) -> bool {
    claim.volume.as_deref() == Some(volume.key.name())
        && volume.claim.as_ref().is_some_and(|reference| reference.key == claim.key)
}

/// The claims that are a pod's to use, each with the uid of the owner that it must have, if it must have one.
pub(crate) fn claims_of(pod: &Pod) -> impl Iterator<Item = (ObjectKey, Option<&str>)> {
    let used = pod.used_claims.iter().map(|claim| (ObjectKey::new(pod.key.namespace(), claim), None));
    let own = pod.ephemeral_volumes.iter().map(|volume| (pod.claim_key(volume), Some(&*pod.uid)));
    used.chain(own)
}

fn is_its(claim: &Claim, owner: Option<&str>) -> bool {
    owner.is_none() || claim.owner.as_deref() == owner
}

/// The volumes that a pod follows, as the caches have them.
pub(crate) fn cached(caches: &Caches, settings: &Settings, pod: &Pod) -> Vec<Followed> {
    let follow = |(key, owner): (ObjectKey, Option<&str>)| {
        let claim = caches.claims.get(&key).filter(|claim| is_its(claim, owner))?;
        let volume = caches.volumes.get(&ObjectKey::new("", claim.volume.as_deref()?))?;
        let class = caches.classes.get(&ObjectKey::new("", &volume.class));
        let mut followed = Followed::new(&claim, &volume, class.as_deref(), settings)?;
        followed.node = followed.home.find(&caches.nodes);
        Some(followed)
    };
    claims_of(pod).filter_map(follow).collect()
}

/// The same, as the server has them now.
pub(crate) async fn live(client: &Client, settings: &Settings, pod: &Pod) -> kube::Result<Vec<Followed>> {
    let mut all = Vec::new();
    for (key, owner) in claims_of(pod) {
        let claims: Api<<Claim as Slim>::Wire> = Api::namespaced(client.clone(), key.namespace());
        let claim = claims.get_opt(key.name()).await?.and_then(Claim::from_wire);
        let Some(claim) = claim.filter(|claim| is_its(claim, owner)) else { continue };
        let Some(name) = claim.volume.as_deref() else { continue };
        let Some(volume) = get::<Volume>(client, name).await? else { continue };
        let class = if volume.class.is_empty() { None } else { get::<Class>(client, &volume.class).await? };
        if let Some(mut followed) = Followed::new(&claim, &volume, class.as_ref(), settings) {
            followed.node = node(client, &followed.home).await?;
            all.push(followed);
        }
    }
    Ok(all)
}

/// What lives in no namespace, as it is now.
pub(crate) async fn get<T: Slim>(client: &Client, name: &str) -> kube::Result<Option<T>>
where
    T::Wire: kube::Resource<Scope = kube::core::ClusterResourceScope>,
{
    Ok(Api::<T::Wire>::all(client.clone()).get_opt(name).await?.and_then(T::from_wire))
}

/// The home node, if it is there now.
pub(crate) async fn node(client: &Client, home: &Home) -> kube::Result<Option<Arc<Node>>> {
    let found = match home {
        Home::Name(name) => get::<Node>(client, name).await?,
        Home::Label(key, value) => {
            let nodes: Api<<Node as Slim>::Wire> = Api::all(client.clone());
            let labelled = ListParams::default().labels(&format!("{key}={value}")).limit(1);
            nodes.list(&labelled).await?.items.into_iter().find_map(Node::from_wire)
        }
    };
    Ok(found.map(Arc::new))
}
