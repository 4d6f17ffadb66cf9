//! How an object is addressed: namespace and name.

use std::{fmt, sync::Arc};

/// Namespace and name of an object, in one shared allocation: the store's map, its indexes and the queue all hold the same
/// bytes. It says nothing about identity: that is the uid's job.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// `namespace/name`, or just `name` for what lives in no namespace.
    text: Arc<str>,
}

impl ObjectKey {
    /// The key of an object; an empty namespace means cluster-scoped.
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Self {
        let text = if namespace.is_empty() { Arc::from(name) } else { Arc::from(format!("{namespace}/{name}")) };
        Self { text }
    }

    /// The namespace, empty for cluster-scoped objects.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.text.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    /// The name within the namespace.
    #[must_use]
    pub fn name(&self) -> &str {
        self.text.split_once('/').map_or(&self.text, |(_, name)| name)
    }

    /// `namespace/name`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

// One tenant is one namespace: that is whom a burst of work belongs to.
impl platform::queue::Key for ObjectKey {
    fn tenant(&self) -> &str {
        self.namespace()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_tells_namespace_and_name_apart() {
        let namespaced = ObjectKey::new("ci", "build-1-scratch");
        assert_eq!((namespaced.namespace(), namespaced.name()), ("ci", "build-1-scratch"));
        assert_eq!(namespaced.to_string(), "ci/build-1-scratch");
        let cluster_scoped = ObjectKey::new("", "pv-1");
        assert_eq!((cluster_scoped.namespace(), cluster_scoped.name()), ("", "pv-1"));
    }
}
