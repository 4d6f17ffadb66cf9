//! Takes the steps of a release: gathers what the rules look at, reads live what may have changed, writes.

use std::sync::Arc;

use cluster::{
    Class, Volume,
    decision::Decision,
    volume::{BY_CLAIM, FREE_BY_CLASS},
};
use k8s_openapi::jiff::Timestamp;
use platform::{events::EventKind, queue::Outcome};

use crate::{
    Settings,
    controller::Releaser,
    decision::{Action, Observation, RELEASE_VOLUME, To},
    pending::FREED_BY_CLASS,
    policy::{RELEASE_MAX_AVAILABLE, mode},
    scrub::{self, UNDERWAY_BY_CLASS},
    seen::{Attached, Candidate},
    write,
};

impl Releaser {
    /// Releases a volume, if all rules say so.
    pub(crate) async fn release(&self, volume: &Arc<Volume>) -> Outcome {
        if self.pending.is_written(volume) {
            // The watch shows it in a moment, and whatever is to be done then.
            return Outcome::Done;
        }
        let mut seen = self.observe(volume);
        let mut decision = self.decide(&seen);
        if decision.action == Action::Look {
            if let Err(error) = self.look(&mut seen).await {
                return self.failed(volume, "ErrReleasePV", "releasing", &error);
            }
            decision = self.decide(&seen);
        }
        if let Action::Scrub(template) = decision.action {
            self.pending.begin(volume, &To::Pool);
            return self.scrub(volume, Some(template)).await;
        }
        if let Action::Release(to) = &decision.action {
            self.pending.begin(volume, to);
        }
        if let Err(error) = self.carry_out(volume, &decision.action).await {
            self.pending.fail(volume);
            return self.failed(volume, "ErrReleasePV", "releasing", &error);
        }
        self.conclude(volume, &decision)
    }

    async fn carry_out(&self, volume: &Volume, action: &Action) -> kube::Result<()> {
        self.take_back(volume).await?;
        match action {
            Action::Release(to) => self.write(volume, write::release(volume, to)).await,
            _ => Ok(()),
        }
    }

    fn observe(&self, volume: &Arc<Volume>) -> Observation {
        let Settings { controller_id, namespace, dry_run, .. } = &self.settings;
        let class = self.class_of(volume);
        Observation {
            volume: Arc::clone(volume),
            available: self.available(volume, class.as_deref()),
            class,
            controller_id: Arc::clone(controller_id),
            namespace: namespace.clone(),
            dry_run: *dry_run,
            live: None,
            scrubbed: scrub::is_scrubbed(volume),
            now: Timestamp::now(),
        }
    }

    /// Reads live what may have changed. What can be taken by others is counted last, so that nobody comes between.
    async fn look(&self, seen: &mut Observation) -> kube::Result<()> {
        let volume = Arc::clone(&seen.volume);
        let mode = |class: Option<&Class>| mode(&volume, class, &self.settings.controller_id);
        let (class, live) = self.reader.look(&volume, mode, |candidate| self.is_taken(candidate)).await?;
        if live.attached == Attached::NotAsked {
            self.unguarded.increment();
        }
        seen.available = self.available(&volume, class.as_deref());
        (seen.class, seen.live) = (class, Some(live));
        Ok(())
    }

    /// How many other volumes of the same class any claim may have, as far as we know and by what we do. Nobody counts them
    /// where it does not matter.
    fn available(&self, volume: &Volume, class: Option<&Class>) -> usize {
        if !class.is_some_and(|class| class.annotations.contains_key(RELEASE_MAX_AVAILABLE)) {
            return 0;
        }
        let volumes = &self.caches.volumes;
        let scrubbed = volumes.find(&UNDERWAY_BY_CLASS, &volume.class);
        let scrubbed = scrubbed.iter().filter(|other| other.key != volume.key).count();
        let free = [FREE_BY_CLASS, FREED_BY_CLASS].iter().map(|index| volumes.find(index, &volume.class).len());
        free.sum::<usize>() + scrubbed + self.pending.to_pool(&volume.class)
    }

    fn is_taken(&self, candidate: &Candidate) -> bool {
        let volumes = self.caches.volumes.find(&BY_CLAIM, candidate.key.as_str());
        let refers = |volume: &Arc<Volume>| {
            let uid = volume.claim.as_ref().and_then(|claim| claim.uid.as_ref());
            // One that is kept for the name is for this claim too.
            uid.is_none_or(|uid| *uid == candidate.uid)
        };
        self.pending.has(candidate) || volumes.iter().any(refers)
    }

    fn decide(&self, seen: &Observation) -> Decision<Action> {
        self.count(RELEASE_VOLUME.decide(seen), Action::name)
    }

    /// Tells whoever should know what was decided and done.
    fn conclude(&self, volume: &Volume, decision: &Decision<Action>) -> Outcome {
        let Decision { action, reason, message } = decision;
        let key = &volume.key;
        match action {
            Action::Leave | Action::Look | Action::Wait(_) | Action::Scrub(_) => {
                tracing::debug!(feature = "releaser", volume = %key, reason, "{message}");
            }
            Action::Release(_) => {
                tracing::info!(feature = "releaser", volume = %key, reason, "{message}");
                self.tell(volume, EventKind::Normal, "Release", reason, message.clone());
            }
            Action::Report | Action::Refuse(_) if !self.is_news(volume, reason) => {}
            Action::Report => {
                tracing::info!(feature = "releaser", volume = %key, reason, "{message}");
                self.tell(volume, EventKind::Normal, "Release", reason, message.clone());
            }
            Action::Refuse(_) => {
                tracing::warn!(feature = "releaser", volume = %key, reason, "{message}");
                self.tell(volume, EventKind::Warning, "Release", reason, message.clone());
            }
        }
        match action {
            Action::Wait(time) | Action::Refuse(Some(time)) => Outcome::After(*time),
            _ => Outcome::Done,
        }
    }
}
