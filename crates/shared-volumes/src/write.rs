//! The writes.

use cluster::{ObjectKey, Service, Slice, store::Slim};
use k8s_openapi::api::{
    core::v1::{Endpoints, PersistentVolumeClaim, Service as KubernetesService},
    discovery::v1::EndpointSlice,
};
use kube::{
    Client,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    core::Request,
};
use platform::client;
use serde_json::Value;

use crate::{controller::SharedVolumes, live::IN_THE_BACKGROUND};

impl SharedVolumes {
    /// Makes an object. That its name is ours to compute is the precondition.
    async fn create<K>(&self, namespace: &str, body: &Value) -> kube::Result<()>
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    {
        let path = K::url_path(&(), Some(namespace));
        let request = Request::new(path).create(&PostParams::default(), body.to_string().into_bytes());
        client::send_unread(&self.client, request.map_err(kube::Error::BuildRequest)?).await
    }

    /// Changes the version of an object that the change was made for.
    async fn patch<K>(&self, key: &ObjectKey, change: &Value) -> kube::Result<()>
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    {
        let path = K::url_path(&(), Some(key.namespace()));
        let request = Request::new(path).patch(key.name(), &PatchParams::default(), &Patch::Merge(change));
        client::send_unread(&self.client, request.map_err(kube::Error::BuildRequest)?).await
    }

    async fn delete<K>(&self, key: &ObjectKey, uid: &str, version: &str) -> kube::Result<()>
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    {
        let path = K::url_path(&(), Some(key.namespace()));
        let preconditions =
            Some(Preconditions { uid: Some(uid.to_owned()), resource_version: Some(version.to_owned()) });
        let parameters =
            DeleteParams { preconditions, propagation_policy: Some(IN_THE_BACKGROUND), ..DeleteParams::default() };
        let request = Request::new(path).delete(key.name(), &parameters);
        client::send_unread(&self.client, request.map_err(kube::Error::BuildRequest)?).await
    }

    pub(crate) async fn create_service(&self, namespace: &str, body: &Value) -> kube::Result<()> {
        self.create::<KubernetesService>(namespace, body).await
    }

    /// Repairs a Service and returns it as it is then.
    pub(crate) async fn patch_service(&self, key: &ObjectKey, change: &Value) -> kube::Result<Option<Service>> {
        let services: kube::Api<<Service as Slim>::Wire> =
            kube::Api::namespaced(Client::clone(&self.client), key.namespace());
        let patched = services.patch(key.name(), &PatchParams::default(), &Patch::Merge(change)).await?;
        Ok(Service::from_wire(patched))
    }

    pub(crate) async fn create_slice(&self, namespace: &str, body: &Value) -> kube::Result<()> {
        self.create::<EndpointSlice>(namespace, body).await
    }

    pub(crate) async fn patch_slice(&self, key: &ObjectKey, change: &Value) -> kube::Result<()> {
        self.patch::<EndpointSlice>(key, change).await
    }

    pub(crate) async fn delete_slice(&self, slice: &Slice) -> kube::Result<()> {
        self.delete::<EndpointSlice>(&slice.key, &slice.uid, &slice.version).await
    }

    pub(crate) async fn create_endpoints(&self, namespace: &str, body: &Value) -> kube::Result<()> {
        self.create::<Endpoints>(namespace, body).await
    }

    pub(crate) async fn patch_endpoints(&self, key: &ObjectKey, change: &Value) -> kube::Result<()> {
        self.patch::<Endpoints>(key, change).await
    }

    pub(crate) async fn delete_endpoints(&self, key: &ObjectKey, uid: &str, version: &str) -> kube::Result<()> {
        self.delete::<Endpoints>(key, uid, version).await
    }

    pub(crate) async fn patch_claim(&self, key: &ObjectKey, change: &Value) -> kube::Result<()> {
        self.patch::<PersistentVolumeClaim>(key, change).await
    }
}
