//! The writes: each says which version of which object it was decided for, and is refused if that is not what is there.

use cluster::Volume;
use k8s_openapi::{
    api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod},
    jiff::Timestamp,
};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    core::Request,
};
use platform::client;
use serde_json::{Value, json};

use super::{
    controller::Gone,
    decision::{Maker, NODE_GONE_SINCE, Observation, PROVISIONER_FINALIZER},
    identity::{HOME_NODE, Note},
    recreate::{PENDING, Pending},
};

/// What is noted when a machine is there.
pub(super) fn noted(note: Option<&Note>) -> Value {
    let mut annotations = json!({NODE_GONE_SINCE: null});
    if let Some(note) = note {
        annotations[HOME_NODE] = json!(note).to_string().into();
    }
    json!({"metadata": {"annotations": annotations}})
}

/// What is noted when it is gone.
pub(super) fn marked(now: Timestamp) -> Value {
    json!({"metadata": {"annotations": {NODE_GONE_SINCE: format!("{now:.0}")}}})
}

/// What is written down before a claim is deleted that is to be made again.
pub(super) fn written_down(pending: &Pending, mut finalizers: Vec<String>) -> Value {
    if !finalizers.iter().any(|finalizer| finalizer == PENDING) {
        finalizers.push(PENDING.to_owned());
    }
    json!({"metadata": {"annotations": {PENDING: json!(pending).to_string()}, "finalizers": finalizers}})
}

/// The same, taken back.
pub(super) fn withdrawn(finalizers: Vec<String>) -> Value {
    json!({"metadata": {"annotations": {PENDING: null}, "finalizers": without(finalizers, PENDING)}})
}

fn without(mut finalizers: Vec<String>, name: &str) -> Vec<String> {
    finalizers.retain(|finalizer| finalizer != name);
    finalizers
}

impl Gone {
    pub(super) async fn note(&self, volume: &Volume, note: Option<&Note>) -> kube::Result<()> {
        self.write(volume, noted(note)).await
    }

    pub(super) async fn mark(&self, volume: &Volume, now: Timestamp) -> kube::Result<()> {
        self.write(volume, marked(now)).await
    }

    /// Deletes the claim as it was read. One that we are to make again is written down before, and only if it could be made.
    pub(super) async fn delete_claim(&self, seen: &Observation, claim: &Value, maker: &Maker) -> kube::Result<()> {
        let metadata = &claim["metadata"];
        let text = |key: &str| metadata[key].as_str().unwrap_or_default();
        if *maker == Maker::Us {
            let pending = Pending::after(claim, &seen.volume);
            self.rehearse(&pending).await?;
            let finalizers = seen.live.as_ref().map(|live| live.finalizers.clone()).unwrap_or_default();
            let kept = finalizers.iter().any(|finalizer| finalizer == PENDING);
            if !kept || Pending::of(&seen.volume).as_ref() != Some(&pending) {
                self.write(&seen.volume, written_down(&pending, finalizers)).await?;
            }
        }
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client(), text("namespace"));
        claims.delete(text("name"), &only(text("uid"), Some(text("resourceVersion")))).await.map(drop)
    }

    /// Whether the claim could be made again. That its name is taken is the last thing that the server looks at, and all it
    /// may object to; a quota counts the old claim as well as the new one, and says nothing about the time when it is gone.
    async fn rehearse(&self, pending: &Pending) -> kube::Result<()> {
        match self.create(pending, true).await {
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
            Err(kube::Error::Api(status)) if status.is_forbidden() && status.message.contains("exceeded quota") => {
                Ok(())
            }
            made => made.map(drop),
        }
    }

    /// Takes back what was written down, and lets the volume go; if anything has changed since it was decided, not yet.
    pub(super) async fn withdraw(&self, volume: &Volume) -> kube::Result<()> {
        let Some((_, finalizers)) = self.reader.volume(volume.key.name()).await? else { return Ok(()) };
        self.write(volume, withdrawn(finalizers)).await
    }

    /// Makes a claim again. None if somebody else has, or if its namespace is gone.
    pub(super) async fn make_again(&self, pending: &Pending) -> kube::Result<Option<ObjectReference>> {
        match self.create(pending, false).await {
            Ok(made) => Ok(Some(made)),
            Err(kube::Error::Api(status)) if status.is_already_exists() || status.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn create(&self, pending: &Pending, dry_run: bool) -> kube::Result<ObjectReference> {
        let metadata = &pending.manifest["metadata"];
        let path = PersistentVolumeClaim::url_path(&(), metadata["namespace"].as_str());
        let body = serde_json::to_vec(&pending.manifest).map_err(kube::Error::SerdeError)?;
        let parameters = PostParams { dry_run, ..PostParams::default() };
        let request = Request::new(path).create(&parameters, body).map_err(kube::Error::BuildRequest)?;
        let made: Value = self.client().request(request).await?;
        let text = |key: &str| made["metadata"][key].as_str().map(ToOwned::to_owned);
        Ok(ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("PersistentVolumeClaim".into()),
            namespace: text("namespace"),
            name: text("name"),
            uid: text("uid"),
            ..ObjectReference::default()
        })
    }

    /// Deletes the pods that can never start and keep the claim from ending; whoever made them makes them again.
    pub(super) async fn end_pods(&self, seen: &Observation) -> kube::Result<()> {
        let Some((live, claim)) = seen.live.as_ref().zip(seen.volume.claim.as_ref()) else { return Ok(()) };
        let pods: Api<Pod> = Api::namespaced(self.client(), claim.key.namespace());
        for pod in &live.stuck {
            pods.delete(&pod.name, &only(&pod.uid, None)).await?;
        }
        Ok(())
    }

    /// Asks for the end of a volume, if nobody has, and takes off what its provisioner would never take off.
    pub(super) async fn delete_volume(&self, volume: &Volume) -> kube::Result<()> {
        let name = volume.key.name();
        if !volume.being_deleted {
            let volumes: Api<PersistentVolume> = Api::all(self.client());
            volumes.delete(name, &only(&volume.uid, Some(&volume.version))).await?;
        }
        match self.reader.volume(name).await? {
            Some((now, finalizers)) if now.uid == volume.uid && now.being_deleted => {
                if !finalizers.iter().any(|finalizer| finalizer == PROVISIONER_FINALIZER) {
                    return Ok(());
                }
                let change = json!({"metadata": {"finalizers": without(finalizers, PROVISIONER_FINALIZER)}});
                self.write(&now, change).await
            }
            _ => Ok(()),
        }
    }

    fn client(&self) -> Client {
        Client::clone(&self.context.client)
    }

    /// Changes this very version of this very volume.
    async fn write(&self, volume: &Volume, mut change: Value) -> kube::Result<()> {
        change["metadata"]["uid"] = (*volume.uid).into();
        change["metadata"]["resourceVersion"] = (*volume.version).into();
        let path = PersistentVolume::url_path(&(), None);
        let request = Request::new(path).patch(volume.key.name(), &PatchParams::default(), &Patch::Merge(change));
        client::send_unread(&self.context.client, request.map_err(kube::Error::BuildRequest)?).await
    }
}

fn only(uid: &str, version: Option<&str>) -> DeleteParams {
    let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: version.map(ToOwned::to_owned) };
    DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() }
}
