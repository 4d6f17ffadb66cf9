//! Volumes from a file, for those who play with the server by hand.
//!
//! ```yaml
//! volumes:
//! - namespace: team             # of the claim
//!   claim: data
//!   volume: pvc-1               # of Kubernetes
//!   endpoint: 10.0.0.1:25705    # left out while no NFS server runs
//! ```

use anyhow::{Result, anyhow, ensure};
use serde::Deserialize;

use super::{Endpoint, PVC_NAME, Store, Volume};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    volumes: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    namespace: String,
    claim: String,
    volume: String,
    endpoint: Option<String>,
}

impl Entry {
    fn endpoint(&self) -> Endpoint {
        self.endpoint.clone().map_or(Endpoint::NoNfs, Endpoint::At)
    }

    fn is(&self, volume: &Volume) -> bool {
        (&self.namespace, &self.volume) == (&volume.namespace, &volume.name)
    }
}

impl Store {
    /// Makes the volumes those of a file, and says what has changed. What was published stays; a file with an error changes
    /// nothing.
    pub fn apply(&self, yaml: &str) -> Result<Vec<String>> {
        let File { volumes } =
            serde_saphyr::from_str(yaml).map_err(|error| anyhow!("the file of volumes cannot be read: {error}"))?;
        for (index, entry) in volumes.iter().enumerate() {
            let is_first = !volumes[..index]
                .iter()
                .any(|other| (&other.namespace, &other.volume) == (&entry.namespace, &entry.volume));
            ensure!(is_first, "the file has the volume {}/{} twice", entry.namespace, entry.volume);
        }
        let (present, mut changes) = (self.volumes(), Vec::new());
        for (id, volume) in present.iter().filter(|(_, volume)| !volumes.iter().any(|entry| entry.is(volume))) {
            self.remove_volume(id);
            changes.push(format!("{}/{} is gone", volume.namespace, volume.name));
        }
        for entry in &volumes {
            let name = format!("{}/{}", entry.namespace, entry.volume);
            let place = entry.endpoint.as_deref().unwrap_or("no endpoint");
            match present.iter().find(|(_, volume)| entry.is(volume)) {
                None => {
                    self.add_volume(Volume::shared(&entry.namespace, &entry.claim, &entry.volume).at(entry.endpoint()));
                    changes.push(format!("{name} of the claim {} is at {place}", entry.claim));
                }
                Some((_, old))
                    if old.endpoint == entry.endpoint() && old.labels.get(PVC_NAME) == Some(&entry.claim) => {}
                Some((id, _)) => {
                    self.change(id, |volume| {
                        volume.endpoint = entry.endpoint();
                        volume.labels.insert(PVC_NAME.into(), entry.claim.clone());
                    })?;
                    changes.push(format!("{name} of the claim {} is now at {place}", entry.claim));
                }
            }
        }
        Ok(changes)
    }
}
