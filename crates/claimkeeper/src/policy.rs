//! The admission policies: what the API server itself refuses, without asking us.

use crate::config::{Authorize, Config, Feature};

/// A policy with its binding.
struct Policy {
    name: &'static str,
    /// As the chart ships it.
    spec: String,
    validation_actions: &'static [&'static str],
    /// Whether it has all classes as parameters.
    of_classes: bool,
    /// A namespace in which it does not hold.
    spares: Option<String>,
}

impl Policy {
    fn deny(name: &'static str, spec: &str) -> Self {
        Self { name, spec: spec.to_owned(), validation_actions: &["Deny"], of_classes: false, spares: None }
    }
}

fn ephemeral_volumes_denied() -> Policy {
    let spec = include_str!("../../../charts/claimkeeper/policies/ephemeral-volumes-denied.yaml");
    Policy::deny("ephemeral-volumes-denied", spec)
}

fn ephemeral_volumes_authorized() -> Policy {
    let spec = include_str!("../../../charts/claimkeeper/policies/ephemeral-volumes-authorized.yaml");
    Policy::deny("ephemeral-volumes-authorized", spec)
}

fn namespace_labels() -> Policy {
    let spec = include_str!("../../../charts/claimkeeper/policies/namespace-labels.yaml");
    Policy::deny("namespace-labels", spec)
}

/// The policies of the features that run, each with its binding.
pub(crate) fn render(config: &Config) -> String {
    let mut policies = Vec::new();
    if config.features.contains(&Feature::Ephemeral) {
        policies.push(ephemeral_volumes_denied());
        if config.ephemeral.authorize == Authorize::Use {
            policies.push(ephemeral_volumes_authorized());
        }
    }
    if config.features.contains(&Feature::Enforcement) {
        policies.push(namespace_labels());
        let twin = enforcement::policy::policies(&config.enforcement_settings()).into_iter();
        policies.extend(twin.map(|enforcement::policy::Policy { name, spec, validation_actions, spares }| Policy {
            name,
            spec,
            validation_actions,
            of_classes: true,
            spares,
        }));
    }
    let namespace = config.namespace.as_deref();
    policies.iter().map(|policy| document(policy) + &binding(policy, namespace)).collect()
}

fn document(Policy { name, spec, .. }: &Policy) -> String {
    let spec = spec.lines().fold(String::new(), |text, line| text + "  " + line + "\n");
    format!(
        "---\napiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingAdmissionPolicy\n\
         metadata:\n  name: {name}.claimkeeper.dev\nspec:\n{spec}"
    )
}

fn binding(Policy { name, validation_actions, of_classes, spares, .. }: &Policy, namespace: Option<&str>) -> String {
    let parameters = "  paramRef:\n    selector: {}\n    parameterNotFoundAction: Allow\n";
    format!(
        "---\napiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingAdmissionPolicyBinding\n\
         metadata:\n  name: {name}.claimkeeper.dev\n\
         spec:\n  policyName: {name}.claimkeeper.dev\n  validationActions: [{}]\n{}{}",
        validation_actions.join(", "),
        if *of_classes { parameters } else { "" },
        selector(spares.as_deref(), namespace)
    )
}

/// The namespaces in which a policy holds.
fn selector(spared: Option<&str>, only: Option<&str>) -> String {
    if spared.or(only).is_none() {
        return String::new();
    }
    let spared = spared.map(|namespace| {
        let key = "      matchExpressions:\n        - key: kubernetes.io/metadata.name\n";
        format!("{key}          operator: NotIn\n          values: [{namespace}]\n")
    });
    let only = only.map(|namespace| format!("      matchLabels:\n        kubernetes.io/metadata.name: {namespace}\n"));
    let head = "  matchResources:\n    namespaceSelector:\n";
    format!("{head}{}{}", spared.unwrap_or_default(), only.unwrap_or_default())
}
