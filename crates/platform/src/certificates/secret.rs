//! The Secret: four entries that are ours, and whatever else somebody keeps in it.
//!
//! | entry | content |
//! |---|---|
//! | `ca.crt` | the authorities to trust; the first one signs |
//! | `ca.key` | the key of the first one |
//! | `tls.crt`, `tls.key` | the leaf that is served |

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::OwnerReference};
use serde_json::{Value, json};

use super::{
    decision::{self, Trusted},
    x509::{Authority, Leaf, Pair, Signer},
};

const AUTHORITIES: &str = "ca.crt";
const AUTHORITY_KEY: &str = "ca.key";
const LEAF: &str = "tls.crt";
const LEAF_KEY: &str = "tls.key";
const OURS: [&str; 4] = [AUTHORITIES, AUTHORITY_KEY, LEAF, LEAF_KEY];

/// What a Secret holds.
pub(super) struct Stored {
    pub(super) authorities: Vec<Authority>,
    pub(super) signer: Option<Signer>,
    pub(super) leaf: Option<Leaf>,
    /// What is wrong with it, a sentence each.
    pub(super) faults: Vec<String>,
    /// Entries that are not ours.
    pub(super) foreign: Vec<String>,
}

impl Stored {
    pub(super) fn read(secret: &Secret) -> Self {
        let empty = BTreeMap::new();
        let data = secret.data.as_ref().unwrap_or(&empty);
        let entry =
            |key: &str| data.get(key).map(|ByteString(bytes)| bytes.as_slice()).filter(|bytes| !bytes.is_empty());
        let mut faults = Vec::new();
        let authorities = entry(AUTHORITIES).map(Authority::read_all).unwrap_or_default();
        let signer = match (authorities.first(), entry(AUTHORITY_KEY)) {
            (None, _) => Err(format!("{AUTHORITIES} holds no authority")),
            (_, None) => Err(format!("{AUTHORITY_KEY} is missing")),
            (Some(first), Some(key)) => Signer::load(first, key).map_err(|error| format!("{AUTHORITY_KEY} {error}")),
        };
        let leaf = match (entry(LEAF), entry(LEAF_KEY)) {
            (Some(certificate), Some(key)) => Leaf::load(certificate, key).map_err(|error| format!("{LEAF} {error}")),
            _ => Err(format!("{LEAF} or {LEAF_KEY} is missing")),
        };
        let signer = signer.map_err(|fault| faults.push(fault)).ok();
        let leaf = leaf.map_err(|fault| faults.push(fault)).ok();
        let foreign = data.keys().filter(|key| !OURS.contains(&key.as_str())).cloned().collect();
        Self { authorities, signer, leaf, faults, foreign }
    }

    /// The same for the decision.
    pub(super) fn facts(&self, names: &BTreeSet<String>) -> decision::Stored {
        decision::Stored {
            authorities: self.authorities.iter().map(trusted).collect(),
            can_sign: self.signer.is_some(),
            leaf: self.leaf.as_ref().map(|leaf| decision::Leaf {
                id: leaf.id.clone(),
                validity: leaf.validity,
                issuer: self.issuer().map(|authority| authority.id.clone()),
                fits_names: leaf.names == *names,
            }),
        }
    }

    /// The authority behind the leaf.
    pub(super) fn issuer(&self) -> Option<&Authority> {
        let leaf = self.leaf.as_ref()?;
        self.authorities.iter().find(|authority| authority.vouches_for(leaf))
    }
}

pub(super) fn trusted(authority: &Authority) -> Trusted {
    Trusted { id: authority.id.clone(), validity: authority.validity }
}

/// The entries that change; the others, ours and foreign ones, stay as they are.
#[derive(Default)]
pub(super) struct Change(BTreeMap<&'static str, ByteString>);

impl Change {
    /// Trust these.
    pub(super) fn authorities<'a>(self, authorities: impl IntoIterator<Item = &'a Authority>) -> Self {
        self.with(AUTHORITIES, Authority::bundle(authorities))
    }

    /// Sign with this one.
    pub(super) fn signer(self, signer: &Signer) -> Self {
        self.with(AUTHORITY_KEY, signer.key_pem.clone())
    }

    /// Serve this.
    pub(super) fn leaf(self, pair: Pair) -> Self {
        self.with(LEAF, pair.certificate).with(LEAF_KEY, pair.key)
    }

    fn with(mut self, key: &'static str, text: String) -> Self {
        self.0.insert(key, ByteString(text.into_bytes()));
        self
    }

    /// As a merge patch that is refused if somebody has written since.
    pub(super) fn patch(&self, seen: &Secret) -> Value {
        let metadata = json!({"uid": seen.metadata.uid, "resourceVersion": seen.metadata.resource_version});
        json!({"metadata": metadata, "data": self.0})
    }

    /// As a Secret of its own.
    pub(super) fn create(&self, name: &str, owner: Option<OwnerReference>) -> Secret {
        let labels = [("app.kubernetes.io/name", "claimkeeper"), ("app.kubernetes.io/component", "webhook")];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let mut secret = Secret::default();
        secret.metadata.name = Some(name.to_owned());
        secret.metadata.labels = Some(labels.into());
        secret.metadata.owner_references = owner.map(|owner| vec![owner]);
        secret.data = Some(self.0.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect());
        secret
    }
}
