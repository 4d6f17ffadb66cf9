//! The claim that a volume had before: kept on the volume, for whoever has to find out later who had the data; and for us, who
//! have to know whether the namespace is still that tenant's when the volume has been given away and come back.

use cluster::{ObjectKey, Volume};
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{policy::PREVIOUS_CLAIM, scrub::refers_to_scrub_claim};

/// What the annotation `claimkeeper.dev/previous-claim` says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PreviousClaim {
    /// Where it was.
    pub namespace: String,
    /// What it was called.
    pub name: String,
    /// Which one it was.
    pub uid: String,
    /// Since when it is gone: the volume's own time begins anew whenever its phase changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone_since: Option<Timestamp>,
    /// The claim of the same namespace that the volume was given to by its uid, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given_to: Option<GivenTo>,
    /// Whether the volume was given away since, and taken back. What becomes of it after that is an administrator's word.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub taken_back: bool,
}

/// A claim that a volume was given to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenTo {
    /// What it is called.
    pub name: String,
    /// Which one it is.
    pub uid: String,
}

impl PreviousClaim {
    /// The claim that the volume remembers.
    #[must_use]
    pub fn of(volume: &Volume) -> Option<Self> {
        serde_json::from_str(volume.annotations.get(PREVIOUS_CLAIM)?).ok()
    }

    /// What a volume that is given away has to remember.
    pub(crate) fn to_remember(volume: &Volume, given_to: Option<GivenTo>) -> Option<Self> {
        // Who had the data is the tenant, not the one who cleaned it.
        let claim = volume.claim.as_ref().filter(|_| !refers_to_scrub_claim(volume))?;
        Some(Self {
            namespace: claim.key.namespace().to_owned(),
            name: claim.key.name().to_owned(),
            uid: claim.uid.as_ref()?.to_string(),
            gone_since: gone_since(volume),
            given_to,
            taken_back: false,
        })
    }

    /// Where it was.
    #[must_use]
    pub fn key(&self) -> ObjectKey {
        ObjectKey::new(&self.namespace, &self.name)
    }
}

/// Since when the claim of a Released volume is gone. One that was taken back is Released later than that.
pub(crate) fn gone_since(volume: &Volume) -> Option<Timestamp> {
    let uid = volume.claim.as_ref().and_then(|claim| claim.uid.as_deref());
    let taken_back = PreviousClaim::of(volume).filter(|previous| Some(previous.uid.as_str()) == uid);
    taken_back.and_then(|previous| previous.gone_since).or(volume.phase_since)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{sample::volume_with, scrub::SCRUB};

    #[test]
    fn a_tenant_who_takes_the_name_of_a_scrub_claim_is_remembered_like_any_other() {
        let note = |uid: &str| json!({"template": "wipe", "claim": uid, "done": true}).to_string();
        let next = |annotations: serde_json::Value| {
            let claim = json!({"namespace": "shop", "name": "scrub-v1", "uid": "c7"});
            let volume = volume_with(&json!({"metadata": {"annotations": annotations}, "spec": {"claimRef": claim}}));
            PreviousClaim::to_remember(&volume, None).map(|previous| previous.key())
        };
        let tenant = Some(ObjectKey::new("shop", "scrub-v1"));
        assert_eq!(next(json!({})), tenant);
        assert_eq!(next(json!({SCRUB: note("k1")})), tenant, "the note is about another claim");
        assert_eq!(next(json!({SCRUB: note("c7")})), None, "it was cleaned by it");
    }

    #[test]
    fn only_a_volume_that_was_taken_back_remembers_since_when_its_claim_is_gone() {
        for (uid, since) in [("c1", "2025-06-01T00:00:00Z"), ("c0", "2026-01-01T00:00:00Z")] {
            let previous = json!({"namespace": "ci", "name": "build", "uid": uid, "goneSince": "2025-06-01T00:00:00Z"})
                .to_string();
            let volume = volume_with(&json!({"metadata": {"annotations": {PREVIOUS_CLAIM: previous}}}));
            let since = since.parse().unwrap();
            assert_eq!(gone_since(&volume), Some(since));
            let next = PreviousClaim::to_remember(&volume, None).unwrap();
            assert_eq!((next.uid.as_str(), next.gone_since), ("c1", Some(since)));
        }
    }
}
