//! What a pod asks for.
//!
//! ```text
//! dynamic-pvc-provisioner.kubernetes.io/<volume>.enabled: "true"     the original's pair of annotations
//! dynamic-pvc-provisioner.kubernetes.io/<volume>.pvc:     <claim>
//! claimkeeper.dev/<volume>.claim:                         <claim>     ours, in a domain that is ours
//! ```

use std::collections::BTreeMap;

use cluster::pod::ClaimRequests;

/// Where the original's annotations and labels live.
pub const ORIGINAL: &str = "dynamic-pvc-provisioner.kubernetes.io";

/// Where ours live.
pub const OURS: &str = "claimkeeper.dev";

/// A claim that a pod asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The volume of the pod that is to use it.
    pub volume: Box<str>,
    /// The annotation that has, or should have, the template.
    pub annotation: Box<str>,
    /// The template.
    pub template: Option<Box<str>>,
    /// Whether both kinds of annotation ask for this volume.
    pub asked_twice: bool,
    /// What the pod's spec says about the volume.
    pub target: Target,
}

/// What a pod's spec says about a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// It uses the claim of this name.
    Claim(Box<str>),
    /// It is some other kind of volume.
    NoClaim,
    /// There is no such volume.
    Missing,
}

/// When the original's annotation `.enabled` counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Enabling {
    /// If it is `true`, as its documentation says.
    #[default]
    Documented,
    /// If Go takes it for true, as its code does.
    AsGo,
}

impl Enabling {
    fn counts(self, value: &str) -> bool {
        match self {
            Self::Documented => value == "true",
            Self::AsGo => ["1", "t", "T", "TRUE", "true", "True"].contains(&value),
        }
    }
}

/// What the pod asks for, in the order of its volumes; what it asks for volumes that it does not have comes last.
#[must_use]
pub fn requests(pod: &ClaimRequests, enabling: Enabling) -> Vec<Request> {
    let mut asked = asked_volumes(pod, enabling);
    let mut requests = Vec::with_capacity(asked.len());
    for (volume, claim) in &pod.volumes {
        if let Some(by) = asked.remove(&**volume) {
            let target = claim.clone().map_or(Target::NoClaim, Target::Claim);
            requests.push(request(pod, volume, by, target));
        }
    }
    requests.extend(asked.into_iter().map(|(volume, by)| request(pod, volume, by, Target::Missing)));
    requests
}

/// By which kinds of annotation a volume is asked for.
#[derive(Default, Clone, Copy)]
struct AskedBy {
    original: bool,
    ours: bool,
}

fn asked_volumes(pod: &ClaimRequests, enabling: Enabling) -> BTreeMap<&str, AskedBy> {
    let mut asked: BTreeMap<&str, AskedBy> = BTreeMap::new();
    for (key, value) in &pod.annotations {
        let Some((domain, name)) = key.split_once('/') else { continue };
        match (domain, name.split_once('.')) {
            (ORIGINAL, Some((volume, "enabled"))) if enabling.counts(value) => {
                asked.entry(volume).or_default().original = true;
            }
            (OURS, Some((volume, "claim"))) => asked.entry(volume).or_default().ours = true,
            _ => {}
        }
    }
    asked
}

fn request(pod: &ClaimRequests, volume: &str, by: AskedBy, target: Target) -> Request {
    let annotation = if by.ours { format!("{OURS}/{volume}.claim") } else { format!("{ORIGINAL}/{volume}.pvc") };
    let template = pod.annotations.iter().find(|(key, _)| **key == annotation).map(|(_, value)| value.clone());
    Request {
        volume: volume.into(),
        annotation: annotation.into(),
        template,
        asked_twice: by.ours && by.original,
        target,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(annotations: &[(&str, &str)]) -> ClaimRequests {
        ClaimRequests {
            annotations: annotations.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
            volumes: [("tmp", None), ("cache", Some("cache-1")), ("data", Some("data-1"))]
                .map(|(name, claim)| (name.into(), claim.map(Into::into)))
                .into(),
            service_account: "default".into(),
            pending: true,
        }
    }

    fn asked(annotations: &[(&str, &str)], enabling: Enabling) -> Vec<(String, Option<String>, Target)> {
        let requests = requests(&pod(annotations), enabling).into_iter();
        requests.map(|request| (request.volume.into(), request.template.map(Into::into), request.target)).collect()
    }

    #[test]
    fn the_originals_annotations_come_in_pairs_and_only_true_counts() {
        let enabled = "dynamic-pvc-provisioner.kubernetes.io/cache.enabled";
        let template = ("dynamic-pvc-provisioner.kubernetes.io/cache.pvc", "claim");
        let wanted = vec![("cache".to_owned(), Some("claim".to_owned()), Target::Claim("cache-1".into()))];
        assert_eq!(asked(&[(enabled, "true"), template], Enabling::Documented), wanted);
        for value in ["false", "True", "1", "yes", ""] {
            assert_eq!(asked(&[(enabled, value), template], Enabling::Documented), [], "{value}");
        }
        for (value, counts) in [("1", true), ("T", true), ("True", true), ("yes", false), ("tRUE", false)] {
            assert_eq!(!asked(&[(enabled, value), template], Enabling::AsGo).is_empty(), counts, "{value}");
        }
        assert_eq!(asked(&[template], Enabling::Documented), [], "without .enabled nothing is asked");
        assert_eq!(asked(&[(enabled, "true")], Enabling::Documented)[0].1, None);
    }

    #[test]
    fn our_annotation_needs_no_second_one_and_the_order_is_that_of_the_volumes() {
        let annotations = [
            ("claimkeeper.dev/zzz.claim", "z"),
            ("claimkeeper.dev/data.claim", "d"),
            ("claimkeeper.dev/cache.claim", "c"),
            ("claimkeeper.dev/tmp.claim", "t"),
            ("claimkeeper.dev/aaa.claim", "a"),
            ("claimkeeper.dev/release", "pool"),
            ("dynamic-pvc-provisioner.kubernetes.io/a.b.enabled", "true"),
            ("other.example/cache.enabled", "true"),
        ];
        let volumes: Vec<(String, Target)> =
            asked(&annotations, Enabling::Documented).into_iter().map(|(volume, _, target)| (volume, target)).collect();
        assert_eq!(
            volumes,
            [
                ("tmp".to_owned(), Target::NoClaim),
                ("cache".to_owned(), Target::Claim("cache-1".into())),
                ("data".to_owned(), Target::Claim("data-1".into())),
                ("aaa".to_owned(), Target::Missing),
                ("zzz".to_owned(), Target::Missing),
            ]
        );
    }

    #[test]
    fn asking_in_both_ways_is_noticed() {
        let both = [
            ("claimkeeper.dev/cache.claim", "ours"),
            ("dynamic-pvc-provisioner.kubernetes.io/cache.enabled", "true"),
            ("dynamic-pvc-provisioner.kubernetes.io/cache.pvc", "theirs"),
        ];
        let requests = requests(&pod(&both), Enabling::Documented);
        assert!(requests.len() == 1 && requests[0].asked_twice, "{requests:?}");
    }
}
