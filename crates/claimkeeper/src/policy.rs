//! The admission policies: what the API server itself refuses, without asking us.

use crate::config::{Authorize, Config, Feature};

/// A policy's name, and its spec as the chart ships it.
type Policy = (&'static str, &'static str);

const EPHEMERAL_VOLUMES_DENIED: Policy =
    ("ephemeral-volumes-denied", include_str!("../../../charts/claimkeeper/policies/ephemeral-volumes-denied.yaml"));

const EPHEMERAL_VOLUMES_AUTHORIZED: Policy = (
    "ephemeral-volumes-authorized",
    include_str!("../../../charts/claimkeeper/policies/ephemeral-volumes-authorized.yaml"),
);

/// The policies of the features that run, each with its binding.
pub(crate) fn render(config: &Config) -> String {
    let mut policies = Vec::new();
    if config.features.contains(&Feature::Ephemeral) {
        policies.push(EPHEMERAL_VOLUMES_DENIED);
        if config.ephemeral.authorize == Authorize::Use {
            policies.push(EPHEMERAL_VOLUMES_AUTHORIZED);
        }
    }
    let namespace = config.namespace.as_deref();
    policies.iter().map(|(name, spec)| document(name, spec) + &binding(name, namespace)).collect()
}

fn document(name: &str, spec: &str) -> String {
    let spec = spec.lines().fold(String::new(), |text, line| text + "  " + line + "\n");
    format!(
        "---\napiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingAdmissionPolicy\n\
         metadata:\n  name: {name}.claimkeeper.dev\nspec:\n{spec}"
    )
}

fn binding(name: &str, namespace: Option<&str>) -> String {
    let only = namespace.map(|namespace| {
        let selector = "  matchResources:\n    namespaceSelector:\n      matchLabels:\n";
        format!("{selector}        kubernetes.io/metadata.name: {namespace}\n")
    });
    format!(
        "---\napiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingAdmissionPolicyBinding\n\
         metadata:\n  name: {name}.claimkeeper.dev\n\
         spec:\n  policyName: {name}.claimkeeper.dev\n  validationActions: [Deny]\n{}",
        only.unwrap_or_default()
    )
}
