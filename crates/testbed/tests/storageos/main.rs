//! The StorageOS control plane: its rules, what can go wrong with it, and the original client that takes it for the real one.

mod faults;
mod file;
mod original;
mod scripts;
mod sessions;
mod volumes;

use anyhow::{Context, Result};
use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode, header::AUTHORIZATION};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use testbed::storageos::{PASSWORD, StorageOs, USERNAME, Volume};
use tokio::net::TcpStream;

const ENDPOINT: &str = "10.0.0.1:25705";

/// An answer, whole.
#[derive(Debug)]
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Answer {
    fn json(&self) -> Result<Value> {
        serde_json::from_slice(&self.body).with_context(|| format!("no JSON: {:?}", self.body))
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The token as the original takes it.
    fn token(&self) -> Result<String> {
        let header = self.header(AUTHORIZATION.as_str()).context("no token")?;
        Ok(header.strip_prefix("Bearer ").context("no bearer token")?.to_owned())
    }
}

/// Asks on a connection of its own.
async fn ask(
    server: &StorageOs,
    method: Method,
    path: &str,
    token: Option<&str>,
    body: Option<Value>,
) -> Result<Answer> {
    let stream = TcpStream::connect(server.address()).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let mut request = http::Request::builder().method(method).uri(format!("/v2{path}")).header("Host", "storageos");
    if let Some(token) = token {
        request = request.header(AUTHORIZATION, format!("Bearer {token}"));
    }
    let body = body.map(|body| body.to_string()).unwrap_or_default();
    let response = sender.send_request(request.body(Full::new(Bytes::from(body)))?).await?;
    let (head, body) = response.into_parts();
    let body = body.collect().await?.to_bytes();
    drop(sender);
    connection.abort();
    Ok(Answer { status: head.status, headers: head.headers, body })
}

/// Someone who has logged in.
struct Client<'a> {
    server: &'a StorageOs,
    token: String,
}

impl<'a> Client<'a> {
    async fn login(server: &'a StorageOs) -> Result<Self> {
        Ok(Self { server, token: login(server, USERNAME, PASSWORD).await?.token()? })
    }

    async fn get(&self, path: &str) -> Result<Answer> {
        ask(self.server, Method::GET, path, Some(&self.token), None).await
    }

    async fn put(&self, path: &str, body: Value) -> Result<Answer> {
        ask(self.server, Method::PUT, path, Some(&self.token), Some(body)).await
    }
}

async fn login(server: &StorageOs, username: &str, password: &str) -> Result<Answer> {
    let body = json!({ "username": username, "password": password });
    ask(server, Method::POST, "/auth/login", None, Some(body)).await
}

fn volume() -> Volume {
    Volume::shared("team", "data", "pvc-1").at(ENDPOINT)
}

/// The paths of a namespace's volumes and of one of them.
fn paths(server: &StorageOs, namespace: &str, id: &str) -> (String, String) {
    let volumes = format!("/namespaces/{}/volumes", server.add_namespace(namespace));
    let volume = format!("{volumes}/{id}");
    (volumes, volume)
}
