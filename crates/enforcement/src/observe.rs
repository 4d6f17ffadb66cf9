//! What the caches know about a request. Nothing here waits for anybody.

use std::sync::Arc;

use cluster::{
    Class, Namespace, ObjectKey, Pod, Store, Volume,
    class::default_of,
    store::Index,
    volume::{BY_CLAIM, FREE_BY_CLASS, VolumePhase},
};
use platform::admission::{Operation, Request};

use crate::{
    claim::AskedClaim,
    observation::{Asked, Look, Observation, Offered, Write},
    settings::Settings,
};

/// The indexes that the store of volumes needs.
pub const INDEXES_OF_VOLUMES: [Index<Volume>; 2] = [BY_CLAIM, FREE_BY_CLASS];

/// Which pods may own claims that the rule is about.
#[must_use]
pub fn interesting_pod(pod: &Pod) -> bool {
    !pod.ephemeral_volumes.is_empty() || !pod.used_claims.is_empty()
}

/// Which volumes a new claim could get: those that are in use are somebody else's.
#[must_use]
pub fn interesting_volume(volume: &Volume) -> bool {
    volume.phase != VolumePhase::Bound
}

/// What the feature looks at.
#[derive(Clone)]
pub struct Caches {
    /// Who may own a claim.
    pub pods: Store<Pod>,
    /// What a claim's storage is.
    pub classes: Store<Class>,
    /// Where a claim is.
    pub namespaces: Store<Namespace>,
    /// What a claim could get.
    pub volumes: Store<Volume>,
}

/// What a request is about.
#[must_use]
pub fn asked(request: &Request<'_>) -> Asked {
    let claims = request.kind.kind == "PersistentVolumeClaim" && request.kind.group.is_empty();
    if !claims
        || !request.sub_resource.is_empty()
        || !matches!(request.operation, Operation::Create | Operation::Update)
    {
        return Asked::Other;
    }
    match write(request) {
        Ok(write) => Asked::Claim(Box::new(write)),
        Err(error) => {
            let key = ObjectKey::new(&request.namespace, &request.name);
            Asked::Unreadable { key, error: error.to_string() }
        }
    }
}

fn write(request: &Request<'_>) -> serde_json::Result<Write> {
    let claim = |json: Option<&serde_json::value::RawValue>| {
        AskedClaim::read(json.map_or("null", |json| json.get()), &request.namespace)
    };
    let old = (request.operation == Operation::Update).then(|| claim(request.old_object)).transpose()?;
    Ok(Write { claim: claim(request.object)?, old, user: request.user_info.username.clone().into_owned() })
}

impl Caches {
    /// All that the rules look at, as far as the caches have it.
    #[must_use]
    pub fn observe(&self, settings: &Arc<Settings>, asked: Asked) -> Observation {
        let settings = Arc::clone(settings);
        let Asked::Claim(write) = &asked else {
            let (class, named_volume, volumes) = (Look::NotNamed, Look::NotNamed, Vec::new());
            let (owner, namespace) = (Look::NotNamed, Look::NotNamed);
            return Observation { settings, asked, class, named_volume, volumes, owner, namespace };
        };
        let claim = &write.claim;
        let class = self.class(claim.class.as_deref());
        Observation {
            named_volume: self.named_volume(&claim.volume_name),
            volumes: self.volumes_for(claim, &class),
            class,
            owner: self.owner(claim),
            namespace: cached(self.namespaces.get(&ObjectKey::new("", claim.key.namespace()))),
            settings,
            asked,
        }
    }

    /// The pod of the owner's name and uid. A namesake is either the pod that was there before, and the cache is behind, or not
    /// the owner: a live read tells which.
    fn owner(&self, claim: &AskedClaim) -> Look<Pod> {
        let Some(owner) = claim.pod() else { return Look::NotNamed };
        let pod = self.pods.get(&ObjectKey::new(claim.key.namespace(), &owner.name));
        cached(pod.filter(|pod| *pod.uid == *owner.uid))
    }

    /// The class as Kubernetes will find it.
    fn class(&self, name: Option<&str>) -> Look<Class> {
        match name {
            Some("") => Look::NotNamed,
            Some(name) => cached(self.classes.get(&ObjectKey::new("", name))),
            None => {
                let defaults = self.classes.filter(|class| class.is_default);
                default_of(&defaults).map_or(Look::NotNamed, |class| Look::Known(Arc::clone(class)))
            }
        }
    }

    fn named_volume(&self, name: &str) -> Look<Offered> {
        if name.is_empty() {
            return Look::NotNamed;
        }
        let volume = self.volumes.get(&ObjectKey::new("", name));
        volume.map_or(Look::NotCached, |volume| Look::Known(Arc::new(self.offered(volume))))
    }

    /// The volume with its class.
    pub(crate) fn offered(&self, volume: Arc<Volume>) -> Offered {
        Offered { class: self.classes.get(&ObjectKey::new("", &volume.class)), volume }
    }

    /// The volumes that the claim could get although it does not name them.
    fn volumes_for(&self, claim: &AskedClaim, class: &Look<Class>) -> Vec<Offered> {
        let kept = self.volumes.find(&BY_CLAIM, claim.key.as_str()).into_iter().filter(|volume| {
            let reference = volume.claim.as_ref().and_then(|reference| reference.uid.as_ref());
            reference.is_none_or(|uid| *uid == claim.uid)
        });
        // Who names a volume gets that one or none. Everybody else gets one that is free before one is made for them.
        let free = if claim.volume_name.is_empty() { self.free_volumes(claim, class) } else { Vec::new() };
        kept.chain(free).map(|volume| self.offered(volume)).collect()
    }

    fn free_volumes(&self, claim: &AskedClaim, class: &Look<Class>) -> Vec<Arc<Volume>> {
        let class = match class {
            Look::Known(class) => class.key.name(),
            _ => claim.class.as_deref().unwrap_or_default(),
        };
        let free = self.volumes.find(&FREE_BY_CLASS, class).into_iter();
        free.filter(|volume| !volume.being_deleted && claim.wants.fits(class, volume)).collect()
    }
}

fn cached<T>(found: Option<Arc<T>>) -> Look<T> {
    found.map_or(Look::NotCached, Look::Known)
}
