//! The one writer: observes, decides, does one step, and observes again.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ObjectReference, Secret};
use kube::{
    Client,
    api::{Patch, PatchParams, PostParams},
    core::Status,
};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{
    SelfManaged,
    configurations::{Configuration, Revision},
    decision::{Decision, Id, Observation, Step, decide},
    secret::{Change, Stored, trusted},
    x509::{Authority, Signer, Unusable},
};
use crate::{
    client::{RequestError, owner_in},
    events::{Event, EventKind},
    trouble::{Trouble, causes},
};

/// The pause after a step, doubled with each that follows at once: if somebody undoes what we do, we do not race.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// So many authorities are carried along at most.
const MOST_AUTHORITIES: usize = 6;

/// What could not be done.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Request(#[from] kube::Error),
    #[error("a certificate could not be made: it {0}")]
    Certificate(#[from] Unusable),
}

/// Since when things are as they are, as far as this keeper has seen itself. A new keeper waits anew, which is the safe side.
#[derive(Default)]
struct Memory {
    published: Option<(Vec<Revision>, String, Instant)>,
    leaf: Option<(Id, Instant)>,
}

impl Memory {
    fn published_for(&mut self, seen: &Seen, bundle: &str) -> Option<Duration> {
        if !seen.configurations.iter().all(|(_, configuration)| configuration.carries(bundle)) {
            self.published = None;
            return None;
        }
        let revisions = seen.configurations.iter().map(|(_, configuration)| configuration.revision.clone()).collect();
        let known = self.published.take().filter(|(known, text, _)| *known == revisions && text == bundle);
        let (.., since) =
            self.published.insert(known.unwrap_or_else(|| (revisions, bundle.to_owned(), Instant::now())));
        Some(since.elapsed())
    }

    fn leaf_for(&mut self, leaf: Option<&Id>) -> Duration {
        let Some(leaf) = leaf else {
            self.leaf = None;
            return Duration::ZERO;
        };
        let known = self.leaf.take().filter(|(known, _)| known == leaf);
        let (_, since) = self.leaf.insert(known.unwrap_or_else(|| (leaf.clone(), Instant::now())));
        since.elapsed()
    }
}

/// What is there, read live.
struct Seen {
    /// By their place in the settings; those that do not exist call nobody.
    configurations: Vec<(usize, Configuration)>,
    secret: Option<(Secret, Stored)>,
}

impl SelfManaged {
    /// Keeps the certificates, for as long as this replica is the one to do it.
    pub async fn keep(&self, stopping: CancellationToken) {
        let (mut memory, mut trouble, mut pause) = (Memory::default(), Trouble::default(), SHORTEST_PAUSE);
        let keeping = async {
            loop {
                let wait = match self.take_step(&mut memory).await {
                    Ok(wait) => {
                        if trouble.ends() {
                            info!("the webhook's certificate is kept again");
                        }
                        wait
                    }
                    Err(failure) => {
                        self.tell(&failure, pause, &mut trouble);
                        None
                    }
                };
                let Some(wait) = wait else {
                    sleep(pause).await;
                    pause = LONGEST_PAUSE.min(pause * 2);
                    continue;
                };
                if timeout(wait, self.changed.notified()).await.is_err() {
                    pause = SHORTEST_PAUSE;
                }
            }
        };
        tokio::select! {
            () = stopping.cancelled() => {}
            () = keeping => {}
        }
    }

    fn tell(&self, failure: &Failure, pause: Duration, trouble: &mut Trouble) {
        let Failure::Request(error) = failure else { return self.warn(failure, trouble) };
        match error {
            error if RequestError::is_not_leader(error) => {}
            // A race is not lost many times in a row; then it is something else that looks like it.
            kube::Error::Api(status) if is_lost_race(status) && pause < LONGEST_PAUSE => {
                debug!(error = %status, "somebody has written since we looked; looking again");
            }
            _ => self.warn(failure, trouble),
        }
    }

    fn warn(&self, failure: &Failure, trouble: &mut Trouble) {
        self.metrics.failed("keep");
        let error = causes(failure);
        if trouble.begins(&error) {
            warn!(error, secret = self.settings.secret, "the webhook's certificate cannot be kept; trying again");
        }
    }

    /// Does one step, or returns how long to wait for the next one.
    async fn take_step(&self, memory: &mut Memory) -> Result<Option<Duration>, Failure> {
        let seen = self.look().await?;
        let stored = seen.secret.as_ref().map(|(_, stored)| stored);
        let bundle = stored.map(|stored| Authority::bundle(&stored.authorities)).unwrap_or_default();
        let served = self.serving.lock().as_ref().and_then(|serving| serving.authority.clone());
        let observation = Observation {
            now: Timestamp::now(),
            stored: stored.map(|stored| stored.facts(&self.callee.names)),
            published_for: memory.published_for(&seen, &bundle),
            leaf_for: memory.leaf_for(stored.and_then(|stored| stored.leaf.as_ref()).map(|leaf| &leaf.id)),
            served: served.as_ref().map(trusted),
            patience: self.settings.patience(),
        };
        let decision = decide(&observation);
        debug!(?decision, "the webhook's certificate");
        if let Step::Wait(wait) = decision.step {
            return Ok(Some(wait));
        }
        self.act(&decision, &seen, &bundle, served).await?;
        Ok(None)
    }

    /// Configurations first: see [`Observation`]. Without a Secret they are all there is to know what is trusted, so that they are
    /// read again when it is known to be gone.
    async fn look(&self) -> Result<Seen, Failure> {
        let mut configurations = self.configurations().await?;
        let secret = self.secrets(&self.reader).get_opt(&self.settings.secret).await?;
        let secret = secret.map(|secret| {
            let stored = Stored::read(&secret);
            (secret, stored)
        });
        if secret.is_none() {
            configurations = self.configurations().await?;
        }
        Ok(Seen { configurations, secret })
    }

    async fn configurations(&self) -> Result<Vec<(usize, Configuration)>, Failure> {
        let mut configurations = Vec::new();
        for (place, name) in self.settings.configurations.iter().enumerate() {
            let found = name.api(self.reader.clone()).get_opt(name.name()).await?;
            configurations.extend(found.map(|found| (place, Configuration::read(&found, &self.callee))));
        }
        Ok(configurations)
    }

    async fn act(
        &self,
        decision: &Decision,
        seen: &Seen,
        bundle: &str,
        served: Option<Authority>,
    ) -> Result<(), Failure> {
        let now = Timestamp::now();
        let stored = seen.secret.as_ref().map(|(_, stored)| stored);
        let authorities = stored.map(|stored| stored.authorities.as_slice()).unwrap_or_default();
        let signer = stored.and_then(|stored| stored.signer.as_ref());
        match (&decision.step, signer) {
            (Step::CreateAuthority, _) => {
                let signer = Signer::create(self.settings.authority_lifetime, now)?;
                let kept = kept(seen, served, now);
                let change =
                    Change::default().authorities([&signer.authority].into_iter().chain(&kept)).signer(&signer);
                self.write(decision, seen, change).await?;
                self.metrics.authorities.increment();
            }
            (Step::Adopt(_), _) => {
                self.write(decision, seen, Change::default().authorities(authorities.iter().chain(&served))).await?;
            }
            (Step::Publish, _) => self.publish(seen, bundle).await?,
            (Step::IssueLeaf, Some(signer)) => {
                let leaf = signer.issue(&self.callee.names, self.settings.leaf_lifetime, now)?;
                self.write(decision, seen, Change::default().leaf(leaf)).await?;
                self.metrics.leaves.increment();
            }
            (Step::Retire, _) => {
                self.write(decision, seen, Change::default().authorities(authorities.first())).await?;
            }
            (Step::IssueLeaf, None) | (Step::Wait(_), _) => {}
        }
        Ok(())
    }

    async fn publish(&self, seen: &Seen, bundle: &str) -> Result<(), Failure> {
        for (place, configuration) in seen.configurations.iter().filter(|(_, seen)| !seen.carries(bundle)) {
            let Some(name) = self.settings.configurations.get(*place) else { continue };
            configuration.publish(&name.api(Client::clone(&self.writer)), name.name(), bundle).await?;
            info!(
                kind = name.kind(),
                name = name.name(),
                "put our authorities into the caBundle of a webhook configuration"
            );
        }
        Ok(())
    }

    async fn write(&self, decision: &Decision, seen: &Seen, change: Change) -> Result<(), Failure> {
        let secrets = self.secrets(&self.writer);
        let name = &self.settings.secret;
        let written = match &seen.secret {
            None => {
                let owner = owner_in(&self.reader, &self.settings.namespace).await?;
                secrets.create(&PostParams::default(), &change.create(name, owner)).await?
            }
            Some((secret, _)) => {
                secrets.patch(name, &PatchParams::default(), &Patch::Merge(change.patch(secret))).await?
            }
        };
        self.announce(decision, seen, &written);
        Ok(())
    }

    fn announce(&self, decision: &Decision, seen: &Seen, secret: &Secret) {
        let Decision { step, reason } = decision;
        let stored = seen.secret.as_ref().map(|(_, stored)| stored);
        let (kind, note) = sentence(step, reason, stored);
        let secret_name = self.settings.secret.as_str();
        match kind {
            EventKind::Normal => info!(secret = secret_name, reason, "{note}"),
            EventKind::Warning => warn!(secret = secret_name, reason, "{note}"),
        }
        let regarding = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Secret".to_owned()),
            name: secret.metadata.name.clone(),
            namespace: secret.metadata.namespace.clone(),
            uid: secret.metadata.uid.clone(),
            ..ObjectReference::default()
        };
        self.recorder.publish(Event { regarding, kind, reason, action: "KeepCertificates", note });
    }
}

// An object that is gone or of another version; a JSON patch whose test failed.
fn is_lost_race(status: &Status) -> bool {
    matches!(status.code, 404 | 409 | 422)
}

/// What a new authority does not replace at once: whatever may be behind a leaf that is served.
fn kept(seen: &Seen, served: Option<Authority>, now: Timestamp) -> Vec<Authority> {
    let stored = seen.secret.iter().flat_map(|(_, stored)| stored.authorities.iter().cloned());
    let published = seen.configurations.iter().flat_map(|(_, configuration)| configuration.authorities());
    let all = stored.chain(served).chain(published.filter(Authority::is_ours));
    let mut kept: Vec<Authority> = Vec::new();
    for authority in all.filter(|authority| authority.validity.holds(now)) {
        if kept.len() + 1 < MOST_AUTHORITIES && !kept.contains(&authority) {
            kept.push(authority);
        }
    }
    kept
}

fn sentence(step: &Step, reason: &str, stored: Option<&Stored>) -> (EventKind, String) {
    let healed = matches!(reason, "AuthorityUnreadable" | "AuthorityKeyUnusable" | "AuthorityExpired" | "LeafExpired")
        || (reason == "LeafUnreadable" && stored.is_some_and(|stored| stored.authorities.len() > 1));
    let mut note = match step {
        Step::CreateAuthority => "Made a new authority for the webhook's certificate; it signs once it is known everywhere",
        Step::Adopt(_) => {
            "The Secret was replaced by somebody: the authority of what is served was put back beside the new one until \
             everything is changed over"
        }
        Step::IssueLeaf => "Made a new certificate for the webhook",
        Step::Retire => "Stopped trusting authorities of which nothing is served any more",
        Step::Publish | Step::Wait(_) => "Looked after the webhook's certificate",
    }
    .to_owned();
    let warns = healed || matches!(step, Step::Adopt(_));
    if warns && let Some(stored) = stored.filter(|stored| !stored.faults.is_empty()) {
        note = format!("{note}. What was replaced: {}", stored.faults.join("; "));
    }
    if let Some(stored) = stored.filter(|stored| !stored.foreign.is_empty()) {
        note = format!("{note}. Left alone, because they are not ours: {}", stored.foreign.join(", "));
    }
    (if warns { EventKind::Warning } else { EventKind::Normal }, note)
}
