//! What the API sends, as far as it is read: of any version, with anything missing.

use std::{collections::BTreeMap, sync::Arc};

use cluster::ObjectKey;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::client::Answer;
use crate::source::{Listed, SharedVolume, SourceError};

/// The label that publishes a volume's address.
const MOUNT_ENDPOINT: &str = "storageos.com/nfs/mount-endpoint";

#[derive(Debug, Deserialize)]
pub(super) struct NamespaceWire {
    pub(super) id: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct VolumeWire {
    id: String,
    labels: Option<BTreeMap<String, Option<String>>>,
    nfs: Option<NfsWire>,
    version: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NfsWire {
    service_endpoint: Option<String>,
}

impl VolumeWire {
    /// The address that is published.
    pub(super) fn published(&self) -> Option<&str> {
        self.label(MOUNT_ENDPOINT)
    }

    /// To be sent back as it came.
    pub(super) fn version(&self) -> &str {
        self.version.as_deref().unwrap_or_default()
    }

    /// What is known of it.
    pub(super) fn shared(&self, home: &str) -> SharedVolume {
        let claim = self.label("csi.storage.k8s.io/pvc/namespace").zip(self.label("csi.storage.k8s.io/pvc/name"));
        let named = |(namespace, name): &(&str, &str)| is_name(namespace) && is_name(name);
        let claim = claim.filter(named);
        let endpoint = self.nfs.as_ref().and_then(|nfs| nfs.service_endpoint.as_deref());
        SharedVolume {
            id: self.id.as_str().into(),
            home: Arc::from(home),
            volume: self.label("csi.storage.k8s.io/pv/name").map(Into::into),
            claim: claim.map(|(namespace, name)| ObjectKey::new(namespace, name)),
            endpoint: endpoint.filter(|endpoint| !endpoint.is_empty()).map(Into::into),
            published: self.published().map(Into::into),
        }
    }

    fn label(&self, key: &str) -> Option<&str> {
        let value = self.labels.as_ref()?.get(key)?.as_deref()?;
        Some(value).filter(|value| !value.is_empty())
    }
}

/// Whether an object can be called that. What cannot is looked for nowhere: it would lead to other objects.
fn is_name(text: &str) -> bool {
    let ends = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.len() <= 253
        && text.starts_with(ends)
        && text.ends_with(ends)
        && text.chars().all(|c| ends(c) || ".-".contains(c))
}

/// The volumes of a list. One that nobody can make sense of hides no other.
pub(super) fn volumes(answer: &Answer, home: &str) -> Result<Listed, SourceError> {
    let entries: Vec<Box<RawValue>> = answer.json::<Option<_>>()?.unwrap_or_default();
    let mut listed = Listed::default();
    for entry in entries {
        match serde_json::from_str::<VolumeWire>(entry.get()) {
            Ok(volume) if !volume.id.is_empty() => listed.volumes.push(volume.shared(home)),
            _ => listed.unreadable += 1,
        }
    }
    Ok(listed)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::HeaderMap;
    use serde_json::{Value, json};

    use super::*;

    fn listed(body: &Value) -> Listed {
        let answer = Answer { headers: HeaderMap::new(), body: Bytes::from(body.to_string()) };
        volumes(&answer, "n1").unwrap()
    }

    fn whole() -> Value {
        json!({
            "id": "v1", "name": "pvc-1", "attachmentType": "nfs", "version": "NQ", "somethingNew": [1],
            "labels": {"csi.storage.k8s.io/pv/name": "pvc-1", "csi.storage.k8s.io/pvc/name": "files",
                "csi.storage.k8s.io/pvc/namespace": "ci", MOUNT_ENDPOINT: "10.0.0.7:2049"},
            "nfs": {"exports": [], "serviceEndpoint": "10.1.0.4:25705"},
        })
    }

    #[test]
    fn a_volume_is_read_whatever_else_there_is() {
        let volume = listed(&json!([whole()])).volumes.remove(0);
        assert_eq!(volume, crate::sample::volume("v1"));
    }

    #[test]
    fn every_way_to_say_nothing_is_understood() {
        for nfs in
            [json!(null), json!({}), json!({"serviceEndpoint": null}), json!({"exports": null, "serviceEndpoint": ""})]
        {
            let mut volume = whole();
            volume["nfs"] = nfs;
            assert_eq!(listed(&json!([volume])).volumes[0].endpoint, None);
        }
        for labels in [json!(null), json!({}), json!({"csi.storage.k8s.io/pvc/name": null})] {
            let mut volume = whole();
            volume["labels"] = labels;
            let volume = listed(&json!([volume])).volumes.remove(0);
            assert_eq!((volume.volume, volume.claim, volume.published), (None, None, None));
        }
        let mut without_exports = whole();
        without_exports["nfs"]["exports"] = Value::Null;
        assert!(listed(&json!([without_exports])).volumes[0].endpoint.is_some());
        assert!(listed(&Value::Null).volumes.is_empty());
    }

    #[test]
    fn a_claim_that_cannot_be_called_that_is_none() {
        for (key, value) in [
            ("csi.storage.k8s.io/pvc/name", "../secrets/token"),
            ("csi.storage.k8s.io/pvc/name", "files?watch=1"),
            ("csi.storage.k8s.io/pvc/name", "Files"),
            ("csi.storage.k8s.io/pvc/namespace", "ci/files"),
            ("csi.storage.k8s.io/pvc/namespace", ".."),
            ("csi.storage.k8s.io/pvc/namespace", "x".repeat(254).as_str()),
        ] {
            let mut volume = whole();
            volume["labels"][key] = value.into();
            assert_eq!(listed(&json!([volume])).volumes[0].claim, None, "{key}={value}");
        }
        let mut volume = whole();
        volume["labels"]["csi.storage.k8s.io/pvc/name"] = "my.1st-claim".into();
        assert!(listed(&json!([volume])).volumes[0].claim.is_some());
    }

    #[test]
    fn a_volume_that_nobody_understands_hides_no_other() {
        let listed = listed(&json!([{"id": 7}, whole(), null, {"labels": {}}, {"id": "v2", "nfs": "?"}, {"id": ""}]));
        assert_eq!((listed.volumes.len(), listed.unreadable), (1, 5));
    }
}
