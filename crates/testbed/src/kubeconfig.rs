//! Kubeconfig files with everything inside, so that a copy of one works anywhere on the machine.

use std::path::Path;

use anyhow::Result;
use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::json;

use crate::pki::{Identity, write_secret};

/// How the bearer of a kubeconfig proves who it is.
pub(crate) enum Credentials<'a> {
    Certificate(&'a Identity),
    /// Of a `ServiceAccount`, whose namespace is where its bearer is at home, as in a pod.
    Token {
        token: &'a str,
        namespace: &'a str,
    },
}

pub(crate) fn write(path: &Path, url: &str, ca: &str, user: &str, credentials: &Credentials<'_>) -> Result<()> {
    let mut context = json!({ "cluster": "testbed", "user": user });
    let user_entry = match credentials {
        Credentials::Certificate(identity) => json!({
            "client-certificate-data": BASE64_STANDARD.encode(&identity.certificate),
            "client-key-data": BASE64_STANDARD.encode(&identity.key),
        }),
        Credentials::Token { token, namespace } => {
            context["namespace"] = json!(namespace);
            json!({ "token": token })
        }
    };
    let cluster = json!({ "server": url, "certificate-authority-data": BASE64_STANDARD.encode(ca) });
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "testbed", "cluster": cluster }],
        "users": [{ "name": user, "user": user_entry }],
        "contexts": [{ "name": "testbed", "context": context }],
        "current-context": "testbed",
    });
    // JSON is YAML, and every reader of kubeconfigs takes it.
    write_secret(path, &format!("{kubeconfig:#}\n"))
}
