//! What a request asks for, in the words of Kubernetes: needed to name it in metrics and errors and to treat it rightly.

use std::fmt;

use http::{Method, Request};

/// One API call: its verb and its resource, never the names of objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) verb: &'static str,
    /// Spelled as kubectl and RBAC do: `pods`, `pods/status`, `leases.coordination.k8s.io`.
    pub(super) resource: String,
    /// Anything but a read: subject to the fence, and never sent twice unless the server said that it did nothing.
    pub(super) writes: bool,
}

impl Call {
    pub(super) fn of<B>(request: &Request<B>) -> Self {
        let writes = !matches!(*request.method(), Method::GET | Method::HEAD);
        let Target { resource, named } = Target::of(request.uri().path());
        let verb = match *request.method() {
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE if named => "delete",
            Method::DELETE => "deletecollection",
            _ if watches(request.uri().query().unwrap_or_default()) => "watch",
            _ if named || resource.is_empty() => "get",
            _ => "list",
        };
        Self { verb, resource, writes }
    }

    pub(super) fn watches(&self) -> bool {
        self.verb == "watch"
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let resource = if self.resource.is_empty() { "the server itself" } else { &self.resource };
        write!(f, "{} {resource}", self.verb)
    }
}

fn watches(query: &str) -> bool {
    query.split('&').any(|parameter| matches!(parameter, "watch=true" | "watch=1"))
}

struct Target {
    /// Empty for what is not a resource: `/version`, `/apis`.
    resource: String,
    /// Whether a single object is addressed.
    named: bool,
}

impl Target {
    fn of(path: &str) -> Self {
        let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
        let (group, rest) = match segments.as_slice() {
            ["api", _version, rest @ ..] => ("", rest),
            ["apis", group, _version, rest @ ..] => (*group, rest),
            _ => ("", [].as_slice()),
        };
        // A namespace is a resource of its own and, when something other than its subresources follows, a prefix.
        let rest = match rest {
            ["namespaces", _, "status" | "finalize"] => rest,
            ["namespaces", _, inner @ ..] if !inner.is_empty() => inner,
            _ => rest,
        };
        let (kind, named, subresource) = match rest {
            [] => return Self { resource: String::new(), named: false },
            [kind] => (kind, false, None),
            [kind, _name] => (kind, true, None),
            [kind, _name, subresource, ..] => (kind, true, Some(subresource)),
        };
        let mut resource = (*kind).to_owned();
        if !group.is_empty() {
            resource.push('.');
            resource.push_str(group);
        }
        if let Some(subresource) = subresource {
            resource.push('/');
            resource.push_str(subresource);
        }
        Self { resource, named }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_named_by_verb_and_resource_and_never_by_object() {
        for (method, uri, verb, resource) in [
            ("GET", "/api/v1/pods?limit=500", "list", "pods"),
            ("GET", "/api/v1/namespaces/a/pods", "list", "pods"),
            ("GET", "/api/v1/namespaces/a/pods/b", "get", "pods"),
            ("HEAD", "/api/v1/namespaces/a/pods/b", "get", "pods"),
            ("GET", "/api/v1/pods?allowWatchBookmarks=true&watch=true", "watch", "pods"),
            ("GET", "/api/v1/pods?watch=1", "watch", "pods"),
            ("GET", "/api/v1/pods?labelSelector=watch%3Dtrue", "list", "pods"),
            ("POST", "/api/v1/namespaces/a/persistentvolumeclaims?fieldManager=x", "create", "persistentvolumeclaims"),
            ("PATCH", "/api/v1/namespaces/a/pods/b/status", "patch", "pods/status"),
            ("POST", "/api/v1/namespaces/a/serviceaccounts/b/token", "create", "serviceaccounts/token"),
            ("GET", "/api/v1/namespaces", "list", "namespaces"),
            ("GET", "/api/v1/namespaces/a", "get", "namespaces"),
            ("PUT", "/api/v1/namespaces/a/finalize", "update", "namespaces/finalize"),
            ("PUT", "/apis/coordination.k8s.io/v1/namespaces/a/leases/b", "update", "leases.coordination.k8s.io"),
            ("DELETE", "/apis/apps/v1/namespaces/a/deployments/b", "delete", "deployments.apps"),
            ("DELETE", "/apis/apps/v1/namespaces/a/deployments", "deletecollection", "deployments.apps"),
            ("GET", "/apis/storage.k8s.io/v1/storageclasses/b", "get", "storageclasses.storage.k8s.io"),
            ("GET", "/version", "get", ""),
            ("GET", "/apis", "get", ""),
            ("GET", "/apis/apps/v1", "get", ""),
        ] {
            let request = Request::builder().method(method).uri(uri).body(()).unwrap();
            let call = Call::of(&request);
            assert_eq!((call.verb, call.resource.as_str()), (verb, resource), "{method} {uri}");
            assert_eq!(call.writes, !matches!(method, "GET" | "HEAD"), "{method} {uri}");
        }
    }
}
