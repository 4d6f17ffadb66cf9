//! Lets the addresses of a volume lead nowhere, and makes room for others.

use std::sync::Arc;

use cluster::{ObjectKey, decision::Decision};
use platform::{events::EventKind, queue::Outcome};
use tokio::time::Instant;

use crate::{
    controller::SharedVolumes,
    decision::{Action, ClaimSeen},
    endpoint::parse,
    objects,
    state::View,
    trouble::Failure,
    way,
};

impl SharedVolumes {
    /// Lets every address of a volume lead nowhere. Whether any of them led somewhere.
    pub(crate) async fn close(&self, view: &View) -> Result<bool, Failure> {
        let id = &view.volume.id;
        let (wrote, closed) = {
            let mut state = self.state.lock();
            (!state.leads.of(id).is_empty(), state.entry(id).is_some_and(|entry| entry.closed))
        };
        let led = self.close_slices(id).await? || wrote;
        let mut services = self.caches.services_of(id);
        if wrote && let Some(claim) = &view.volume.claim {
            // What we wrote a moment ago may not be in the cache yet.
            let owner = objects::Owner { key: claim.clone(), uid: "".into(), leaving: true };
            let live = self.service(&view.volume, &owner).await?;
            services.extend(live.filter(|live| services.iter().all(|known| known.key != live.key)).map(Arc::new));
        }
        for service in &services {
            // Whoever closed its slices may not have come as far as its Endpoints object.
            if led || !closed || self.way(view, service, None).action != way::Action::Settled {
                self.lead(view, Arc::clone(service), None, None).await?;
            }
        }
        self.leads(id, None);
        if let Some(entry) = self.state.lock().entry(id) {
            entry.closed = true;
        }
        Ok(led)
    }

    /// Closes what is called after this volume, but is not what its clients use.
    pub(crate) async fn close_others(&self, view: &View, chosen: &ObjectKey) -> Result<(), Failure> {
        for service in self.caches.services_of(&view.volume.id) {
            if service.key != *chosen && self.way(view, &service, None).action != way::Action::Settled {
                self.lead(view, service, None, None).await?;
            }
        }
        for slice in self.caches.slices_of(&view.volume.id) {
            let elsewhere = way::is_ours(&slice) && slice.service().as_ref() != Some(chosen);
            if let Some(change) = objects::close_slice(&slice).filter(|_| elsewhere) {
                self.patch_slice(&slice.key, &change).await?;
            }
        }
        Ok(())
    }

    /// Closes all slices that are ours and of this volume, wherever they are.
    async fn close_slices(&self, id: &str) -> Result<bool, Failure> {
        let mut led = false;
        for slice in self.caches.slices_of(id) {
            led |= !slice.leads_to().is_empty();
            if way::is_ours(&slice)
                && let Some(change) = objects::close_slice(&slice)
            {
                self.patch_slice(&slice.key, &change).await?;
            }
        }
        Ok(led)
    }

    pub(crate) async fn withdraw(&self, view: &View, decision: &Decision<Action>) -> Result<Outcome, Failure> {
        let id = &view.volume.id;
        let led = self.close(view).await?;
        self.note(view, decision);
        let waits = decision.action == Action::Wait;
        if led && !waits && !is_worth_a_note(decision.reason) {
            tracing::warn!(feature = "shared-volumes", volume = %id, reason = decision.reason, "{}", decision.message);
        }
        if waits {
            self.make_room(view).await?;
            return Err(Failure::NotYet);
        }
        self.note_on_claim(view, decision, led.then_some(EventKind::Warning)).await?;
        self.let_go(view);
        Ok(Outcome::Done)
    }

    /// Leaves the addresses of a volume as they are.
    pub(crate) async fn leave(&self, view: &View, decision: &Decision<Action>) -> Result<Outcome, Failure> {
        self.note(view, decision);
        // Where nothing leads anywhere, something else was told when that came to its end.
        if self.caches.slices_of(&view.volume.id).iter().any(|slice| !slice.leads_to().is_empty()) {
            self.note_on_claim(view, decision, None).await?;
        }
        self.let_go(view);
        Ok(Outcome::Done)
    }

    /// Tells the claim of a volume why it is not served; but not another volume's claim that has the name.
    async fn note_on_claim(
        &self,
        view: &View,
        decision: &Decision<Action>,
        kind: Option<EventKind>,
    ) -> Result<(), Failure> {
        if is_worth_a_note(decision.reason)
            && let (ClaimSeen::There, Some(claim)) = self.claim(&view.volume).await?
        {
            let told = Decision::new((), decision.reason, decision.message.clone());
            self.conclude_quietly(view, &claim, &told, kind).await?;
        }
        Ok(())
    }

    /// There is nothing to verify for now; and nothing to remember, if the volume and all its objects are gone.
    fn let_go(&self, view: &View) {
        let id = &view.volume.id;
        let mut state = self.state.lock();
        if view.gone && self.caches.slices_of(id).is_empty() && self.caches.services_of(id).is_empty() {
            state.forget(id);
        } else if let Some(entry) = state.entry(id) {
            entry.verified = None;
        }
    }

    /// Another volume's address leads to where this one's server is: it goes first.
    async fn make_room(&self, view: &View) -> Result<(), Failure> {
        let Some(endpoint) = view.volume.endpoint.as_deref().and_then(parse) else { return Ok(()) };
        let holder = self.state.lock().leads.other(endpoint, &view.volume.id, Instant::now());
        let Some(holder) = holder.or_else(|| self.caches.leader_to(endpoint, &view.volume.id)) else { return Ok(()) };
        let known = self.state.lock().view(&holder).is_some();
        if known && view.failures == 0 {
            let key = self.state.lock().key_of(&holder);
            self.lines.add(key);
        } else if !known {
            // Nobody tells of that volume any more, so nobody else will.
            self.close(&View::of_stranger(holder)).await?;
        }
        Ok(())
    }
}

/// Most volumes are not shared: that is not worth a word on their claims.
fn is_worth_a_note(reason: &str) -> bool {
    !matches!(reason, "NotShared" | "NotOfKubernetes" | "OtherNamespace" | "ClaimMissing" | "ClaimHasOtherVolume")
}
