//! What the author of a refused claim reads: what is wrong, and both ways to put it right.

use crate::{
    decision::Observation,
    governed::{Standing, standing},
};

/// The original's sentence first: people search for it, and scripts do.
pub(crate) fn refusal(seen: &Observation, wrong: &str) -> String {
    let Standing::Governed { driver, accept_annotation, volume } = standing(seen) else { return wrong.to_owned() };
    let because = match (volume, seen.class.known()) {
        (Some(volume), _) => format!("volume {volume}, which the claim could have, is of that driver"),
        (None, Some(class)) => format!("class {} is of that driver", class.key.name()),
        (None, None) => "its class is of that driver".to_owned(),
    };
    let class = seen.write().and_then(|write| write.claim.class.as_deref()).unwrap_or_default();
    let class = if class.is_empty() { String::new() } else { format!("storageClassName: {class}, ") };
    format!(
        "only generic ephemeral volumes are allowed for {driver} provisioner: {because}, its data is lost with the node, and \
         {wrong}. Either let the pod have the volume: volumes: [{{name: scratch, ephemeral: {{volumeClaimTemplate: {{spec: \
         {{{class}accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 10Gi}}}}}}}}}}}}], or accept that the data can be \
         lost, by the claim's annotation {accept_annotation}: \"true\""
    )
}
