//! What a request asks for.

use std::time::Duration;

use http::Method;
use jiff::Timestamp;
use serde_json::Value;

/// The kinds of request that the server tells apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Route {
    /// `POST /auth/login`
    Login,
    /// `POST /auth/refresh`
    Refresh,
    /// `DELETE /users/self/sessions`
    Logout,
    /// `GET /namespaces`
    Namespaces,
    /// `GET /namespaces/{id}`
    Namespace,
    /// `GET /namespaces/{id}/volumes`
    Volumes,
    /// `GET /namespaces/{id}/volumes/{id}`
    Volume,
    /// `PUT /namespaces/{id}/volumes/{id}`: labels and description
    Labels,
    /// `PUT /namespaces/{id}/volumes/{id}/nfs/mount-endpoint`: the published address
    MountEndpoint,
    /// `GET /nodes`
    Nodes,
    /// `GET /pools`
    Pools,
    /// `GET /cluster/licence`
    Licence,
    /// What this server does not know.
    Other,
}

impl Route {
    /// The route of a request, with the ids of namespace and volume in its path.
    pub(super) fn find<'a>(method: &Method, path: &'a str) -> (Self, Option<&'a str>, Option<&'a str>) {
        let Some(path) = path.strip_prefix("/v2/") else { return (Self::Other, None, None) };
        let parts = path.split('/').collect::<Vec<_>>();
        match (method, parts.as_slice()) {
            (&Method::POST, ["auth", "login"]) => (Self::Login, None, None),
            (&Method::POST, ["auth", "refresh"]) => (Self::Refresh, None, None),
            (&Method::DELETE, ["users", "self", "sessions"]) => (Self::Logout, None, None),
            (&Method::GET, ["namespaces"]) => (Self::Namespaces, None, None),
            (&Method::GET, ["namespaces", namespace]) => (Self::Namespace, Some(namespace), None),
            (&Method::GET, ["namespaces", namespace, "volumes"]) => (Self::Volumes, Some(namespace), None),
            (&Method::GET, ["namespaces", namespace, "volumes", id]) => (Self::Volume, Some(namespace), Some(id)),
            (&Method::PUT, ["namespaces", namespace, "volumes", id]) => (Self::Labels, Some(namespace), Some(id)),
            (&Method::PUT, ["namespaces", namespace, "volumes", id, "nfs", "mount-endpoint"]) => {
                (Self::MountEndpoint, Some(namespace), Some(id))
            }
            (&Method::GET, ["nodes"]) => (Self::Nodes, None, None),
            (&Method::GET, ["pools"]) => (Self::Pools, None, None),
            (&Method::GET, ["cluster", "licence"]) => (Self::Licence, None, None),
            _ => (Self::Other, None, None),
        }
    }
}

/// A request that has arrived.
#[derive(Debug, Clone)]
pub(super) struct Call {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) query: String,
    pub(super) route: Route,
    pub(super) namespace_id: Option<String>,
    /// The name of that namespace, if there is one.
    pub(super) namespace: Option<String>,
    pub(super) volume: Option<String>,
    pub(super) token: Option<String>,
    pub(super) user_agent: Option<String>,
    pub(super) body: Vec<u8>,
}

impl Call {
    /// Whether the client wants its write whatever the version is.
    pub(super) fn ignores_version(&self) -> bool {
        self.query.split('&').any(|parameter| parameter == "ignore-version=true")
    }
}

/// A request as the server remembers it.
#[derive(Debug, Clone)]
pub struct Request {
    /// When it arrived.
    pub at: Timestamp,
    /// How long it took, or none if it has not been answered (yet).
    pub took: Option<Duration>,
    /// How it was answered, or none if it was not: it hangs, or its connection was reset.
    pub status: Option<u16>,
    /// `GET`, `POST`, `PUT` or `DELETE`.
    pub method: String,
    /// The path, without query.
    pub path: String,
    /// Its kind.
    pub route: Route,
    /// The name of the namespace that it is about.
    pub namespace: Option<String>,
    /// The id of the volume that it is about.
    pub volume: Option<String>,
    /// The bearer token that came with it.
    pub token: Option<String>,
    /// The program that asked, as it named itself.
    pub user_agent: Option<String>,
    /// What came with it, if it was JSON.
    pub body: Option<Value>,
    /// Of how many volumes a whole answer has told.
    pub told: usize,
}

impl Request {
    pub(super) fn arrived(call: &Call) -> Self {
        let body = serde_json::from_slice(&call.body).ok();
        Self {
            at: Timestamp::now(),
            took: None,
            status: None,
            method: call.method.to_string(),
            path: call.path.clone(),
            route: call.route,
            namespace: call.namespace.clone(),
            volume: call.volume.clone(),
            token: call.token.clone(),
            user_agent: call.user_agent.clone(),
            body,
            told: 0,
        }
    }
}
