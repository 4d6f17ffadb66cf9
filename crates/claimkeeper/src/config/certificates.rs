//! The webhook's certificate.

use std::{net::IpAddr, path::PathBuf, time::Duration};

use platform::certificates::{ConfigurationName, Settings};
use serde::{Deserialize, Deserializer, de};

use super::{ConfigError, Seconds};

/// What can be configured of it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub(crate) struct Certificates {
    pub mode: Mode,
    /// Where `tls.crt` and `tls.key` are, in mode `files`.
    pub directory: Option<PathBuf>,
    /// The Secret that is kept, in the namespace of the Lease.
    pub secret: String,
    /// The Service by which API servers call us, in the same namespace.
    pub service: String,
    /// Other names and addresses by which they do.
    pub names: Vec<String>,
    /// The webhook configurations whose caBundle is kept; those of the features that run if absent.
    #[serde(deserialize_with = "configurations")]
    pub configurations: Option<Vec<ConfigurationName>>,
    pub leaf_lifetime: Seconds,
    pub ca_lifetime: Seconds,
    /// How long an API server may use a webhook configuration after it was changed.
    pub settle: Seconds,
    /// How long a replica may serve a certificate after it was replaced.
    pub grace: Seconds,
}

/// Who makes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Mode {
    /// We do.
    SelfManaged,
    /// Somebody else, who puts it into a directory.
    Files,
}

impl Default for Certificates {
    fn default() -> Self {
        Self {
            mode: Mode::SelfManaged,
            directory: None,
            secret: "claimkeeper-webhook".to_owned(),
            service: "claimkeeper-webhook".to_owned(),
            names: Vec::new(),
            configurations: None,
            leaf_lifetime: Duration::from_hours(30 * 24).into(),
            ca_lifetime: Duration::from_hours(365 * 24).into(),
            settle: Seconds::new(10),
            grace: Seconds::new(5 * 60),
        }
    }
}

impl Certificates {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let wrong = |key: &str, wrong: &str| Err(ConfigError::value(&format!("webhook.certificates.{key}"), &wrong));
        match (self.mode, &self.directory) {
            (Mode::Files, None) => {
                return wrong("directory", "is missing, but mode files needs to know where tls.crt and tls.key are");
            }
            (Mode::SelfManaged, Some(_)) => {
                return wrong("directory", "is only for mode files; set mode: files or leave it out");
            }
            (Mode::Files, Some(_)) | (Mode::SelfManaged, None) => {}
        }
        for (key, name) in [("secret", &self.secret), ("service", &self.service)] {
            if !is_name(name) {
                return wrong(key, &format!("`{name}` cannot be the name of an object"));
            }
        }
        if let Some(name) = self.names.iter().find(|name| name.parse::<IpAddr>().is_err() && !is_name(name)) {
            return wrong("names", &format!("has `{name}`, which is neither a DNS name nor an address"));
        }
        let [leaf, ca, settle, grace] =
            [self.leaf_lifetime, self.ca_lifetime, self.settle, self.grace].map(Duration::from);
        // A third of a life is left when its renewal begins; that must be done by then.
        if settle >= leaf / 3 {
            return wrong(
                "leafLifetime",
                &format!("is {leaf:?}, but must be more than three times settle ({settle:?})"),
            );
        }
        if ca <= leaf || settle + grace >= ca / 3 {
            let rule = format!(
                "is {ca:?}, but must be more than leafLifetime ({leaf:?}) and than three times settle and grace"
            );
            return wrong("caLifetime", &rule);
        }
        Ok(())
    }

    /// What is kept, in this namespace; `configurations` are those of the features that run.
    pub(crate) fn settings(&self, namespace: &str, configurations: &[&str]) -> Settings {
        let of_features = || configurations.iter().flat_map(|name| name.parse()).collect();
        Settings {
            secret: self.secret.clone(),
            namespace: namespace.to_owned(),
            service: self.service.clone(),
            names: self.names.clone(),
            configurations: self.configurations.clone().unwrap_or_else(of_features),
            leaf_lifetime: self.leaf_lifetime.into(),
            authority_lifetime: self.ca_lifetime.into(),
            settle: self.settle.into(),
            grace: self.grace.into(),
        }
    }
}

fn is_name(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
    let outer = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    name.len() <= 253 && name.chars().all(inner) && outer(name.chars().next()) && outer(name.chars().last())
}

fn configurations<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<ConfigurationName>>, D::Error> {
    let names = Vec::<String>::deserialize(deserializer)?;
    names.iter().map(|name| name.parse().map_err(de::Error::custom)).collect::<Result<_, _>>().map(Some)
}
