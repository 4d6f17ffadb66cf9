//! Gathers what the rules look at and carries out what they decide.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use cluster::{ObjectKey, Volume, decision::Decision, volume::ClaimReference};
use k8s_openapi::{api::core::v1::ObjectReference, jiff::Timestamp};
use kube::Client;
use parking_lot::Mutex;
use platform::{
    client::RequestError,
    events::{Event, EventKind},
    queue::{self, Outcome, Queue},
    trouble::causes,
};
use serde_json::Value;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    brake::{Fleet, Limiter, Losses},
    decision::{Action, CLAIM_ENDING, CLEAN_UP, Maker, Observation, since},
    identity::Presence,
    live::{Reader, Survey},
    policy::Terms,
    recreate::{self, MAKE_AGAIN, has_pending},
};
use crate::{
    Context,
    home::Home,
    settings::{NodeGone, Settings},
};

/// How many volumes are worked on at once, whatever is configured: the first start notes the machines of all that are there, and
/// nobody waits for that.
const CONCURRENCY: usize = 4;

/// When to look again after a claim or a volume was deleted, should nothing else happen.
const AFTERWARDS: Duration = Duration::from_secs(5);

/// When to look again at a claim that takes its time to end.
const ENDING: Duration = Duration::from_secs(30);

/// The part of the feature that cleans up.
pub struct Gone {
    pub(super) context: Context,
    pub(super) reader: Reader,
    pub(super) queue: Queue<ObjectKey>,
    pub(super) losses: Arc<Mutex<Losses>>,
    pub(super) told: Arc<Told>,
    limiter: Mutex<Limiter>,
}

/// What was told about each volume whose node is gone: which volume it was, what was decided, and why.
pub(super) type Told = Mutex<HashMap<ObjectKey, (Box<str>, &'static str, &'static str)>>;

impl Gone {
    /// On top of caches that somebody else feeds.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        let Context { client, settings, registry, .. } = context;
        let told: Arc<Told> = Arc::default();
        let gauges = registry.gauges(
            "claimkeeper_placement_node_gone",
            "Volumes whose node is gone, by what was decided and why; counted by the replica that leads.",
            &["decision", "reason"],
        );
        let (counted, known) = (Arc::clone(&told), Mutex::new(HashSet::new()));
        registry.before_scrape(move || {
            let mut counts: BTreeMap<_, u32> = BTreeMap::new();
            for (_, decision, reason) in counted.lock().values() {
                *counts.entry((*decision, *reason)).or_default() += 1;
            }
            let mut known = known.lock();
            known.extend(counts.keys().copied());
            for labels in &*known {
                let count = counts.get(labels).copied().unwrap_or_default();
                gauges.with(&[labels.0, labels.1]).set(count.into());
            }
        });
        Self {
            reader: Reader::new(Client::clone(client), Arc::clone(settings)),
            context: context.clone(),
            queue: Queue::new("placement-gone", registry),
            losses: Arc::default(),
            told,
            limiter: Mutex::new(Limiter::new(Instant::now())),
        }
    }

    /// Acts until `stop` is cancelled (then it finishes what it has begun) or the future is dropped (then it ends at once). The caches
    /// must have synced.
    pub async fn run(&self, stop: CancellationToken) {
        let _subscriptions = self.subscribe();
        let concurrency = self.settings().concurrency.min(CONCURRENCY);
        queue::run(&self.queue, concurrency, stop, |volume| self.handle(volume)).await;
        // Whoever leads next tells it, and counts it.
        self.told.lock().clear();
    }

    fn settings(&self) -> &Settings {
        &self.context.settings
    }

    async fn handle(&self, key: ObjectKey) -> Outcome {
        let Some(volume) = self.context.caches.volumes.get(&key) else {
            self.told.lock().remove(&key);
            return Outcome::Done;
        };
        let pending = has_pending(&volume) && self.settings().looks_after(&volume);
        let handled = if pending { self.go_on(&volume).await } else { self.clean_up(&volume).await };
        handled.unwrap_or_else(|error| self.failed(&volume, &error))
    }

    async fn clean_up(&self, volume: &Arc<Volume>) -> kube::Result<Outcome> {
        let (seen, claim, decision) = self.decide(volume).await?;
        self.carry_out(&seen, claim.as_ref(), decision).await
    }

    /// Goes on where a claim is to be made again.
    async fn go_on(&self, volume: &Arc<Volume>) -> kube::Result<Outcome> {
        let seen = self.reader.pending(volume).await?;
        let decision = MAKE_AGAIN.decide(&seen);
        self.context.counts.count(&decision, decision.action.name());
        let (reason, message) = (decision.reason, &decision.message);
        match (decision.action, &seen.pending) {
            // The watch shows it in a moment.
            (recreate::Action::Leave, _) => Ok(Outcome::After(AFTERWARDS)),
            (recreate::Action::DecideAnew, _) => {
                let (seen, claim, decision) = self.decide(volume).await?;
                // Somebody may have been faster, and then it is owed.
                let goes = decision.reason == CLAIM_ENDING;
                if !goes && !matches!(decision.action, Action::DeleteClaim(Maker::Us)) {
                    self.withdraw(volume).await?;
                    return Ok(Outcome::After(AFTERWARDS));
                }
                self.carry_out(&seen, claim.as_ref(), decision).await
            }
            // Pods may keep it.
            (recreate::Action::Wait, _) => Ok(self.clean_up(volume).await?.or_sooner(Outcome::After(ENDING))),
            (recreate::Action::Create, Some(pending)) => {
                if let Some(made) = self.make_again(pending).await? {
                    tracing::info!(feature = "placement", volume = %volume.key, reason, "{message}");
                    self.publish(made, EventKind::Normal, reason, message);
                }
                self.withdraw(volume).await?;
                Ok(Outcome::After(AFTERWARDS))
            }
            (recreate::Action::Withdraw | recreate::Action::Create, _) => {
                tracing::info!(feature = "placement", volume = %volume.key, reason, "{message}");
                self.withdraw(volume).await?;
                Ok(Outcome::After(AFTERWARDS))
            }
        }
    }

    /// Decides by the caches, and once more by what is read live before anything is written.
    async fn decide(&self, volume: &Arc<Volume>) -> kube::Result<(Observation, Option<Value>, Decision<Action>)> {
        let mut seen = self.observe(volume);
        let mut claim = None;
        let mut decision = CLEAN_UP.decide(&seen);
        if decision.action == Action::LookAtNode {
            self.look_at_node(&mut seen).await?;
            decision = CLEAN_UP.decide(&seen);
        }
        if decision.action == Action::LookAtAll {
            let turn = seen.turn;
            match self.reader.survey(volume.key.name(), &self.losses).await? {
                Some(Survey { seen: live, claim: found }) => (seen, claim) = (Observation { turn, ..live }, found),
                // The watch shows it in a moment.
                None => return Ok((seen, None, Decision::new(Action::Leave, "VolumeEnding", "the volume is gone"))),
            }
            decision = CLEAN_UP.decide(&seen);
        }
        self.context.counts.count(&decision, decision.action.name());
        Ok((seen, claim, decision))
    }

    /// What the caches know.
    fn observe(&self, volume: &Arc<Volume>) -> Observation {
        let caches = &self.context.caches;
        let class = caches.classes.get(&ObjectKey::new("", &volume.class));
        let terms = Terms::of(class.as_deref(), self.settings());
        let now = Timestamp::now();
        let home = Home::tied(volume, self.settings()).map(|home| {
            let nodes = home.candidates(volume, &caches.nodes);
            let presence = Presence::of(volume, &home, &nodes.iter().map(|node| &**node).collect::<Vec<_>>());
            (home, presence)
        });
        Observation {
            fleet: self.fleet(volume, &terms, now),
            home,
            looked: false,
            looked_after: self.settings().looks_after(volume),
            terms,
            brake: self.settings().node_gone_brake,
            turn: self.limiter.lock().wait(Instant::now()),
            live: None,
            now,
            volume: Arc::clone(volume),
        }
    }

    /// Counts nodes only where it matters.
    fn fleet(&self, volume: &Volume, terms: &Terms, now: Timestamp) -> Fleet {
        let Some(since) = since(volume).filter(|_| terms.mode == NodeGone::Delete) else {
            return Fleet { lost: 0, all: 0 };
        };
        let nodes = self.context.caches.nodes.filter(|_| true);
        let there = nodes.iter().map(|node| node.key.name()).collect();
        self.losses.lock().around(since, terms.after, &there, now)
    }

    async fn look_at_node(&self, seen: &mut Observation) -> kube::Result<()> {
        let Some((home, presence)) = &mut seen.home else { return Ok(()) };
        let known = if let Presence::There { node, .. } = presence { Some(&**node) } else { None };
        let nodes = self.reader.nodes(&seen.volume, home, known).await?;
        *presence = Presence::of(&seen.volume, home, &nodes.iter().collect::<Vec<_>>());
        (seen.looked, seen.now) = (true, Timestamp::now());
        Ok(())
    }

    async fn carry_out(
        &self,
        seen: &Observation,
        claim: Option<&Value>,
        decision: Decision<Action>,
    ) -> kube::Result<Outcome> {
        let Decision { action, reason, message } = decision;
        let volume = &seen.volume;
        if matches!(action, Action::DeleteClaim(_) | Action::DeleteVolume)
            && let Err(wait) = self.limiter.lock().take(Instant::now())
        {
            return Ok(Outcome::After(wait));
        }
        let name = action.name();
        let outcome = match action {
            Action::Leave | Action::LookAtNode | Action::LookAtAll => Outcome::Done,
            Action::Note(note) => {
                self.note(volume, note.as_deref()).await?;
                Outcome::Done
            }
            Action::Mark => {
                self.mark(volume, seen.now).await?;
                Outcome::After(seen.terms.after)
            }
            Action::Wait(time) => Outcome::After(time),
            Action::Report(again) => again.map_or(Outcome::Done, Outcome::After),
            Action::DeleteClaim(maker) => {
                let Some(claim) = claim else { return Ok(Outcome::Retry) };
                self.delete_claim(seen, claim, &maker).await?;
                Outcome::After(AFTERWARDS)
            }
            Action::EndPods => {
                self.end_pods(seen).await?;
                Outcome::After(AFTERWARDS)
            }
            Action::DeleteVolume => {
                self.delete_volume(volume).await?;
                Outcome::After(AFTERWARDS)
            }
        };
        self.conclude(volume, name, reason, &message);
        Ok(outcome)
    }

    /// Tells whoever should know what was decided and done.
    fn conclude(&self, volume: &Volume, decision: &'static str, reason: &'static str, message: &str) {
        let (key, news) = (&volume.key, self.is_news(volume, decision, reason));
        match decision {
            "report" if news => {
                tracing::warn!(feature = "placement", volume = %key, reason, "{message}");
                self.tell(volume, EventKind::Warning, reason, message);
            }
            "delete-claim" | "delete-volume" | "end-pods" => {
                tracing::warn!(feature = "placement", volume = %key, reason, "{message}");
                self.tell(volume, EventKind::Warning, reason, message);
            }
            "note" if reason == "NodeBack" => {
                tracing::info!(feature = "placement", volume = %key, reason, "{message}");
                self.tell(volume, EventKind::Normal, reason, message);
            }
            "mark" => tracing::warn!(feature = "placement", volume = %key, reason, "{message}"),
            _ => tracing::debug!(feature = "placement", volume = %key, reason, "{message}"),
        }
    }

    /// Remembers what was decided about a volume whose node is gone. True if that was not so before.
    fn is_news(&self, volume: &Volume, decision: &'static str, reason: &'static str) -> bool {
        let mut told = self.told.lock();
        if matches!(reason, "NotTied" | "OtherNamespace" | "Off" | "Unclaimed" | "NodeThere" | "NodeBack" | "HomeNoted")
        {
            told.remove(&volume.key);
            return false;
        }
        let now = (volume.uid.clone(), decision, reason);
        told.insert(volume.key.clone(), now.clone()) != Some(now)
    }

    fn failed(&self, volume: &Volume, error: &kube::Error) -> Outcome {
        let key = &volume.key;
        match error {
            kube::Error::Api(status) if matches!(status.code, 404 | 409) => {
                tracing::debug!(feature = "placement", volume = %key, "something has changed meanwhile; decided again");
            }
            // Whoever leads now does it; there is nothing to tell and nothing failed.
            error if RequestError::is_not_leader(error) => return Outcome::Done,
            error => {
                let reason = "NodeGoneFailed";
                let message = format!("what is tied to a node that is gone cannot be cleaned up: {}", causes(error));
                // A server that says no has something to tell; one that is away has not, least of all about every volume.
                let said_no = matches!(error, kube::Error::Api(status) if status.code < 500);
                if said_no && self.is_news(volume, "fail", reason) {
                    self.tell(volume, EventKind::Warning, reason, &message);
                }
                tracing::warn!(feature = "placement", volume = %key, reason, "{message}");
            }
        }
        Outcome::Retry
    }

    /// Tells it about the volume and about the claim that it refers to.
    fn tell(&self, volume: &Volume, kind: EventKind, reason: &'static str, note: &str) {
        self.publish(volume.reference(), kind, reason, note);
        if let Some(claim) = volume.claim.as_ref().filter(|claim| claim.uid.is_some()) {
            self.publish(reference(claim), kind, reason, note);
        }
    }

    fn publish(&self, regarding: ObjectReference, kind: EventKind, reason: &'static str, note: &str) {
        let event = Event { regarding, kind, reason, action: "CleanUpAfterNode", note: note.to_owned() };
        self.context.recorder.publish(event);
    }
}

fn reference(claim: &ClaimReference) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("PersistentVolumeClaim".into()),
        namespace: Some(claim.key.namespace().to_owned()),
        name: Some(claim.key.name().to_owned()),
        uid: claim.uid.as_deref().map(ToOwned::to_owned),
        ..ObjectReference::default()
    }
}
