//! Takes the steps of a scrub.

use std::sync::Arc;

use cluster::{
    ObjectKey, Volume,
    decision::Decision,
    volume::{BY_CLAIM, VolumePhase},
};
use k8s_openapi::api::{batch::v1::Job, core::v1::PersistentVolumeClaim};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions},
    core::{NamespaceResourceScope, Request},
};
use platform::{
    client::{self, RequestError},
    events::EventKind,
    queue::Outcome,
    trouble::causes,
};
use serde_json::Value;

use super::{
    Progress, SCRUB, Scrub,
    decision::{Action, Observation, SCRUB_VOLUME},
    look,
    objects::{self, ClaimWire, ScrubClaim},
    template::Template,
};
use crate::controller::Releaser;

impl Releaser {
    /// Goes on with the scrub of a volume that refers to its scrub claim.
    pub(crate) async fn go_on_scrubbing(&self, volume: &Arc<Volume>) -> Outcome {
        let class = self.class_of(volume);
        let template = look::template_of(volume, class.as_deref(), &self.settings.controller_id);
        self.scrub(volume, template).await
    }

    /// Takes the next steps of a scrub, as many as can be taken at once.
    pub(crate) async fn scrub(&self, volume: &Arc<Volume>, template: Option<Box<str>>) -> Outcome {
        let mut seen = Observation {
            volume: Arc::clone(volume),
            template,
            on: self.scrub.is_some(),
            dry_run: self.settings.dry_run,
            job: self.scrub.as_ref().and_then(|scrub| scrub.jobs.get(&scrub.key(volume))),
            live: None,
        };
        let mut usable = None;
        loop {
            let decision = self.count(SCRUB_VOLUME.decide(&seen), Action::name);
            let Some(scrub) = &self.scrub else {
                self.pending.fail(volume);
                return self.tell_scrub(volume, &decision);
            };
            let done = match &decision.action {
                Action::Look => self.look_for_scrub(scrub, &mut seen).await.map(|template| usable = template),
                Action::MakeClaim => self.make_claim(scrub, &mut seen).await,
                Action::Remind(uid) => self.remind(&scrub.key(volume), uid).await.map(|()| seen.reminded()),
                _ => return self.take_step(scrub, seen, usable, decision).await,
            };
            if let Err(error) = done {
                self.pending.fail(volume);
                return self.failed(volume, "ErrScrubPV", "scrubbing", &error);
            }
        }
    }

    fn api<K>(&self, scrub: &Scrub) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(Client::clone(&self.client), &scrub.namespace)
    }

    async fn look_for_scrub(&self, scrub: &Scrub, seen: &mut Observation) -> kube::Result<Option<Template>> {
        let template = seen.template.as_deref().unwrap_or_default();
        let (live, usable) = look::look(&self.client, &scrub.key(&seen.volume), template, &seen.volume).await?;
        seen.live = Some(live);
        Ok(usable)
    }

    async fn make_claim(&self, scrub: &Scrub, seen: &mut Observation) -> kube::Result<()> {
        let key = scrub.key(&seen.volume);
        scrub.begun.lock().insert(seen.volume.key.clone());
        let path = PersistentVolumeClaim::url_path(&(), Some(key.namespace()));
        let body = objects::claim(&seen.volume, &key).to_string().into_bytes();
        let request = Request::new(path).create(&PostParams::default(), body).map_err(kube::Error::BuildRequest)?;
        let made: ClaimWire = self.client.request(request).await?;
        if let Some(live) = &mut seen.live {
            live.claim = ScrubClaim::seen(Some(made), &seen.volume);
        }
        Ok(())
    }

    /// Lets Kubernetes see the claim once more, now that its volume refers to it.
    async fn remind(&self, key: &ObjectKey, uid: &str) -> kube::Result<()> {
        let path = PersistentVolumeClaim::url_path(&(), Some(key.namespace()));
        let change = Patch::Merge(objects::remind(uid));
        let request = Request::new(path).patch(key.name(), &PatchParams::default(), &change);
        client::send_unread(&self.client, request.map_err(kube::Error::BuildRequest)?).await
    }

    async fn take_step(
        &self,
        scrub: &Scrub,
        mut seen: Observation,
        template: Option<Template>,
        mut decision: Decision<Action>,
    ) -> Outcome {
        let volume = &Arc::clone(&seen.volume);
        match self.write_step(scrub, &seen, template, &decision).await {
            Ok(()) if matches!(decision.action, Action::HandOver(_)) => {
                // It is on its way to the pool until the watch shows it.
                scrub.begun.lock().remove(&volume.key);
                return self.tell_scrub(volume, &decision);
            }
            Ok(()) => {}
            Err(kube::Error::Api(status)) if status.code == 422 && matches!(decision.action, Action::MakeJob(_)) => {
                seen.job_refused(&status.message);
                decision = self.count(SCRUB_VOLUME.decide(&seen), Action::name);
            }
            Err(error) => {
                self.pending.fail(volume);
                if matches!(&error, kube::Error::Api(status) if status.code == 404) {
                    // Nobody tells us again of a volume that is gone, but its claim is there.
                    self.queue.add(scrub.sweep());
                }
                return self.failed(volume, "ErrScrubPV", "scrubbing", &error);
            }
        }
        self.pending.fail(volume);
        self.tell_scrub(volume, &decision)
    }

    async fn write_step(
        &self,
        scrub: &Scrub,
        seen: &Observation,
        template: Option<Template>,
        decision: &Decision<Action>,
    ) -> kube::Result<()> {
        let (volume, key) = (&seen.volume, scrub.key(&seen.volume));
        match &decision.action {
            Action::Leave
            | Action::Wait(_)
            | Action::Refuse(_)
            | Action::Look
            | Action::MakeClaim
            | Action::Remind(_) => Ok(()),
            Action::HandOver(uid) => {
                let template = seen.template.as_deref().unwrap_or_default();
                self.write(volume, objects::hand_over(volume, &key, uid, template)).await
            }
            Action::MakeJob(uid) => match template {
                Some(template) => self.make_job(&key, &template.job(volume, &key, uid)).await,
                None => Ok(()),
            },
            Action::Finish => match Progress::of(volume) {
                Some(progress) => self.write(volume, objects::finish(volume, progress)).await,
                None => Ok(()),
            },
            Action::Quarantine(job) => match Progress::of(volume) {
                Some(progress) => {
                    let why = format!("{}: {}", decision.reason, decision.message);
                    self.write(volume, objects::quarantine(volume, progress, job, &why)).await
                }
                None => Ok(()),
            },
            Action::RemoveJob(uid) => self.remove::<Job>(&key, uid).await,
            Action::RemoveClaim(uid) => self.remove::<PersistentVolumeClaim>(&key, uid).await,
        }
    }

    async fn make_job(&self, key: &ObjectKey, job: &Value) -> kube::Result<()> {
        let path = Job::url_path(&(), Some(key.namespace()));
        let request = Request::new(path).create(&PostParams::default(), job.to_string().into_bytes());
        client::send_unread(&self.client, request.map_err(kube::Error::BuildRequest)?).await
    }

    /// Deletes the very object, and what it owns with it; one that is gone, or another one, is left alone.
    async fn remove<K>(&self, key: &ObjectKey, uid: &str) -> kube::Result<()>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        let same = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
        let parameters = DeleteParams::background().preconditions(same);
        let request = Request::new(K::url_path(&(), Some(key.namespace()))).delete(key.name(), &parameters);
        match client::send_unread(&self.client, request.map_err(kube::Error::BuildRequest)?).await {
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            result => result,
        }
    }

    fn tell_scrub(&self, volume: &Volume, Decision { action, reason, message }: &Decision<Action>) -> Outcome {
        let key = &volume.key;
        let kind = match action {
            Action::MakeJob(_) | Action::Finish => Some(EventKind::Normal),
            Action::Quarantine(_) => Some(EventKind::Warning),
            Action::Refuse(_) if self.is_news(volume, reason) => Some(EventKind::Warning),
            _ => None,
        };
        match &kind {
            None => tracing::debug!(feature = "releaser", volume = %key, reason, "{message}"),
            Some(EventKind::Normal) => tracing::info!(feature = "releaser", volume = %key, reason, "{message}"),
            Some(EventKind::Warning) => tracing::warn!(feature = "releaser", volume = %key, reason, "{message}"),
        }
        if let Some(kind) = kind {
            self.tell(volume, kind, "Scrub", reason, message.clone());
        }
        match action {
            Action::Wait(time) | Action::Refuse(Some(time)) => Outcome::After(*time),
            _ => Outcome::Done,
        }
    }

    /// Takes the claim back that was made for a volume which is not to be scrubbed after all: it would take the volume as soon
    /// as that is free.
    pub(crate) async fn take_back(&self, volume: &Volume) -> kube::Result<()> {
        let Some(scrub) = self.scrub.as_ref().filter(|scrub| scrub.begun.lock().contains(&volume.key)) else {
            return Ok(());
        };
        let key = scrub.key(volume);
        let claims: Api<ClaimWire> = self.api(scrub);
        let claim = claims.get_opt(key.name()).await?.and_then(ScrubClaim::from_wire);
        if let Some(claim) = claim.filter(|claim| claim.is_for(volume)) {
            self.remove::<PersistentVolumeClaim>(&key, &claim.uid).await?;
        }
        scrub.begun.lock().remove(&volume.key);
        Ok(())
    }

    /// Deletes what was made for volumes that are gone, or that have gone other ways.
    pub(crate) async fn sweep(&self) -> Outcome {
        let Some(scrub) = &self.scrub else { return Outcome::Done };
        match self.try_sweep(scrub).await {
            Ok(()) => Outcome::Done,
            Err(error) if RequestError::is_not_leader(&error) => Outcome::Done,
            Err(error) => {
                tracing::warn!(feature = "releaser", "what is left of scrubs cannot be deleted: {}", causes(&error));
                Outcome::Retry
            }
        }
    }

    async fn try_sweep(&self, scrub: &Scrub) -> kube::Result<()> {
        let volumes = &self.caches.volumes;
        for job in scrub.jobs.filter(|job| volumes.find(&BY_CLAIM, job.key.as_str()).is_empty()) {
            self.remove::<Job>(&job.key, &job.uid).await?;
        }
        let claims: Api<ClaimWire> = self.api(scrub);
        let claims = claims.list(&ListParams::default().labels(SCRUB)).await?.items;
        for claim in claims.into_iter().filter_map(ScrubClaim::from_wire) {
            let volume = volumes.get(&claim.volume.0).filter(|volume| claim.is_for(volume));
            let refers = |volume: &Volume| volume.claim.as_ref().is_some_and(|found| found.key == claim.key);
            match volume {
                Some(volume) if refers(&volume) => {}
                // It may be about to refer to it: the rules know.
                Some(volume) if volume.phase == VolumePhase::Released => {
                    scrub.begun.lock().insert(volume.key.clone());
                    self.queue.add(volume.key.clone());
                }
                _ => self.remove::<PersistentVolumeClaim>(&claim.key, &claim.uid).await?,
            }
        }
        Ok(())
    }
}
