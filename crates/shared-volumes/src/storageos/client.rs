//! One request, and what its answer means.

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper_rustls::{ConfigBuilderExt, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use platform::{client::USER_AGENT_VALUE, trouble::causes};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use super::{base_url, circuit::Circuit, metrics::Metrics};
use crate::{
    settings::StorageOsSettings,
    source::{ErrorClass, SourceError},
};

/// Tens of thousands of volumes fit.
const MOST_BYTES: usize = 128 << 20;

/// How much of somebody else's text is repeated.
const MOST_WORDS: usize = 200;

pub(super) struct Http {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    base: String,
    timeout: Duration,
    circuit: Circuit,
    metrics: Metrics,
}

/// A good answer.
pub(super) struct Answer {
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Answer {
    /// What it tells.
    pub(super) fn json<T: DeserializeOwned>(&self) -> Result<T, SourceError> {
        serde_json::from_slice(&self.body).map_err(|error| {
            SourceError::new(ErrorClass::Response, format!("the answer of the StorageOS API means nothing: {error}"))
        })
    }
}

impl Http {
    pub(super) fn new(settings: &StorageOsSettings, metrics: Metrics) -> Result<Self, String> {
        let base = base_url(&settings.endpoint)?;
        let connector =
            HttpsConnectorBuilder::new().with_tls_config(tls(&base, settings)?).https_or_http().enable_http1().build();
        let client = Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector);
        Ok(Self { client, base, timeout: settings.request_timeout, circuit: Circuit::default(), metrics })
    }

    /// Sends a request and waits for all of its answer.
    pub(super) async fn send(
        &self,
        method: &Method,
        path: &str,
        token: Option<&str>,
        body: Option<&Value>,
    ) -> Result<Answer, SourceError> {
        let Some(pass) = self.circuit.enter() else {
            let message = "the StorageOS API has not answered for a while and is left alone for some seconds";
            return Err(SourceError::new(ErrorClass::Open, message));
        };
        let answer = self.exchange(method, path, token, body).await;
        match &answer {
            Err(error) if error.class.is_outage() => pass.failed(),
            _ => pass.answered(),
        }
        answer
    }

    async fn exchange(
        &self,
        method: &Method,
        path: &str,
        token: Option<&str>,
        body: Option<&Value>,
    ) -> Result<Answer, SourceError> {
        let request = self.request(method, path, token, body)?;
        let in_flight = self.metrics.begin(method);
        let received = tokio::time::timeout(self.timeout, async {
            let answer = self.client.request(request).await.map_err(|error| transport(&error))?;
            let (head, body) = answer.into_parts();
            in_flight.answered(head.status.as_u16());
            let body = Limited::new(body, MOST_BYTES).collect().await.map_err(|error| broken(&*error))?;
            Ok((head, body.to_bytes()))
        });
        let (head, body) = received.await.map_err(|_| {
            let message = format!("{method} {path} of the StorageOS API was not answered within {:?}", self.timeout);
            SourceError::new(ErrorClass::Timeout, message)
        })??;
        if head.status.is_success() {
            return Ok(Answer { headers: head.headers, body });
        }
        Err(refusal(head.status, &body))
    }

    fn request(
        &self,
        method: &Method,
        path: &str,
        token: Option<&str>,
        body: Option<&Value>,
    ) -> Result<Request<Full<Bytes>>, SourceError> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header(header::ACCEPT, "application/json")
            .header(header::USER_AGENT, USER_AGENT_VALUE);
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = request.body(Full::from(body));
        // Only a token can be at fault: whoever gave it to us is told so.
        request.map_err(|error| SourceError::new(ErrorClass::Response, format!("the request cannot be sent: {error}")))
    }
}

/// What TLS trusts: the CAs that were configured, or else the system's.
fn tls(base: &str, settings: &StorageOsSettings) -> Result<ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS cannot be set up: {error}"))?;
    let mut roots = RootCertStore::empty();
    if let Some(file) = &settings.ca {
        let unusable = |error: &dyn std::fmt::Display| format!("{} has no usable CA: {error}", file.display());
        let certificates = CertificateDer::pem_file_iter(file).map_err(|error| unusable(&error))?;
        for certificate in certificates {
            let certificate = certificate.map_err(|error| unusable(&error))?;
            roots.add(certificate).map_err(|error| unusable(&error))?;
        }
    }
    if !roots.is_empty() || !base.starts_with("https:") {
        return Ok(config.with_root_certificates(roots).with_no_client_auth());
    }
    let config =
        config.with_native_roots().map_err(|error: io::Error| format!("the system's CAs are unusable: {error}"))?;
    Ok(config.with_no_client_auth())
}

fn transport(error: &hyper_util::client::legacy::Error) -> SourceError {
    SourceError::new(ErrorClass::Transport, format!("the StorageOS API cannot be reached: {}", causes(error)))
}

fn broken(error: &(dyn std::error::Error + Send + Sync + 'static)) -> SourceError {
    let class = if error.is::<LengthLimitError>() { ErrorClass::Response } else { ErrorClass::Transport };
    SourceError::new(class, format!("the answer of the StorageOS API broke off: {}", causes(error)))
}

/// What the API says where it does not do what it was asked.
#[derive(Default, Deserialize)]
struct Words {
    #[serde(default)]
    error: String,
}

fn refusal(status: StatusCode, body: &[u8]) -> SourceError {
    let said = serde_json::from_slice::<Words>(body).unwrap_or_default().error;
    let said = if said.is_empty() { String::from_utf8_lossy(body).trim().to_owned() } else { said };
    let stale = said.contains("stale");
    let said: String = said.chars().take(MOST_WORDS).collect();
    let class = match status.as_u16() {
        401 => ErrorClass::Authentication,
        403 => ErrorClass::Unauthorised,
        404 => ErrorClass::NotFound,
        412 => ErrorClass::StaleWrite,
        // Where its description differs from its behaviour, both mean the same.
        409 if stale => ErrorClass::StaleWrite,
        409 => ErrorClass::Conflict,
        503 => ErrorClass::Store,
        500.. => ErrorClass::Server,
        _ => ErrorClass::Refused,
    };
    SourceError::new(class, format!("the StorageOS API answers {status}: {said}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_answer_has_a_class() {
        let class = |status: u16, body: &str| refusal(StatusCode::from_u16(status).unwrap(), body.as_bytes()).class;
        for (status, expected) in [
            (400, ErrorClass::Refused),
            (401, ErrorClass::Authentication),
            (403, ErrorClass::Unauthorised),
            (404, ErrorClass::NotFound),
            (412, ErrorClass::StaleWrite),
            (422, ErrorClass::Refused),
            (423, ErrorClass::Refused),
            (451, ErrorClass::Refused),
            (500, ErrorClass::Server),
            (502, ErrorClass::Server),
            (503, ErrorClass::Store),
            (507, ErrorClass::Server),
            (302, ErrorClass::Refused),
        ] {
            assert_eq!(class(status, "{}"), expected, "{status}");
        }
        assert_eq!(class(409, r#"{"error":"in use"}"#), ErrorClass::Conflict);
        assert_eq!(class(409, r#"{"error":"attempting to write stale object"}"#), ErrorClass::StaleWrite);
    }

    #[test]
    fn the_words_of_the_api_are_told_but_not_at_length() {
        let told = refusal(StatusCode::CONFLICT, br#"{"error":"in use"}"#).message;
        assert_eq!(told, "the StorageOS API answers 409 Conflict: in use");
        assert!(refusal(StatusCode::BAD_GATEWAY, &[b'x'; 10_000]).message.len() < 300);
    }
}
