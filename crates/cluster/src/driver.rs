//! CSI drivers, as far as a decision reads them.

use k8s_openapi::{api::storage::v1::CSIDriver, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::Resource;
use serde::Deserialize;

use crate::{ObjectKey, meta, store::Slim};

/// A CSI driver.
#[derive(Debug, PartialEq, Eq)]
pub struct Driver {
    /// Its name.
    pub key: ObjectKey,
    /// Whether its volumes are attached to a node before they are mounted there. Nobody may change this later.
    pub attach_required: bool,
}

impl Slim for Driver {
    type Wire = Wire;
    const KIND: &'static str = "csidrivers";

    fn from_wire(Wire { metadata, spec }: Wire) -> Option<Self> {
        let attach_required = spec.attach_required.unwrap_or(true);
        Some(Self { key: ObjectKey::new("", &metadata.name?), attach_required })
    }

    fn key(&self) -> &ObjectKey {
        &self.key
    }
}

/// A CSI driver on its way from the API server.
#[derive(Debug, Clone, Deserialize, Resource)]
#[resource(inherit = CSIDriver)]
pub struct Wire {
    #[serde(deserialize_with = "meta::slim")]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: WireSpec,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireSpec {
    attach_required: Option<bool>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_are_attached_unless_the_driver_says_that_they_are_not() {
        for (spec, attach_required) in
            [(r#"{"attachRequired":false}"#, false), (r#"{"attachRequired":true}"#, true), ("{}", true)]
        {
            let json = format!(r#"{{"metadata":{{"name":"disks.example.dev"}},"spec":{spec}}}"#);
            let driver = Driver::from_wire(serde_json::from_str(&json).unwrap()).unwrap();
            assert_eq!(driver.attach_required, attach_required, "{spec}");
        }
    }
}
