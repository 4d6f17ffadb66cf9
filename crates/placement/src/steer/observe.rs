//! What the caches know about a pod. Nothing here waits for anybody.

use std::sync::Arc;

use cluster::{ObjectKey, Volume};
use platform::admission::{Operation, Request};

use crate::{
    Caches,
    home::{FailoverMode, Home},
    pod::{AskedPod, PodVolume},
    settings::{Driver, Mode, Settings},
    steer::observation::{Asked, Observation, Outcome, SeenVolume, Traits},
};

/// Whether a request makes a pod.
#[must_use]
pub fn makes_pod(request: &Request<'_>) -> bool {
    let is_pod = request.kind.kind == "Pod" && request.kind.group.is_empty() && request.sub_resource.is_empty();
    is_pod && request.operation == Operation::Create
}

/// The driver of this name, if pods are steered to its volumes.
pub(crate) fn steered<'s>(settings: &'s Settings, name: &str) -> Option<&'s Driver> {
    settings.driver(name).filter(|driver| settings.mode(driver) == Mode::Webhook)
}

impl Observation {
    /// Where there is nothing to look at.
    #[must_use]
    pub fn without_pod(settings: &Arc<Settings>, asked: Asked) -> Self {
        Self { settings: Arc::clone(settings), asked, volumes: Vec::new(), driver_labels: Vec::new() }
    }
}

impl Caches {
    /// All that the rules look at, as far as the caches have it.
    #[must_use]
    pub fn observe(&self, settings: &Arc<Settings>, namespace: &str, pod: &AskedPod<'_>) -> Observation {
        let words = pod.metadata.annotations;
        let traits = Traits { has_node: pod.has_node(), is_mirror: words.mirror, is_ignored: words.ignore };
        let mut seen = Observation::without_pod(settings, Asked::Pod(traits));
        if !traits.has_node && !traits.is_mirror && !traits.is_ignored {
            let volumes =
                pod.volumes().iter().filter_map(|volume| self.volume_of_pod(settings, namespace, pod, volume));
            seen.volumes = volumes.collect();
            self.look_for_drivers(&mut seen);
        }
        seen
    }

    fn volume_of_pod(
        &self,
        settings: &Settings,
        namespace: &str,
        pod: &AskedPod<'_>,
        volume: &PodVolume<'_>,
    ) -> Option<SeenVolume> {
        let (claim, outcome) = if let Some(used) = &volume.persistent_volume_claim {
            let key = ObjectKey::new(namespace, &used.claim_name.0);
            let claim = self.claims.get(&key);
            let outcome = claim.map_or(Outcome::ClaimNotCached, |claim| {
                self.outcome_of_claim(settings, &key, claim.volume.as_deref())
            });
            (Some(key), outcome)
        } else if volume.ephemeral.is_some() {
            self.ephemeral(settings, namespace, pod, &volume.name.0)
        } else {
            return None;
        };
        Some(SeenVolume { name: volume.name.0.as_ref().into(), claim, outcome })
    }

    /// The claim of an ephemeral volume is made after its pod: what is there before belongs to an earlier one, or to nobody.
    fn ephemeral(
        &self,
        settings: &Settings,
        namespace: &str,
        pod: &AskedPod<'_>,
        volume: &str,
    ) -> (Option<ObjectKey>, Outcome) {
        let Some(name) = pod.name() else { return (None, Outcome::NoName) };
        let key = ObjectKey::new(namespace, &format!("{name}-{volume}"));
        let own = pod.uid().and_then(|uid| self.claims.get(&key).filter(|claim| claim.owner.as_deref() == Some(uid)));
        let outcome = own.map_or(Outcome::EphemeralNotYetMade, |claim| {
            self.outcome_of_claim(settings, &key, claim.volume.as_deref())
        });
        (Some(key), outcome)
    }

    /// What becomes of a claim that has this volume.
    pub(crate) fn outcome_of_claim(&self, settings: &Settings, claim: &ObjectKey, volume: Option<&str>) -> Outcome {
        let Some(name) = volume else { return Outcome::Unbound };
        let key = ObjectKey::new("", name);
        match self.volumes.get(&key) {
            Some(volume) => self.outcome_of_volume(settings, claim, volume),
            None if self.volumes.has_dropped(&key) => Outcome::Foreign,
            None => Outcome::VolumeNotCached(key),
        }
    }

    /// Kubernetes binds in two writes, and only who has both has the volume.
    pub(crate) fn outcome_of_volume(&self, settings: &Settings, claim: &ObjectKey, volume: Arc<Volume>) -> Outcome {
        if volume.claim.as_ref().is_none_or(|bound| bound.key != *claim) {
            return Outcome::Unbound;
        }
        let Some(driver) = steered(settings, &volume.driver) else { return Outcome::Foreign };
        let Some(home) = Home::of(&volume, driver, settings) else { return Outcome::HomeUnknown { volume } };
        let mode = self.mode(driver, &volume);
        match home.find(&self.nodes) {
            Some(node) => Outcome::AtHome { volume, node, mode },
            None => Outcome::HomeGone { volume, home, mode },
        }
    }

    fn mode(&self, driver: &Driver, volume: &Volume) -> FailoverMode {
        let says = driver.failover_mode_attribute.as_ref().is_some_and(|key| volume.attributes.contains_key(key));
        // Who has said it needs no class.
        let class = if says { None } else { self.classes.get(&ObjectKey::new("", &volume.class)) };
        FailoverMode::of(volume, driver, class.as_deref())
    }

    /// Looks again for home nodes that were not there.
    pub(crate) fn look_for_homes(&self, seen: &mut Observation) {
        let settings = Arc::clone(&seen.settings);
        for SeenVolume { claim, outcome, .. } in &mut seen.volumes {
            if let (Some(claim), Outcome::HomeGone { volume, .. }) = (claim, &*outcome) {
                *outcome = self.outcome_of_volume(&settings, claim, Arc::clone(volume));
            }
        }
        self.look_for_drivers(seen);
    }

    /// Where no node has the label, requiring it would only keep the pod from running.
    pub(crate) fn look_for_drivers(&self, seen: &mut Observation) {
        seen.driver_labels.clear();
        for driver in seen.settings.drivers.iter().filter(|driver| driver.require_driver) {
            let (Some(key), Some(_)) = (&driver.topology_key, steered(&seen.settings, &driver.name)) else { continue };
            let mut of_driver = seen
                .volumes
                .iter()
                .map(|volume| &volume.outcome)
                .filter(|outcome| outcome.local().is_some_and(|volume| *volume.driver == *driver.name));
            let Some(first) = of_driver.next() else { continue };
            // Nearly always the home node itself has it, and no other needs to be looked at.
            let home_has = [first]
                .into_iter()
                .chain(of_driver)
                .any(|outcome| matches!(outcome, Outcome::AtHome { node, .. } if node.labels.contains_key(key)));
            if home_has || !self.nodes.filter(|node| node.labels.contains_key(key)).is_empty() {
                seen.driver_labels.push(key.as_str().into());
            }
        }
    }
}
