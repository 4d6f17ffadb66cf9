//! The feature `provisioner`.

use provisioner::{
    Settings,
    request::Enabling,
    template::{RestrictedField, Rules},
};
use serde::{Deserialize, Deserializer, de};

use super::{ConfigError, label};

/// What can be configured of it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub(crate) struct Provisioner {
    /// The value of the label on its claims, by which the releaser finds them.
    pub controller_id: String,
    /// What may stand in a template.
    pub template: TemplateRules,
    /// Fields that are refused unless they are named here.
    #[serde(deserialize_with = "fields")]
    pub allow_fields: Vec<RestrictedField>,
    /// Who must be allowed to create claims.
    pub authorize: Authorize,
    /// How many pods are worked on at once.
    pub concurrency: usize,
    /// When the original's annotation counts; not for the file to say.
    #[serde(skip)]
    pub enabling: Enabling,
}

impl Default for Provisioner {
    fn default() -> Self {
        Self {
            controller_id: "claimkeeper".to_owned(),
            template: TemplateRules::Strict,
            allow_fields: Vec::new(),
            authorize: Authorize::ServiceAccount,
            concurrency: 16,
            enabling: Enabling::default(),
        }
    }
}

/// What may stand in a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TemplateRules {
    /// The fields that are harmless, and those that `allowFields` names.
    Strict,
    /// Everything, as the original takes it.
    Seed,
}

/// Who must be allowed to create claims before one is made for a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Authorize {
    /// The pod's `ServiceAccount`.
    ServiceAccount,
    /// Nobody, as with the original.
    None,
}

impl Provisioner {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        label::check("provisioner.controllerId", &self.controller_id)
    }

    /// What the feature is told.
    pub(crate) fn settings(&self) -> Settings {
        Settings {
            controller_id: self.controller_id.clone(),
            rules: match self.template {
                TemplateRules::Strict => Rules::Strict { allowed: self.allow_fields.clone() },
                TemplateRules::Seed => Rules::Seed,
            },
            enabling: self.enabling,
            authorize: self.authorize == Authorize::ServiceAccount,
            concurrency: self.concurrency,
        }
    }

    /// What an administrator should have decided knowingly.
    pub(crate) fn warnings(&self) -> Vec<&'static str> {
        let unauthorized = "provisioner.authorize is none: whoever may create a pod gets claims made, without the right to \
                            create them";
        let unchecked = "provisioner.template is seed: templates are taken as they are, so that a pod's author can bind any \
                         volume that is free and copy any claim of the namespace";
        let authorize = (self.authorize == Authorize::None).then_some(unauthorized);
        authorize.into_iter().chain((self.template == TemplateRules::Seed).then_some(unchecked)).collect()
    }
}

fn fields<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<RestrictedField>, D::Error> {
    let names = Vec::<String>::deserialize(deserializer)?;
    names.iter().map(|name| name.parse().map_err(de::Error::custom)).collect()
}
