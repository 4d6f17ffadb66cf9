//! What an administrator says about the rule, as the configuration has it.

use serde::Deserialize;

/// The annotation by which the risk is accepted where a driver has none of its own.
pub const ACCEPT: &str = "claimkeeper.dev/accept-ephemeral-storage";

/// What the rule is told. Every part has a safe default.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct Settings {
    /// Whose classes are under the rule.
    pub drivers: Vec<Driver>,
    /// Whether API servers ask about claims. Where they do not, only policies keep the rule; what is there is counted all the same.
    pub claim_webhook: bool,
    /// What becomes of a claim that breaks it, where neither its namespace nor its class says otherwise.
    pub action: Action,
    /// When a claim counts as its pod's.
    pub pod_owner: PodOwner,
    /// Whose word is taken when they make a claim for a pod.
    pub trusted_creators: Vec<String>,
    /// Which decisions are told as events.
    pub events: Told,
    /// What becomes of a claim if nobody can find out whether it is under the rule.
    pub on_error: OnError,
    /// The operator's own namespace, where the rule does not hold; not for the file to say.
    #[serde(skip)]
    pub home: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            drivers: vec![Preset::Localdisk.driver()],
            claim_webhook: true,
            action: Action::Deny,
            pod_owner: PodOwner::Verified,
            // The second is the one account of a controller manager without --use-service-account-credentials.
            trusted_creators: [
                "system:serviceaccount:kube-system:ephemeral-volume-controller",
                "system:kube-controller-manager",
            ]
            .map(str::to_owned)
            .into(),
            events: Told::Governed,
            on_error: OnError::Allow,
            home: None,
        }
    }
}

/// A driver whose volumes are lost with their node.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "WrittenDriver")]
pub struct Driver {
    /// What classes call their provisioner.
    pub name: String,
    /// The annotation of claims whose author accepts the risk.
    pub accept_annotation: String,
    /// The parameter of classes that names the pool; without it there is only one.
    pub pool_parameter: Option<String>,
    /// The pools that are ephemeral, all if empty. The empty name is that of a class that names none.
    pub ephemeral_pools: Vec<String>,
    /// The parameter of classes that says how many copies there are; without it there is only one.
    pub replicas_parameter: Option<String>,
}

/// A driver as it is written: by the name of a preset, by its own, or by both.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct WrittenDriver {
    preset: Option<Preset>,
    name: Option<String>,
    accept_annotation: Option<String>,
    pool_parameter: Option<String>,
    ephemeral_pools: Option<Vec<String>>,
    replicas_parameter: Option<String>,
}

impl TryFrom<WrittenDriver> for Driver {
    type Error = String;

    fn try_from(written: WrittenDriver) -> Result<Self, String> {
        let WrittenDriver { preset, name, accept_annotation, pool_parameter, ephemeral_pools, replicas_parameter } =
            written;
        let base = match (preset, name) {
            (Some(preset), None) => preset.driver(),
            (Some(preset), Some(name)) => Self { name, ..preset.driver() },
            (None, Some(name)) => Preset::of(&name).map_or_else(|| Self::named(&name), Preset::driver),
            (None, None) => return Err("a driver needs a name or a preset".to_owned()),
        };
        let driver = Self {
            name: base.name,
            accept_annotation: accept_annotation.unwrap_or(base.accept_annotation),
            pool_parameter: pool_parameter.or(base.pool_parameter),
            ephemeral_pools: ephemeral_pools.unwrap_or(base.ephemeral_pools),
            replicas_parameter: replicas_parameter.or(base.replicas_parameter),
        };
        if driver.name.is_empty() || driver.accept_annotation.is_empty() {
            return Err("the name and the acceptAnnotation of a driver must not be empty".to_owned());
        }
        if driver.pool_parameter.is_none() && !driver.ephemeral_pools.is_empty() {
            return Err(format!("driver {} has ephemeralPools, but no poolParameter to tell them by", driver.name));
        }
        Ok(driver)
    }
}

impl Driver {
    fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            accept_annotation: ACCEPT.to_owned(),
            pool_parameter: None,
            ephemeral_pools: Vec::new(),
            replicas_parameter: None,
        }
    }
}

/// Drivers whose keys we know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// The one of the original.
    Localdisk,
    /// Logical volumes; its pools are device classes.
    Topolvm,
    /// Logical volumes.
    OpenebsLvm,
    /// ZFS; its pools are zpools.
    OpenebsZfs,
    /// Directories of nodes.
    LocalPath,
    /// Drives of nodes.
    Directpv,
}

impl Preset {
    pub(crate) const ALL: [Self; 6] =
        [Self::Localdisk, Self::Topolvm, Self::OpenebsLvm, Self::OpenebsZfs, Self::LocalPath, Self::Directpv];

    fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|preset| preset.provisioner() == name)
    }

    /// What classes of the driver call their provisioner.
    #[must_use]
    pub fn provisioner(self) -> &'static str {
        match self {
            Self::Localdisk => "localdisk.csi.acstor.io",
            Self::Topolvm => "topolvm.io",
            Self::OpenebsLvm => "local.csi.openebs.io",
            Self::OpenebsZfs => "zfs.csi.openebs.io",
            Self::LocalPath => "rancher.io/local-path",
            Self::Directpv => "directpv-min-io",
        }
    }

    /// The driver with its keys.
    #[must_use]
    pub fn driver(self) -> Driver {
        let driver = Driver::named(self.provisioner());
        match self {
            Self::Localdisk => Driver {
                accept_annotation: "localdisk.csi.acstor.io/accept-ephemeral-storage".to_owned(),
                replicas_parameter: Some("replicas".to_owned()),
                ..driver
            },
            Self::Topolvm => Driver { pool_parameter: Some("topolvm.io/device-class".to_owned()), ..driver },
            Self::OpenebsLvm => Driver { pool_parameter: Some("volgroup".to_owned()), ..driver },
            Self::OpenebsZfs => Driver { pool_parameter: Some("poolname".to_owned()), ..driver },
            Self::LocalPath | Self::Directpv => driver,
        }
    }
}

/// What becomes of a claim that breaks the rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// It is refused.
    Deny,
    /// It is made, and its author is warned.
    Warn,
    /// It is made, and administrators are told.
    Audit,
}

impl Action {
    /// The word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Deny => "deny",
            Self::Warn => "warn",
            Self::Audit => "audit",
        }
    }

    /// The word on namespaces and classes; none if it is not one of ours.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "deny" => Some(Self::Deny),
            "warn" => Some(Self::Warn),
            "audit" => Some(Self::Audit),
            _ => None,
        }
    }
}

/// When a claim counts as its pod's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PodOwner {
    /// If a trusted account made it for a pod, or if its pod is there and uses it.
    Verified,
    /// If it says so.
    Seed,
}

/// Which decisions are told as events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Told {
    /// Those about claims that are under the rule.
    Governed,
    /// All of them.
    All,
    /// None.
    None,
}

/// What becomes of a claim if nobody can find out whether it is under the rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnError {
    /// It is made: most claims are not, and ours is the fault.
    Allow,
    /// It is refused.
    Deny,
}
