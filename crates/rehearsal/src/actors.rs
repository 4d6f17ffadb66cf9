//! Who asks the API server.

use std::collections::HashMap;

use anyhow::{Result, ensure};
use http::{Method, Request};
use kube::{Client, client::Body};
use serde_json::Value;
use testbed::Cluster;
use tokio::sync::Mutex;

/// Who sets the scene; tests keep webhooks from seeing these requests.
pub const STAGEHAND: &str = "stagehand";

/// Users by name, each of whom may do everything.
pub struct Actors {
    cluster: Cluster,
    clients: Mutex<HashMap<String, Client>>,
}

/// What the API server says.
#[derive(Debug)]
pub struct Outcome {
    /// The HTTP status.
    pub code: u16,
    /// An object, or why there is none.
    pub body: Value,
    /// The headers of this name.
    pub warnings: Vec<String>,
}

impl Actors {
    /// Those of a cluster.
    #[must_use]
    pub fn on(cluster: Cluster) -> Self {
        Self { cluster, clients: Mutex::default() }
    }

    /// Asks the API server as somebody.
    pub async fn send(&self, user: &str, method: Method, path: &str, body: Option<&Value>) -> Result<Outcome> {
        let client = self.client(user).await?;
        let content = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let request = Request::builder().method(method).uri(path).header("Content-Type", content);
        let body = body.map_or_else(Vec::new, |body| body.to_string().into_bytes());
        let answer = client.send(request.body(Body::from(body))?).await?;
        let warnings = answer.headers().get_all("Warning").iter().map(|text| Ok(text.to_str()?.to_owned()));
        let (code, warnings) = (answer.status().as_u16(), warnings.collect::<Result<_>>()?);
        let body = answer.into_body().collect_bytes().await?;
        Ok(Outcome { code, body: serde_json::from_slice(&body)?, warnings })
    }

    /// Sets the scene with an object.
    pub async fn make(&self, path: &str, object: &Value) -> Result<Value> {
        let made = self.send(STAGEHAND, Method::POST, path, Some(object)).await?;
        ensure!(made.code == 201, "{made:?}");
        Ok(made.body)
    }

    async fn client(&self, user: &str) -> Result<Client> {
        let mut clients = self.clients.lock().await;
        if let Some(client) = clients.get(user) {
            return Ok(client.clone());
        }
        let kubeconfig = self.cluster.user_kubeconfig(user, &["system:masters"]).await?;
        let client = self.cluster.client(&kubeconfig).await?;
        clients.insert(user.to_owned(), client.clone());
        Ok(client)
    }
}
