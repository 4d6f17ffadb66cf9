//! The webhook configurations: which of their entries call us, and what those trust.

use std::{collections::BTreeSet, str::FromStr};

use http::Uri;
use k8s_openapi::{
    ByteString,
    api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
};
use kube::{
    Api, Client, Resource,
    api::{DynamicObject, Patch, PatchParams},
    core::ApiResource,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::x509::{Authority, Leaf};

/// Names a webhook configuration: `claimkeeper-enforcement` for a validating one, `mutating/claimkeeper-placement` for a mutating
/// one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigurationName {
    mutating: bool,
    name: String,
}

/// A name that no webhook configuration can have.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` names no webhook configuration; write the name of a ValidatingWebhookConfiguration, or mutating/ and that of a \
     MutatingWebhookConfiguration"
)]
pub struct InvalidConfigurationName(String);

impl FromStr for ConfigurationName {
    type Err = InvalidConfigurationName;

    fn from_str(text: &str) -> Result<Self, InvalidConfigurationName> {
        let (mutating, name) = match text.split_once('/') {
            None => (false, text),
            Some(("validating", name)) => (false, name),
            Some(("mutating", name)) => (true, name),
            Some(_) => return Err(InvalidConfigurationName(text.to_owned())),
        };
        let valid =
            |character: char| character.is_ascii_lowercase() || character.is_ascii_digit() || "-.".contains(character);
        if name.is_empty() || !name.chars().all(valid) {
            return Err(InvalidConfigurationName(text.to_owned()));
        }
        Ok(Self { mutating, name: name.to_owned() })
    }
}

impl ConfigurationName {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn kind(&self) -> &'static str {
        if self.mutating { "MutatingWebhookConfiguration" } else { "ValidatingWebhookConfiguration" }
    }

    /// Both kinds look the same where we look.
    pub(super) fn api(&self, client: Client) -> Api<DynamicObject> {
        let resource = if self.mutating {
            ApiResource::erase::<MutatingWebhookConfiguration>(&())
        } else {
            ApiResource::erase::<ValidatingWebhookConfiguration>(&())
        };
        Api::all_with(client, &resource)
    }
}

/// How an entry shows that it is us whom it calls.
#[derive(Clone, Debug)]
pub(super) struct Callee {
    pub(super) service: String,
    pub(super) namespace: String,
    /// What our certificate is made out to.
    pub(super) names: BTreeSet<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    client_config: ClientConfig,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClientConfig {
    service: Option<Service>,
    url: Option<String>,
    ca_bundle: Option<ByteString>,
}

#[derive(Deserialize)]
struct Service {
    name: String,
    namespace: String,
}

impl Callee {
    fn is_called_by(&self, entry: &ClientConfig) -> bool {
        let service = entry.service.as_ref();
        let by_service =
            service.is_some_and(|called| called.name == self.service && called.namespace == self.namespace);
        let host = entry.url.as_ref().and_then(|url| url.parse::<Uri>().ok()?.host().map(str::to_owned));
        by_service || host.is_some_and(|host| self.names.contains(host.trim_matches(['[', ']'])))
    }
}

/// What a configuration says about us.
#[derive(Clone, Debug)]
pub(super) struct Configuration {
    /// Changes whenever the API servers have something to learn.
    pub(super) revision: Revision,
    resource_version: String,
    /// By the place in the list: what the entries that call us trust.
    entries: Vec<(usize, Vec<u8>)>,
}

/// The state of a configuration apart from labels and the like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Revision {
    uid: String,
    generation: Option<i64>,
}

impl Configuration {
    pub(super) fn read(object: &DynamicObject, callee: &Callee) -> Self {
        let entries = object.data.get("webhooks").and_then(Value::as_array);
        let ours = entries.into_iter().flatten().enumerate().filter_map(|(place, entry)| {
            let Entry { client_config } = Entry::deserialize(entry).ok()?;
            let bundle = client_config.ca_bundle.as_ref().map(|ByteString(bytes)| bytes.clone()).unwrap_or_default();
            callee.is_called_by(&client_config).then_some((place, bundle))
        });
        let metadata = object.meta();
        let revision = Revision { uid: metadata.uid.clone().unwrap_or_default(), generation: metadata.generation };
        Self {
            revision,
            resource_version: metadata.resource_version.clone().unwrap_or_default(),
            entries: ours.collect(),
        }
    }

    /// Whether every entry that calls us trusts this and nothing else.
    pub(super) fn carries(&self, bundle: &str) -> bool {
        self.entries.iter().all(|(_, trusted)| trusted == bundle.as_bytes())
    }

    /// Whether every entry that calls us accepts this leaf.
    pub(super) fn verifies(&self, leaf: &Leaf) -> bool {
        let verifies = |bundle: &[u8]| Authority::read_all(bundle).iter().any(|authority| authority.vouches_for(leaf));
        self.entries.iter().all(|(_, bundle)| verifies(bundle))
    }

    /// All authorities that entries trust.
    pub(super) fn authorities(&self) -> impl Iterator<Item = Authority> {
        self.entries.iter().flat_map(|(_, bundle)| Authority::read_all(bundle))
    }

    /// Lets the entries that call us trust this; refused if somebody has written since.
    pub(super) async fn publish(&self, api: &Api<DynamicObject>, name: &str, bundle: &str) -> kube::Result<()> {
        let guard = json!({"op": "test", "path": "/metadata/resourceVersion", "value": self.resource_version});
        let trust = self.entries.iter().filter(|(_, trusted)| trusted != bundle.as_bytes()).map(|(place, _)| {
            let path = format!("/webhooks/{place}/clientConfig/caBundle");
            json!({"op": "add", "path": path, "value": ByteString(bundle.as_bytes().to_vec())})
        });
        let patch = serde_json::from_value(std::iter::once(guard).chain(trust).collect());
        let patch: Patch<()> = Patch::Json(patch.map_err(kube::Error::SerdeError)?);
        api.patch(name, &PatchParams::default(), &patch).await.map(drop)
    }
}
