//! What the author of a refused claim reads: what is wrong, and both ways to put it right.

use crate::{
    governed::{Standing, standing},
    observation::Observation,
};

/// What stands between the refusal and each of the two ways out. As warnings they are told one by one: the API server may cut
/// off what is longer than 256 characters.
pub(crate) const SEPARATOR: &str = "; ";

/// The refusal.
pub(crate) fn refusal(seen: &Observation, wrong: &str) -> String {
    let Standing::Governed { driver, accept_annotation, volume } = standing(seen) else { return wrong.to_owned() };
    let because = match (volume, seen.class.known()) {
        (Some(volume), _) => format!("volume {volume}, which the claim could get,"),
        (None, Some(class)) => format!("class {}", class.key.name()),
        (None, None) => "its class".to_owned(),
    };
    let class = seen.write().and_then(|write| write.claim.class.as_deref()).unwrap_or_default();
    let class = if class.is_empty() { String::new() } else { format!("storageClassName: {class}, ") };
    let parts = [
        // The original's sentence comes first: people search for it, and scripts do.
        format!(
            "only generic ephemeral volumes are allowed for {driver} provisioner: {because} is lost with its node, and {wrong}"
        ),
        format!(
            "either let a pod have the volume: volumes: [{{name: scratch, ephemeral: {{volumeClaimTemplate: {{spec: {{{class}accessModes: \
             [ReadWriteOnce], resources: {{requests: {{storage: 10Gi}}}}}}}}}}}}]"
        ),
        format!("or accept that the data can be lost, by the claim's annotation {accept_annotation}: \"true\""),
    ];
    parts.join(SEPARATOR)
}
