//! The feature `releaser`.

use releaser::{Rights, Settings, policy::MANAGED_BY};
use serde::Deserialize;

use super::{ConfigError, label};

/// What can be configured of it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub(crate) struct Releaser {
    /// The value of the labels by which volumes and claims ask for it.
    pub controller_id: String,
    /// Whether volumes get that label while their claim is there.
    pub automatic_association: bool,
    /// Whether nothing is released, only told.
    pub dry_run: bool,
    /// Whether volumes may be cleaned by Jobs in the operator's namespace, where their class says so.
    pub scrub: bool,
    /// How many volumes are worked on at once.
    pub concurrency: usize,
    /// The label of associated volumes; not for the file to say.
    #[serde(skip)]
    pub association_label: &'static str,
    /// What it may be expected to be allowed to do; not for the file to say either.
    #[serde(skip)]
    pub rights: Rights,
}

impl Default for Releaser {
    fn default() -> Self {
        Self {
            controller_id: "claimkeeper".to_owned(),
            automatic_association: true,
            dry_run: false,
            scrub: false,
            // What is read live comes in batches, which wait for the API server more than they cost it.
            concurrency: 64,
            association_label: MANAGED_BY,
            rights: Rights::Ours,
        }
    }
}

impl Releaser {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        label::check("releaser.controllerId", &self.controller_id)
    }

    /// What the feature is told.
    pub(crate) fn settings(&self, namespace: Option<&str>) -> Settings {
        Settings {
            controller_id: self.controller_id.as_str().into(),
            namespace: namespace.map(Into::into),
            automatic_association: self.automatic_association,
            dry_run: self.dry_run,
            association_label: self.association_label,
            rights: self.rights,
            concurrency: self.concurrency,
        }
    }
}
