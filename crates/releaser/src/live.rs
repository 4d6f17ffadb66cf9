//! What is read live, right before a volume is written: caches lie.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use cluster::{Attachment, Class, Namespace, ObjectKey, Volume, live, store::Slim};
use kube::{Api, Client, api::ListParams, core::ClusterResourceScope};
use parking_lot::Mutex;

use crate::{
    fit::{ClaimWire, WaitingClaim},
    fresh::Fresh,
    policy::Mode,
    previous::{GivenTo, PreviousClaim},
    seen::{Attached, Candidate, ClaimSeen, Live, NamespaceSeen},
};

/// The claims of one namespace that wait for a volume.
type SharedClaims = Arc<Fresh<Vec<WaitingClaim>>>;

/// Reads.
pub(crate) struct Reader {
    client: Client,
    attachments: Fresh<HashSet<Box<str>>>,
    classes: Fresh<Vec<Arc<Class>>>,
    /// By namespace; only those that somebody reads right now.
    waiting: Mutex<HashMap<Box<str>, SharedClaims>>,
    rights: Rights,
    told: Mutex<bool>,
}

/// What the feature may be expected to be allowed to do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Rights {
    /// All that our chart grants. What is missing is an error.
    #[default]
    Ours,
    /// Only what the original's chart grants: nobody watches namespaces, and where attachments may not be read, volumes are
    /// released as the original does, without asking.
    Originals,
}

/// What keeps us from telling whether a volume is attached.
#[derive(Debug, thiserror::Error)]
#[error(
    "the releaser cannot tell whether volumes are attached, and would release some that are in use: {0}; grant list on \
     volumeattachments.storage.k8s.io"
)]
pub struct MissingRight(String);

impl Reader {
    pub(crate) fn new(client: Client, rights: Rights) -> Self {
        Self {
            client,
            attachments: Fresh::default(),
            classes: Fresh::default(),
            waiting: Mutex::default(),
            rights,
            told: Mutex::new(false),
        }
    }

    /// Asks for what a release needs, and takes anything but a refusal for consent: a server that is away is asked again.
    pub(crate) async fn check_rights(&self) -> Result<(), MissingRight> {
        if self.rights == Rights::Originals {
            return Ok(());
        }
        let attachments: Api<<Attachment as Slim>::Wire> = Api::all(self.client.clone());
        match attachments.list(&ListParams::default().limit(1)).await {
            Err(kube::Error::Api(status)) if status.is_forbidden() => Err(MissingRight(status.message)),
            _ => Ok(()),
        }
    }

    /// The class as it is now.
    pub(crate) async fn class(&self, name: &str) -> kube::Result<Option<Arc<Class>>> {
        let classes = self.classes.get(async || {
            let classes = list::<Class>(&self.client).await?;
            Ok::<_, kube::Error>(classes.into_iter().map(Arc::new).collect())
        });
        Ok(classes.await?.iter().find(|class| class.key.name() == name).cloned())
    }

    /// The class as it is now, and all that the rules ask for about a volume that is released by the mode which follows
    /// from it.
    pub(crate) async fn look(
        &self,
        volume: &Volume,
        mode: impl Fn(Option<&Class>) -> Mode,
        taken: impl Fn(&Candidate) -> bool,
    ) -> kube::Result<(Option<Arc<Class>>, Live)> {
        // The lists come first, and at the same time: the API server lets whoever lists wait until its own cache has caught
        // up, which takes it longer than all else. They are shared, and may wait for their turn as well.
        let (class, attached) = tokio::try_join!(self.class(&volume.class), self.attached(volume.key.name()))?;
        let Some(reference) = &volume.claim else {
            return Ok((class, Live { claim: ClaimSeen::Gone, namespace: None, attached, candidate: None }));
        };
        let mode = mode(class.as_deref());
        let claim = self.claim(&reference.key).await?;
        let waiting = match mode {
            Mode::Namespace => Some(self.waiting(reference.key.namespace()).await?),
            Mode::Soft | Mode::Pool | Mode::Never => None,
        };
        // Last: if it still is the namespace that it was, then it also was when the claims were read.
        let fenced = matches!(mode, Mode::Soft | Mode::Namespace);
        let namespace = if fenced { Some(self.namespace(reference.key.namespace()).await?) } else { None };
        let claim = match claim {
            None => ClaimSeen::Gone,
            Some(claim) if reference.uid.as_ref() == Some(&claim.uid) => ClaimSeen::Same,
            Some(claim) if claim.is_served() => ClaimSeen::Served,
            Some(_) => ClaimSeen::Waiting,
        };
        // Other volumes choose from the same list, so nothing is waited for between the choice and its being noted.
        let candidate = waiting.and_then(|waiting| {
            let mut fitting = waiting.iter().filter(|claim| claim.fits(volume)).map(WaitingClaim::candidate);
            fitting.find(|candidate| !taken(candidate))
        });
        Ok((class, Live { claim, namespace, attached, candidate }))
    }

    /// The namespace as it is now.
    pub(crate) async fn namespace(&self, name: &str) -> kube::Result<NamespaceSeen> {
        let namespaces: Api<<Namespace as Slim>::Wire> = Api::all(self.client.clone());
        let namespace = namespaces.get_opt(name).await?.and_then(Namespace::from_wire);
        Ok(namespace.map_or(NamespaceSeen::Gone, |namespace| NamespaceSeen::of(&namespace)))
    }

    /// Whether the very claim that a volume was given to has another one; not if it is gone.
    pub(crate) async fn is_served_elsewhere(&self, volume: &Volume, previous: &PreviousClaim) -> kube::Result<bool> {
        let Some(GivenTo { name, uid }) = &previous.given_to else { return Ok(false) };
        let claim = self.claim(&ObjectKey::new(&previous.namespace, name)).await?;
        Ok(claim.is_some_and(|claim| *claim.uid == **uid && claim.has_other_than(volume)))
    }

    async fn claim(&self, key: &ObjectKey) -> kube::Result<Option<WaitingClaim>> {
        let claims: Api<ClaimWire> = Api::namespaced(self.client.clone(), key.namespace());
        Ok(claims.get_opt(key.name()).await?.and_then(WaitingClaim::from_wire))
    }

    /// The claims of a namespace that wait for a volume, read by one for all who ask.
    async fn waiting(&self, namespace: &str) -> kube::Result<Arc<Vec<WaitingClaim>>> {
        let shared = Arc::clone(self.waiting.lock().entry(namespace.into()).or_default());
        let waiting = shared.get(async || self.waiting_claims(namespace).await).await;
        drop(shared);
        self.waiting.lock().retain(|_, shared| Arc::strong_count(shared) > 1);
        waiting
    }

    /// The claims of a namespace that wait for a volume, the one that waits longest first.
    async fn waiting_claims(&self, namespace: &str) -> kube::Result<Vec<WaitingClaim>> {
        let claims: Api<ClaimWire> = Api::namespaced(self.client.clone(), namespace);
        let claims = live::pages(&claims).await?.into_iter().filter_map(WaitingClaim::from_wire);
        let mut waiting: Vec<_> = claims.filter(|claim| !claim.is_served() && !claim.being_deleted).collect();
        waiting.sort_by(|one, other| (one.created, &one.key).cmp(&(other.created, &other.key)));
        Ok(waiting)
    }

    async fn attached(&self, volume: &str) -> kube::Result<Attached> {
        let attachments = self.attachments.get(async || {
            let attachments = list::<Attachment>(&self.client).await?;
            Ok(attachments.into_iter().filter_map(|attachment| attachment.volume).collect::<HashSet<_>>())
        });
        match attachments.await {
            Ok(attached) => Ok(if attached.contains(volume) { Attached::Yes } else { Attached::No }),
            Err(kube::Error::Api(status)) if status.is_forbidden() && self.rights == Rights::Originals => {
                self.tell_once(&status.message);
                Ok(Attached::NotAsked)
            }
            Err(error) => Err(error),
        }
    }

    fn tell_once(&self, refusal: &str) {
        if !std::mem::replace(&mut *self.told.lock(), true) {
            tracing::warn!(
                feature = "releaser",
                "volumes are released without asking whether they are still attached to a node, because that may not be read: \
                 {refusal}; grant list on volumeattachments.storage.k8s.io"
            );
        }
    }
}

/// All objects of a kind, as the server has them at one moment.
pub(crate) async fn list<T>(client: &Client) -> kube::Result<Vec<T>>
where
    T: Slim,
    T::Wire: kube::Resource<Scope = ClusterResourceScope>,
{
    live::list(&Api::all(client.clone())).await
}
